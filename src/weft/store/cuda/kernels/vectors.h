// Vectors of WIDTH bytes (1, 2, 4, 8 or 16), which a thread moves at a time, and the reversal of every
// SWAPPED bytes of one.
#pragma once
#include "threads.h"

#if WIDTH == 16
typedef Wide Vector;
WEFT_DEVICE bool is_same(Vector a, Vector b) {
    return !((a.word[0] ^ b.word[0]) | (a.word[1] ^ b.word[1]) | (a.word[2] ^ b.word[2]) |
             (a.word[3] ^ b.word[3]));
}
#else
#if WIDTH == 8
typedef u64 Vector;
#elif WIDTH == 4
typedef u32 Vector;
#elif WIDTH == 2
typedef u16 Vector;
#else
typedef u8 Vector;
#endif
WEFT_DEVICE bool is_same(Vector a, Vector b) { return a == b; }
#endif

// The fill value, as often as it fits into sixteen bytes.
union Fill {
    u64 words[2];
    Vector first;
};

WEFT_DEVICE Vector swapped(Vector value) {
#if SWAPPED > 1
    Vector made;
    for (u32 n = 0; n < WIDTH; ++n)
        ((u8*)&made)[n] = ((u8*)&value)[n / SWAPPED * SWAPPED + SWAPPED - 1 - n % SWAPPED];
    return made;
#else
    return value;
#endif
}
