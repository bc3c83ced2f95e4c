"""Channels of an image: names, colours and the ranges of values that viewers show.

OME-NGFF keeps them as OMERO does, in the field "omero" of an image.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from numbers import Real
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.store.dtypes import as_dtype
from weft.store.ome.metadata import Axis, as_list, as_object, read_at
from weft.values import FrozenMap, freeze

COLORS = {
    "blue": "0000FF",
    "green": "00FF00",
    "red": "FF0000",
    "cyan": "00FFFF",
    "magenta": "FF00FF",
    "yellow": "FFFF00",
    "orange": "FF8000",
    "purple": "8000FF",
    "white": "FFFFFF",
    "gray": "808080",
    "grey": "808080",
    "black": "000000",
}
"""Colours by name, as six hexadecimal digits of red, green and blue."""

_CYCLE = tuple(COLORS)[:8]
"""The colours of channels that name none, in turn."""

_NOTHING: FrozenMap[str, Any] = FrozenMap(())
_HEX = re.compile(r"#?((?:[0-9A-Fa-f]{3}){1,2})")


def as_color(given: Any) -> str:
    """Return a colour as six hexadecimal digits: red, green, blue.

    >>> [as_color(one) for one in ("#0f0", "00FF00", "green", (0, 255, 0))]
    ['00FF00', '00FF00', '00FF00', '00FF00']
    """
    if isinstance(given, str):
        if given.lower() in COLORS:
            return COLORS[given.lower()]
        if match := _HEX.fullmatch(given):
            digits = match[1].upper()
            return digits if len(digits) == 6 else "".join(2 * digit for digit in digits)
    elif isinstance(given, Sequence) and len(given) == 3 and all(map(is_byte, given)):
        return "".join(f"{int(part):02X}" for part in given)
    raise WeftError(
        f"{given!r} is not a colour",
        hint=f"'#00FF00', '00FF00', (0, 255, 0), or one of {', '.join(COLORS)}",
    )


def is_byte(part: Any) -> bool:
    """Return whether a value is an integer from 0 to 255."""
    is_integer = isinstance(part, int | np.integer) and not isinstance(part, bool)
    return is_integer and 0 <= part <= 255


_FIELDS = {
    "label": "name",
    "color": "color",
    "active": "active",
    "coefficient": "coefficient",
    "family": "family",
    "inverted": "inverted",
}
"""The fields of a channel in OMERO's metadata, and here."""


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel: its name, its colour, and the values shown from black to full brightness.

    `window` is the range that is shown, and `limits` the range that it can be chosen from; both
    follow from the dtype of the image unless given. `extra` are other fields, kept as they are.

    >>> Channel("GFP", "green", (100, 4000))
    Channel(name='GFP', color='00FF00', window=(100, 4000))
    """

    name: str | None = None
    color: Any = None
    window: tuple[float, float] | None = None
    limits: tuple[float, float] | None = None
    active: bool = True
    coefficient: float = 1
    family: str = "linear"
    inverted: bool = False
    extra: FrozenMap[str, Any] = _NOTHING

    def __post_init__(self) -> None:
        for what, value in (("name", self.name), ("family", self.family)):
            if value is not None and not isinstance(value, str):
                raise WeftError(f"channel: {what}: expected text, got {value!r}")
        for what, flag in (("active", self.active), ("inverted", self.inverted)):
            if not isinstance(flag, bool):
                raise WeftError(f"channel: {what}: expected true or false, got {flag!r}")
        _check_number(self.coefficient, "coefficient")
        color = None if self.color is None else as_color(self.color)
        freeze(self, color=color, extra=FrozenMap(dict(self.extra).items()))
        for what in ("window", "limits"):
            if getattr(self, what) is not None:
                freeze(self, **{what: _as_range(getattr(self, what), what)})

    def __repr__(self) -> str:
        shown = [f"{key}={getattr(self, key)!r}" for key in self.__slots__ if self._is_set(key)]
        return f"Channel({', '.join(shown)})"

    def _is_set(self, key: str) -> bool:
        default = self.__dataclass_fields__[key].default
        return bool(getattr(self, key) != default)

    @classmethod
    def of(cls, given: Any) -> Channel:
        """Return a channel, the one of a name, or the one that OMERO's metadata describe."""
        if isinstance(given, Channel):
            return given
        return cls(given) if isinstance(given, str) else cls.from_json(given)

    def filled(self, number: int, count: int, dtype: Any) -> Channel:
        """Return the channel with everything that was not given: the number-th of `count`."""
        color = "white" if count == 1 else _CYCLE[number % len(_CYCLE)]
        limits = self.limits or _dtype_limits(dtype)
        window = self.window or limits
        if not self.limits:
            limits = (min(limits[0], window[0]), max(limits[1], window[1]))
        if not limits[0] <= window[0] <= window[1] <= limits[1]:
            raise WeftError(f"a window of {window} is not inside of {limits}")
        return Channel(
            f"Channel {number}" if self.name is None else self.name,
            color if self.color is None else self.color,
            window,
            limits,
            *(self.active, self.coefficient, self.family, self.inverted, self.extra),
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as in OMERO's metadata; what was not given is left out."""
        fields = {key: getattr(self, name) for key, name in _FIELDS.items()}
        shown = {key: value for key, value in fields.items() if value is not None}
        if self.window and self.limits:
            (start, end), (least, most) = self.window, self.limits
            shown["window"] = {"min": least, "max": most, "start": start, "end": end}
        return {**self.extra, **shown}

    @classmethod
    def from_json(cls, data: Any) -> Channel:
        """Read a channel; unknown fields are kept."""
        fields = dict(as_object(data, "channel"))
        found = {name: fields.pop(key) for key, name in _FIELDS.items() if key in fields}
        window = as_object(fields.pop("window", {}), "window")
        for what, keys in (("window", ("start", "end")), ("limits", ("min", "max"))):
            if all(key in window for key in keys):
                found[what] = tuple(window[key] for key in keys)
        known = {key: value for key, value in found.items() if value is not None}
        return cls(**known, extra=FrozenMap(fields.items()))


def _check_number(value: Any, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not isfinite(value):
        raise WeftError(f"channel: {what}: expected a finite number, got {value!r}")


def _as_range(given: Any, what: str) -> tuple[float, float]:
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != 2:
        raise WeftError(f"channel: {what}: expected two numbers, got {given!r}")
    for value in given:
        _check_number(value, what)
    return (_plain(given[0]), _plain(given[1]))


def _plain(value: Any) -> float:
    """Return a number that JSON can write: an integer where it is one."""
    return int(value) if isinstance(value, int | np.integer) else float(value)


def _dtype_limits(dtype: Any) -> tuple[float, float]:
    """Return the range of values of a dtype; 0 to 1 for those that are not integers."""
    name, kind = as_dtype(dtype)
    if kind.kind not in "iu" or name in ("bool", "bfloat16"):
        return (0, 1)
    return (int(np.iinfo(kind).min), int(np.iinfo(kind).max))


def as_channels(
    given: Sequence[Any], axes: Sequence[Axis], shape: Sequence[int | None], dtype: Any
) -> tuple[Channel, ...]:
    """Return the channels of an image, one for each element of its channel axis.

    >>> [c.color for c in as_channels(["DAPI", "GFP"], [Axis("c"), Axis("y"), Axis("x")],
    ...                               (2, 8, 8), "uint8")]
    ['0000FF', '00FF00']
    """
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise WeftError(f"channels: expected a list, got {given!r}")
    count = 1
    for axis, size in zip(axes, shape):
        if axis.type == "channel":
            if size is None:
                raise WeftError(
                    f"axis {axis.name} has no end: its channels cannot be named",
                    hint="give the number of channels in `shape`, and append along another axis",
                )
            count = size
    if len(given) != count:
        raise WeftError(f"{len(given)} channels are named, and the image has {count}")
    channels: list[Channel] = []
    for number, one in enumerate(given):
        named = read_at(f"channels[{number}]", Channel.of, one)
        channels.append(
            read_at(f"channels[{number}]", lambda c: c.filled(len(channels), count, dtype), named)
        )
    return tuple(channels)


def omero_json(channels: Sequence[Channel], name: str | None) -> dict[str, Any]:
    """Return the field "omero" of an image."""
    fields: dict[str, Any] = {} if name is None else {"name": name}
    fields["channels"] = [channel.to_json() for channel in channels]
    model = "color" if len(channels) > 1 or channels[0].color != COLORS["white"] else "greyscale"
    fields["rdefs"] = {"defaultT": 0, "defaultZ": 0, "model": model}
    return fields


def check_channels(
    ome: Mapping[str, Any], axes: Sequence[Axis], shape: Sequence[int | None], dtype: Any
) -> None:
    """Refuse OMERO's metadata that do not describe the channels of an image."""
    if "omero" not in ome:
        return
    given = as_list(as_object(ome["omero"], "omero").get("channels"), "omero.channels")
    for number, one in enumerate(given):
        fields = as_object(one, f"omero.channels[{number}]")
        window = fields.get("window")
        is_whole = isinstance(window, Mapping) and {"min", "max", "start", "end"} <= set(window)
        color = fields.get("color")
        if not is_whole or not isinstance(color, str) or not re.fullmatch("[0-9A-Fa-f]{6}", color):
            raise WeftError(
                f"omero.channels[{number}]: a channel needs a color of six hexadecimal digits, and "
                f"a window with min, max, start and end, got {one!r}",
                hint="the argument `channels` takes names alone, and fills in the rest",
            )
    as_channels(given, axes, shape, dtype)


def read_channels(ome: Mapping[str, Any]) -> tuple[Channel, ...]:
    """Return the channels that the metadata of an image name; none where they name none."""
    omero = ome.get("omero")
    if omero is None:
        return ()
    given = as_list(as_object(omero, "omero").get("channels", []), "omero.channels")
    return tuple(
        read_at(f"omero.channels[{n}]", Channel.from_json, one) for n, one in enumerate(given)
    )
