// Prefix codes of at most eleven bits. The reference is weft/store/huffman.py. Thread t has symbol t.
#pragma once
#include "threads.h"

#define SYMBOLS 256u
#define CODE_BITS 11u

struct Huffman {
    u32 counts[SYMBOLS];
    u32 lengths[SYMBOLS / 4];  // four bytes each
    u32 codes[SYMBOLS];        // the length in the upper half
    u32 tally[CODE_BITS + 1];  // how many symbols have each length
    u32 left;                  // what no code takes
    u32 sums[WEFT_THREADS];
    alignas(16) u32 warps[WEFT_WARPS];  // loaded four at a time: nothing else lies among them
};

WEFT_DEVICE u8* lengths_of(Huffman& code) { return (u8*)code.lengths; }

WEFT_DEVICE u32 rounded(u32 count, u32 goal) {
    if (!count) return 0;
    u32 length = 1;
    for (u32 n = 1; n < CODE_BITS; ++n) length += count << length < goal;
    return length;
}

WEFT_DEVICE u32 share(u32 length) { return length ? 1u << (CODE_BITS - length) : 0; }

// How many symbols before one are as long; four at a time.
WEFT_DEVICE u32 rank(const Huffman& code, u32 t, u32 length) {
    u32 found = 0;
    for (u32 n = 0; n <= t / 4; ++n) {
        u32 alike = zero_bytes(code.lengths[n] ^ length * 0x01010101u);
        if (n == t / 4) alike &= (1u << t % 4) - 1;
        found += ones(alike);
    }
    return found;
}

WEFT_DEVICE void tally_lengths(Huffman& code) {
    WEFT_PHASE(t) {
        if (t <= CODE_BITS) code.tally[t] = 0;
    }
    WEFT_PHASE(t) { add_shared(&code.tally[lengths_of(code)[t]], 1); }
}

// One bit less for the first symbols of each length, as far as what is left allows.
WEFT_DEVICE void fill_code(Huffman& code) {
    while (code.left) {
        tally_lengths(code);
        WEFT_PHASE(t) {
            u32 own = lengths_of(code)[t], before = rank(code, t, own), left = code.left;
            bool is_shorter = false;
            for (u32 length = 2; length <= CODE_BITS; ++length) {
                u32 fits = left >> (CODE_BITS - length), count = code.tally[length];
                if (fits < count) count = fits;
                left -= count << (CODE_BITS - length);
                if (length == own) is_shorter = before < count;
            }
            code.sums[t] = is_shorter;
            code.codes[t] = left;
        }
        WEFT_PHASE(t) {
            lengths_of(code)[t] -= (u8)code.sums[t];
            if (t == 0) code.left = code.codes[0];
        }
    }
}

// The sum of all threads' shares of a goal's lengths.
WEFT_DEVICE u32 taken(Huffman& code, u32 goal) {
    WEFT_PHASE(t) { code.sums[t] = share(rounded(code.counts[t], goal)); }
    return scan(code.sums, code.warps);
}

// The lengths of a complete code for symbols of which two or more occur, `size` in all.
WEFT_DEVICE void find_lengths(Huffman& code, u32 size) {
    u32 low = 0, high = 2 * size;
    while (high - low > 1) {
        u32 middle = (low + high) / 2;
        if (taken(code, middle) <= 1u << CODE_BITS) high = middle;
        else low = middle;
    }
    u32 all = taken(code, high);
    WEFT_PHASE(t) {
        lengths_of(code)[t] = (u8)rounded(code.counts[t], high);
        if (t == 0) code.left = (1u << CODE_BITS) - all;
    }
    fill_code(code);
}

WEFT_DEVICE void find_codes(Huffman& code) {
    tally_lengths(code);
    WEFT_PHASE(t) {
        u32 own = lengths_of(code)[t], first = 0, made = 0;
        for (u32 length = CODE_BITS; length > 0; --length) {
            if (length == own) made = first;
            first = (first + code.tally[length]) >> 1;
        }
        code.codes[t] = own ? (made + rank(code, t, own)) | own << 16 : 0;
    }
}
