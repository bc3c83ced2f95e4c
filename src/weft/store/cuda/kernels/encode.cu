// The encoders of chunks. Each makes frames in three launches of blocks of 256 threads (WEFT_THREADS),
// with static shared memory only:
//
// 1. `weft_..._blocks` compresses all blocks of all chunks, each into a slot of fixed size;
// 2. `weft_..._sizes` finds, for each chunk, where its blocks go in its frame, and the frame's size;
// 3. `weft_..._frames` copies blocks into frames, each at its offset of one buffer.
//
// Between 2 and 3 the offsets are made of the sizes by who launches. A chunk whose size is set to 0
// then (all fill value) is not written. Chunk n begins at in + n * stride, frame n at
// out + offsets[n]; n counts chunks as they lie in `in`. `in` and `out` may have any alignment: best
// is a multiple of 16 for in and stride. Slots must begin at a multiple of 16. Loads are of up to
// sixteen aligned bytes of which some are wanted, so that the memory of `in` should end at a multiple
// of 16. Sizes and offsets are 64 bits, what lies inside of one frame is 32 bits: a chunk has less
// than 2 GiB.
#include "frames.h"
#include "literals.h"
#include "runs.h"

// -- runs: bit planes, LZ4 blocks of runs. blocks = ceil(size / 16384) for each chunk.
//
// | launch | blocks of the grid | shared |
// | weft_runs_blocks | chunks * blocks | Runs, 40 KiB |
// | weft_runs_sizes | chunks | 1 KiB |
// | weft_runs_frames | chunks * blocks | none |
//
// | scratch | bytes |
// | slots | chunks * blocks * 16384 |
// | sizes, starts | chunks * blocks * 4 each |
// | totals | chunks * 8 |
//
// typesize is 1, 2, 4, 8 or 16, and divides size. A frame has at most size + 16 bytes.

#define RUNS_FLAGS (1u << 5 | 0x10u | 0x04u)

WEFT_DEVICE Frame runs_frame(u64 size, u32 typesize) {
    u32 blocksize = size < RUNS_BLOCK ? (u32)size : RUNS_BLOCK;
    Frame frame = {(u32)size, blocksize, typesize, RUNS_FLAGS};
    return frame;
}

WEFT_KERNEL weft_runs_blocks(
    const u8* in, u64 stride, u64 size, u32 typesize, u8* slots, u32* sizes
) {
    WEFT_SHARED(Runs, shared);
    Frame frame = runs_frame(size, typesize);
    u64 chunk = WEFT_BLOCK / frame.blocks();
    u32 block = (u32)(WEFT_BLOCK % frame.blocks());
    const u8* from = in + chunk * stride + (u64)block * RUNS_BLOCK;
    u8* slot = slots + WEFT_BLOCK * RUNS_BLOCK;
    u32 made = encode_runs(shared, from, frame.length(block), typesize, slot);
    WEFT_PHASE(t) {
        if (t == 0) sizes[WEFT_BLOCK] = made;
    }
}

WEFT_KERNEL weft_runs_sizes(u64 size, u32 typesize, const u32* sizes, u32* starts, u64* totals) {
    WEFT_SHARED(Starts, shared);
    Frame frame = runs_frame(size, typesize);
    u64 first = WEFT_BLOCK * frame.blocks();
    place_blocks(shared, frame, sizes + first, 1, 0, starts + first, totals + WEFT_BLOCK);
}

WEFT_KERNEL weft_runs_frames(
    const u8* in, u64 stride, u64 size, u32 typesize, const u8* slots, const u32* sizes,
    const u32* starts, const u64* totals, const u64* offsets, u8* out
) {
    Frame frame = runs_frame(size, typesize);
    u64 chunk = WEFT_BLOCK / frame.blocks();
    u32 block = (u32)(WEFT_BLOCK % frame.blocks());
    if (totals[chunk] == 0) return;
    put_block(
        out + offsets[chunk], frame, (u32)totals[chunk], block, starts[WEFT_BLOCK],
        sizes[WEFT_BLOCK], slots + WEFT_BLOCK * RUNS_BLOCK, in + chunk * stride
    );
}

// -- literals: byte planes, zstd blocks of literals. For each chunk
// blocks = ceil(size / (8192 * typesize)), pieces = blocks * typesize.
//
// | launch | blocks of the grid | shared |
// | weft_literals_blocks | chunks * pieces | Literals, 22 KiB |
// | weft_literals_sizes | chunks | 1 KiB |
// | weft_literals_frames | chunks * pieces | none |
//
// | scratch | bytes |
// | slots | chunks * pieces * 8208 |
// | sizes | chunks * pieces * 4 |
// | starts | chunks * blocks * 4 |
// | totals | chunks * 8 |
//
// typesize is 1, 2, 4, 8 or 16, and divides size. A frame has at most size + 16 bytes.

#define LITERALS_FLAGS (4u << 5 | 0x10u | 0x01u)

WEFT_DEVICE Frame literals_frame(u64 size, u32 typesize) {
    u32 most = PIECE * typesize, blocksize = size < most ? (u32)size : most;
    Frame frame = {(u32)size, blocksize, typesize, LITERALS_FLAGS};
    return frame;
}

