"""The packings that a value of a network may have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import prod
from typing import Any

from weft.ckks.network import Linear, Network, Power
from weft.ckks.packing import Packing
from weft.errors import WeftError
from weft.layout import ShardingSpec
from weft.values import Point

GAPS = (1, 2, 4, 8, 16, 32)
STRIDES = tuple(1 << n for n in range(16))
MOST = 16
"""Packings of one value that are looked at, at most."""


def packings(network: Network, slots: int) -> dict[str, list[Packing]]:
    """For each value that is no view, the packings that it may have.

    Images stand in tiles of any gap, inputs of strided layers in phases too; vectors at any stride,
    and where the image was that they are the sums of. What leaves room is repeated in it, or not.
    """
    found: dict[str, list[Packing]] = {}
    strides = dict(_strides(network))
    for name in network.inputs:
        made = [*_plain(network.shape(name), slots), *_phased(network, name, strides, slots)]
        found[name] = _several(name, made)
    for layer in network.layers:
        shape = network.shape(layer.name)
        made = [*_plain(shape, slots), *_phased(network, layer.name, strides, slots)]
        if isinstance(layer, Linear) and layer.operator in ("mean_dim", "sum_dim"):
            dims = layer.signature.notation.operands[0]
            kept = [n for n, row in enumerate(dims) if row in layer.signature.notation.results[0]]
            made += [
                left
                for source in found[layer.sources[0]]
                for left in _kept(source, network.shape(layer.sources[0]), kept, shape)
            ]
        found[layer.name] = _several(layer.name, made)
    return found


def _several(name: str, made: Iterable[Packing]) -> list[Packing]:
    once = list(dict.fromkeys(made))[:MOST]
    if not once:
        raise WeftError(f"{name} does not fit: no packing of it has a place in the slots")
    copies = [each.replicated() for each in once if _has_room(each)]
    return list(dict.fromkeys([*once, *copies]))


def _has_room(packing: Packing) -> bool:
    return packing.ciphertexts == 1 and 2 * packing.span <= packing.slots


def _plain(shape: Point, slots: int) -> Iterator[Packing]:
    """The packings that any value of a shape may have."""
    bare = _bare(shape)
    if len(bare) < 2:
        size = bare[0] if bare else 1
        for stride in STRIDES:
            if size * stride <= slots or stride == 1:
                yield from _tried(Packing.vector, size, slots, stride)
    elif len(bare) == 2:
        yield from _tried(Packing.tiled, bare, slots)
        yield from _tried(Packing.dense, bare, slots)
    else:
        for gap in GAPS:
            if gap == 1:
                yield from _tried(Packing.tiled, bare, slots)
            elif gap * gap < 2 * bare[-3] and prod(_sides(bare, gap)) <= slots:
                yield from _tried(Packing.multiplexed, bare, slots, gap, _sides(bare, gap))


def _sides(shape: Point, gap: int) -> tuple[int, int]:
    high, wide = ((n - 1).bit_length() for n in shape[-2:])
    return gap << high, gap << wide


def _phased(
    network: Network, name: str, strides: dict[str, tuple[int, int]], slots: int
) -> Iterator[Packing]:
    bare = _bare(network.shape(name))
    if name not in strides or len(bare) < 3:
        return
    down, along = strides[name]
    yield from _tried(Packing.phased, bare, slots, (down, along))
    if name in network.inputs:  # what follows may be strided as well
        yield from _tried(Packing.phased, bare, slots, (down**2, along**2))


def _tried(make: Callable[..., Packing], *given: Any) -> Iterator[Packing]:
    """A packing, if there is room for it."""
    try:
        yield make(*given)
    except WeftError:
        return


def _strides(network: Network) -> Iterator[tuple[str, tuple[int, int]]]:
    """Values that a layer reads with strides, and what polynomials read for them."""
    found: dict[str, tuple[int, int]] = {}
    for layer in reversed(network.layers):
        if isinstance(layer, Power) and layer.name in found:
            found[layer.sources[0]] = found[layer.name]
        elif isinstance(layer, Linear) and layer.places == (0,):
            rows = layer.signature.notation.operands[0][-2:]
            outer = [max((step for _, step in row.terms), default=1) for row in rows]
            if len(outer) == 2 and max(outer) > 1:
                found[layer.sources[0]] = outer[0], outer[1]
    yield from found.items()


def _kept(packing: Packing, shape: Point, dims: list[int], result: Point) -> Iterator[Packing]:
    """What is left of a packing if some dimensions of its tensor go; nothing if they are cut."""
    seen = packing.reshaped(shape)
    if seen is None:
        return
    first = [sum(map(len, seen.radices[:dim])) for dim in range(len(shape))]
    digits = [n for dim in dims for n in range(first[dim], first[dim] + len(seen.radices[dim]))]
    others = [n for n in range(len(seen.lifted)) if n not in digits]
    if any(seen.spec.grid[n] > 1 for n in others):
        return
    spec = ShardingSpec(seen.spec.mesh, [seen.spec.dim_specs[n] for n in digits])
    kept = Packing(
        [shape[dim] for dim in dims],
        [seen.radices[dim] for dim in dims],
        spec,
        [seen.strides[n] for n in digits],
        seen.slots,
    )
    wanted = kept.reshaped(result)
    if wanted is not None:
        yield wanted


def _bare(shape: Point) -> Point:
    """A shape without the ones that lead it."""
    while shape and shape[0] == 1:
        shape = shape[1:]
    return shape
