// LZ4 blocks, each decoded by a warp: sequences one after the other, the bytes of each by all lanes.
//
// The same blocks are refused as by LZ4_decompress_safe. Lengths and offsets are compared with what is
// left before anything is copied, so that no block reads before its output or writes behind it.
#pragma once
#include "lanes.h"

// The bytes that follow a length of 15 add to it. False where they end too early, or it is too long.
WEFT_DEVICE bool lz4_length(const u8* in, u32 stop, u32 most, u32& at, u32& length) {
    u32 more = 255;
    while (more == 255) {
        if (at >= stop || length > most) return false;
        more = in[at++];
        length += more;
    }
    return length <= most;
}

// Decode `stored` bytes to exactly `size`; false where they are not such a block.
WEFT_DEVICE bool lz4_decode(const u8* in, u32 stored, u8* out, u32 size) {
    u32 at = 0, done = 0;
    while (at < stored) {
        u32 word = stored - at < 8 ? in[at] : load_word(in + at);
        u32 token = word & 255, count = token >> 4;
        bool has_literals = count;
        ++at;
        if (count == 15 && !lz4_length(in, stored, stored, at, count)) return false;
        if (count > stored - at || count > size - done) return false;
        if (count) lanes_copy(out + done, in + at, count);
        at += count, done += count;
        if (size - done < 12 || stored - at < 8) return at == stored && done == size;
        u32 offset = has_literals ? load_16(in + at) : word >> 8 & 0xFFFF;
        at += 2, count = token & 15;
        bool is_long = count == 15;
        if (is_long && !has_literals) {  // its next byte is here already
            count += word >> 24, ++at;
            is_long = word >> 24 == 255;
        }
        if (is_long && !lz4_length(in, stored - 4, size, at, count)) return false;
        count += 4;
        if (!offset || offset > done || count > size - done - 5) return false;
        lanes_repeat(out + done, offset, count);
        done += count;
    }
    return false;
}
