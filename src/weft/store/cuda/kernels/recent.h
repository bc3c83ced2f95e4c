// What a warp reads next and what it wrote last, in shared memory: sequences are short, and each waits for
// the bytes of the one before, which global memory would take much longer to give.
#pragma once
#include "lanes.h"

#define AHEAD 512u     // bytes that are read ahead: sixteen by each lane
#define NEXT 128u      // bytes of them that are always there, unless the input ends
#define SHORT 64u      // bytes up to which copies go through shared memory
#define BEHIND 2048u   // bytes that are kept of the output; a power of two
#define RECALLED 128u  // bytes of it that are read again after a long copy

struct Recent {
    Wide ahead[AHEAD / 16 + 1];  // a word may be read behind the last
    u8 behind[BEHIND];
};

// Bytes of global memory, read from front to back by all lanes alike.
struct Input {
    const u8* from;
    const Wide* aligned;
    Wide* ahead;
    u32 lead, stop, base;  // bytes before the first, and the last; and before those that are ahead

    WEFT_MEMBER Input(Recent& shared, const u8* at, u32 size) : from(at), ahead(shared.ahead) {
        lead = (u32)((u64)at % 16), stop = lead + size;
        aligned = (const Wide*)(at - lead);
        load(0);
    }
    WEFT_MEMBER void load(u32 at) {
        WEFT_SYNC_LANES();  // all have read what is there
        base = (lead + at) / 16;
        WEFT_LANES(lane) {
            if (16 * (base + lane) < stop) ahead[lane] = aligned[base + lane];
        }
        base *= 16;
    }
    // Have the next bytes from `at` on.
    WEFT_MEMBER void seek(u32 at) {
        if (lead + at > base + AHEAD - NEXT && base + AHEAD < stop) load(at);
    }
    WEFT_MEMBER const u8* bytes(u32 at) const { return (const u8*)ahead + (lead + at - base); }

    // Four bytes; those behind the end are any.
    WEFT_MEMBER u32 word(u32 at) const {
        u32 place = lead + at - base;
        const u32* words = (const u32*)ahead + place / 4;
        return funnel(words[0], words[1], place % 4 * 8);
    }
};

// Bytes that are written to global memory from front to back, the last of them to shared memory too.
struct Output {
    u8 *to, *behind;
    u32 done, since;  // bytes that are written, and where those begin that are in shared memory

    WEFT_MEMBER Output(Recent& shared, u8* at) : to(at), behind(shared.behind), done(0), since(0) {}

    WEFT_MEMBER void store(u32 at, u8 value) { to[at] = behind[at % BEHIND] = value; }

    // A few bytes that lie elsewhere.
    WEFT_MEMBER void copy_short(const u8* from, u32 count) {
        WEFT_LANES(lane) {
            u8 first = 0, second = 0;
            if (lane < count) first = from[lane];
            if (lane + 32 < count) second = from[lane + 32];
            if (lane < count) store(done + lane, first);
            if (lane + 32 < count) store(done + lane + 32, second);
        }
        done += count;
    }
    WEFT_MEMBER void copy_long(const u8* from, u32 count) {
        lanes_copy(to + done, from, count);
        done += count, since = done;
    }
    WEFT_MEMBER void fill(u8 value, u32 count) {
        lanes_fill(to + done, value, count);
        done += count, since = done;
    }
    // Bytes of an input, of which the next ones are there.
    WEFT_MEMBER void copy(const Input& input, u32 at, u32 count) {
        if (count <= SHORT) copy_short(input.bytes(at), count);
        else copy_long(input.from + at, count);
    }
    // `count` bytes that begin `offset` before the end; where they overlap, those before are repeated.
    WEFT_MEMBER void repeat(u32 offset, u32 count) {
        if (offset > done - since && offset <= RECALLED) recall();
        if (offset <= done - since && offset + count <= BEHIND) {
            repeat_recent(offset, count);
        } else if (offset >= count && count <= SHORT) {
            copy_short(to + done - offset, count);
        } else {
            lanes_repeat(to + done, offset, count);
            done += count, since = done;
        }
    }
    WEFT_MEMBER void repeat_recent(u32 offset, u32 count) {
        u32 from = done - offset;
        WEFT_LANES(lane) {
            u32 place = lane, step = 32;
            if (offset < count) place %= offset, step %= offset;
            if (count <= 32) {
                if (lane < count) store(done + lane, behind[(from + place) % BEHIND]);
                continue;
            }
            for (u32 first = lane; first < count; first += 128) {  // four loads are under way at a time
                u8 made[4] = {};
#pragma unroll
                for (u32 n = 0; n < 4; ++n) {
                    if (first + 32 * n < count) made[n] = behind[(from + place) % BEHIND];
                    place += step;
                    if (place >= offset) place -= offset;
                }
#pragma unroll
                for (u32 n = 0; n < 4; ++n)
                    if (first + 32 * n < count) store(done + first + 32 * n, made[n]);
            }
        }
        done += count;
    }
    // Read the last bytes again.
    WEFT_MEMBER void recall() {
        u32 first = done < RECALLED ? 0 : done - RECALLED;
        WEFT_LANES(lane) {
#pragma unroll
            for (u32 n = 0; n < RECALLED / 32; ++n) {
                u32 at = first + lane + 32 * n;
                if (at < done) behind[at % BEHIND] = to[at];
            }
        }
        since = first;
    }
};
