// Elements as they arrive, put into tiles. What is generated from the tiling stands before it:
//
//     ITEM        bytes of an element
//     WIDTH       bytes that a thread moves at a time: 1, 2, 4, 8 or 16; it divides a tile's line
//     SWAPPED     the number of bytes that are reversed at a time: 1 for none
//     ROW         bytes of a row along the grain
//     TILES       tiles of an epoch
//     VECTORS     moves of WIDTH bytes that make a tile
//     source()    which element a move begins with, along the grain and of its row
//
// Tiles lie in the order of their shards: tile n of an epoch is number order[n] as dimensions arrive.
#include "vectors.h"

#define MOVES 4u
#define PART (MOVES * WEFT_THREADS)

struct Seen {
    u32 any;
};

// Rows of an epoch, or of several: from `low` to `high` they are copied, and from there to `end`
// filled. `in` is where row `low` of the first one begins, and those of the next come behind its last;
// `pool` and `stored` are those of the first one, and the others follow. A block for every 1,024 of
// the moves from `first` to `last` of every tile: `parts` for each. `stored` becomes 1 for tiles that
// are not all fill value; it is 0 before.
WEFT_KERNEL weft_scatter(
    const u8* in, u8* pool, u32* stored, const u32* order, u64 fill_low, u64 fill_high, u32 low,
    u32 high, u32 end, u32 first, u32 last, u32 parts
) {
    WEFT_SHARED(Seen, shared);
    u64 tile = WEFT_BLOCK / parts;
    u32 begin = first + (u32)(WEFT_BLOCK % parts) * PART, number = order[tile % TILES];
    const u8* rows = in + tile / TILES * (high - low) * ROW;
    Fill fill;
    fill.words[0] = fill_low, fill.words[1] = fill_high;
    Vector empty = fill.first;
    Vector* to = (Vector*)(pool + tile * ((u64)VECTORS * WIDTH));
    WEFT_PHASE(t) {
        if (t == 0) shared.any = 0;
    }
    WEFT_PHASE(t) {
        Vector values[MOVES];
        bool any = false, is_written[MOVES];
#pragma unroll
        for (u32 n = 0; n < MOVES; ++n) {
            u32 move = begin + n * WEFT_THREADS + t, row = 0;
            u64 at = 0;
            values[n] = empty;
            bool is_inside = source(number, move, row, at);
            is_written[n] = move < last && row >= low && row < end;
            if (is_inside && is_written[n] && row < high)
                values[n] = *(const Vector*)(rows + at * ITEM - (u64)low * ROW);
        }
#pragma unroll
        for (u32 n = 0; n < MOVES; ++n) {
            if (!is_written[n]) continue;
            any |= !is_same(values[n], empty);
            to[begin + n * WEFT_THREADS + t] = swapped(values[n]);
        }
        if (any) or_shared(&shared.any, 1);
    }
    WEFT_PHASE(t) {
        if (t == 0 && shared.any) stored[tile] = 1;
    }
}