// Which plane of which block of which chunk.
struct Piece {
    u64 chunk;
    u32 block, plane;
};

WEFT_DEVICE Piece find_piece(u64 number, Frame frame) {
    Piece made = {number / frame.typesize / frame.blocks(), 0, (u32)(number % frame.typesize)};
    made.block = (u32)(number / frame.typesize % frame.blocks());
    return made;
}

WEFT_KERNEL weft_literals_blocks(
    const u8* in, u64 stride, u64 size, u32 typesize, u8* slots, u32* sizes
) {
    WEFT_SHARED(Literals, shared);
    Frame frame = literals_frame(size, typesize);
    Piece piece = find_piece(WEFT_BLOCK, frame);
    const u8* from = in + piece.chunk * stride + (u64)piece.block * frame.blocksize + piece.plane;
    u32 elements = frame.length(piece.block) / typesize;
    u8* slot = slots + WEFT_BLOCK * PIECE_SLOT;
    u32 is_last = piece.plane == typesize - 1;
    u32 made = encode_piece(shared, from, typesize, elements, is_last, slot);
    WEFT_PHASE(t) {
        if (t == 0) sizes[WEFT_BLOCK] = made;
    }
}

WEFT_KERNEL weft_literals_sizes(u64 size, u32 typesize, const u32* sizes, u32* starts, u64* totals) {
    WEFT_SHARED(Starts, shared);
    Frame frame = literals_frame(size, typesize);
    u64 first = WEFT_BLOCK * frame.blocks();
    place_blocks(
        shared, frame, sizes + first * typesize, typesize, ZSTD_HEAD, starts + first,
        totals + WEFT_BLOCK
    );
}

WEFT_KERNEL weft_literals_frames(
    const u8* in, u64 stride, u64 size, u32 typesize, const u8* slots, const u32* sizes,
    const u32* starts, const u64* totals, const u64* offsets, u8* out
) {
    Frame frame = literals_frame(size, typesize);
    Piece piece = find_piece(WEFT_BLOCK, frame);
    u64 first = piece.chunk * frame.blocks();
    if (totals[piece.chunk] == 0) return;
    put_piece(
        out + offsets[piece.chunk], frame, (u32)totals[piece.chunk], piece.block, piece.plane,
        starts[first + piece.block], sizes + first * typesize, slots + WEFT_BLOCK * PIECE_SLOT,
        in + piece.chunk * stride
    );
}

// -- zstd: the bytes as they are, zstd blocks of literals. pieces = ceil(size / 8192) for each chunk.
//
// | launch | blocks of the grid | shared |
// | weft_zstd_blocks | chunks * pieces | Literals, 22 KiB |
// | weft_zstd_sizes | chunks | 1 KiB |
// | weft_zstd_frames | chunks * pieces | none |
//
// | scratch | bytes |
// | slots | chunks * pieces * 8208 |
// | sizes, starts | chunks * pieces * 4 each |
// | totals | chunks * 8 |
//
// A frame has at most 9 + size + 3 * pieces bytes.

WEFT_KERNEL weft_zstd_blocks(const u8* in, u64 stride, u64 size, u8* slots, u32* sizes) {
    WEFT_SHARED(Literals, shared);
    u64 pieces = (size + PIECE - 1) / PIECE, piece = WEFT_BLOCK % pieces, left = size - piece * PIECE;
    const u8* from = in + WEFT_BLOCK / pieces * stride + piece * PIECE;
    u8* slot = slots + WEFT_BLOCK * PIECE_SLOT;
    u32 length = left < PIECE ? (u32)left : PIECE;
    u32 made = encode_piece(shared, from, 1, length, piece + 1 == pieces, slot);
    WEFT_PHASE(t) {
        if (t == 0) sizes[WEFT_BLOCK] = made;
    }
}

WEFT_KERNEL weft_zstd_sizes(u64 size, const u32* sizes, u32* starts, u64* totals) {
    WEFT_SHARED(Starts, shared);
    u32 pieces = (u32)((size + PIECE - 1) / PIECE);
    u64 first = WEFT_BLOCK * pieces;
    u32 total = place(shared, ZSTD_HEAD, pieces, sizes + first, starts + first);
    WEFT_PHASE(t) {
        if (t == 0) totals[WEFT_BLOCK] = total;
    }
}

WEFT_KERNEL weft_zstd_frames(
    u64 size, const u8* slots, const u32* sizes, const u32* starts, const u64* totals,
    const u64* offsets, u8* out
) {
    u64 pieces = (size + PIECE - 1) / PIECE, chunk = WEFT_BLOCK / pieces;
    if (totals[chunk] == 0) return;
    u8* frame = out + offsets[chunk];
    WEFT_PHASE(t) {
        if (WEFT_BLOCK % pieces == 0) put_zstd_head(frame, (u32)size, t);
        copy(frame + starts[WEFT_BLOCK], slots + WEFT_BLOCK * PIECE_SLOT, sizes[WEFT_BLOCK], t);
    }
}
