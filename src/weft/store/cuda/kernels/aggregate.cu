// Chunks of many sizes, one behind the other in the order of their shards.
#include "frames.h"

struct Sums {
    u64 sums[2][WEFT_THREADS];
    u64 total;
};

// For every chunk where it goes. Chunks go one behind the other in the order given: the n-th is
// order[n], at offsets[order[n]] = placed[n], and placed[count] is the sum of all sizes. A chunk that
// is not `stored` (all fill value) has no size; the others have the sizes given, or all of them
// `fixed` where that is not 0, and `extra` bytes behind them. One block.
WEFT_KERNEL weft_offsets(
    const u32* stored, const u32* order, u64* sizes, u64* offsets, u64* placed, u64 count, u64 fixed,
    u64 extra
) {
    WEFT_SHARED(Sums, shared);
    u64 done = 0;
    for (u64 first = 0; first < count; first += WEFT_THREADS) {
        WEFT_PHASE(t) {
            u64 size = 0;
            if (first + t < count) {
                u32 n = order[first + t];
                sizes[n] = size = stored[n] ? (fixed ? fixed : sizes[n]) : 0;
            }
            shared.sums[0][t] = size ? size + extra : 0;
        }
        u32 now = 0;
        for (u32 step = 1; step < WEFT_THREADS; step *= 2, now ^= 1) {
            WEFT_PHASE(t) {
                u64 before = t >= step ? shared.sums[now][t - step] : 0;
                shared.sums[now ^ 1][t] = shared.sums[now][t] + before;
            }
        }
        WEFT_PHASE(t) {
            if (first + t < count) {
                u32 n = order[first + t];
                u64 own = sizes[n] ? sizes[n] + extra : 0;
                offsets[n] = placed[first + t] = done + shared.sums[now][t] - own;
            }
            if (t == WEFT_THREADS - 1) shared.total = shared.sums[now][t];
        }
        done += shared.total;
    }
    WEFT_PHASE(t) {
        if (t == 0) placed[count] = done;
    }
}

// Copy chunk n from in + n * stride to out + offsets[n]; `parts` blocks for each, of `size` bytes.
WEFT_KERNEL weft_gather(
    const u8* in, u64 stride, const u64* sizes, const u64* offsets, u8* out, u32 parts, u64 size
) {
    u64 chunk = WEFT_BLOCK / parts, first = WEFT_BLOCK % parts * size;
    u64 left = sizes[chunk] > first ? sizes[chunk] - first : 0;
    WEFT_PHASE(t) {
        copy(out + offsets[chunk] + first, in + chunk * stride + first, left < size ? left : size, t);
    }
}
