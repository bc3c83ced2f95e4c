"""Draw a signature: an index box, and its image in every operand and result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, TypeAlias

from weft.draw import ArrayPanel, Drawing, Patch, clip, draw_figure
from weft.errors import WeftError
from weft.lang.notation import Row
from weft.space import Projection, ZRange
from weft.values import Point, as_point

if TYPE_CHECKING:
    from weft.lang.operator import Operator
    from weft.lang.signature import Signature

Cell: TypeAlias = ZRange | Mapping[str, int] | Iterable[int]
"""An index box: as a box, a point, or a point along some of the index dimensions."""

EXAMPLE_SIZE = 4
"""The size of the dimensions where an operator is drawn without shapes."""


def draw_signature(
    signature: Signature, cell: Cell | None = None, operator: str = "", title: str = ""
) -> Drawing:
    """Draw an index box and its images; by default that of one element of the results.

    A result of which the box computes parts only is hatched.
    """
    box, line = index_box(signature, cell), signature.notation
    operands = [
        ArrayPanel(panel_title(rows, shape, n in line.once), shape, _image(p, box, shape, rows))
        for n, (rows, shape, p) in enumerate(
            zip(line.operands, signature.operand_shapes, signature.operands)
        )
    ]
    spans = zip(signature.sizes, box.start, box.stop)
    cut = {name for name, a, b in spans if (a, b) != (0, signature.sizes[name])}
    is_part = bool(cut.intersection(line.reduced))
    results = [
        ArrayPanel(panel_title(rows, shape), shape, _image(p, box, shape, rows, is_part))
        for rows, shape, p in zip(line.results, signature.result_shapes, signature.results)
    ]
    shown = [n for n, name in enumerate(signature.sizes) if name in cut or name not in line.reduced]
    label = ",".join(name for name in signature.sizes if name not in line.reduced)
    index = index_panel(signature, shown, [Patch(box.start, box.stop, label)])
    notes = [f"the index box {box} computes a part of each result that it touches"] * is_part
    return draw_figure(operator, index, operands, results, title or str(signature), notes)


def draw_operator(
    operator: Operator, shapes: Sequence[Point], attributes: Mapping[str, object], cell: Cell | None
) -> Drawing:
    """Draw an operator applied to operands of those shapes, or of small ones that fit it."""
    signature = signature_for(operator, shapes, attributes)
    return draw_signature(signature, cell, operator.name, f"{clip(operator.name, 40)}: {signature}")


def signature_for(
    operator: Operator, shapes: Sequence[Point], attributes: Mapping[str, object]
) -> Signature:
    """Return the signature of an operator for shapes, or for small ones that fit it."""
    if shapes or attributes:
        return operator.sign([as_point(shape, "shape") for shape in shapes], attributes)
    return _example(operator)


_EXAMPLES: dict[str, object] = {
    "dimension": 1,
    "dimensions": (1,),
    "permutation": (1, 0),
    "equation": "ij,jk->ik",
    "k": 2,
    "blocks": 2,
    "monoid": "sum",
    "window": (2, 2),
    "result_shape": (EXAMPLE_SIZE**2,),
    "start_indices": (1, 0),
    "limit_indices": (3, EXAMPLE_SIZE),
    "strides": (1, 1),
    "slice_sizes": (2, EXAMPLE_SIZE),
    "edge_padding_low": (1, 0),
    "edge_padding_high": (1, 0),
    "interior_padding": (0, 0),
    "fft_type": "FFT",
    "fft_length": (EXAMPLE_SIZE,),
    "left_side": True,
    "feature_index": 1,
}
"""Attributes with which operators are drawn that are not applied to given shapes."""


def _example(operator: Operator) -> Signature:
    """Return the signature for the first small shapes that fit an operator."""
    attributes = operator.known(_EXAMPLES) if operator.attributes else {}
    for count in range(1, 6):
        for ranks in product((2, 1, 3, 4, 0), repeat=count) if count < 4 else [(1,) * count]:
            try:
                return operator.sign([(EXAMPLE_SIZE,) * rank for rank in ranks], attributes)
            except WeftError:
                continue
    raise WeftError(
        f"{clip(operator.name, 80)} is drawn for shapes and attributes",
        hint=f"show({clip(operator.name, 40)}, (8, 16), ..., attribute=...)",
    )


def index_box(signature: Signature, cell: Cell | None) -> ZRange:
    """Return the index box that a cell gives; it must lie in the index space.

    >>> from weft.lang import Signature
    >>> line = Signature.of("m k, k n -> m n  sum: k", [(8, 16), (16, 32)])
    >>> print(index_box(line, None), index_box(line, {"m": 3}), index_box(line, (3, 0, 1)))
    [4:5, 16:17, 0:16] [3:4, 0:32, 0:16] [3:4, 0:1, 1:2]
    """
    space, names = signature.space, list(signature.sizes)
    if isinstance(cell, ZRange):
        box = cell
    else:
        if cell is None:
            fixed = signature.fixed.union(signature.reduced)
            cell = {name: n // 2 for name, n in signature.sizes.items() if name not in fixed and n}
        elif not isinstance(cell, Mapping):
            cell = dict(zip(names, as_point(cell, "cell", len(names))))
        for name in cell:
            if name not in names:
                raise WeftError(f"there is no index dimension '{name}' in {signature}")
        spans = [(cell.get(n), size) for n, size in signature.sizes.items()]
        box = ZRange(
            [0 if at is None else at for at, _ in spans],
            [size if at is None else at + 1 for at, size in spans],
        )
    if box.ndim != space.ndim or (box & space) != box:
        raise WeftError(f"the index space of {signature} has no box {box}")
    return box


def panel_title(rows: Sequence[Row], shape: Point, once: bool = False) -> str:
    """Return the rows of an array and its shape."""
    return f"{'+ ' * once}{' '.join(map(str, rows)) or 'a scalar'} · {list(shape)}"


def index_title(signature: Signature) -> str:
    """Return the index dimensions with their sizes; reduced ones in double brackets, as ⟪k=16⟫.

    >>> from weft.lang import Signature
    >>> index_title(Signature.of("m k -> m  sum: k", [(8, 16)]))
    'index m=8 ⟪k=16⟫ sum'
    """
    monoids = signature.notation.reduced
    dims = [
        f"⟪{name}={size}⟫" if name in monoids else f"{name}={size}"
        for name, size in signature.sizes.items()
    ]
    return " ".join(["index", *dims, *dict.fromkeys(monoids.values())])


def index_panel(signature: Signature, dims: Sequence[int], patches: Iterable[Patch]) -> ArrayPanel:
    """Return the index space with boxes in it, drawn along some of its dimensions."""
    sizes = tuple(signature.sizes.values())

    def along(point: Point) -> Point:
        return tuple(point[dim] for dim in dims)

    names = [name for dim, name in enumerate(signature.sizes) if dim in dims]
    missing = {*signature.sizes} - {*signature.notation.reduced} - {*names}
    title = index_title(signature) + f", drawn along {', '.join(names)}" * bool(missing)
    seen = [patch._replace(start=along(patch.start), stop=along(patch.stop)) for patch in patches]
    return ArrayPanel(title, along(sizes), seen)


def _image(
    image: Projection, box: ZRange, shape: Point, rows: Sequence[Row], hatched: bool = False
) -> list[Patch]:
    region = image.region(box, shape)
    return [Patch(region.start, region.stop, ",".join(map(str, rows)), 0, hatched)]
