// Blocks of zstd with literals only. The reference is weft/store/literals.py.
//
// One block of threads makes one block of zstd, of up to 8 KiB, as a string of bits in shared
// memory, into which all threads put theirs.
#pragma once
#include "huffman.h"
#include "threads.h"
#include "trees.h"

#define PIECE 8192u       // bytes, 32 for each thread
#define PIECE_SLOT 8208u  // bytes of a slot: a piece, its header, and up to a multiple of 16
#define PIECE_SMALL 64u   // fewer bytes are not worth a code
#define PIECE_HEAD 24u    // bits before what is in a block
#define CODED_HEAD 32u    // bits of sizes before the tree

enum { RAW = 0, ALIKE = 1, CODED = 2 };

// A gap after every eighth word: threads that are 32 bytes apart find different banks.
WEFT_DEVICE u32 gap8_byte(u32 byte) { return byte + (byte >> 5 << 2); }

struct Literals {
    u32 piece[PIECE / 4 + PIECE / 32];  // with gaps
    union {
        u32 out[PIECE_SLOT / 4];
        u32 seen[WEFT_WARPS * SYMBOLS];  // what each warp counted; before anything is put out
    };
    u32 present[WEFT_WARPS];  // which symbols occur
    Huffman code;
    Tree tree;
};

// -- bytes

// Every `typesize`-th byte: one plane of elements.
WEFT_DEVICE void load_piece(Literals& shared, const u8* from, u32 typesize, u32 size) {
    WEFT_PHASE(t) {
        u8* piece = (u8*)shared.piece;
        u32 by = (u32)((u64)from % 4), words = by < typesize ? size / 4 : 0;  // else, across words
        for (u32 n = t; n < words; n += WEFT_THREADS) {
            const u32* at = (const u32*)(from - by + 4 * n * typesize);
            u32 four = 0;
            if (typesize == 1) {
                four = at[0];
            } else if (typesize == 2) {
                u32 one = at[0] >> 8 * by, two = at[1] >> 8 * by;
                four = (one & 0xFF) | (one >> 8 & 0xFF00) | (two & 0xFF) << 16 |
                       (two << 8 & 0xFF000000);
            } else {
                for (u32 k = 0; k < 4; ++k) four |= (at[k * typesize / 4] >> 8 * by & 0xFF) << 8 * k;
            }
            shared.piece[gap8_byte(4 * n) / 4] = four;
        }
        for (u32 n = 4 * words + t; n < size; n += WEFT_THREADS)
            piece[gap8_byte(n)] = from[(u64)n * typesize];
        for (u32 n = t; n < WEFT_WARPS * SYMBOLS; n += WEFT_THREADS) shared.seen[n] = 0;
    }
}

// How often each symbol occurs. Equal bytes of a thread are counted at once.
WEFT_DEVICE void count_symbols(Literals& shared, u32 size) {
    u32 each = (size + WEFT_THREADS - 1) / WEFT_THREADS;
    WEFT_PHASE(t) {
        const u8* piece = (const u8*)shared.piece;
        u32* seen = shared.seen + t / 32 * SYMBOLS;
        u32 at = t * each, stop = at + each < size ? at + each : size, alike = 0, last = 0;
        for (; at < stop; ++at) {
            u32 symbol = piece[gap8_byte(at)];
            if (symbol != last && alike) {
                add_shared(&seen[last], alike);
                alike = 0;
            }
            last = symbol, ++alike;
        }
        if (alike) add_shared(&seen[last], alike);
    }
    WEFT_PHASE(t) {
        u32 count = 0;
        for (u32 warp = 0; warp < WEFT_WARPS; ++warp) count += shared.seen[warp * SYMBOLS + t];
        shared.code.counts[t] = count;
        put_flag(shared.present, t, count > 0);
    }
}

// -- streams

// The symbols of a thread in one of the four streams, a quarter of the threads each.
struct Stretch {
    u32 start, stop;
};

WEFT_DEVICE Stretch stretch(u32 t, u32 size) {
    u32 quarter = (size + 3) / 4, each = (quarter + WEFT_THREADS / 4 - 1) / (WEFT_THREADS / 4);
    u32 stream = t / (WEFT_THREADS / 4), end = (stream + 1) * quarter;
    if (end > size) end = size;
    u32 start = stream * quarter + t % (WEFT_THREADS / 4) * each, stop = start + each;
    Stretch made = {start < end ? start : end, stop < end ? stop : end};
    return made;
}

WEFT_DEVICE u32 count_bits(const Literals& shared, u32 t, u32 size) {
    const u8* piece = (const u8*)shared.piece;
    Stretch own = stretch(t, size);
    u32 bits = 0;
    for (u32 n = own.start; n < own.stop; ++n) bits += shared.code.codes[piece[gap8_byte(n)]] >> 16;
    return bits;
}

// The bits of all streams before that of a thread; `all` are those of the four.
WEFT_DEVICE u32 bits_before(const Literals& shared, u32 t, u32 all) {
    return t < WEFT_THREADS ? shared.code.sums[t] : all;
}

struct Streams {
    u32 bits[4], bytes;
};

