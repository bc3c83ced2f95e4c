// Frames of Zstandard (RFC 8878).
//
// Two passes. Literals of blocks do not depend on each other: warps share the blocks of a frame, four lanes
// decode the four streams of a block with a table of prefix codes in shared memory, and the literals of all
// blocks lie one behind the other in a buffer of the frame's size. Then a warp decodes the sequences of a
// frame, block by block, all lanes alike, and all of them copy the literals and the match of each.
// Dictionaries, checksums of contents, and several frames in a row are left to the host.
//
// A frame is untrusted. Every size is compared with the bytes that are left before it is used, tables
// are checked to be complete, every bit of a stream must be used, and a match begins in what was decoded.
#pragma once
#include "recent.h"

#define ZSTD_MAGIC 0xFD2FB528u
#define ZSTD_BLOCK (1u << 17)  // the most bytes of a block
#define ZSTD_CODE 11u          // the most bits of a prefix code

// An entry of a table of states: the symbol, the bits to read, and what they are added to.
WEFT_DEVICE u32 state_entry(u32 symbol, u32 bits, u32 base) { return symbol | bits << 8 | base << 16; }

// A table of states, with how many bits choose the first one; none yet where `log` is ~0.
template <u32 SIZE> struct StateTable {
    u32 log;
    u32 entry[SIZE];
};
typedef StateTable<512> States;

// What building a table of states needs.
struct Counts {
    short counts[64];  // of symbols
    u16 next[64];
    u32 used;          // bytes of a table's description; 0 where it is refused
};

// The tables that literals need.
struct Codes : Counts {
    u16 codes[1u << ZSTD_CODE];  // the symbol of a prefix, and its bits above
    u32 code_bits;               // of the longest code
    StateTable<64> of_weights;
    u8 weights[256];
    u32 is_whole[4];             // whether each stream was used up
};

// The tables that sequences need.
struct Sequences : Counts {
    States lengths, offsets, matches;
    Recent recent;
};

// -- bits

// Bits from the front, the low bit of a byte first; zeros behind the end.
struct Bits {
    const u8* from;
    u32 size, at;

    WEFT_MEMBER u32 peek(u32 count) const {
        u32 value = 0;
        for (u32 n = 0; n < 3; ++n) {
            u32 byte = at / 8 + n;
            if (byte < size) value |= (u32)from[byte] << 8 * n;
        }
        return value >> at % 8 & ((1u << count) - 1);
    }
};

// Bits from the back: a one marks the end, and the bits below it are read from the top down.
struct BackBits {
    const u8* from;
    u32 left;

    WEFT_MEMBER bool open(const u8* at, u32 size) {
        if (!size || !at[size - 1]) return false;
        from = at, left = 8 * (size - 1) + bit_length(at[size - 1]) - 1;
        return true;
    }
    // Up to 32 bits, of which there must be as many.
    WEFT_MEMBER u32 take(u32 count) {
        left -= count;
        u32 first = left / 8, shift = left % 8;
        u64 value = 0;
        for (u32 n = 0; n < 5; ++n)
            if (8 * n < shift + count) value |= (u64)from[first + n] << 8 * n;
        return (u32)(value >> shift & ((1ull << count) - 1));
    }
};

// The words of a stream that is read from the back, from an aligned address on.
struct BackWords {
    const u32* words;
    int at;    // the word of the next bit
    u32 used;  // bits of it

    WEFT_MEMBER BackWords(const BackBits& bits) {
        u32 lead = (u32)((u64)bits.from % 4), end = bits.left + 8 * lead;
        words = (const u32*)(bits.from - lead);
        at = (int)((end + 31) / 32) - 1;
        used = 32 * (u32)(at + 1) - end;
    }
    // A word below the next one; what lies before the stream is not used.
    WEFT_MEMBER u32 below(int count) const { return words[at > count ? at - count : 0]; }
};

// The next 96 bits of a stream.
struct Ahead {
    u32 top[3];

