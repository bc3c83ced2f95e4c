"""The language: index notation, operators, graphs."""

from weft.lang import operators, ops
from weft.lang.graph import Application, Graph, Value
from weft.lang.kernel import Block
from weft.lang.monoid import Monoid
from weft.lang.notation import Notation, Row
from weft.lang.operator import OPERATORS, Library, Operator
from weft.lang.rule import FactorRule, factor_rule
from weft.lang.signature import Signature
from weft.lang.trace import Symbol, Tracer, trace

__all__ = [
    "OPERATORS",
    "Application",
    "Block",
    "FactorRule",
    "Graph",
    "Library",
    "Monoid",
    "Notation",
    "Operator",
    "Row",
    "Signature",
    "Symbol",
    "Tracer",
    "Value",
    "factor_rule",
    "operators",
    "ops",
    "trace",
]
