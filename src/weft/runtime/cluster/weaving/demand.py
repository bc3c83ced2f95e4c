"""What the applications of a strand compute for its last ones: boxes, from back to front."""

from __future__ import annotations

from collections.abc import Mapping

from weft.lang import Signature
from weft.runtime.cluster.weaving.shelf import Shelf
from weft.runtime.cluster.weaving.strands import Strand, is_dense
from weft.space import ZRange

Boxes = dict[int, ZRange]
"""For each application that has to run the box of its index space."""


def demanded(shelf: Shelf, strand: Strand, rank: int, targets: Mapping[int, ZRange]) -> Boxes:
    """The box that each application of a strand computes on a cell for what is wanted of some.

    Halos grow from back to front; what nobody wants is not there.
    """
    plan, found = shelf.plan, Boxes()
    needed: dict[str, ZRange] = {}
    for number in reversed(strand.applications):
        application, placed = plan.graph.applications[number], plan.placed[number]
        boxes = [targets[number]] if number in targets else []
        for place, name in enumerate(application.results):
            if name in needed:
                boxes.append(making(placed.signature, place, needed[name], placed.boxes[rank]))
        if not boxes:
            continue
        found[number] = boxes[0].hull(*boxes[1:])
        for place, box in enumerate(shelf.block(number, found[number]).operands):
            if (number, place) in strand.inner:
                name = application.operands[place]
                needed[name] = needed[name].hull(box) if name in needed else box
    return dict(sorted(found.items()))


def making(line: Signature, place: int, box: ZRange, own: ZRange) -> ZRange:
    """The box of an index space that makes a box of a result: of what is reduced the cell's own.

    >>> line = Signature.of("m k, k n -> m n  sum: k", [(8, 16), (16, 32)])
    >>> print(making(line, 0, ZRange((2, 0), (4, 8)), ZRange((0, 0, 8), (8, 32, 16))))
    [2:4, 0:8, 8:16]
    """
    rows = line.notation.results[place]
    names = [row.plain for row in rows]
    if not is_dense(line):
        return own.hull(line.results[place].preimage(box, line.space))
    spans, fixed = dict(zip(line.sizes, zip(own.start, own.stop))), line.fixed
    for name, span in zip(names, zip(box.start, box.stop)):
        if name is not None and name not in fixed:
            spans[name] = span
    return ZRange(*zip(*spans.values())) if spans else own
