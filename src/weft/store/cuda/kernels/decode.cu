// Stored chunks, decoded: frames of Blosc, LZ4 blocks, and chunks that are not compressed.
//
// Chunk n is sizes[n] bytes at staged + offsets[n]; one of size 0 is not there. Its bytes go to
// pool + n * stride. A chunk that cannot be decoded is left, and failed[n] becomes 1: the host decides.
//
// | launch | blocks of the grid |
// | weft_blosc_lz4 | chunks * parts; parts share the streams of a chunk, a warp for each |
// | weft_blosc_join | chunks * parts; planes become elements of the pool |
// | weft_lz4_decode | chunks |
// | weft_unpack | chunks * parts |
#define WEFT_THREADS 64u
#include "blosc.h"
#include "lz4.h"

struct RecentOfWarps {
    Recent warp[WEFT_WARPS];
};

// The streams of frames, decoded to `planes`, or to the pool where they are elements already.
WEFT_KERNEL weft_blosc_lz4(
    const u8* staged, const u64* offsets, const u64* sizes, u64 size, u64 stride, u32 parts,
    u8* planes, u8* pool, u32* failed
) {
    WEFT_SHARED(RecentOfWarps, shared);
    u64 chunk = WEFT_BLOCK / parts, first = WEFT_BLOCK % parts * WEFT_WARPS;
    if (!sizes[chunk] || failed[chunk]) return;
    BloscFrame frame;
    bool is_valid = frame.parse(staged + offsets[chunk], sizes[chunk], size);
    u8* to = (is_valid && has_planes(frame) ? planes : pool) + chunk * stride;
    WEFT_EACH_WARP(w) {
        auto decode = [&](const Stream& stream) {
            Recent& own = shared.warp[w];
            return lz4_decode(own, stream.from, stream.stored, to + stream.to, stream.size);
        };
        u64 step = (u64)parts * WEFT_WARPS;
        if (!is_valid || !decode_streams(frame, BLOSC_LZ4, first + w, step, to, decode))
            failed[chunk] = 1;
    }
}

// The planes of frames, joined to elements.
WEFT_KERNEL weft_blosc_join(
    const u8* staged, const u64* offsets, const u64* sizes, u64 size, u64 stride, u32 parts,
    const u8* planes, u8* pool, const u32* failed
) {
    u64 chunk = WEFT_BLOCK / parts, part = WEFT_BLOCK % parts;
    if (!sizes[chunk] || failed[chunk]) return;
    BloscFrame frame;
    if (!frame.parse(staged + offsets[chunk], sizes[chunk], size) || !has_planes(frame)) return;
    u64 units = block_units(frame, frame.blocksize), all = units * frame.blocks();
    WEFT_PHASE(t) {
        for (u64 n = part * WEFT_THREADS + t; n < all; n += (u64)parts * WEFT_THREADS) {
            u32 block = (u32)(n / units), unit = (u32)(n % units);
            u32 length = block < frame.whole_blocks() ? frame.blocksize : frame.rest();
            u64 at = chunk * stride + (u64)block * frame.blocksize;
            if (unit < block_units(frame, length))
                join_unit(frame, planes + at, pool + at, length, unit);
        }
    }
}

// LZ4 blocks behind their size, by the first warp of a block.
WEFT_KERNEL weft_lz4_decode(
    const u8* staged, const u64* offsets, const u64* sizes, u64 size, u64 stride, u8* pool, u32* failed
) {
    WEFT_SHARED(RecentOfWarps, shared);
    u64 chunk = WEFT_BLOCK, count = sizes[chunk];
    if (!count || failed[chunk]) return;
    const u8* from = staged + offsets[chunk];
    WEFT_EACH_WARP(w) {
        if (w) continue;
        bool is_valid = count >= 4 && count <= 0x7FFFFFFF && size <= 0x7FFFFFFF &&
                        load_32(from) == size &&
                        lz4_decode(
                            shared.warp[w], from + 4, (u32)count - 4, pool + chunk * stride, (u32)size
                        );
        if (!is_valid) failed[chunk] = 1;
    }
}

// Chunks that are not compressed, each in `parts` parts.
WEFT_KERNEL weft_unpack(
    const u8* staged, const u64* offsets, const u64* sizes, u64 size, u64 stride, u32 parts, u8* pool,
    u32* failed
) {
    u64 chunk = WEFT_BLOCK / parts, part = (size + parts - 1) / parts, first = WEFT_BLOCK % parts * part;
    if (!sizes[chunk] || failed[chunk] || first >= size) return;
    WEFT_PHASE(t) {
        if (sizes[chunk] == size)
            copy(pool + chunk * stride + first, staged + offsets[chunk] + first,
                 size - first < part ? size - first : part, t);
        else
            failed[chunk] = 1;
    }
}
