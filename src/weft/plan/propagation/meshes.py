"""The meshes of a program, and shardings on them as text, as specs and as numbers."""

from __future__ import annotations

from weft.errors import WeftError
from weft.lang import Graph, Value
from weft.layout import Axis, DeviceMesh, DimSpec, ShardingSpec
from weft.plan.propagation.axes import Pieces, axis_of, piece_of
from weft.plan.propagation.factors import TensorSharding
from weft.plan.propagation.node import EMPTY

NOWHERE = DeviceMesh("empty", (), ())
"""The mesh of a program that names none and cuts nothing."""


class Meshes:
    """The meshes of a graph by number, and what their shardings are."""

    def __init__(self, graph: Graph) -> None:
        self.named = tuple(map(DeviceMesh.parse, graph.meshes))
        self.all = self.named or (NOWHERE,)
        self.by_name = {mesh.name: number for number, mesh in enumerate(self.all)}
        if len(self.by_name) < len(self.all):
            raise WeftError("two meshes have one name", hint=", ".join(graph.meshes))
        self.kinds = list(map(self._kind, self.all))
        cut = [number for number, mesh in enumerate(self.all) if mesh.shape]
        self.usual = (cut or [0])[0]
        """The mesh of what is not sharded: the first that has axes."""
        self._specs: dict[tuple[TensorSharding | None, int], ShardingSpec] = {}

    def _kind(self, mesh: DeviceMesh) -> int:
        if not mesh.shape and mesh.device_ids is None:
            return EMPTY
        same = (mesh.shape, mesh.axis_names, mesh.device_ids)
        return next(
            number
            for number, other in enumerate(self.all)
            if (other.shape, other.axis_names, other.device_ids) == same
        )

    def parse(self, value: Value, text: str) -> ShardingSpec:
        """The sharding of a value; on a mesh without axes its dimensions need not be said."""
        spec = ShardingSpec.parse(text, self.named)
        rank = len(value.shape)
        if not spec.mesh.shape and not spec.ndim:
            return ShardingSpec(spec.mesh, [DimSpec()] * rank)
        if spec.ndim != rank:
            raise WeftError(
                f"{value.name} has rank {rank} and its sharding rank {spec.ndim}: {spec}"
            )
        return spec

    def numbered(self, spec: ShardingSpec) -> TensorSharding:
        """A spec as the engine knows it."""
        return TensorSharding(
            tuple(self._pieces(spec.mesh, dim.axes) for dim in spec.dim_specs),
            tuple(dim.is_open for dim in spec.dim_specs),
            self._pieces(spec.mesh, spec.replicated_axes),
            self._pieces(spec.mesh, tuple(spec.partial)),
            self.by_name[spec.mesh.name],
        )

    def _pieces(self, mesh: DeviceMesh, axes: tuple[Axis, ...]) -> Pieces:
        return tuple(piece_of(mesh, axis) for axis in axes)

    def spec(self, sharding: TensorSharding | None, rank: int) -> ShardingSpec:
        """What the engine found as a spec, made once; open everywhere where it found nothing."""
        key = (sharding, rank)
        if key not in self._specs:
            self._specs[key] = self._made(sharding, rank)
        return self._specs[key]

    def _made(self, sharding: TensorSharding | None, rank: int) -> ShardingSpec:
        found = sharding or TensorSharding.free(rank)._replace(mesh=self.usual)
        dims = (
            DimSpec(self.axes(found.mesh, pieces), opened)
            for pieces, opened in zip(found.axes, found.is_open)
        )
        kept, parts = (
            self.axes(found.mesh, found.replicated),
            self.axes(found.mesh, found.unreduced),
        )
        return ShardingSpec(self.all[found.mesh], dims, kept, ((axis, "sum") for axis in parts))

    def axes(self, mesh: int, pieces: Pieces) -> tuple[Axis, ...]:
        """Pieces as axes."""
        return tuple(axis_of(self.all[mesh], piece) for piece in pieces)
