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
// is a multiple of 16 for in and stride. Slots must begin at a multiple of 16. Sizes and offsets are
// 64 bits, what lies inside of one frame is 32 bits: a chunk has less than 2 GiB.
#include "frames.h"
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
    place_blocks(shared, frame, sizes + first, starts + first, totals + WEFT_BLOCK);
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