    WEFT_MEMBER Ahead(const BackBits& bits) {
        BackWords from(bits);
        u32 word[4];
        for (int n = 0; n < 4; ++n) word[n] = from.below(n);
        for (u32 n = 0; n < 3; ++n) top[n] = funnel_left(word[n + 1], word[n], from.used);
    }
    // Up to 31 bits.
    WEFT_MEMBER u32 take(u32 count) {
        u32 value = top[0] >> 1 >> (31 - count);
        top[0] = funnel_left(top[1], top[0], count);
        top[1] = funnel_left(top[2], top[1], count);
        top[2] <<= count;
        return value;
    }
};

// -- tables, built by one lane

// The table of states for the counts of symbols; false where they do not fill it.
template <u32 SIZE>
WEFT_DEVICE bool build_states(Counts& shared, StateTable<SIZE>& states, u32 symbols, u32 log) {
    u32 size = 1u << log, high = size, at = 0, step = (size >> 1) + (size >> 3) + 3;
    for (u32 n = 0; n < symbols; ++n) {
        shared.next[n] = shared.counts[n] < 0 ? 1 : shared.counts[n];
        if (shared.counts[n] < 0) {
            if (!high) return false;
            states.entry[--high] = n;
        }
    }
    for (u32 n = 0; n < symbols; ++n) {
        for (int k = 0; k < shared.counts[n]; ++k) {
            if (at >= high) return false;
            states.entry[at] = n;
            do at = (at + step) & (size - 1);
            while (at >= high);
        }
    }
    if (at) return false;
    for (u32 n = 0; n < size; ++n) {
        u32 symbol = states.entry[n], next = shared.next[symbol]++;
        u32 bits = log + 1 - bit_length(next);
        states.entry[n] = state_entry(symbol, bits, (next << bits) - size);
    }
    states.log = log;
    return true;
}

// Read the counts of symbols and build their table; the bytes of the description, 0 if it is refused.
template <u32 SIZE>
WEFT_DEVICE u32 read_states(
    Counts& shared, StateTable<SIZE>& states, const u8* from, u32 size, u32 most_log, u32 most_symbols
) {
    Bits bits = {from, size, 0};
    u32 log = bits.peek(4) + 5, symbol = 0;
    bits.at = 4;
    if (log > most_log) return 0;
    int left = 1 << log;
    while (left > 0) {
        if (symbol >= most_symbols || bits.at > 8 * size) return 0;
        u32 width = bit_length(left + 1), value = bits.peek(width);
        u32 low = (1u << (width - 1)) - 1, short_values = (1u << width) - 1 - (left + 1);
        if ((value & low) < short_values) value &= low, bits.at += width - 1;
        else {
            if (value > low) value -= short_values;
            bits.at += width;
        }
        int count = (int)value - 1;
        left -= count < 0 ? 1 : count;
        shared.counts[symbol++] = (short)count;
        u32 zeros = count ? 0 : 3;
        while (zeros == 3) {
            zeros = bits.peek(2), bits.at += 2;
            if (symbol + zeros > most_symbols || bits.at > 8 * size) return 0;
            for (u32 n = 0; n < zeros; ++n) shared.counts[symbol++] = 0;
        }
    }
    u32 used = (bits.at + 7) / 8;
    if (left || used > size || !build_states(shared, states, symbol, log)) return 0;
    return used;
}

// The weights of prefix codes, in states; how many there are, 0 if they are refused.
WEFT_DEVICE u32 read_weights(Codes& shared, const u8* from, u32 size) {
    StateTable<64>& states = shared.of_weights;
    u32 used = read_states(shared, states, from, size, 6, 16), count = 0;
    BackBits bits;
    if (!used || !bits.open(from + used, size - used) || bits.left < 2 * states.log) return 0;
    u32 one = bits.take(states.log), other = bits.take(states.log);
    while (count < 254) {
        u32 entry = states.entry[one], width = entry >> 8 & 255;
        shared.weights[count++] = (u8)entry;
        if (bits.left < width) {
            shared.weights[count++] = (u8)states.entry[other];
            return count;
        }
        one = other, other = (entry >> 16) + bits.take(width);
    }
    return 0;
}

