// Frames of Blosc 1 as they are read: a header, the starts of blocks, and blocks of one or more streams.
//
// A frame is untrusted. What its header says is compared with the bytes that there are, and with the
// size of a chunk; starts and sizes of streams are compared with the end of the frame.
#pragma once
#include "lanes.h"

#define BLOSC_HEAD 16u
#define BLOSC_SHUFFLE 1u
#define BLOSC_RAW 2u
#define BLOSC_BITSHUFFLE 4u
#define BLOSC_WHOLE 16u  // blocks are not split
#define BLOSC_LZ4 1u
#define BLOSC_ZSTD 4u
#define BLOSC_MOST_SPLITS 16u
#define BLOSC_SPLIT_ELEMENTS 128u
#define BLOSC_MOST_BLOCK 715827542u

struct Stream {
    const u8* from;
    u32 stored;  // as many bytes as `size` are not compressed
    u32 size;
    u64 to;      // where its bytes lie in the chunk
};

struct BloscFrame {
    const u8* at;
    u32 stored, size, blocksize, typesize, flags;

    WEFT_MEMBER u32 format() const { return flags >> 5; }
    WEFT_MEMBER bool is_raw() const { return flags & BLOSC_RAW; }
    WEFT_MEMBER u32 whole_blocks() const { return size / blocksize; }
    WEFT_MEMBER u32 rest() const { return size % blocksize; }
    WEFT_MEMBER u32 blocks() const { return whole_blocks() + (rest() != 0); }

    // Streams of a whole block; the last block, if it is shorter, has one.
    WEFT_MEMBER u32 splits() const {
        bool is_split = !(flags & (BLOSC_WHOLE | BLOSC_RAW)) && typesize <= BLOSC_MOST_SPLITS &&
                        blocksize / typesize >= BLOSC_SPLIT_ELEMENTS;
        return is_split ? typesize : 1;
    }
    WEFT_MEMBER u64 streams() const { return (u64)whole_blocks() * splits() + (rest() != 0); }

    // Read the header; false where it does not describe a chunk of `wanted` bytes.
    WEFT_MEMBER bool parse(const u8* from, u64 count, u64 wanted) {
        at = from;
        if (count < BLOSC_HEAD || count > 0x7FFFFFFF || wanted > 0x7FFFFFFF) return false;
        u32 version = from[0], format_version = from[1];
        flags = from[2], typesize = from[3];
        size = load_32(from + 4), blocksize = load_32(from + 8), stored = load_32(from + 12);
        if (version != 2 || flags & 8 || !typesize || stored != count || size != wanted) return false;
        if (!blocksize || blocksize > size || blocksize > BLOSC_MOST_BLOCK) return false;
        if (is_raw()) return stored - BLOSC_HEAD == size;
        if (format_version != 1 || (format() != BLOSC_LZ4 && format() != BLOSC_ZSTD)) return false;
        return blocks() <= (stored - BLOSC_HEAD) / 4;
    }

    // Find a stream; false where it does not lie in the frame.
    WEFT_MEMBER bool find(u64 number, Stream& found) const {
        u32 count = splits(), block = (u32)(number / count), split = (u32)(number % count);
        if (number >= (u64)whole_blocks() * count) block = whole_blocks(), split = 0, count = 1;
        u32 length = block < whole_blocks() ? blocksize : rest();
        found.size = length / count;
        found.to = (u64)block * blocksize + split * found.size;
        if (is_raw()) {
            found.from = at + BLOSC_HEAD + found.to, found.stored = found.size;
            return true;
        }
        u32 start = load_32(at + BLOSC_HEAD + 4 * block);
        for (u32 n = 0; n <= split; ++n) {
            if (start > stored - 4) return false;
            found.stored = load_32(at + start);
            start += 4;
            if (found.stored > stored - start) return false;
            found.from = at + start;
            start += found.stored;
        }
        return true;
    }
};

// The streams of the frame of a chunk, those that are left to this warp, by a compressor of one format.
template <class Decode>
WEFT_DEVICE bool decode_streams(
    const BloscFrame& frame, u32 format, u64 first, u64 step, u8* to, Decode decode
) {
    if (!frame.is_raw() && frame.format() != format) return false;
    for (u64 n = first; n < frame.streams(); n += step) {
        Stream stream;
        if (!frame.find(n, stream)) return false;
        if (stream.stored == stream.size) lanes_copy(to + stream.to, stream.from, stream.size);
        else if (!decode(stream)) return false;
    }
    return true;
}

