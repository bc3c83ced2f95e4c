// Stored chunks of zstd, decoded as those in decode.cu: frames, or streams of frames of Blosc.
//
// Two launches, each of chunks * parts blocks: the literals of blocks, which warps share, and then the
// sequences of frames, a warp for each. Frames are decoded to `planes`, or to the pool where they are
// elements already; the other of the two holds literals.
#define WEFT_THREADS 64u
#include "blosc.h"
#include "zstd.h"

// A frame of zstd of a chunk, with where it is decoded to and where its literals are kept.
struct ZstdStream : Stream {
    bool is_plain;  // stored as it is
    u8 *out, *buffer;
};

// Decode the frames of a chunk, one or the streams of a frame of Blosc, by decode(warp, stream, n, warps),
// the nth of the warps that share a frame where there are more warps than frames.
template <class Decode>
WEFT_DEVICE void decode_frames(
    const u8* from, u64 stored, u64 size, u32 parts, bool is_blosc, u8* planes, u8* pool, u32& failed,
    Decode decode
) {
    if (!stored || failed) return;
    BloscFrame frame;
    bool is_valid = stored <= 0x7FFFFFFF && size <= 0x7FFFFFFF;
    u64 count = is_valid, warps = (u64)parts * WEFT_WARPS;
    u8 *out = pool, *buffer = planes;
    if (is_blosc) {
        is_valid = frame.parse(from, stored, size) && (frame.is_raw() || frame.format() == BLOSC_ZSTD);
        count = is_valid ? frame.streams() : 0;
        if (is_valid && has_planes(frame)) out = planes, buffer = pool;
    }
    WEFT_EACH_WARP(w) {
        u64 own = WEFT_BLOCK % parts * WEFT_WARPS + w, nth = count ? own / count : 0;
        bool is_right = is_valid;
        for (u64 each = count ? own % count : 0; each < count && is_right; each += warps) {
            ZstdStream stream;
            stream.from = from, stream.stored = (u32)stored, stream.size = (u32)size, stream.to = 0;
            is_right = !is_blosc || frame.find(each, stream);
            stream.is_plain = is_blosc && stream.stored == stream.size;
            stream.out = out + stream.to, stream.buffer = buffer + stream.to;
            u64 sharing = warps > each ? (warps - 1 - each) / count + 1 : 1;
            is_right = is_right && decode(w, stream, nth, sharing);
        }
        if (!is_right) failed = 1;
    }
}

struct CodesOfWarps {
    Codes warp[WEFT_WARPS];
};

WEFT_KERNEL weft_zstd_literals(
    const u8* staged, const u64* offsets, const u64* sizes, u64 size, u64 stride, u32 parts,
    u32 is_blosc, u8* planes, u8* pool, u32* failed
) {
    WEFT_SHARED(CodesOfWarps, shared);
    u64 n = WEFT_BLOCK / parts;
    auto decode = [&](u32 w, const ZstdStream& stream, u64 nth, u64 warps) {
        return stream.is_plain || zstd_literals(
            shared.warp[w], stream.from, stream.stored, stream.size, stream.buffer, nth, warps
        );
    };
    decode_frames(
        staged + offsets[n], sizes[n], size, parts, is_blosc, planes + n * stride, pool + n * stride,
        failed[n], decode
    );
}

struct SequencesOfWarps {
    Sequences warp[WEFT_WARPS];
};

WEFT_KERNEL weft_zstd_sequences(
    const u8* staged, const u64* offsets, const u64* sizes, u64 size, u64 stride, u32 parts,
    u32 is_blosc, u8* planes, u8* pool, u32* failed
) {
    WEFT_SHARED(SequencesOfWarps, shared);
    u64 n = WEFT_BLOCK / parts;
    auto decode = [&](u32 w, const ZstdStream& stream, u64 nth, u64) {
        if (nth) return true;  // another warp has it
        if (stream.is_plain) lanes_copy(stream.out, stream.from, stream.size);
        return stream.is_plain || zstd_sequences(
            shared.warp[w], stream.from, stream.stored, stream.size, stream.buffer, stream.out
        );
    };
    decode_frames(
        staged + offsets[n], sizes[n], size, parts, is_blosc, planes + n * stride, pool + n * stride,
        failed[n], decode
    );
}
