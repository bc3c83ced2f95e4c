"""`make parity`: compare Weft's mapper, tiles and chip layouts with those of ttnn, on the host.

Run by a Python that has `ttnn`. `--store` writes the sample that `make test` checks without it.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parent / "data"
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

CHIP = """
arch: {0: wormhole_b0}
chips: {0: [0, 0, 0, 0]}
ethernet_connections: []
chips_with_mmio: [0: 0]
harvesting: {0: {noc_translation: true, harvest_mask: 0}}
boards:
  - [{board_id: 1649267441664}, {board_type: n150}, {chips: [0]}]
"""
"""A mock chip: ttnn asks a chip for the size of a tile."""


@contextlib.contextmanager
def quiet():
    """Silence both output streams: ttnn logs every refusal there."""
    sys.stdout.flush()
    kept, nothing = [os.dup(1), os.dup(2)], os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(kept[0], 1)
        os.dup2(kept[1], 2)
        for each in (*kept, nothing):
            os.close(each)


class Runtime:
    """ttnn, with a mock chip."""

    def __init__(self):
        chip = Path(tempfile.mkdtemp()) / "chip.yaml"
        chip.write_text(CHIP)
        os.environ["TT_METAL_MOCK_CLUSTER_DESC_PATH"] = str(chip)
        os.environ["TT_METAL_DISABLE_BACKTRACE"] = "1"
        with quiet():
            import ttnn
        self.ttnn = ttnn

    def mapper(self, mesh, placements, over=None, offset=()):
        t = self.ttnn
        each = [t.PlacementReplicate() if d is None else t.PlacementShard(d) for d in placements]
        config = t.MeshMapperConfig(
            each, t.MeshShape(over) if over else None, t.MeshCoordinate(list(offset))
        )
        return t.create_mesh_mapper(t.MeshShape(mesh), config)

    def shards(self, distributed):
        """Return the bytes of each shard with its coordinate."""
        import numpy as np

        buffer = distributed.host_buffer()
        for at in distributed.tensor_topology().mesh_coords():
            coord = [int(at[axis]) for axis in range(at.dims())]
            yield coord, np.from_dlpack(buffer.get_shard(at)).copy()

    def answer(self, case):
        """Return ttnn's shards as coordinate, start and stop, or the reason of its refusal."""
        import numpy as np
        from tests.ttmesh.cases import reason

        shape = tuple(case["shape"])
        array = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
        try:
            mapper = self.mapper(case["mesh"], case["placements"], case["over"], case["offset"])
            distributed = self.ttnn.distribute_tensor(self.ttnn.Tensor(array), mapper)
        except RuntimeError as error:
            return {"refused": reason(str(error), 0)}
        local = tuple(distributed.shape)
        shards = []
        for at, raw in self.shards(distributed):
            values = raw.view(np.int32).reshape(local)
            start = self.start(case, at, local, values, shape)
            stop = [low + size for low, size in zip(start, local)]
            assert (array[tuple(map(slice, start, stop))] == values).all(), case
            shards.append([at, start, stop])
        return {"shards": shards}

    @staticmethod
    def start(case, at, local, values, shape):
        import numpy as np

        if values.size:
            return [int(x) for x in np.unravel_index(int(values.flat[0]), shape)]
        # An empty shard has no first value: its start follows from its length and coordinate.
        start = [0] * len(shape)
        over, offset = case["over"] or case["mesh"], case["offset"] or [0] * len(at)
        for axis, dim in enumerate(case["placements"]):
            if dim is not None:
                rank = int(np.ravel_multi_index(at, case["mesh"]))
                fits = len(over) == len(at) and all(o <= m for o, m in zip(over, case["mesh"]))
                cell = [a - o for a, o in zip(at, offset)] if fits else np.unravel_index(rank, over)
                start[dim] = int(cell[axis]) * local[dim]
        return start

    def tiles(self, case):
        """Return a digest of ttnn's tiles of each shard."""
        from tests.ttmesh.cases import tensor

        array = tensor(case["shape"], case["kind"], case["seed"])
        kind = getattr(self.ttnn, case["kind"])
        mapper = self.mapper(case["mesh"], case["placements"])
        tiled = self.ttnn.Tensor(array, kind, None, self.ttnn.TILE_LAYOUT, mesh_mapper=mapper)
        return [digest(raw) for _, raw in self.shards(tiled)]

    def chip(self, case):
        """Return ttnn's cores in order, or that it refuses the layout."""
        t = self.ttnn
        try:
            corners = [(t.CoreCoord(a, b), t.CoreCoord(c, d)) for a, b, c, d in case["cores"]]
            grid = t.CoreRangeSet([t.CoreRange(*each) for each in corners])
            turn = getattr(t.ShardOrientation, case["orientation"])
            lay, kind = getattr(t.Layout, case["layout"]), getattr(t, case["kind"])
            shape = t.Shape(case["shape"])
            if case["scheme"] == "ND":
                shard = t.NdShardSpec(t.Shape(case["shard"]), grid, turn)
                t.TensorSpec(shape, kind, lay, shard, t.BufferType.L1)
            else:
                scheme = getattr(t.TensorMemoryLayout, case["scheme"] + "_SHARDED")
                shard = t.ShardSpec(grid, case["shard"], turn)
                t.TensorSpec(shape, kind, lay, scheme, shard, t.BufferType.L1)
        except RuntimeError:
            return {"refused": "layout"}
        row_wise = case["orientation"] == "ROW_MAJOR"
        cores = t.corerange_to_cores(grid, None, row_wise)
        return {"cores": [[core.x, core.y] for core in cores]}


