// Threads of a block, on a device and on the host.
//
// A kernel is a sequence of phases. In a phase each thread of a block does its part, and all of
// them are done before the next one begins:
//
//     WEFT_PHASE(t) { shared.sums[t] = ...; }
//     scan(shared.sums, shared.warps);
//     WEFT_PHASE(t) { ... shared.sums[t] ... }
//
// On a device, `t` is this thread and a barrier ends the phase; on the host, `t` counts. So what a
// thread keeps from one phase to the next lies in the block's shared struct, threads exchange values
// between phases only, and the host's tests see the device's arithmetic. WEFT_KERNEL is how a kernel
// is declared, WEFT_SHARED how its struct is, and WEFT_BLOCK is the number of the block: on the host
// a variable, for which the caller counts.
//
// Where warps work on their own, WEFT_EACH_WARP(w) is the code of warp w, and WEFT_LANES(lane) a phase of
// its 32 lanes; WEFT_SYNC_LANES() waits for all of them. What is outside of phases is computed by all lanes
// alike.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifndef WEFT_THREADS
#define WEFT_THREADS 256u  // of every block, unless a source says otherwise before
#endif
#define WEFT_WARPS (WEFT_THREADS / 32u)

struct alignas(16) Wide {
    u32 word[4];
};

#ifdef __CUDACC__

#define WEFT_DEVICE __device__ __forceinline__
#define WEFT_CALLED __device__ __noinline__  // large, and called from many places
#define WEFT_MEMBER __device__ __forceinline__
#define WEFT_BLOCK (u64(blockIdx.x))
#define WEFT_PHASE(t) for (u32 t = threadIdx.x, once = 1; once; once = 0, __syncthreads())
#define WEFT_EACH_WARP(w) for (u32 w = threadIdx.x / 32, once = 1; once; once = 0)
#define WEFT_LANES(lane) for (u32 lane = threadIdx.x % 32, once = 1; once; once = 0, __syncwarp())
#define WEFT_SYNC_LANES() __syncwarp()
#define WEFT_KERNEL extern "C" __global__ void __launch_bounds__(WEFT_THREADS)
#define WEFT_SHARED(State, name) __shared__ State name

WEFT_DEVICE u32 low_bit(u64 bits) { return __ffsll(bits) - 1; }
WEFT_DEVICE u32 low_bit32(u32 bits) { return __ffs(bits) - 1; }
WEFT_DEVICE u32 ones(u64 bits) { return __popcll(bits); }
WEFT_DEVICE u32 bit_length(u32 value) { return 32 - __clz(value); }
WEFT_DEVICE u32 add_shared(u32* at, u32 value) { return atomicAdd(at, value); }
WEFT_DEVICE void or_shared(u32* at, u32 value) { atomicOr(at, value); }

// The four bytes that begin `bits` (0, 8, 16 or 24) bits into `low`, and go on in `high`.
WEFT_DEVICE u32 funnel(u32 low, u32 high, u32 bits) { return __funnelshift_r(low, high, bits); }

// The four bytes that begin `bits` (0 to 31) bits below the top of `high`, and go on in `low`.
WEFT_DEVICE u32 funnel_left(u32 low, u32 high, u32 bits) { return __funnelshift_l(low, high, bits); }

// Bit t of the words says what thread t said. All threads of a block call it.
WEFT_DEVICE void put_flag(u32* words, u32 t, bool flag) {
    u32 word = __ballot_sync(~0u, flag);
    if (t % 32 == 0) words[t / 32] = word;
}

// Each thread's value becomes the sum of those before it; the sum of all is given back.
WEFT_DEVICE u32 scan(u32* sums, u32* warps) {
    u32 t = threadIdx.x, lane = t % 32, own = sums[t], sum = own;
    for (u32 step = 1; step < 32; step *= 2) {
        u32 other = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += other;
    }
    if (lane == 31) warps[t / 32] = sum;
    __syncthreads();
    u32 before = 0, all = 0;
    for (u32 warp = 0; warp < WEFT_WARPS; ++warp) {
        if (warp == t / 32) before = all;
        all += warps[warp];
    }
    sums[t] = before + sum - own;
    __syncthreads();
    return all;
}

#else

#include <string.h>

extern "C" {
u64 weft_block = 0;
int weft_is_backward = 0;  // threads of a phase run in either order, and make the same
}

#define WEFT_DEVICE static inline
#define WEFT_CALLED [[maybe_unused]] static
#define WEFT_MEMBER inline
#define WEFT_BLOCK weft_block
#define WEFT_PHASE(t)                                                                    \
    for (u32 t##_n = 0, t; t##_n < WEFT_THREADS &&                                       \
                           (t = weft_is_backward ? WEFT_THREADS - 1 - t##_n : t##_n, 1); \
         ++t##_n)
#define WEFT_EACH_WARP(w) for (u32 w = 0; w < WEFT_WARPS; ++w)
#define WEFT_LANES(lane)                                                     \
    for (u32 lane##_n = 0, lane;                                             \
         lane##_n < 32 && (lane = weft_is_backward ? 31 - lane##_n : lane##_n, 1); ++lane##_n)
#define WEFT_SYNC_LANES()
#define WEFT_KERNEL extern "C" void
#define WEFT_SHARED(State, name) \
    static State name;           \
    memset(&name, 0xA5, sizeof name)  // as a device has it: whatever was there

WEFT_DEVICE u32 low_bit(u64 bits) { return __builtin_ctzll(bits); }
WEFT_DEVICE u32 low_bit32(u32 bits) { return __builtin_ctz(bits); }
WEFT_DEVICE u32 ones(u64 bits) { return __builtin_popcountll(bits); }
WEFT_DEVICE u32 bit_length(u32 value) { return value ? 32 - __builtin_clz(value) : 0; }
WEFT_DEVICE u32 add_shared(u32* at, u32 value) { u32 old = *at; *at += value; return old; }
WEFT_DEVICE void or_shared(u32* at, u32 value) { *at |= value; }
WEFT_DEVICE u32 funnel(u32 low, u32 high, u32 bits) {
    return u32(((u64(high) << 32) | low) >> bits);
}
WEFT_DEVICE u32 funnel_left(u32 low, u32 high, u32 bits) {
    return u32(((u64(high) << 32 | low) << bits) >> 32);
}
WEFT_DEVICE void put_flag(u32* words, u32 t, bool flag) {
    words[t / 32] = (words[t / 32] & ~(1u << t % 32)) | u32(flag) << t % 32;
}
WEFT_DEVICE u32 scan(u32* sums, u32*) {
    u32 all = 0;
    for (u32 t = 0; t < WEFT_THREADS; ++t) {
        u32 own = sums[t];
        sums[t] = all;
        all += own;
    }
    return all;
}

#endif

// Four bits: which bytes of a word are zero.
WEFT_DEVICE u32 zero_bytes(u32 word) {
    u32 high = ~(((word & 0x7F7F7F7F) + 0x7F7F7F7F) | word) & 0x80808080;
    return (high >> 7) * 0x10204080 >> 28;
}
