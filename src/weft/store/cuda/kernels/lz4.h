// LZ4 blocks, each decoded by a warp: sequences one after the other, the bytes of each by all lanes.
//
// The same blocks are refused as by LZ4_decompress_safe. Lengths and offsets are compared with what is
// left before anything is copied, so that no block reads before its output or writes behind it.
#pragma once
#include "recent.h"

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
WEFT_DEVICE bool lz4_decode(Recent& shared, const u8* in, u32 stored, u8* out, u32 size) {
    Input input(shared, in, stored);
    Output output(shared, out);
    u32 at = 0, word = input.word(0);
    while (at < stored) {
        u32 token = word & 255, count = token >> 4, rest = word >> 8;
        ++at;
        if (count) {
            if (count == 15 && !lz4_length(in, stored, stored, at, count)) return false;
            if (count > stored - at || count > size - output.done) return false;
            output.copy(input, at, count);
            at += count;
            input.seek(at);
            rest = input.word(at);
        }
        u32 left = size - output.done;
        if (left < 12 || stored - at < 8) return at == stored && !left;
        u32 offset = rest & 0xFFFF;
        at += 2, count = token & 15;
        if (count == 15) {
            u32 more = rest >> 16 & 255;
            ++at, count += more;
            if (more == 255 && !lz4_length(in, stored - 4, size, at, count)) return false;
        }
        count += 4;
        if (!offset || offset > output.done || count > left - 5) return false;
        input.seek(at);
        word = input.word(at);  // on its way while bytes are copied
        output.repeat(offset, count);
    }
    return false;
}
