"""Programs: a plan lowered to instructions, verified, counted and printed.

Executors, prices and pictures are folds over the same instructions.
"""

from weft.program.count import Counts, Executed
from weft.program.instructions import (
    Apply,
    Body,
    Branch,
    Buffer,
    Combine,
    Copy,
    Definition,
    Free,
    GraphDefinition,
    IndexSpace,
    Instruction,
    Loop,
    Mask,
    Read,
    Slice,
    Transfer,
    Write,
)
from weft.program.layout_rule import CellClasses, Cells, Layout
from weft.program.messages import Message, Route
from weft.program.program import Program
from weft.program.storage import Storage, Traffic
from weft.program.verify import AppliedProof, Proof, VerificationError

__all__ = [
    "AppliedProof",
    "Apply",
    "Body",
    "Branch",
    "Buffer",
    "CellClasses",
    "Cells",
    "Combine",
    "Copy",
    "Counts",
    "Definition",
    "Executed",
    "Free",
    "GraphDefinition",
    "IndexSpace",
    "Instruction",
    "Layout",
    "Loop",
    "Mask",
    "Message",
    "Program",
    "Proof",
    "Read",
    "Route",
    "Slice",
    "Storage",
    "Traffic",
    "Transfer",
    "VerificationError",
    "Write",
]
