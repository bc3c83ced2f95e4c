// LZ4 blocks of bit planes, with runs of one byte only. The reference is weft/store/runs.py.
//
// One block of threads makes one block of a frame, of up to 16 KiB, in shared memory. Each thread
// has 64 bytes of the planes: a word of 64 bits says which of them are in runs.
#pragma once
#include "threads.h"

#define RUNS_BLOCK 16384u  // bytes, 64 for each thread
#define RUNS_LEAST 6u      // bytes of the shortest run
#define RUNS_MARGIN 12u    // bytes at the end that are literals

// Words in shared memory with a gap after every sixteenth, or thirty-second: threads that are 64 or
// 128 bytes apart find different banks.
WEFT_DEVICE u32 gap16(u32 word) { return word + (word >> 4); }
WEFT_DEVICE u32 gap32(u32 word) { return word + (word >> 5); }
WEFT_DEVICE u32 gap16_byte(u32 byte) { return byte + (byte >> 6 << 2); }

struct Runs {
    u32 raw[RUNS_BLOCK / 4 + RUNS_BLOCK / 64];     // elements, gap32; then the LZ4 block, gap16
    u32 planes[RUNS_BLOCK / 4 + RUNS_BLOCK / 64];  // gap16
    u64 same[WEFT_THREADS];                        // which bytes equal the one before
    u64 runs[WEFT_THREADS];                        // which of them are in runs
    u32 has_run[WEFT_WARPS];                       // which threads' bytes are in a run, any
    u32 has_literal[WEFT_WARPS];                   // which have a byte that is not
    u32 sums[WEFT_THREADS];
    alignas(16) u32 warps[WEFT_WARPS];  // loaded four at a time: nothing else lies among them
};

// -- elements

WEFT_DEVICE void load_raw(Runs& shared, const u8* from, u32 length) {
    WEFT_PHASE(t) {
        u8* raw = (u8*)shared.raw;
        u32 wide = (u64)from % 16 ? 0 : length / 16;
#pragma unroll 4
        for (u32 n = t; n < wide; n += WEFT_THREADS) {
            Wide four = *(const Wide*)(from + 16 * n);
            for (u32 k = 0; k < 4; ++k) shared.raw[gap32(4 * n + k)] = four.word[k];
        }
        for (u32 n = 16 * wide + t; n < length; n += WEFT_THREADS)
            raw[4 * gap32(n / 4) + n % 4] = from[n];
    }
}

// -- planes

// An 8 x 8 matrix of bits, its rows bytes of `low` and then of `high`, turned over.
WEFT_DEVICE void transpose_bits(u32& low, u32& high) {
    u32 x = (low ^ low >> 7) & 0x00AA00AA, y = (high ^ high >> 7) & 0x00AA00AA;
    low ^= x ^ x << 7, high ^= y ^ y << 7;
    x = (low ^ low >> 14) & 0x0000CCCC, y = (high ^ high >> 14) & 0x0000CCCC;
    low ^= x ^ x << 14, high ^= y ^ y << 14;
    x = (low ^ high << 4) & 0xF0F0F0F0;
    low ^= x, high ^= x >> 4;
}

// Four words' bytes, turned over: word n gets byte n of each.
WEFT_DEVICE void transpose_bytes(u32& a, u32& b, u32& c, u32& d) {
    u32 ab = (a & 0x00FF00FF) | (b & 0x00FF00FF) << 8, cd = (c & 0x00FF00FF) | (d & 0x00FF00FF) << 8;
    u32 AB = (a >> 8 & 0x00FF00FF) | (b & 0xFF00FF00), CD = (c >> 8 & 0x00FF00FF) | (d & 0xFF00FF00);
    a = (ab & 0xFFFF) | cd << 16, c = ab >> 16 | (cd & 0xFFFF0000);
    b = (AB & 0xFFFF) | CD << 16, d = AB >> 16 | (CD & 0xFFFF0000);
}