// Read the table of prefix codes by one lane, and fill it by all.
WEFT_CALLED bool read_codes(Codes& shared, const u8* from, u32 size, u32& used) {
    WEFT_LANES(lane) {
        if (lane) continue;
        u32 head = size ? from[0] : 0, count = 0;
        shared.used = 0, shared.code_bits = 0;
        if (head >= 128) {
            count = head - 127;
            if ((count + 1) / 2 >= size) count = 0;
            for (u32 n = 0; n < count; ++n)
                shared.weights[n] = n % 2 ? from[1 + n / 2] & 15 : from[1 + n / 2] >> 4;
            head = (count + 1) / 2;
        } else if (head && head < size) {
            count = read_weights(shared, from + 1, head);
        }
        u32 sum = 0, longest = 0;  // codes with most bits: there are two at least
        for (u32 n = 0; n < count; ++n) {
            sum += (1u << shared.weights[n]) >> 1;
            longest += shared.weights[n] == 1;
        }
        u32 bits = bit_length(sum), last = (1u << bits) - sum;
        longest += last == 1;
        if (count && longest > 1 && bits <= ZSTD_CODE && !(last & (last - 1))) {
            shared.weights[count] = (u8)bit_length(last);
            shared.code_bits = bits, shared.used = 1 + head;
            for (u32 n = 0; n < 16; ++n) shared.counts[n] = 0;  // starts of symbols, by weight
            for (u32 n = 0; n <= count; ++n)
                shared.counts[shared.weights[n] + 1] += (short)((1u << shared.weights[n]) >> 1);
            for (u32 n = 2; n < 16; ++n) shared.counts[n] += shared.counts[n - 1];
            for (u32 n = count + 1; n < 256; ++n) shared.weights[n] = 0;
        }
    }
    used = shared.used;
    if (!used) return false;
    WEFT_LANES(lane) {  // a lane for each weight: its symbols one behind the other
        u32 bits = shared.code_bits;
        if (!lane || lane > bits) continue;
        u32 at = (u32)shared.counts[lane], entry = (bits + 1 - lane) << 8;
        for (u32 n = 0; n < 256; ++n) {
            if (shared.weights[n] != lane) continue;
            for (u32 k = 0; k < 1u << (lane - 1); ++k) shared.codes[at++] = (u16)(entry | n);
        }
    }
    return true;
}

// -- literals

// A stream of prefix codes, read by one lane: 32 bits at a time, the next word on its way.
struct CodeReader {
    BackWords from;
    u32 high, low, next, shift;

    WEFT_MEMBER CodeReader(const BackBits& bits, u32 code_bits) : from(bits) {
        high = from.below(0), low = from.below(1), next = from.below(2), shift = 32 - code_bits;
    }
    // Two symbols, of at most 22 bits. No branch: lanes read streams of their own.
    WEFT_MEMBER u32 pair(const u16* codes) {
        u32 top = funnel_left(low, high, from.used), first = codes[top >> shift];
        u32 second = codes[top << (first >> 8) >> shift];
        skip((first >> 8) + (second >> 8));
        return (first & 255) | (second & 255) << 8;
    }
    WEFT_MEMBER u32 one(const u16* codes) {
        u32 entry = codes[funnel_left(low, high, from.used) >> shift];
        skip(entry >> 8);
        return entry & 255;
    }
    WEFT_MEMBER void skip(u32 bits) {
        from.used += bits;
        bool is_next = from.used >= 32;
        from.used &= 31, from.at -= is_next;
        high = is_next ? low : high, low = is_next ? next : low;
        if (is_next) next = from.below(2);
    }
};

