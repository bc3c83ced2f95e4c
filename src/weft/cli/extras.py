"""The extras of Weft, as the package's own metadata has them, and what is installed of each."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib import metadata
from itertools import zip_longest
from typing import NamedTuple

PACKAGE = "weft"
_REQUIREMENT = re.compile(r"([\w.-]+)\s*(?:\[([^\]]*)\])?\s*\(?([^;)]*)\)?\s*(?:;(.*))?$")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([\w.-]+)['"]""")
_CLAUSE = re.compile(r"(===|~=|[=!<>]=|<|>)\s*([^\s,]+)")


class Need(NamedTuple):
    """A package that is needed, and what is there of it."""

    name: str
    wanted: str
    """The versions that will do: `>=2.0,<3`; empty for any."""
    version: str | None
    """The version that is installed, or None."""

    @property
    def is_met(self) -> bool:
        """Whether a version that will do is installed."""
        return self.version is not None and fits(self.version, self.wanted)


class Extra(NamedTuple):
    """An extra, and the packages that it brings."""

    name: str
    needs: tuple[Need, ...]

    @property
    def missing(self) -> tuple[Need, ...]:
        """What is not there, or not in a version that will do."""
        return tuple(need for need in self.needs if not need.is_met)


@cache
def extras() -> dict[str, Extra]:
    """All extras by name; none where Weft is not installed as a package."""
    try:
        said = metadata.metadata(PACKAGE)
    except metadata.PackageNotFoundError:
        return {}
    lines = metadata.requires(PACKAGE) or []
    names = sorted(said.get_all("Provides-Extra") or [])
    return {name: Extra(name, tuple(_needs(name, lines))) for name in names}


def _needs(extra: str, lines: list[str]) -> Iterator[Need]:
    """The packages of an extra, each once; those of extras that it names as well."""
    found: dict[str, Need] = {}
    for line in lines:
        match = _REQUIREMENT.match(line)
        if match is None or extra not in _EXTRA.findall(match[4] or ""):
            continue
        if match[1].lower() == PACKAGE:
            for other in (match[2] or "").split(","):
                found |= {need.name: need for need in _needs(other.strip(), lines)}
        else:
            found[match[1]] = Need(match[1], match[3].strip(), installed(match[1]))
    yield from found.values()


def installed(package: str) -> str | None:
    """The version of a package that is installed; nothing is imported for it.

    >>> installed("no-such-package") is None
    True
    """
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def bringing(module: str) -> str | None:
    """The smallest extra that brings a module.

    >>> bringing("no.such.module") is None
    True
    """
    top = module.partition(".")[0].replace("_", "-").lower()
    found = [
        extra
        for extra in extras().values()
        if any(need.name.lower() == top or need.name.startswith(f"{top}-") for need in extra.needs)
    ]
    return min(found, key=lambda extra: len(extra.needs)).name if found else None


def fits(version: str, wanted: str) -> bool:
    """Whether a version is one of those wanted, by its numbers; what is not known is let pass.

    >>> fits("2.13.0+cpu", "==2.13.0"), fits("0.9.1", "<0.11,>=0.10"), fits("3.1", "~=3.0")
    (True, False, True)
    """
    return all(_holds(version, sign, bound) for sign, bound in _CLAUSE.findall(wanted))


_SIGNS: dict[str, Callable[[list[int], list[int]], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


def _holds(version: str, sign: str, bound: str) -> bool:
    here, there = _release(version), _release(bound)
    if bound.endswith(".*"):
        here = here[: len(there)]
    if sign == "~=":
        return here >= there and here[: len(there) - 1] == there[:-1]
    pairs = list(zip_longest(here, there, fillvalue=0))
    compare = _SIGNS.get(sign)
    return compare is None or compare([one for one, _ in pairs], [two for _, two in pairs])


def _release(version: str) -> list[int]:
    """The numbers of a version, up to what is no number."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return [int(part) for part in match[1].split(".")] if match else []
