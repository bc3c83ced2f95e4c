// CRC32C of chunks that lie in one buffer, put behind each of them, or compared with what is there.
//
// A CRC is the remainder of a polynomial over the bits, so it can be computed in slices: the remainder
// of A followed by B is that of A, times x to the bits of B, plus that of B. Slices, and parts of
// slices, are counted from a chunk's end. Then all but the first have one length, the factors are
// constants, and a first one that is short, or missing, has a remainder of 0 before it.
//
// | launch | blocks of the grid | shared |
// | weft_crc_parts | chunks * parts | Crc, 5 KiB |
// | weft_crc_put, weft_crc_check | ceil(chunks / 256) | none |
//
// parts = ceil(the most bytes of a chunk / CRC_PART). sums: chunks * parts * 4 bytes. Chunk n is
// sizes[n] bytes at out + offsets[n], with four bytes of room behind it; one of size 0 is not there.
#include "threads.h"

#define CRC_POLYNOMIAL 0x82F63B78u  // Castagnoli's, reflected: bit 31 is the coefficient of x^0
#define CRC_SLICE 256u              // bytes of a thread
#define CRC_PART (WEFT_THREADS * CRC_SLICE)
#define CRC_AFTER_PART 0xFE7740E6u  // x^(8 * CRC_PART)

struct Crc {
    u32 table[4][256];  // [n][byte]: the remainder of a byte with n bytes of zero behind it
    u32 sums[WEFT_THREADS];
};

WEFT_DEVICE u32 crc_times(u32 one, u32 other) {
    u32 product = 0;
    for (u32 bit = 1u << 31; bit; bit >>= 1) {
        if (one & bit) product ^= other;
        other = other >> 1 ^ (other & 1 ? CRC_POLYNOMIAL : 0);
    }
    return product;
}

// All threads of a block call it.
WEFT_DEVICE void crc_tables(Crc& shared) {
    WEFT_PHASE(t) {
        u32 value = t;
        for (u32 bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? CRC_POLYNOMIAL : 0);
        shared.table[0][t] = value;
    }
    for (u32 n = 1; n < 4; ++n) {
        WEFT_PHASE(t) {
            u32 value = shared.table[n - 1][t];
            shared.table[n][t] = value >> 8 ^ shared.table[0][value & 255];
        }
    }
}

// Bytes behind those that gave a remainder: four at a time, where they are aligned.
WEFT_DEVICE u32 crc_of(const Crc& shared, u32 crc, const u8* at, const u8* end) {
    for (; at < end && (u64)at % 4; ++at) crc = crc >> 8 ^ shared.table[0][(crc ^ *at) & 255];
    for (; end - at >= 4; at += 4) {
        crc ^= *(const u32*)at;
        crc = shared.table[3][crc & 255] ^ shared.table[2][crc >> 8 & 255] ^
              shared.table[1][crc >> 16 & 255] ^ shared.table[0][crc >> 24];
    }
    for (; at < end; ++at) crc = crc >> 8 ^ shared.table[0][(crc ^ *at) & 255];
    return crc;
}

// The remainder of each part of each chunk; part 0 is the last.
WEFT_KERNEL weft_crc_parts(
    const u8* out, const u64* sizes, const u64* offsets, u32* sums, u32 parts
) {
    WEFT_SHARED(Crc, shared);
    const u32 after[8] = {  // x^(8 * CRC_SLICE * 2^k)
        0x88E56F72u, 0x74C360A4u, 0xE4172B16u, 0x0D65762Au,
        0x35D73A62u, 0x28461564u, 0xBF455269u, 0xE2EA32DCu,
    };
    u64 chunk = WEFT_BLOCK / parts, skipped = WEFT_BLOCK % parts * CRC_PART;
    if (sizes[chunk] <= skipped) return;
    u64 stop = sizes[chunk] - skipped, start = stop > CRC_PART ? stop - CRC_PART : 0;
    const u8* part = out + offsets[chunk] + start;
    u32 length = (u32)(stop - start);
    crc_tables(shared);
    WEFT_PHASE(t) {
        u32 behind = (WEFT_THREADS - 1 - t) * CRC_SLICE;
        u32 high = length > behind ? length - behind : 0;
        u32 low = high > CRC_SLICE ? high - CRC_SLICE : 0;
        bool is_first = high && !low && !start;  // a CRC begins with ones
        shared.sums[t] = crc_of(shared, is_first ? ~0u : 0, part + low, part + high);
    }
#pragma unroll
    for (u32 k = 0; k < 8; ++k) {
        WEFT_PHASE(t) {
            if (t < WEFT_THREADS >> (k + 1)) {
                u32 right = ((2 * t + 2) << k) - 1, left = right - (1u << k);
                shared.sums[right] ^= crc_times(shared.sums[left], after[k]);
            }
        }
    }
    WEFT_PHASE(t) {
        if (t == 0) sums[WEFT_BLOCK] = shared.sums[WEFT_THREADS - 1];
    }
}

// The CRC32C of a chunk, of its parts.
WEFT_DEVICE u32 crc_whole(u64 size, const u32* sums) {
    u32 crc = 0;
    for (u64 part = (size + CRC_PART - 1) / CRC_PART; part--;)
        crc = crc_times(crc, CRC_AFTER_PART) ^ sums[part];
    return ~crc;
}

// The CRC32C of each chunk, behind the chunk; one thread for each.
WEFT_KERNEL weft_crc_put(
    u8* out, const u64* sizes, const u64* offsets, const u32* sums, u32 parts, u64 count
) {
    WEFT_PHASE(t) {
        u64 chunk = WEFT_BLOCK * WEFT_THREADS + t;
        if (chunk < count && sizes[chunk]) {
            u32 crc = crc_whole(sizes[chunk], sums + chunk * parts);
            u8* at = out + offsets[chunk] + sizes[chunk];
            for (u32 byte = 0; byte < 4; ++byte) at[byte] = (u8)(crc >> 8 * byte);
        }
    }
}

// The same, compared: failed[n] becomes 1 where chunk n does not match.
WEFT_KERNEL weft_crc_check(
    const u8* staged, const u64* sizes, const u64* offsets, const u32* sums, u32 parts, u64 count,
    u32* failed
) {
    WEFT_PHASE(t) {
        u64 chunk = WEFT_BLOCK * WEFT_THREADS + t;
        if (chunk < count && sizes[chunk]) {
            const u8* at = staged + offsets[chunk] + sizes[chunk];
            u32 stored = at[0] | at[1] << 8 | at[2] << 16 | u32(at[3]) << 24;
            if (stored != crc_whole(sizes[chunk], sums + chunk * parts)) failed[chunk] = 1;
        }
    }
}