// The eight planes of one byte of 32 elements: eight words, of one bit of each element.
template <u32 T>
WEFT_DEVICE void planes_of(const u32* raw, u32 group, u32 byte, u32* word) {
#pragma unroll
    for (u32 n = 0; n < 8; ++n) {  // four elements' bytes into a word
        u32 four = 0;
        if (T == 1) {
            four = raw[gap32(group * 8 + n)];
        } else if (T == 2) {
            u32 one = raw[gap32(group * 16 + 2 * n)] >> 8 * byte;
            u32 two = raw[gap32(group * 16 + 2 * n + 1)] >> 8 * byte;
            four = (one & 0xFF) | (one >> 8 & 0xFF00) | (two & 0xFF) << 16 | (two << 8 & 0xFF000000);
        } else {
#pragma unroll
            for (u32 k = 0; k < 4; ++k) {
                u32 at = (group * 32 + 4 * n + k) * (T / 4) + byte / 4;
                four |= (raw[gap32(at)] >> byte % 4 * 8 & 0xFF) << 8 * k;
            }
        }
        word[n] = four;
    }
#pragma unroll
    for (u32 n = 0; n < 8; n += 2) transpose_bits(word[n], word[n + 1]);
    // Now word 2n has planes 0 to 3 of elements 8n to 8n + 7, a byte each, and word 2n + 1 the rest.
    transpose_bytes(word[0], word[2], word[4], word[6]);
    transpose_bytes(word[1], word[3], word[5], word[7]);
}

template <u32 T>
WEFT_DEVICE void shuffle_bits(Runs& shared, u32 length) {
    u32 elements = length / T, groups = (elements + 31) / 32, row = elements / 8;
    WEFT_PHASE(t) {
        for (u32 task = t; task < groups * T; task += WEFT_THREADS) {
            u32 byte = task / groups, group = task % groups, word[8];
            planes_of<T>(shared.raw, group, byte, word);
#pragma unroll
            for (u32 j = 0; j < 8; ++j) {
                u32 made = word[j % 4 * 2 + j / 4], at = (8 * byte + j) * row + 4 * group;
                if (elements % 32 == 0) {
                    shared.planes[gap16(at / 4)] = made;
                } else {  // rows that do not begin with a word
                    u32 left = row - 4 * group;
                    for (u32 k = 0; k < 4 && k < left; ++k)
                        ((u8*)shared.planes)[gap16_byte(at + k)] = (u8)(made >> 8 * k);
                }
            }
        }
    }
}

// Blosc leaves a block as it is if eight does not divide its elements.
WEFT_DEVICE void keep_bits(Runs& shared, u32 length) {
    WEFT_PHASE(t) {
        for (u32 n = t; n < (length + 3) / 4; n += WEFT_THREADS)
            shared.planes[gap16(n)] = shared.raw[gap32(n)];
    }
}

WEFT_DEVICE void make_planes(Runs& shared, u32 length, u32 typesize) {
    if (length % (8 * typesize)) return keep_bits(shared, length);
    switch (typesize) {
        case 1: return shuffle_bits<1>(shared, length);
        case 2: return shuffle_bits<2>(shared, length);
        case 4: return shuffle_bits<4>(shared, length);
        case 8: return shuffle_bits<8>(shared, length);
        default: return shuffle_bits<16>(shared, length);
    }
}

// -- runs

WEFT_DEVICE u64 below(u32 count) { return count >= 64 ? ~0ull : (1ull << count) - 1; }

WEFT_DEVICE void find_same(Runs& shared, u32 length) {
    u32 last = length > RUNS_MARGIN ? length - RUNS_MARGIN : 0;
    WEFT_PHASE(t) {
        u64 same = 0;
        u32 before = t ? shared.planes[gap16(16 * t - 1)] : 0;
#pragma unroll
        for (u32 n = 0; n < 16; ++n) {
            u32 word = shared.planes[gap16(16 * t + n)];
            same |= (u64)zero_bytes(word ^ funnel(before, word, 24)) << 4 * n;
            before = word;
        }
        if (t == 0) same &= ~1ull;
        shared.same[t] = same & (last > 64 * t ? below(last - 64 * t) : 0);
    }
}

