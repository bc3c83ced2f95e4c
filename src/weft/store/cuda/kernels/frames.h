// Frames of Blosc: where their blocks lie, and the copy of blocks from their slots into frames.
#pragma once
#include "copy.h"

struct Frame {
    u32 size;       // bytes of a chunk
    u32 blocksize;  // bytes of a block; the last one may be shorter
    u32 typesize;
    u32 flags;

    WEFT_MEMBER u32 blocks() const { return (size + blocksize - 1) / blocksize; }
    WEFT_MEMBER u32 length(u32 block) const {
        u32 left = size - block * blocksize;
        return left < blocksize ? left : blocksize;
    }
    WEFT_MEMBER u32 stored() const { return 16 + size; }
};

WEFT_DEVICE void put_word(u8* at, u32 value, u32 byte) { at[byte] = (u8)(value >> 8 * byte); }

// The header of a frame, by the first sixteen threads of a phase.
WEFT_DEVICE void put_header(u8* at, Frame frame, u32 total, u32 t) {
    if (t >= 16) return;
    u32 flags = frame.flags | (total == frame.stored() ? 2 : 0);
    u32 kinds = 2 | 1 << 8 | flags << 16 | frame.typesize << 24;
    u32 word = t < 4 ? kinds : t < 8 ? frame.size : t < 12 ? frame.blocksize : total;
    put_word(at + t / 4 * 4, word, t % 4);
}

struct Starts {
    u32 sums[WEFT_THREADS];
    alignas(16) u32 warps[WEFT_WARPS];  // loaded four at a time: nothing else lies among them
};

// The bytes of a block that is made of pieces behind a head: no more than if it is stored.
WEFT_DEVICE u32 block_size(Frame frame, const u32* sizes, u32 block, u32 pieces, u32 head) {
    u32 size = head, length = frame.length(block);
    for (u32 n = 0; n < pieces; ++n) size += sizes[(u64)block * pieces + n];
    return size < length ? size : length;
}

// For a chunk: where its blocks start in its frame, and the bytes of the frame.
WEFT_DEVICE void place_blocks(
    Starts& shared, Frame frame, const u32* sizes, u32 pieces, u32 head, u32* starts, u64* total
) {
    u32 count = frame.blocks(), done = 16 + 4 * count;
    for (u32 first = 0; first < count; first += WEFT_THREADS) {
        WEFT_PHASE(t) {
            bool is_there = first + t < count;
            shared.sums[t] = is_there ? 4 + block_size(frame, sizes, first + t, pieces, head) : 0;
        }
        u32 all = scan(shared.sums, shared.warps);
        WEFT_PHASE(t) {
            if (first + t < count) starts[first + t] = done + shared.sums[t];
        }
        done += all;
    }
    WEFT_PHASE(t) {
        if (t == 0) *total = done < frame.stored() ? done : frame.stored();
    }
}

// A block, its size, its start, and the header if it is the first one, into the frame of its chunk.
WEFT_DEVICE void put_block(
    u8* out, Frame frame, u32 total, u32 block, u32 start, u32 size, const u8* slot, const u8* chunk
) {
    WEFT_PHASE(t) {
        if (block == 0) put_header(out, frame, total, t);
        if (total == frame.stored()) {
            u64 at = (u64)block * frame.blocksize;
            copy(out + 16 + at, chunk + at, frame.length(block), t);
        } else {
            if (t >= 32 && t < 36) put_word(out + 16 + 4 * block, start, t - 32);
            if (t >= 64 && t < 68) put_word(out + start, size, t - 64);
            copy(out + start + 4, slot, size, t);
        }
    }
}

// -- frames of zstd

#define ZSTD_HEAD 9u  // bytes: what it is, how its size is said, its size

WEFT_DEVICE void put_zstd_head(u8* at, u32 size, u32 t) {
    if (t < 4) put_word(at, 0xFD2FB528, t);
    if (t == 4) at[4] = 0xA0;
    if (t >= 5 && t < 9) put_word(at + 5, size, t - 5);
}

// For a chunk: where its pieces start behind a head; the bytes of all are given back.
WEFT_DEVICE u32 place(Starts& shared, u32 head, u32 count, const u32* sizes, u32* starts) {
    u32 done = head;
    for (u32 first = 0; first < count; first += WEFT_THREADS) {
        WEFT_PHASE(t) { shared.sums[t] = first + t < count ? sizes[first + t] : 0; }
        u32 all = scan(shared.sums, shared.warps);
        WEFT_PHASE(t) {
            if (first + t < count) starts[first + t] = done + shared.sums[t];
        }
        done += all;
    }
    return done;
}

// One plane of a block, as a block of zstd or as it is, into the frame of its chunk; with the first
// one the block's size, start and heads. `sizes` are those of all planes of the chunk.
WEFT_DEVICE void put_piece(
    u8* out, Frame frame, u32 total, u32 block, u32 plane, u32 start, const u32* sizes,
    const u8* slot, const u8* chunk
) {
    u32 count = frame.typesize, length = frame.length(block), elements = length / count;
    u64 at = (u64)block * frame.blocksize;
    u32 size = block_size(frame, sizes, block, count, ZSTD_HEAD), before = ZSTD_HEAD;
    for (u32 n = 0; n < plane; ++n) before += sizes[(u64)block * count + n];
    WEFT_PHASE(t) {
        if (block == 0 && plane == 0) put_header(out, frame, total, t);
        if (total == frame.stored()) {
            u64 own = at + plane * elements;
            copy(out + 16 + own, chunk + own, elements, t);
        } else {
            u8* to = out + start + 4;
            if (plane == 0 && t >= 32 && t < 36) put_word(out + 16 + 4 * block, start, t - 32);
            if (plane == 0 && t >= 64 && t < 68) put_word(out + start, size, t - 64);
            if (size < length) {
                if (plane == 0 && t >= 96) put_zstd_head(to, length, t - 96);
                copy(to + before, slot, sizes[(u64)block * count + plane], t);
            } else {
                for (u32 n = t; n < elements; n += WEFT_THREADS)
                    to[plane * elements + n] = chunk[at + (u64)n * count + plane];
            }
        }
    }
}