def weft_tiles(case):
    """Return a digest of Weft's tiles of each shard."""
    from tests.ttmesh.cases import tensor

    from weft.ttmesh.formats import DataType
    from weft.ttmesh.mapper import Mapper
    from weft.ttmesh.tile import shard_and_tile

    array = tensor(case["shape"], case["kind"], case["seed"])
    boxes = Mapper(case["mesh"], case["placements"]).boxes(case["shape"])
    return [digest(tiles) for tiles in shard_and_tile(array, boxes, DataType(case["kind"]))]


def digest(raw):
    """Return a short hash of some bytes."""
    return hashlib.sha256(raw.tobytes()).hexdigest()[:16]


def compare(name, cases, theirs, ours):
    """Compare both answers to each case; print the differences and how often each answer occurs."""
    differ, counts = 0, {}
    for case in cases:
        with quiet():
            expected = theirs(case)
        answer = ours(case)
        kind = expected.get("refused", "accepted") if isinstance(expected, dict) else "tiles"
        counts[kind] = counts.get(kind, 0) + 1
        case["answer"] = expected
        if answer != expected:
            differ += 1
            if differ <= 10:
                print(json.dumps({**case, "weft": answer}))
    print(f"{name}: {len(cases)} asked, {differ} differ; {counts}")
    return differ


def store(name, cases):
    """Write one case per line, so that changes are readable."""
    DATA.mkdir(exist_ok=True)
    lines = [json.dumps(case, separators=(",", ":")) for case in cases]
    (DATA / name).write_text("[\n" + ",\n".join(lines) + "\n]\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--configs", type=int, default=12_000)
    parser.add_argument("--tiles", type=int, default=2_000)
    parser.add_argument("--chips", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", action="store_true", help="write tests/ttmesh/data")
    args = parser.parse_args()
    from tests.ttmesh import cases

    runtime, rng = Runtime(), random.Random(args.seed)
    configs = [cases.random_case(rng) for _ in range(args.configs)]
    tiles = [cases.random_tile_case(rng) for _ in range(args.tiles)]
    chips = [cases.random_chip_case(rng) for _ in range(args.chips)]
    differ = compare("configs", configs, runtime.answer, cases.weft_answer)
    differ += compare("tiles", tiles, runtime.tiles, weft_tiles)
    differ += compare("chips", chips, runtime.chip, cases.weft_chip)
    if args.store:
        small = [case for case in configs if len(json.dumps(case)) < 2500]
        store("mappers.json", small[:1000])
        store("tiles.json", tiles[:60])
        store("chips.json", chips[:200])
    return 1 if differ else 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # skip ttnn's log of closing the mock chip