// Bits with `by` more set bits after them, which go on in `next`.
WEFT_DEVICE u64 and_next(u64 bits, u64 next, u32 by) { return bits & (bits >> by | next << (64 - by)); }

// The starts of RUNS_LEAST set bits; those of `next` count as unset where they need bits after it.
WEFT_DEVICE u64 long_ones(u64 bits, u64 next) {
    u64 two = and_next(bits, next, 1), two_next = and_next(next, 0, 1);
    u64 four = and_next(two, two_next, 2);
    return four & (two >> 4 | two_next << 60);  // four and two are six
}

WEFT_DEVICE void find_runs(Runs& shared) {
    WEFT_PHASE(t) {
        u64 before = t ? shared.same[t - 1] : 0, same = shared.same[t];
        u64 after = t + 1 < WEFT_THREADS ? shared.same[t + 1] : 0;
        u64 starts = long_ones(same, after), earlier = long_ones(before, same), runs = starts;
#pragma unroll
        for (u32 n = 1; n < RUNS_LEAST; ++n) runs |= starts << n | earlier >> (64 - n);
        shared.runs[t] = runs;
        put_flag(shared.has_run, t, runs != 0);
        put_flag(shared.has_literal, t, ~runs != 0);
    }
}

// The first byte at or after one that is in a run, or that is not; `length` if there is none.
WEFT_DEVICE u32 next_byte(const Runs& shared, u32 at, bool is_run, u32 length) {
    if (at >= length) return length;
    u32 t = at / 64;
    u64 flip = is_run ? 0 : ~0ull, bits = (shared.runs[t] ^ flip) >> at % 64;
    if (bits) at += low_bit(bits);
    else {
        const u32* threads = is_run ? shared.has_run : shared.has_literal;
        u32 warp = t / 32, found = t % 32 == 31 ? 0 : threads[warp] >> (t % 32 + 1) << (t % 32 + 1);
        while (!found && ++warp < WEFT_WARPS) found = threads[warp];
        if (!found) return length;
        t = 32 * warp + low_bit32(found);
        at = 64 * t + low_bit(shared.runs[t] ^ flip);
    }
    return at < length ? at : length;
}

// -- sequences

// How many bytes follow a length that does not fit the token.
WEFT_DEVICE u32 extra(u32 length) { return length < 15 ? 0 : (length - 15) / 255 + 1; }

// What begins in a thread's bytes: literals, and runs.
struct Begins {
    u64 literals, runs;
};

WEFT_DEVICE Begins begins(const Runs& shared, u32 t, u32 length) {
    u64 runs = shared.runs[t], before = runs << 1 | (t ? shared.runs[t - 1] >> 63 : 1);
    u64 is_there = length > 64 * t ? below(length - 64 * t) : 0;
    Begins made = {~runs & before & is_there, runs & ~before};
    return made;
}

WEFT_DEVICE u32 count_bytes(const Runs& shared, u32 t, u32 length) {
    if (64 * t >= length) return 0;
    u32 bytes = ones(~shared.runs[t] & below(length - 64 * t));
    Begins here = begins(shared, t, length);
    for (u64 left = here.literals; left; left &= left - 1) {
        u32 at = 64 * t + low_bit(left);
        bytes += 1 + extra(next_byte(shared, at, true, length) - at);
    }
    for (u64 left = here.runs; left; left &= left - 1) {
        u32 at = 64 * t + low_bit(left);
        bytes += 2 + extra(next_byte(shared, at, false, length) - at - 4);
    }
    return bytes;
}

WEFT_DEVICE void put(u8* out, u32& at, u32 byte) { out[gap16_byte(at++)] = (u8)byte; }