// Decode one stream of prefix codes by one lane; whether all of its bits were used.
WEFT_DEVICE bool decode_codes(const Codes& shared, const u8* from, u32 size, u8* to, u32 count) {
    BackBits bits;
    if (!bits.open(from, size)) return false;
    CodeReader reader(bits, shared.code_bits);
    u32 done = 0;
    for (; done < count && (u64)(to + done) % 4; ++done) to[done] = (u8)reader.one(shared.codes);
    for (; done + 4 <= count; done += 4) {
        u32 low = reader.pair(shared.codes);
        *(u32*)(to + done) = low | reader.pair(shared.codes) << 16;
    }
    for (; done < count; ++done) to[done] = (u8)reader.one(shared.codes);
    u32 lead = 8 * (u32)((u64)from % 4);
    return 32 * (reader.from.at + 1) - (int)reader.from.used == (int)lead;
}

// Where literals lie, and what follows them.
struct Literals {
    const u8* at;
    u32 size;  // bytes of literals
    u32 kind;  // 0 as they are, 1 one byte, 2 prefix codes with a table, 3 with the last table
    u32 streams, head, stored;

    WEFT_MEMBER bool parse(const u8* from, u32 count) {
        if (!count) return false;
        u32 first = from[0], form = first >> 2 & 3;
        kind = first & 3, streams = 1;
        u64 bits = 0;
        for (u32 n = 0; n < 5 && n < count; ++n) bits |= (u64)from[n] << 8 * n;
        if (kind < 2) {
            head = form == 1 ? 2 : form == 3 ? 3 : 1;
            size = (u32)(head == 1 ? first >> 3 : (bits & (head == 2 ? 0xFFFF : 0xFFFFFF)) >> 4);
            stored = kind ? 1 : size;
        } else {
            u32 width = form < 2 ? 10 : form == 2 ? 14 : 18;
            head = form < 2 ? 3 : form + 2, streams = form ? 4 : 1;
            size = (u32)(bits >> 4 & ((1u << width) - 1));
            stored = (u32)(bits >> (4 + width) & ((1u << width) - 1));
        }
        at = from + head;
        return head <= count && stored <= count - head && size <= ZSTD_BLOCK;
    }
};

// Decode the streams behind a table of prefix codes.
WEFT_DEVICE bool decode_streams_of(
    Codes& shared, const u8* from, u32 stored, u8* to, u32 size, u32 count
) {
    u32 part = count == 4 ? (size + 3) / 4 : size;
    if (!size || (count == 4 && (stored < 10 || 3 * part > size))) return false;
    u32 sizes[4] = {stored, 0, 0, 0};
    if (count == 4) {
        for (u32 n = 0; n < 3; ++n) sizes[n] = load_16(from + 2 * n);
        from += 6, stored -= 6;
        u32 three = sizes[0] + sizes[1] + sizes[2];
        if (three >= stored) return false;
        sizes[3] = stored - three;
    }
    WEFT_LANES(lane) {
        if (lane >= count) continue;
        const u8* own = from;
        u32 own_size = sizes[0], length = lane + 1 < count ? part : size - (count - 1) * part;
#pragma unroll
        for (u32 n = 1; n < 4; ++n)
            if (lane >= n) own += sizes[n - 1], own_size = sizes[n];
        shared.is_whole[lane] = decode_codes(shared, own, own_size, to + lane * part, length);
    }
    bool is_whole = true;
    for (u32 n = 0; n < count; ++n) is_whole = is_whole && shared.is_whole[n];
    WEFT_SYNC_LANES();  // all have read it before it is written again
    return is_whole;
}

// -- sequences

