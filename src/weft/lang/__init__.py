"""The language: index notation, operators, graphs."""

from weft.lang import library
from weft.lang.block import Block
from weft.lang.graph import Application, Graph, Value
from weft.lang.notation import Notation, Row
from weft.lang.operator import OPERATORS, Library, Operator
from weft.lang.rule import FactorRule, factor_rule
from weft.lang.signature import Signature

__all__ = [
    "OPERATORS",
    "Application",
    "Block",
    "FactorRule",
    "Graph",
    "Library",
    "Notation",
    "Operator",
    "Row",
    "Signature",
    "Value",
    "factor_rule",
    "library",
]
