// Stored chunks of zstd, decoded as those in decode.cu: frames, or streams of frames of Blosc.
//
// Two launches, each of chunks * parts blocks: the literals of blocks, which warps share, and then the
// sequences of frames, a warp for each. Frames are decoded to `planes`, or to the pool where they are
// elements already; the other of the two holds literals.
#define WEFT_THREADS 64u
#include "blosc.h"
#include "zstd.h"

// The frames of zstd of a chunk: one, or the streams of a frame of Blosc.
struct ZstdChunk {
    BloscFrame frame;
    Stream whole;
    bool is_blosc, is_valid;
    u8 *to, *buffer;
    u64 count;

    WEFT_MEMBER ZstdChunk(
        const u8* from, u64 stored, u64 size, bool is_in_blosc, u8* planes, u8* pool
    ) : is_blosc(is_in_blosc), to(pool), buffer(planes), count(1) {
        is_valid = stored <= 0x7FFFFFFF && size <= 0x7FFFFFFF;
        whole.from = from, whole.stored = (u32)stored, whole.size = (u32)size, whole.to = 0;
        if (!is_blosc) return;
        is_valid = frame.parse(from, stored, size) &&
                   (frame.is_raw() || frame.format() == BLOSC_ZSTD);
        if (is_valid && has_planes(frame)) to = planes, buffer = pool;
        count = is_valid ? frame.streams() : 0;
    }
    WEFT_MEMBER bool find(u64 number, Stream& stream) const {
        if (!is_blosc) stream = whole;
        return !is_blosc || frame.find(number, stream);
    }
    // Whether a stream is stored as it is.
    WEFT_MEMBER bool is_plain(const Stream& stream) const {
        return is_blosc && stream.stored == stream.size;
    }
};

struct CodesOfWarps {
    Codes warp[WEFT_WARPS];
};

WEFT_KERNEL weft_zstd_literals(
    const u8* staged, const u64* offsets, const u64* sizes, u64 size, u64 stride, u32 parts,
    u32 is_blosc, u8* planes, u8* pool, u32* failed
) {
    WEFT_SHARED(CodesOfWarps, shared);
    u64 n = WEFT_BLOCK / parts, warps = (u64)parts * WEFT_WARPS;
    if (!sizes[n] || failed[n]) return;
    ZstdChunk chunk(
        staged + offsets[n], sizes[n], size, is_blosc, planes + n * stride, pool + n * stride
    );
    WEFT_EACH_WARP(w) {
        u64 own = WEFT_BLOCK % parts * WEFT_WARPS + w, count = chunk.count;
        bool is_valid = chunk.is_valid;
        for (u64 each = count && own >= count ? own % count : own; each < count && is_valid;
             each += warps) {
            Stream stream;
            is_valid = chunk.find(each, stream);
            u64 step = warps > each ? (warps - 1 - each) / count + 1 : 1;  // warps of this stream
            if (is_valid && !chunk.is_plain(stream))
                is_valid = zstd_literals(
                    shared.warp[w], stream.from, stream.stored, stream.size,
                    chunk.buffer + stream.to, own < count ? 0 : own / count, step
                );
        }
        if (!is_valid) failed[n] = 1;
    }
}

struct SequencesOfWarps {
    Sequences warp[WEFT_WARPS];
};

WEFT_KERNEL weft_zstd_sequences(
    const u8* staged, const u64* offsets, const u64* sizes, u64 size, u64 stride, u32 parts,
    u32 is_blosc, u8* planes, u8* pool, u32* failed
) {
    WEFT_SHARED(SequencesOfWarps, shared);
    u64 n = WEFT_BLOCK / parts, warps = (u64)parts * WEFT_WARPS;
    if (!sizes[n] || failed[n]) return;
    ZstdChunk chunk(
        staged + offsets[n], sizes[n], size, is_blosc, planes + n * stride, pool + n * stride
    );
    WEFT_EACH_WARP(w) {
        bool is_valid = chunk.is_valid;
        for (u64 each = WEFT_BLOCK % parts * WEFT_WARPS + w; each < chunk.count && is_valid;
             each += warps) {
            Stream stream;
            is_valid = chunk.find(each, stream);
            if (!is_valid) break;
            if (chunk.is_plain(stream))
                lanes_copy(chunk.to + stream.to, stream.from, stream.size);
            else
                is_valid = zstd_sequences(
                    shared.warp[w], stream.from, stream.stored, stream.size,
                    chunk.buffer + stream.to, chunk.to + stream.to
                );
        }
        if (!is_valid) failed[n] = 1;
    }
}
