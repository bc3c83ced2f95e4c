// The elements of chunks, placed in an array that holds a box. What describes both stands before it:
//
//     NDIM        dimensions, at least 1
//     WIDTH       bytes that a thread moves at a time; it divides a chunk's line and the box's
//     PER         elements of WIDTH bytes
//     SWAPPED     the number of bytes that are reversed at a time: 1 for none
//     COUNT       the type that counts the elements of a chunk
//
// A chunk is moves of WIDTH bytes in stored order. `shape` has four rows of NDIM numbers: the sizes of a
// chunk in stored order, the dimension that each of these is, the sizes of the box, and how many elements
// of the array lie between neighbours along each dimension. `origins` has NDIM numbers for each chunk:
// where it begins in the box, along each dimension; what lies outside of the box is left out.
#include "vectors.h"

#define MOVES 4u
#define PART (MOVES * WEFT_THREADS)

typedef long long i64;

// Chunks that lie `stride` bytes apart, or, without a pool, the fill value. A block for every PART of
// the moves of every chunk, `parts` for each; those that failed are left out.
WEFT_KERNEL weft_place(
    const u8* pool, u64 stride, const u32* failed, const u64* origins, const u64* shape, u64 fill_low,
    u64 fill_high, u64 moves, u32 parts, u8* out
) {
    u64 chunk = WEFT_BLOCK / parts, begin = WEFT_BLOCK % parts * PART;
    const i64* origin = (const i64*)origins + chunk * NDIM;
    if (pool && failed[chunk]) return;
    Fill fill;
    fill.words[0] = fill_low, fill.words[1] = fill_high;
    WEFT_PHASE(t) {
#pragma unroll
        for (u32 n = 0; n < MOVES; ++n) {
            u64 move = begin + n * WEFT_THREADS + t, at = 0;
            COUNT rest = (COUNT)move * PER;
            bool is_inside = move < moves;
#pragma unroll
            for (int level = NDIM - 1; level >= 0; --level) {
                COUNT size = (COUNT)shape[level], dim = (COUNT)shape[NDIM + level];
                i64 place = origin[dim] + (i64)(rest % size);
                rest /= size;
                is_inside = is_inside && place >= 0 && place < (i64)shape[2 * NDIM + dim];
                at += (u64)place * shape[3 * NDIM + dim];
            }
            if (!is_inside) continue;
            Vector value = pool ? *(const Vector*)(pool + chunk * stride + move * WIDTH) : fill.first;
            *(Vector*)(out + at * (WIDTH / PER)) = pool ? swapped(value) : value;
        }
    }
}