WEFT_DEVICE u32 length_base(u32 code) {
    static const u32 bases[20] = {16, 18, 20, 22, 24, 28, 32, 40, 48, 64, 128, 256, 512, 1024, 2048, 4096,
                           8192, 16384, 32768, 65536};
    return code < 16 ? code : bases[code - 16];
}
WEFT_DEVICE u32 length_bits(u32 code) {
    static const u8 bits[9] = {1, 1, 1, 1, 2, 2, 3, 3, 4};
    return code < 16 ? 0 : code < 25 ? bits[code - 16] : code - 19;
}
WEFT_DEVICE u32 match_base(u32 code) {
    static const u32 bases[21] = {35, 37, 39, 41, 43, 47, 51, 59, 67, 83, 99, 131, 259, 515, 1027, 2051, 4099,
                           8195, 16387, 32771, 65539};
    return code < 32 ? code + 3 : bases[code - 32];
}
WEFT_DEVICE u32 match_bits(u32 code) {
    static const u8 bits[12] = {1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 7};
    return code < 32 ? 0 : code < 44 ? bits[code - 32] : code - 36;
}

// The counts of symbols where a block does not give its own.
WEFT_DEVICE u32 default_states(Counts& shared, u32 which) {
    static const signed char lengths[36] = {4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 2, 2,
                                     2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1};
    static const signed char offsets[29] = {1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1,
                                     1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1};
    static const signed char matches[53] = {1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                     1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                     1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1};
    u32 count = which == 0 ? 36 : which == 1 ? 29 : 53;
    for (u32 n = 0; n < count; ++n)
        shared.counts[n] = which == 0 ? lengths[n] : which == 1 ? offsets[n] : matches[n];
    return count;
}

// The table of lengths, offsets or matches (0, 1 or 2) of a block; `used` are the bytes it takes.
WEFT_CALLED bool next_states(
    Sequences& shared, States& states, u32 which, u32 mode, const u8* from, u32 size, u32& used
) {
    u32 symbols = which == 0 ? 36 : which == 1 ? 32 : 53, log = which == 1 ? 8 : 9;
    used = 0;
    if (mode == 3) return states.log != ~0u;
    WEFT_LANES(lane) {
        if (lane) continue;
        shared.used = 0;
        if (mode == 0) {
            u32 count = default_states(shared, which);
            shared.used = 1 + build_states(shared, states, count, which == 1 ? 5 : 6);
        } else if (mode == 2) {
            shared.used = 1 + read_states(shared, states, from, size, log, symbols);
        } else if (size && from[0] < symbols) {
            states.entry[0] = state_entry(from[0], 0, 0), states.log = 0;
            shared.used = 2;
        }
    }
    if (shared.used < 2) return false;
    used = mode ? shared.used - 1 : 0;
    WEFT_SYNC_LANES();  // all have read it before it is written again
    return true;
}

struct ZstdBlock {
    const u8* from;
    u32 size;  // of a block of one byte, how often it is repeated
    u32 kind;  // 0 as it is, 1 one byte, 2 compressed
    bool is_last;
};

// A frame: its header, where its next block begins, and the last offsets of matches.
struct ZstdFrame {
    const u8* in;
    u32 stored, size, at;
    u32 window, block;  // the most bytes of an offset, and of a block
    u32 last[3];