WEFT_DEVICE void put_extra(u8* out, u32& at, u32 length) {
    if (length < 15) return;
    for (length -= 15; length >= 255; length -= 255) put(out, at, 255);
    put(out, at, length);
}

WEFT_DEVICE void put_token(const Runs& shared, u8* out, u32& to, u32 at, u32 length) {
    u32 run = next_byte(shared, at, true, length), stop = next_byte(shared, run, false, length);
    u32 literals = run - at, match = run < length ? stop - run - 4 : 0;
    put(out, to, (literals < 15 ? literals : 15) << 4 | (match < 15 ? match : 15));
    put_extra(out, to, literals);
}

WEFT_DEVICE void put_match(const Runs& shared, u8* out, u32& to, u32 at, u32 length) {
    put(out, to, 1);
    put(out, to, 0);
    put_extra(out, to, next_byte(shared, at, false, length) - at - 4);
}

// Bytes of planes to the LZ4 block: by words where these are whole in it.
WEFT_DEVICE void put_literals(const Runs& shared, u8* out, u32& to, u32 from, u32 stop) {
    const u8* planes = (const u8*)shared.planes;
    while (from < stop && to % 4) put(out, to, planes[gap16_byte(from++)]);
    if (from + 4 <= stop) {
        u32 bits = from % 4 * 8, low = shared.planes[gap16(from / 4)];
        for (; from + 4 <= stop; from += 4, to += 4) {
            u32 high = bits || from + 8 <= stop ? shared.planes[gap16(from / 4 + 1)] : 0;
            ((u32*)out)[gap16(to / 4)] = funnel(low, high, bits);
            low = high;
        }
    }
    while (from < stop) put(out, to, planes[gap16_byte(from++)]);
}

WEFT_DEVICE void write_bytes(Runs& shared, u32 t, u32 length) {
    u8* out = (u8*)shared.raw;
    u32 to = shared.sums[t], stop = length < 64 * t + 64 ? length : 64 * t + 64;
    Begins here = begins(shared, t, length);
    for (u32 at = 64 * t; at < stop;) {
        u64 bit = 1ull << at % 64;
        bool is_run = shared.runs[t] & bit;
        if (here.literals & bit) put_token(shared, out, to, at, length);
        if (here.runs & bit) put_match(shared, out, to, at, length);
        u64 left = (is_run ? ~shared.runs[t] : shared.runs[t]) >> at % 64;
        u32 end = left ? at + low_bit(left) : stop;
        if (end > stop) end = stop;
        if (!is_run) put_literals(shared, out, to, at, end);
        at = end;
    }
}

// -- all of it

// Words with gaps from shared memory to a slot, which begins with sixteen aligned bytes.
WEFT_DEVICE void store_slot(u8* slot, const u32* words, u32 size) {
    WEFT_PHASE(t) {
        for (u32 n = t; n < (size + 15) / 16; n += WEFT_THREADS) {
            Wide four;
            for (u32 k = 0; k < 4; ++k) four.word[k] = words[gap16(4 * n + k)];
            *(Wide*)(slot + 16 * n) = four;
        }
    }
}

// The LZ4 block of up to 16 KiB, in a slot of as many; its bytes are given back. If that is not
// less than the block has, the slot has its planes.
WEFT_DEVICE u32 encode_runs(Runs& shared, const u8* from, u32 length, u32 typesize, u8* slot) {
    load_raw(shared, from, length);
    make_planes(shared, length, typesize);
    find_same(shared, length);
    find_runs(shared);
    WEFT_PHASE(t) { shared.sums[t] = count_bytes(shared, t, length); }
    u32 size = scan(shared.sums, shared.warps);
    if (size >= length) {
        store_slot(slot, shared.planes, length);
        return length;
    }
    WEFT_PHASE(t) { write_bytes(shared, t, length); }
    store_slot(slot, shared.raw, size);
    return size;
}
