// Copies of bytes that lie at any address.
#pragma once
#include "threads.h"

WEFT_DEVICE Wide load_wide(const u8* at) { return *(const Wide*)at; }

// The sixteen bytes that begin `by` bytes (0 to 15) into `low`, and go on in `high`.
WEFT_DEVICE Wide funnel_wide(Wide low, Wide high, u32 by) {
    u32 word[8], bits = by % 4 * 8;
    for (u32 n = 0; n < 4; ++n) word[n] = low.word[n], word[n + 4] = high.word[n];
    if (by & 8) for (u32 n = 0; n < 6; ++n) word[n] = word[n + 2];
    if (by & 4) for (u32 n = 0; n < 5; ++n) word[n] = word[n + 1];
    Wide made;
    for (u32 n = 0; n < 4; ++n) made.word[n] = funnel(word[n], word[n + 1], bits);
    return made;
}

// Copy bytes from anywhere to anywhere, by thread t of some: stores of sixteen bytes, each of two loads
// of sixteen. No load goes outside of the sixteen aligned bytes that a wanted byte is in.
WEFT_DEVICE void copy_by(u32 threads, u8* to, const u8* from, u64 size, u32 t) {
    u64 head = (16 - (u64)to % 16) % 16;
    if (head > size) head = size;
    u64 wide = (size - head) / 16, rest = head + 16 * wide;
    u8 before = 0, behind = 0;
    if (t < head) before = from[t];
    if (rest + t < size && t < 16) behind = from[rest + t];
    u32 by = (u32)((u64)(from + head) % 16);
    const u8* source = from + head - by;
    for (u64 first = t; first < wide; first += 4 * threads) {  // four loads are under way at a time
        Wide made[4];
#pragma unroll
        for (u32 k = 0; k < 4; ++k) {
            u64 n = first + k * threads;
            if (n >= wide) break;
            Wide low = load_wide(source + 16 * n);
            Wide high = by ? load_wide(source + 16 * n + 16) : low;
            made[k] = funnel_wide(low, high, by);
        }
#pragma unroll
        for (u32 k = 0; k < 4; ++k) {
            u64 n = first + k * threads;
            if (n < wide) *(Wide*)(to + head + 16 * n) = made[k];
        }
    }
    if (t < head) to[t] = before;
    if (rest + t < size && t < 16) to[rest + t] = behind;
}

// The same in a phase of all threads of a block.
WEFT_DEVICE void copy(u8* to, const u8* from, u64 size, u32 t) {
    copy_by(WEFT_THREADS, to, from, size, t);
}

// Four bytes at any address, by words that are aligned: the next seven bytes must be there.
WEFT_DEVICE u32 load_word(const u8* at) {
    u32 by = (u32)((u64)at % 4);
    const u32* words = (const u32*)(at - by);
    return by ? funnel(words[0], words[1], 8 * by) : words[0];
}

// Numbers at any address, the low byte first.
WEFT_DEVICE u32 load_16(const u8* at) { return at[0] | u32(at[1]) << 8; }
WEFT_DEVICE u32 load_32(const u8* at) { return load_16(at) | load_16(at + 2) << 16; }