    // Read the header; false where it is not one of `wanted` bytes.
    WEFT_MEMBER bool open(const u8* from, u32 count, u32 wanted) {
        in = from, stored = count, size = wanted, at = 5;
        if (stored < 6 || load_32(in) != ZSTD_MAGIC || !size) return false;
        u32 kinds = in[4], is_single = kinds >> 5 & 1;
        if (kinds & 0xF) return false;  // a dictionary, a checksum, or what is reserved
        window = size;
        if (!is_single) {
            u32 log = in[at] >> 3, eighths = in[at] & 7;
            if (log > 16) return false;
            window = (8 + eighths) << (7 + log), ++at;
        }
        u32 width = kinds >> 6 ? 1u << (kinds >> 6) : is_single;
        if (stored < at + width) return false;
        u64 claimed = 0;
        for (u32 n = 0; n < width; ++n) claimed |= (u64)in[at + n] << 8 * n;
        if (width && claimed + (width == 2 ? 256 : 0) != size) return false;
        at += width;
        block = window < ZSTD_BLOCK ? window : ZSTD_BLOCK;
        last[0] = 1, last[1] = 4, last[2] = 8;
        return true;
    }
    // Find the next block; false where it does not lie in the frame.
    WEFT_MEMBER bool next(ZstdBlock& found) {
        if (stored - at < 3) return false;
        u32 head = load_16(in + at) | (u32)in[at + 2] << 16, held = head >> 3;
        found.is_last = head & 1, found.kind = head >> 1 & 3, found.size = held;
        found.from = in + at + 3, at += 3;
        if (found.kind == 1) held = 1;
        if (found.kind == 3 || found.size > block || held > stored - at) return false;
        at += held;
        return true;
    }
    // The offset that a value stands for; 0 is not one.
    WEFT_MEMBER u32 offset_of(u32 value, u32 literals) {
        u32 offset = value - 3, place = value - 1 + !literals;
        u32 recent = place == 1 ? last[1] : place == 2 ? last[2] : last[0] - (place == 3);
        if (value <= 3) offset = recent;
        if (value > 3 || place > 1) last[2] = last[1];
        if (value > 3 || place > 0) last[1] = last[0], last[0] = offset;
        return offset;
    }
};

// Decode the sequences of a block and copy what they say; false where they are refused.
WEFT_DEVICE bool run_sequences(
    Sequences& shared, const u8* from, u32 stored, u32 count, const u8* literals, u32 literals_size,
    ZstdFrame& frame, Output& output, u32 limit
) {
    BackBits bits;
    const States &lengths = shared.lengths, &offsets = shared.offsets, &matches = shared.matches;
    if (!bits.open(from, stored)) return false;
    if (bits.left < lengths.log + offsets.log + matches.log) return false;
    u32 length_state = bits.take(lengths.log), offset_state = bits.take(offsets.log);
    u32 match_state = bits.take(matches.log);
    Input input(shared.recent, literals, literals_size);
    u32 used = 0;
    for (u32 n = 0; n < count; ++n) {
        Ahead ahead(bits);
        u32 of_length = lengths.entry[length_state], of_offset = offsets.entry[offset_state];
        u32 of_match = matches.entry[match_state];
        u32 offset_code = of_offset & 255, match_code = of_match & 255, length_code = of_length & 255;
        u32 match_width = match_bits(match_code), length_width = length_bits(length_code);
        u32 next[3] = {of_length >> 8 & 255, of_match >> 8 & 255, of_offset >> 8 & 255};
        u32 wanted = offset_code + match_width + length_width;
        if (n + 1 < count) wanted += next[0] + next[1] + next[2];
        if (offset_code > 31 || bits.left < wanted) return false;
        bits.left -= wanted;
        u32 value = (1u << offset_code) + ahead.take(offset_code);
        u32 match = match_base(match_code) + ahead.take(match_width);
        u32 length = length_base(length_code) + ahead.take(length_width);
        length_state = (of_length >> 16) + ahead.take(next[0]);  // none is used after the last
        match_state = (of_match >> 16) + ahead.take(next[1]);
        offset_state = (of_offset >> 16) + ahead.take(next[2]);
        u32 offset = frame.offset_of(value, length), left = limit - output.done;
        if (length > literals_size - used || length > left || match > left - length) return false;
        input.seek(used);
        if (length) output.copy(input, used, length);
        used += length;
        if (!offset || offset > output.done || offset > frame.window) return false;
        output.repeat(offset, match);
    }
    u32 rest = literals_size - used;
    if (bits.left || rest > limit - output.done) return false;
    if (rest) output.copy_long(literals + used, rest);
    return true;
}

