// How zstd describes a prefix code. The reference is weft/store/trees.py.
#pragma once
#include "huffman.h"
#include "threads.h"

#define WEIGHTS_DIRECT 128u  // the most weights that are stored as they are
#define WEIGHT_VALUES 12u
#define FSE_LOG 6u
#define FSE_PLACES 64u

struct Tree {
    u32 last;                        // the last symbol that has a code
    u32 most;                        // the longest length
    u32 counts[WEIGHT_VALUES];       // of weights
    u32 shares[WEIGHT_VALUES];       // of places
    u32 firsts[WEIGHT_VALUES];       // the shares before
    u8 places[FSE_PLACES];           // their values
    u8 where[FSE_PLACES];            // the places of each value in order, at its first
    u16 fields[SYMBOLS];             // what each weight puts out; the bits in the upper byte
    u32 states[2];                   // in the end
    u32 bits;                        // of the shares
};

// Bits at any place of a string; no two overlap.
WEFT_DEVICE void put_bits(u32* out, u32 at, u32 value) {
    u32 shift = at % 32;
    if (value << shift) or_shared(&out[at / 32], value << shift);
    if (shift && value >> (32 - shift)) or_shared(&out[at / 32 + 1], value >> (32 - shift));
}

WEFT_DEVICE u32 weight(const Tree& tree, Huffman& code, u32 symbol) {
    u32 length = lengths_of(code)[symbol];
    return length ? tree.most + 1 - length : 0;
}

WEFT_DEVICE void find_weights(Tree& tree, Huffman& code) {
    WEFT_PHASE(t) {
        if (t < WEIGHT_VALUES) tree.counts[t] = 0;
        if (t == 0) {
            u32 last = SYMBOLS - 1, most = CODE_BITS;
            while (!lengths_of(code)[last]) --last;
            while (!code.tally[most]) --most;
            tree.last = last, tree.most = most;
        }
    }
    WEFT_PHASE(t) {
        if (t < tree.last) add_shared(&tree.counts[weight(tree, code, t)], 1);
    }
}

// -- a table of places

WEFT_DEVICE void normalize(Tree& tree) {
    u32 most = 0, sum = 0;
    for (u32 n = 0; n < WEIGHT_VALUES; ++n) {
        u32 count = tree.counts[n], made = count * FSE_PLACES / tree.last;
        if (count > tree.counts[most]) most = n;
        tree.shares[n] = count && !made ? 1 : made;
    }
    if (tree.counts[most] == tree.last) tree.shares[most ? 0 : 1] = 1;
    for (u32 n = 0; n < WEIGHT_VALUES; ++n) sum += tree.shares[n];
    tree.shares[most] += FSE_PLACES - sum;
    for (u32 n = 0, before = 0; n < WEIGHT_VALUES; before += tree.shares[n++]) tree.firsts[n] = before;
}

// The shares as the format has them, by one thread; their bits are given back.
WEFT_DEVICE u32 describe(const Tree& tree, u32* out, u32 at) {
    u32 begin = at, left = FSE_PLACES, value = 0;
    put_bits(out, at, FSE_LOG - 5), at += 4;
    while (left) {
        u32 own = tree.shares[value++], bits = bit_length(left + 1), small = (1u << bits) - 2 - left;
        bool is_small = own + 1 < small, is_high = own + 1 >= 1u << (bits - 1);
        put_bits(out, at, own + 1 + (is_high ? small : 0)), at += bits - is_small;
        left -= own;
        if (own) continue;
        u32 zeros = 0;
        while (!tree.shares[value]) ++zeros, ++value;
        for (; zeros >= 3; zeros -= 3) put_bits(out, at, 3), at += 2;
        put_bits(out, at, zeros), at += 2;
    }
    return at - begin;
}

WEFT_DEVICE void make_table(Tree& tree) {
    WEFT_PHASE(t) {
        if (t < FSE_PLACES) {  // values are 43 places apart, and 3 * 43 is 1 around the table
            u32 turn = 3 * t % FSE_PLACES, value = WEIGHT_VALUES - 1;
            while (tree.firsts[value] > turn) --value;
            tree.places[t] = (u8)value;
        }
    }
    WEFT_PHASE(t) {
        if (t < FSE_PLACES) {
            u32 value = tree.places[t], before = 0;
            for (u32 n = 0; n < t; ++n) before += tree.places[n] == value;
            tree.where[tree.firsts[value] + before] = (u8)t;
        }
    }
}

// -- two states

// The weights of even or of odd numbers, the last one first.
WEFT_DEVICE void walk(Tree& tree, Huffman& code, u32 side) {
    u32 number = (tree.last - 1) % 2 == side ? tree.last - 1 : tree.last - 2;
    u32 state = tree.where[tree.firsts[weight(tree, code, number)]];
    tree.fields[number] = 0;
    while (number >= 2) {
        number -= 2;
        u32 value = weight(tree, code, number), own = tree.shares[value], full = state + FSE_PLACES;
        u32 bits = FSE_LOG + 1 - bit_length(own);
        if (full >> bits < own) --bits;
        tree.fields[number] = (u16)((full & ((1u << bits) - 1)) | bits << 8);
        state = tree.where[tree.firsts[value] + (full >> bits) - own];
    }
    tree.states[side] = state;
}

WEFT_DEVICE u32 put_states(Tree& tree, Huffman& code, u32* out, u32 at) {
    WEFT_PHASE(t) {
        if (t % 32 == 0 && t < 64) walk(tree, code, t / 32);  // a warp each
    }
    WEFT_PHASE(t) {
        code.sums[t] = t < tree.last ? tree.fields[tree.last - 1 - t] >> 8 : 0;
    }
    u32 bits = scan(code.sums, code.warps);
    WEFT_PHASE(t) {
        if (t < tree.last) put_bits(out, at + code.sums[t], tree.fields[tree.last - 1 - t] & 0xFF);
        if (t == 0) {
            u32 end = at + bits;
            put_bits(out, end, tree.states[1] | tree.states[0] << FSE_LOG | 1u << 2 * FSE_LOG);
        }
    }
    return bits + 2 * FSE_LOG + 1;
}

// The description of a code; its bytes are given back, or 0 if they are too many for the format.
WEFT_DEVICE u32 put_tree(Tree& tree, Huffman& code, u32* out, u32 at) {
    find_weights(tree, code);
    if (tree.last <= WEIGHTS_DIRECT) {
        WEFT_PHASE(t) {
            if (t < tree.last) put_bits(out, at + 8 + (t ^ 1) * 4, weight(tree, code, t));
            if (t == 0) put_bits(out, at, 127 + tree.last);
        }
        return 1 + (tree.last + 1) / 2;
    }
    WEFT_PHASE(t) {
        if (t == 0) {
            normalize(tree);
            tree.bits = describe(tree, out, at + 8);
        }
    }
    make_table(tree);
    u32 shares = (tree.bits + 7) / 8;
    u32 states = (put_states(tree, code, out, at + 8 + 8 * shares) + 7) / 8;
    WEFT_PHASE(t) {
        if (t == 0) put_bits(out, at, shares + states);
    }
    return shares + states < WEIGHTS_DIRECT ? 1 + shares + states : 0;
}
