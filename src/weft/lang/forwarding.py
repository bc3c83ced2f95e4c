"""Rewrites that cut an application into blocks, and move pointwise operators through the joints.

An application is cut along a parallel dimension: its operands are sliced, and the results of the
blocks are concatenated. A pointwise operator of such a result is forwarded to the blocks, and then
each block can be fused with it. Nothing here depends on what the operators compute: where slices go
and results are joined follows from the index notation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.errors import WeftError
from weft.lang import ops
from weft.lang.arithmetic import apply
from weft.lang.fusion import join
from weft.lang.graph import Application, Graph
from weft.lang.operator import OPERATORS, Library
from weft.lang.rewrite import Match, Rewrite, Values
from weft.lang.signature import Signature
from weft.lang.trace import Symbol
from weft.space import BlockGrid


def shard(
    operator: str, operands: int, dim: str, blocks: int = 2, library: Library = OPERATORS
) -> Rewrite:
    """Return the rewrite of an operator as blocks along a parallel index dimension, concatenated.

    >>> from weft import ops, trace
    >>> graph = trace(ops.linear, (8, 16), (16, 4), (4,), names=["x", "w", "b"])
    >>> print(shard("linear", 3, "m").apply(graph, "linear"))
    x: float32[8, 16]
    w: float32[16, 4]
    b: float32[4]
    slice: float32[4, 16] = slice(x, start_indices=(0, 0), limit_indices=(4, 16), strides=(1, 1))
    linear_2: float32[4, 4] = linear(slice, w, b)
    slice_2: float32[4, 16] = slice(x, start_indices=(4, 0), limit_indices=(8, 16), strides=(1, 1))
    linear_3: float32[4, 4] = linear(slice_2, w, b)
    linear: float32[8, 4] = concatenate(linear_2, linear_3, dimension=0)
    return linear
    """
    names = [f"operand{number}" for number in range(operands)]

    def signature(shapes: Sequence[tuple[int, ...]], match: Match) -> Signature:
        return library.find(operator).sign(shapes, match.attributes(operator))

    def condition(graph: Graph, match: Match) -> bool:
        line = signature([graph.values[match.values[name]].shape for name in names], match)
        return _result_axis(line, dim) is not None and line.sizes[dim] >= blocks

    def replacement(v: Values, match: Match) -> Symbol:
        arrays = [v[name] for name in names]
        line = signature([x.shape for x in arrays], match)
        axis, parts = _result_axis(line, dim), []
        for block in BlockGrid.cut((line.sizes[dim],), (blocks,)).boxes():
            (low,), (high,) = block.start, block.stop
            if low < high:
                cut = [
                    _sliced(x, rows_axis(line, number, dim), low, high)
                    for number, x in enumerate(arrays)
                ]
                parts.append(apply(operator, *cut, **match.attributes(operator)))
        joined: Symbol = ops.concatenate(parts, axis or 0)
        return joined

    name = f"{operator} in {blocks} blocks of {dim}"
    return Rewrite(name, (operator, *names), replacement, condition, makes_blocks=True)


def rows_axis(line: Signature, operand: int, dim: str) -> int | None:
    """Return the axis of an operand that an index dimension runs along; None if there is none."""
    rows = line.notation.operands[operand]
    axes = [axis for axis, row in enumerate(rows) if dim in row.dims]
    return axes[0] if axes else None


def _result_axis(line: Signature, dim: str) -> int | None:
    """Return the axis of the result to join blocks along; None if the dimension cannot be cut."""
    if dim not in line.sizes or dim in line.fixed or dim in line.reduced:
        return None
    tensors = [*line.notation.operands, *line.notation.results]
    for rows in tensors:
        used = [row for row in rows if dim in row.dims]
        if any(row.plain != dim or row.whole for row in used) or len(used) > 1:
            return None
    axes = [axis for axis, row in enumerate(line.notation.results[0]) if row.plain == dim]
    return axes[0] if len(line.notation.results) == 1 and axes else None


def _sliced(x: Symbol, axis: int | None, low: int, high: int) -> Symbol:
    if axis is None:
        return x
    part: Symbol = x[(*[slice(None)] * axis, slice(low, high))]
    return part


def forward(operator: str, library: Library = OPERATORS, parts: int = 2) -> list[Rewrite]:
    """Return the rewrites that move a pointwise operator to where its operand is made.

    It passes through concatenation, slices, transposition and reshapes.

    >>> [rewrite.name for rewrite in forward("relu")]  # doctest: +NORMALIZE_WHITESPACE
    ['relu through concatenate', 'relu through slice', 'relu through transpose',
     'relu through reshape']
    """
    line = library.find(operator).sign([(2, 3)])
    plain = [row.plain for row in line.notation.operands[0]]
    results = [row.plain for row in line.notation.results[0]]
    is_pointwise = plain == results and not (line.fixed or line.reduced or line.notation.whole)
    if len(line.notation.operands) != 1 or not is_pointwise:
        raise WeftError(f"{operator} is not pointwise, and cannot be forwarded")

    def moved(x: Symbol, match: Match) -> Symbol:
        result: Symbol = apply(operator, x, **match.attributes(operator))
        return result

    names = [f"part{number}" for number in range(parts)]

    def through_parts(v: Values, match: Match) -> Symbol:
        joint = match.attributes("concatenate")["dimension"]
        joined: Symbol = ops.concatenate([moved(v[name], match) for name in names], joint)
        return joined

    def through(mover: str) -> Rewrite:
        return Rewrite(
            f"{operator} through {mover}",
            (operator, (mover, "x")),
            lambda v, match: apply(mover, moved(v["x"], match), **match.attributes(mover)),
            lambda graph, match: (
                graph.values[match.root].dtype == graph.values[match.values["x"]].dtype
            ),
        )

    joint = Rewrite(
        f"{operator} through concatenate", (operator, ("concatenate", *names)), through_parts
    )
    return [joint, *map(through, MOVERS[1:])]


MOVERS = ("concatenate", "slice", "transpose", "reshape")
"""The operators that pointwise operators pass through."""


def forwards_in(graph: Graph) -> list[Rewrite]:
    """Return the rewrites that forward pointwise operators of a graph, where that may pay.

    Where a mover and the operator can be fused, nothing is gained; but a concatenation sees its
    dimension whole, and before it the operator may be cut along that.

    >>> from weft import ops, trace
    >>> graph = trace(lambda x, y: ops.relu(ops.concatenate([x.reshape(8), y], 0)), (2, 4), (8,))
    >>> [rewrite.name for rewrite in forwards_in(graph)]
    ['relu through concatenate of 2']
    """
    makers = {name: a for a in graph.applications for name in a.results}
    library, found = Library(graph.operators), dict[str, Rewrite]()
    for application in graph.applications:
        maker = makers.get(application.operands[0]) if len(application.operands) == 1 else None
        if maker is None or maker.operator not in MOVERS or application.regions:
            continue
        count, is_joint = len(maker.operands), maker.operator == "concatenate"
        try:
            rewrite = forward(application.operator, graph.operators, count)[
                MOVERS.index(maker.operator)
            ]
        except WeftError:  # it is not pointwise
            continue
        name = f"{rewrite.name} of {count}" if is_joint else rewrite.name
        if is_joint or not _can_be_fused(library, graph, maker, application):
            found.setdefault(name, replace(rewrite, name=name))
    return list(found.values())


def _can_be_fused(library: Library, graph: Graph, maker: Application, reader: Application) -> bool:
    try:
        join(library, graph.values, maker, reader, maker.results[0])
    except WeftError:
        return False
    return True