// Decode a compressed block; false where it is refused.
WEFT_DEVICE bool decode_block(
    Sequences& shared, const ZstdBlock& block, const Literals& literals, const u8* kept,
    ZstdFrame& frame, Output& output
) {
    u32 head = literals.head + literals.stored, left = block.size - head, used = 1;
    const u8* at = block.from + head;
    if (!left) return false;
    u32 count = at[0];
    if (count >= 128) {
        used = count == 255 ? 3 : 2;
        if (left < used) return false;
        count = count == 255 ? load_16(at + 1) + 0x7F00 : ((count - 128) << 8) + at[1];
    }
    if (!count) {
        if (left != used || literals.size > frame.size - output.done) return false;
        if (literals.size) output.copy_long(kept, literals.size);
        return true;
    }
    at += used, left -= used;
    if (!left || at[0] & 3) return false;
    u32 modes = at[0];
    ++at, --left;
    if (!next_states(shared, shared.lengths, 0, modes >> 6, at, left, used)) return false;
    at += used, left -= used;
    if (!next_states(shared, shared.offsets, 1, modes >> 4 & 3, at, left, used)) return false;
    at += used, left -= used;
    if (!next_states(shared, shared.matches, 2, modes >> 2 & 3, at, left, used)) return false;
    at += used, left -= used;
    u32 room = frame.size - output.done, limit = room < frame.block ? frame.size : output.done + frame.block;
    return run_sequences(shared, at, left, count, kept, literals.size, frame, output, limit);
}

// The second pass: decode a frame to exactly its size, with the literals of all blocks in a buffer.
WEFT_DEVICE bool zstd_sequences(
    Sequences& shared, const u8* in, u32 stored, u32 size, const u8* buffer, u8* out
) {
    ZstdFrame frame;
    if (!frame.open(in, stored, size)) return false;
    WEFT_LANES(lane) {
        if (!lane) shared.lengths.log = shared.offsets.log = shared.matches.log = ~0u;
    }
    ZstdBlock block;
    Literals literals;
    Output output(shared.recent, out);
    while (frame.next(block)) {
        if (block.kind == 2) {
            if (!literals.parse(block.from, block.size) || literals.size > frame.block) return false;
            const u8* kept = literals.kind ? buffer : literals.at;
            if (literals.kind) buffer += literals.size;
            if (!decode_block(shared, block, literals, kept, frame, output)) return false;
        } else {
            if (block.size > size - output.done) return false;
            if (block.kind) output.fill(block.from[0], block.size);
            else if (block.size) output.copy_long(block.from, block.size);
        }
        if (block.is_last) return output.done == size && frame.at == stored;
    }
    return false;
}

// The first pass: the literals of those blocks of a frame that are `first` among `step`, to a buffer.
WEFT_DEVICE bool zstd_literals(
    Codes& shared, const u8* in, u32 stored, u32 size, u8* buffer, u64 first, u64 step
) {
    ZstdFrame frame;
    if (!frame.open(in, stored, size)) return false;
    ZstdBlock block;
    Literals literals;
    const u8 *table = 0, *read = 0;  // the last table of codes that a block has, and that was read
    u32 table_size = 0, used = 0, done = 0;
    for (u64 n = 0; frame.next(block);) {
        if (block.kind == 2) {
            if (!literals.parse(block.from, block.size) || literals.size > size - done) return false;
            if (literals.kind == 2) table = literals.at, table_size = literals.stored;
            if (literals.kind && n++ % step == first) {
                u8* to = buffer + done;
                const u8* from = literals.at;
                u32 left = literals.stored;
                if (literals.kind == 1) {
                    lanes_fill(to, from[0], literals.size);
                } else {
                    if (!table) return false;
                    if (read != table && !read_codes(shared, table, table_size, used)) return false;
                    read = table;
                    if (literals.kind == 2) from += used, left -= used;
                    if (!decode_streams_of(shared, from, left, to, literals.size, literals.streams))
                        return false;
                }
            }
            if (literals.kind) done += literals.size;
        }
        if (block.is_last) return true;
    }
    return false;
}