WEFT_DEVICE Streams find_streams(const Literals& shared, u32 all) {
    Streams made;
    made.bytes = 0;
#pragma unroll
    for (u32 n = 0; n < 4; ++n) {
        u32 first = n * WEFT_THREADS / 4, next = (n + 1) * WEFT_THREADS / 4;
        made.bits[n] = bits_before(shared, next, all) - bits_before(shared, first, all);
        made.bytes += made.bits[n] / 8 + 1;  // a set bit ends a stream
    }
    return made;
}

// A thread's symbols, the last one first: before them are those of the threads after it.
WEFT_DEVICE void put_symbols(Literals& shared, u32 t, u32 size, u32 at, u32 all) {
    const u8* piece = (const u8*)shared.piece;
    Stretch own = stretch(t, size);
    u32 next = (t / (WEFT_THREADS / 4) + 1) * WEFT_THREADS / 4;
    at += bits_before(shared, next, all) - bits_before(shared, t + 1, all);
    u32 word = at / 32, fill = at % 32;
    u64 bits = 0;
    for (u32 n = own.stop; n-- > own.start;) {
        u32 code = shared.code.codes[piece[gap8_byte(n)]];
        bits |= (u64)(code & 0xFFFF) << fill;
        fill += code >> 16;
        if (fill >= 32) {
            or_shared(&shared.out[word++], (u32)bits);
            bits >>= 32, fill -= 32;
        }
    }
    if (fill) or_shared(&shared.out[word], (u32)bits);
}

WEFT_DEVICE void put_streams(Literals& shared, u32 size, u32 at, Streams streams, u32 all) {
    WEFT_PHASE(t) {
        u32 stream = t / (WEFT_THREADS / 4), from = at + 48, bits = 0;
#pragma unroll
        for (u32 n = 0; n < 4; ++n) {  // not `bits[stream]`: a register has no number
            if (n < stream) from += 8 * (streams.bits[n] / 8 + 1);
            if (n == stream) bits = streams.bits[n];
        }
        put_symbols(shared, t, size, from, all);
        if (t % (WEFT_THREADS / 4) == 0) {
            put_bits(shared.out, from + bits, 1);
            if (stream < 3) put_bits(shared.out, at + 16 * stream, bits / 8 + 1);
        }
    }
}

// -- blocks

// The slot of a block that is stored as it is, or as one byte.
WEFT_DEVICE u32 keep_piece(Literals& shared, u32 size, u32 kind, u32 is_last, u8* slot) {
    u32 length = kind == ALIKE ? 1 : size, head = size << 3 | kind << 1 | is_last;
    WEFT_PHASE(t) {
        const u8* piece = (const u8*)shared.piece;
        for (u32 n = t; n < length + 3; n += WEFT_THREADS)
            slot[n] = (u8)(n < 3 ? head >> 8 * n : piece[gap8_byte(n - 3)]);
    }
    return length + 3;
}

WEFT_DEVICE u32 code_piece(Literals& shared, u32 size, u32 is_last, u8* slot) {
    WEFT_PHASE(t) {
        for (u32 n = t; n < PIECE_SLOT / 4; n += WEFT_THREADS) shared.out[n] = 0;
    }
    find_lengths(shared.code, size);
    find_codes(shared.code);
    u32 described = put_tree(shared.tree, shared.code, shared.out, PIECE_HEAD + CODED_HEAD);
    WEFT_PHASE(t) { shared.code.sums[t] = count_bits(shared, t, size); }
    u32 all = scan(shared.code.sums, shared.code.warps);
    Streams streams = find_streams(shared, all);
    u32 body = described + 6 + streams.bytes, length = CODED_HEAD / 8 + body + 1;
    if (!described || length >= size) return keep_piece(shared, size, RAW, is_last, slot);
    put_streams(shared, size, PIECE_HEAD + CODED_HEAD + 8 * described, streams, all);
    WEFT_PHASE(t) {
        if (t == 0) {
            put_bits(shared.out, 0, length << 3 | CODED << 1 | is_last);
            put_bits(shared.out, PIECE_HEAD, 2 | 2 << 2 | size << 4 | body << 18);
        }
    }
    WEFT_PHASE(t) {
        for (u32 n = t; n < (length + 3 + 15) / 16; n += WEFT_THREADS) {
            Wide four;
            for (u32 k = 0; k < 4; ++k) four.word[k] = shared.out[4 * n + k];
            *(Wide*)(slot + 16 * n) = four;
        }
    }
    return length + 3;
}

// The block of zstd of one plane of up to 8192 elements, in a slot of PIECE_SLOT bytes; its bytes
// are given back.
WEFT_DEVICE u32 encode_piece(
    Literals& shared, const u8* from, u32 typesize, u32 size, u32 is_last, u8* slot
) {
    load_piece(shared, from, typesize, size);
    count_symbols(shared, size);
    u32 symbols = 0;
    for (u32 warp = 0; warp < WEFT_WARPS; ++warp) symbols += ones(shared.present[warp]);
    if (symbols == 1) return keep_piece(shared, size, ALIKE, is_last, slot);
    if (size < PIECE_SMALL) return keep_piece(shared, size, RAW, is_last, slot);
    return code_piece(shared, size, is_last, slot);
}
