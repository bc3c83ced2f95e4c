"""The attributes of operators: their names, and the kinds of their values.

Attributes and index dimensions have separate names. In a line of text the names of numbers, such as
`s` in `s*y+u`, are attributes; a name that is a row by itself, or reduced, is an index dimension.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import lru_cache
from operator import index
from typing import Any, Literal, TypeAlias

from weft.draw import clip
from weft.errors import WeftError
from weft.lang.size import Size
from weft.values import FrozenMap

RULE_ATTRIBUTE = "sdy.sharding_rule"
"""The attribute of an application that gives its factor rule as text."""

Kind: TypeAlias = Literal["int", "float", "bool", "str", "ints", "any"]
"""The kind of an attribute's value; `ints` are integers in tuples, nested or not."""

Declared: TypeAlias = Mapping[str, Kind | type] | Iterable[str] | None
"""The attributes of an operator: names with kinds, names alone, or None if it takes any."""

_TYPES: dict[type, Kind] = {int: "int", float: "float", bool: "bool", str: "str"}
_WORDS: dict[Kind, str] = {
    "int": "an integer",
    "float": "a number",
    "bool": "True or False",
    "str": "a string",
    "ints": "integers",
}
_NAME = re.compile(r"[A-Za-z_]\w*")
_CLAUSE = re.compile(r"\s([A-Za-z_]\w*)\s*:(?!\d)")


_KINDS: dict[Kind, str] = {
    "int": """
        dimension k feature_index blocks all_gather_dim scatter_dimension split_dimension
        concat_dimension split_count index_vector_dim iota_dimension feature_group_count
        batch_group_count input_batch_dimension input_feature_dimension
        kernel_input_feature_dimension kernel_output_feature_dimension output_batch_dimension
        output_feature_dimension exponent_bits mantissa_bits group_id
    """,
    "float": "epsilon eps scale low high rate error",
    "bool": """
        keepdims lower left_side unit_diagonal reverse exclusive causal exact is_state
        count_include_pad enters is_stable
    """,
    "str": """
        equation fft_type comparison_direction compare_type monoid region name dtype rng_algorithm
        generator bounds
    """,
    "ints": """
        dimensions fft_length result_shape result_shapes permutation slice_sizes
        broadcast_dimensions start_indices limit_indices strides edge_padding_low
        edge_padding_high interior_padding window_dimensions window_strides base_dilations
        window_dilations padding lhs_dilation rhs_dilation window
        lhs_batching_dimensions rhs_batching_dimensions lhs_contracting_dimensions
        rhs_contracting_dimensions input_spatial_dimensions kernel_spatial_dimensions
        output_spatial_dimensions collapsed_slice_dims operand_batching_dims
        start_indices_batching_dims start_index_map offset_dims update_window_dims
        inserted_window_dims input_batching_dims scatter_indices_batching_dims
        scattered_dims_to_operand_dims scatter_dims_to_operand_dims
    """,
    "any": """
        value coefficients result_dtypes in_shardings out_shardings manual_axes allowed_direction
        transpose_a window_reversal
    """,
}
"""The attributes of the operators that Weft ships, by kind."""

_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names.split()}


def attributes_named(names: str = "") -> Mapping[str, Kind]:
    """Return attributes of Weft's operators with their kinds, by name; `dtype` is always one.

    >>> dict(attributes_named("lower k"))
    {'lower': 'bool', 'k': 'int', 'dtype': 'str'}
    """
    return FrozenMap((name, _KIND_OF[name]) for name in f"{names} dtype".split())


@lru_cache(maxsize=4096)
def names_of(line: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of the index dimensions in a line of notation, and those of numbers.

    >>> dims, numbers = names_of("b s*y+d*u-p, c u -> b c y  sum: u")
    >>> sorted(dims), sorted(numbers)
    (['b', 'c', 'u', 'y'], ['d', 'p', 's'])
    """
    first = _CLAUSE.search(line)
    body, clauses = (line[: first.start()], line[first.start() :]) if first else (line, "")
    dims = set(_NAME.findall(_CLAUSE.sub(" ", f" {clauses}")))
    for row in re.split(r"[\s,]+|->", body):
        bare = row.strip("[]").split("<")
        if all(map(_NAME.fullmatch, bare)):
            dims.update(bare)
    return frozenset(dims), frozenset(_NAME.findall(body)) - dims


def declared(operator: str, line: object, given: Declared) -> Mapping[str, Kind] | None:
    """Return the attributes of an operator with their kinds; those in its line are integers."""
    if given is None:
        return None
    known: dict[str, Kind] = {}
    if isinstance(given, Mapping):
        for name, kind in given.items():
            known[name] = _TYPES.get(kind, "any") if isinstance(kind, type) else kind
    else:
        known |= dict.fromkeys(given, "any")
    if isinstance(line, str):
        dims, numbers = names_of(line)
        for name in known:
            if name in dims:
                raise WeftError(
                    f"{operator} has an attribute {name} and an index dimension of that name: "
                    f"{line}",
                    hint="rename the attribute",
                )
        known |= dict.fromkeys(numbers, "int")
    return FrozenMap(known.items())


def check_attributes(
    operator: str, line: object, known: Mapping[str, Kind] | None, given: Mapping[str, Any]
) -> None:
    """Raise for attributes that an operator does not have, and for invalid values.

    >>> try:
    ...     check_attributes("layer_norm", "", {"eps": "float"}, {"epsilon": 1.0})
    ... except WeftError as error:
    ...     print(error, error.__notes__)
    layer_norm has no attribute epsilon ['hint: did you mean eps? (its attributes are eps)']
    """
    if known is None:
        return
    for name, value in given.items():
        kind = known.get(name)
        if kind is None:
            if name == RULE_ATTRIBUTE:
                continue
            raise WeftError(
                f"{operator} has no attribute {name}", hint=_hint(operator, line, known, name)
            )
        if value is not None and not _fits(kind, value):
            raise WeftError(
                f"attribute {name} of {operator} must be {_WORDS[kind]}, got "
                f"{clip(repr(value), 60)}"
            )


def _hint(operator: str, line: object, known: Mapping[str, Kind], name: str) -> str:
    if isinstance(line, str) and name in names_of(line)[0]:
        return f"{name} is an index dimension of {operator}: {line}"
    close = get_close_matches(name, known, 1, 0.5)
    close = close or [other for other in known if name.startswith(other) or other.startswith(name)]
    if known:
        every = f"its attributes are {', '.join(known)}"
        return f"did you mean {close[0]}? ({every})" if close else every
    return "it has none; an operator of your own declares them: Operator(..., attributes=[...])"


def _fits(kind: Kind, value: Any) -> bool:
    match kind:
        case "bool":
            return isinstance(value, bool) or type(value).__name__ == "bool"
        case "int":
            return _is_int(value)
        case "float":
            return not isinstance(value, bool) and hasattr(value, "__float__")
        case "str":
            return isinstance(value, str)
        case "ints":
            nested = isinstance(value, tuple | list)
            return nested and all(_is_int(each) or _fits("ints", each) for each in value)
        case _:
            return True


def _is_int(value: Any) -> bool:
    if isinstance(value, bool | Size):
        return isinstance(value, Size)
    try:
        index(value)
    except TypeError:
        return False
    return True
