// Copies by the lanes of a warp. What is read is there before anything is written, so that loads do not
// wait for stores.
#pragma once
#include "copy.h"

#define LANES_LINE 64u     // bytes up to which lanes copy single ones
#define LANES_PERIOD 512u  // bytes of a repetition that are made one by one

// Bytes that do not overlap.
WEFT_CALLED void lanes_copy(u8* to, const u8* from, u32 count) {
    WEFT_LANES(lane) {
        if (count <= LANES_LINE) {
            u8 first = 0, second = 0;
            if (lane < count) first = from[lane];
            if (lane + 32 < count) second = from[lane + 32];
            if (lane < count) to[lane] = first;
            if (lane + 32 < count) to[lane + 32] = second;
        } else {
            copy_by(32, to, from, count, lane);
        }
    }
}

// `count` bytes that begin `offset` before `to`; where they overlap, those before `to` are repeated.
WEFT_CALLED void lanes_repeat(u8* to, u32 offset, u32 count) {
    const u8* from = to - offset;
    if (offset >= count) {
        lanes_copy(to, from, count);
        return;
    }
    u32 done = count < LANES_PERIOD ? count : LANES_PERIOD;
    WEFT_LANES(lane) {
        u32 place = lane % offset, step = 32 % offset;
        for (u32 first = lane; first < done; first += 128) {
            u8 made[4];
#pragma unroll
            for (u32 n = 0; n < 4; ++n) {
                made[n] = from[place];
                place += step;
                if (place >= offset) place -= offset;
            }
#pragma unroll
            for (u32 n = 0; n < 4; ++n)
                if (first + 32 * n < done) to[first + 32 * n] = made[n];
        }
    }
    u32 distance = (offset + done) / offset * offset;  // it repeats from there on, too
    while (done < count) {
        u32 part = distance < count - done ? distance : count - done;
        lanes_copy(to + done, to + done - distance, part);
        done += part, distance *= 2;
    }
}

// One byte, `count` times.
WEFT_DEVICE void lanes_fill(u8* to, u8 value, u32 count) {
    if (!count) return;
    WEFT_LANES(lane) {
        if (!lane) *to = value;
    }
    if (count > 1) lanes_repeat(to + 1, 1, count - 1);
}