// Whether the bytes or bits of the elements of a block are in planes.
WEFT_DEVICE bool has_planes(const BloscFrame& frame) {
    if (frame.is_raw()) return false;
    return (frame.flags & BLOSC_SHUFFLE && frame.typesize > 1) || frame.flags & BLOSC_BITSHUFFLE;
}

// Eight rows of eight bits, transposed: bit b of row r becomes bit r of row b.
WEFT_DEVICE u64 transpose_bits(u64 rows) {
    u64 moved = (rows ^ rows >> 7) & 0x00AA00AA00AA00AAull;
    rows ^= moved ^ moved << 7;
    moved = (rows ^ rows >> 14) & 0x0000CCCC0000CCCCull;
    rows ^= moved ^ moved << 14;
    moved = (rows ^ rows >> 28) & 0x00000000F0F0F0F0ull;
    return rows ^ moved ^ moved << 28;
}

// One unit of a block whose bytes are in planes, by one thread: eight elements, or what is left.
WEFT_DEVICE void join_bytes(const u8* from, u8* to, u32 length, u32 typesize, u32 unit) {
    u32 elements = length / typesize, first = 8 * unit;
    u32 last = first + 8 < elements ? first + 8 : elements;
    if (typesize == 2 && last - first == 8 && !((u64)(to + 16 * unit) % 16)) {
        Wide made;
        for (u32 n = 0; n < 4; ++n) {
            const u8 *low = from + first + 2 * n, *high = low + elements;
            made.word[n] = low[0] | high[0] << 8 | low[1] << 16 | u32(high[1]) << 24;
        }
        *(Wide*)(to + 16 * unit) = made;
        return;
    }
    for (u32 n = first; n < last; ++n)
        for (u32 byte = 0; byte < typesize; ++byte)
            to[(u64)n * typesize + byte] = from[(u64)byte * elements + n];
}

// The same of bits: plane p holds bit p of each element, eight of them in a byte.
WEFT_DEVICE void join_bits(const u8* from, u8* to, u32 length, u32 typesize, u32 unit) {
    u32 row = length / typesize / 8;
    u64 joined[2] = {};
    bool is_pair = typesize == 2 && !((u64)(to + 16 * unit) % 16);
    for (u32 byte = 0; byte < typesize; ++byte) {
        u64 rows = 0;
        for (u32 bit = 0; bit < 8; ++bit)
            rows |= (u64)from[(u64)(8 * byte + bit) * row + unit] << 8 * bit;
        rows = transpose_bits(rows);
        if (is_pair) {
            joined[byte] = rows;
        } else {
            for (u32 n = 0; n < 8; ++n)
                to[((u64)8 * unit + n) * typesize + byte] = (u8)(rows >> 8 * n);
        }
    }
    if (!is_pair) return;
    Wide made;
    for (u32 n = 0; n < 4; ++n) {
        u32 low = (u32)(joined[0] >> 16 * n), high = (u32)(joined[1] >> 16 * n);
        made.word[n] = (low & 255) | (high & 255) << 8 | (low >> 8 & 255) << 16 | high >> 8 << 24;
    }
    *(Wide*)(to + 16 * unit) = made;
}

// Units of a block: eight elements each, and one of the bytes behind the last element.
WEFT_DEVICE u32 block_units(const BloscFrame& frame, u32 length) {
    return (length / frame.typesize + 7) / 8 + 1;
}

// Join the planes of one unit of a block of `length` bytes.
WEFT_DEVICE void join_unit(const BloscFrame& frame, const u8* from, u8* to, u32 length, u32 unit) {
    u32 typesize = frame.typesize, elements = length / typesize;
    bool is_bytes = frame.flags & BLOSC_SHUFFLE && typesize > 1;
    bool is_plain = !is_bytes && elements % 8;  // such blocks are not shuffled
    if (unit == (elements + 7) / 8) {
        for (u32 n = elements * typesize; n < length; ++n) to[n] = from[n];
    } else if (is_plain) {
        u32 last = 8 * unit + 8 < elements ? 8 * unit + 8 : elements;
        for (u32 n = 8 * unit * typesize; n < last * typesize; ++n) to[n] = from[n];
    } else if (is_bytes) {
        join_bytes(from, to, length, typesize, unit);
    } else {
        join_bits(from, to, length, typesize, unit);
    }
}
