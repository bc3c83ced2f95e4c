"""`Program`: a plan lowered to instructions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from weft.program.count import Counts
from weft.program.instructions import Body, Buffer, GraphDefinition, Instruction
from weft.program.layout_rule import Cells
from weft.program.storage import Storage
from weft.program.text import program_text
from weft.program.verify import Proof, verify


@dataclass(frozen=True, eq=False)
class Program:
    """A plan lowered to instructions: what is verified, counted, priced, drawn and executed.

    >>> from weft import Plan, propagate, trace
    >>> graph = trace(
    ...     lambda x: (x + x).sum(0), (8, 4),
    ...     meshes=['@m = <["x"=2]>'], shardings={"x": '<@m, [{"x"}, {}]>'},
    ... )
    >>> print(Plan.of(propagate(graph)).program)
    main(%0: x float32[8, 4] [{0/2}, {}])
      %1: add float32[8, 4] [{0/2}, {}] = add %0 %0 over [{0/2}, {}]
      free %0
      %2: sum_dim float32[4] [{}] sum(0/2) = sum_dim %1 over [{}, {0/2}]
      %3: sum_dim float32[4] [{}] = all_reduce %2 sum(0/2)
      %4: sum_dim float32[4] [{}] = copy %3, free %3 %2
      free %1
      return %4
    """

    cells: Cells
    buffers: tuple[Buffer, ...]
    bodies: tuple[Body, ...]
    """The first is where a run begins; the others are called by loops and branches."""
    graphs: tuple[Any, ...] = ()
    """For each body the graph it was lowered from, in which kernels and costs are found. Nothing
    that is proved relies on it."""
    mesh: Any = None
    """The mesh, for the names of its axes in texts."""
    monoids: Mapping[str, Any] = field(default_factory=dict)
    """The definitions by which parts are combined, of monoids that are a user's; the verifier
    compares them with those of the graph."""
    storage: Mapping[str, Storage] = field(default_factory=dict)
    """The inputs that are read from storage, and the outputs that are written to it."""

    @property
    def main(self) -> Body:
        """The body where a run begins."""
        return self.bodies[0]

    @cached_property
    def count(self) -> Counts:
        """Bytes and memory of each cell."""
        return Counts(self)

    def verify(self, graph: GraphDefinition | None = None) -> Proof:
        """Prove that the program computes its graph, or another one."""
        return verify(self, graph)

    def walk(self) -> Iterator[Instruction]:
        """Return the instructions of all bodies."""
        for body in self.bodies:
            yield from body.instructions

    def __str__(self) -> str:
        return program_text(self)
