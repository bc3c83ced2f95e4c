"""OME-NGFF 0.5: what an image says of its axes and levels.

The coordinates of an element are its index times a scale, plus a translation. An element of a level
that was made of windows lies in the middle of its window, so that all levels show the same place.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from weft.errors import WeftError
from weft.store.ome.fields import VERSION, as_list, as_numbers, as_object, as_ome, as_text, read_at
from weft.values import FrozenMap, freeze

_PREFIXES = (
    *("yocto", "zepto", "atto", "femto", "pico", "nano", "micro", "milli", "centi", "deci", ""),
    *("hecto", "kilo", "mega", "giga", "tera", "peta", "exa", "zetta", "yotta"),
)
UNITS = {
    "space": frozenset(
        {f"{prefix}meter" for prefix in _PREFIXES}
        | {"angstrom", "foot", "inch", "mile", "parsec", "yard"}
    ),
    "time": frozenset({f"{prefix}second" for prefix in _PREFIXES} | {"minute", "hour", "day"}),
}
"""The units that an axis of space and of time should have."""

_ORDER = {"time": 0, "channel": 1, "space": 2}
_KINDS = {"t": "time", "c": "channel", "z": "space", "y": "space", "x": "space"}


@dataclass(frozen=True, slots=True)
class Axis:
    """A dimension of an image: its name, what it is, and its unit.

    Where the type is not said, t is time, c is a channel, and z, y and x are space.

    >>> Axis("t", unit="second")
    Axis(name='t', type='time', unit='second')
    """

    name: str
    type: str | None = None
    """space, time or channel; others are allowed, and stand where channel does."""
    unit: str | None = None

    def __post_init__(self) -> None:
        for what, value in (("name", self.name), ("type", self.type), ("unit", self.unit)):
            if not (isinstance(value, str) and value) and (value is not None or what == "name"):
                raise WeftError(f"{what}: {value!r} is no {what} of an axis")
        if self.type is None:
            freeze(self, type=_KINDS.get(self.name.lower()))
        known = UNITS.get(self.type or "")
        if known and self.unit is not None and self.unit not in known:
            warnings.warn(
                f"axis {self.name}: {self.unit!r} is no unit of {self.type} that OME-NGFF names",
                stacklevel=3,
            )

    @classmethod
    def of(cls, given: Axis | str) -> Axis:
        """An axis, or the one that a name stands for."""
        return given if isinstance(given, Axis) else cls(given)

    def to_json(self) -> dict[str, Any]:
        """As metadata has it."""
        said = {"name": self.name, "type": self.type, "unit": self.unit}
        return {key: value for key, value in said.items() if value is not None}

    @classmethod
    def from_json(cls, data: Any) -> Axis:
        """Read one axis."""
        said = as_object(data, "axis")
        return cls(as_text(said, "name"), as_text(said, "type", None), as_text(said, "unit", None))


def as_axes(given: Sequence[Axis | str]) -> tuple[Axis, ...]:
    """The axes of an image: time, then channel, then two or three of space.

    >>> [axis.type for axis in as_axes("tcyx")]
    ['time', 'channel', 'space', 'space']
    """
    axes = tuple(map(Axis.of, given))
    names = [axis.name for axis in axes]
    if not 2 <= len(axes) <= 5:
        raise WeftError(f"an image has 2 to 5 axes, and not {len(axes)}: {names}")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise WeftError(f"two axes have the name {twice!r}")
    ranks = [_ORDER.get(axis.type or "", 1) for axis in axes]
    if ranks != sorted(ranks):
        kinds = [axis.type for axis in axes]
        raise WeftError(f"axes come in the order time, channel, space, and not {kinds}")
    for kind, rank, least, most in (("time", 0, 0, 1), ("channel", 1, 0, 1), ("space", 2, 2, 3)):
        if not least <= ranks.count(rank) <= most:
            wanted = f"{least} to {most}" if least else f"at most {most}"
            raise WeftError(f"{ranks.count(rank)} axes of {kind}, where {wanted} can be: {names}")
    return axes


@dataclass(frozen=True, slots=True)
class Level:
    """An array of an image: its path, and where its elements lie."""

    path: str
    scale: tuple[float, ...]
    """How far apart two elements are along each axis, in its unit."""
    translation: tuple[float, ...] = ()
    """Where the first element lies."""

    def __post_init__(self) -> None:
        parts = self.path.split("/") if isinstance(self.path, str) else [""]
        if any(not part.strip(".") for part in parts):
            raise WeftError(f"path: {self.path!r} is no path inside of an image")
        scale = as_numbers(self.scale, "scale")
        shift = as_numbers(self.translation or [0.0] * len(scale), "translation")
        if any(s <= 0 for s in scale):
            raise WeftError(f"scale: {list(scale)} must be greater than 0")
        if len(shift) != len(scale):
            raise WeftError(f"a scale of {len(scale)} numbers, and a translation of {len(shift)}")
        freeze(self, scale=scale, translation=shift)

    def to_json(self) -> dict[str, Any]:
        """As metadata has it; a translation of nothing is left out."""
        steps: list[dict[str, Any]] = [{"type": "scale", "scale": list(self.scale)}]
        if any(self.translation):
            steps.append({"type": "translation", "translation": list(self.translation)})
        return {"path": self.path, "coordinateTransformations": steps}

    @classmethod
    def from_json(cls, data: Any) -> Level:
        """Read one level."""
        said = as_object(data, "dataset")
        scale, shift = _read_steps(said.get("coordinateTransformations"))
        return cls(as_text(said, "path"), scale, shift)


def _read_steps(data: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """A scale, and the translation behind it."""
    steps = as_list(data, "coordinateTransformations")
    kinds = [step.get("type") if isinstance(step, dict) else None for step in steps]
    if kinds not in (["scale"], ["scale", "translation"]):
        raise WeftError(
            f"coordinateTransformations: a scale, then perhaps a translation, and not {kinds}"
        )
    scale = as_numbers(steps[0].get("scale"), "scale")
    if len(steps) == 1:
        return scale, (0.0,) * len(scale)
    shift = as_numbers(steps[1].get("translation"), "translation")
    if len(shift) != len(scale):
        raise WeftError(f"a scale of {len(scale)} numbers, and a translation of {len(shift)}")
    return scale, shift


@dataclass(frozen=True, slots=True)
class Multiscale:
    """An image: its axes, and its levels from the finest to the coarsest.

    >>> image = Multiscale.of("yx", (0.5, 0.5), (2, 2), 3)
    >>> [(level.scale, level.translation) for level in image.levels]
    [((0.5, 0.5), (0.0, 0.0)), ((1.0, 1.0), (0.25, 0.25)), ((2.0, 2.0), (0.75, 0.75))]
    """

    axes: tuple[Axis, ...]
    levels: tuple[Level, ...]
    name: str | None = None
    type: str | None = None
    """How a level was made of the one before."""
    metadata: FrozenMap[str, Any] = field(default_factory=lambda: FrozenMap([]))
    """More about how it was made."""

    key: ClassVar[str] = "multiscales"

    def __post_init__(self) -> None:
        axes = as_axes(self.axes)
        if not self.levels:
            raise WeftError("an image has no level")
        paths = [level.path for level in self.levels]
        if len(set(paths)) < len(paths):
            raise WeftError(f"two levels have one path: {paths}")
        for level in self.levels:
            if len(level.scale) != len(axes):
                raise WeftError(
                    f"level {level.path}: {len(level.scale)} numbers for {len(axes)} axes"
                )
        scales = [level.scale for level in self.levels]
        for path, fine, coarse in zip(paths[1:], scales, scales[1:]):
            if any(a > b for a, b, axis in zip(fine, coarse, axes) if axis.type == "space"):
                raise WeftError(f"level {path} is finer than the one before it: {list(coarse)}")
        about = ((k, tuple(v) if isinstance(v, list) else v) for k, v in self.metadata.items())
        freeze(self, axes=axes, metadata=FrozenMap(about))

    @classmethod
    def of(
        cls,
        axes: Sequence[Axis | str],
        scale: Sequence[float] | None,
        factors: Sequence[int],
        levels: int,
        method: str = "mean",
        *,
        translation: Sequence[float] | None = None,
        name: str | None = None,
    ) -> Multiscale:
        """The image whose levels are reduced by the same factors from one to the next.

        Windows of n elements have their middle (n - 1) / 2 elements behind their first one; there
        is what they were reduced to, but for the first element, which stays where it was.
        """
        found = as_axes(axes)
        base = as_numbers([1.0] * len(found) if scale is None else list(scale), "scale")
        shift = as_numbers(list(translation or [0.0] * len(found)), "translation")
        for what, given in (("scale", base), ("translation", shift), ("factors", factors)):
            if len(given) != len(found):
                raise WeftError(f"{what} has {len(given)} numbers for {len(found)} axes")
        made = []
        for number in range(levels):
            windows = [f**number for f in factors]
            middles = [0.0 if method == "first" else (n - 1) / 2 for n in windows]
            made.append(
                Level(
                    str(number),
                    tuple(s * n for s, n in zip(base, windows)),
                    tuple(t + s * m for t, s, m in zip(shift, base, middles)),
                )
            )
        about = FrozenMap([("method", f"weft.store: {method}"), ("factors", tuple(factors))])
        return cls(found, tuple(made), name, method, about)

    def to_json(self) -> dict[str, Any]:
        """As metadata has it, in a list of one image."""
        said: dict[str, Any] = {} if self.name is None else {"name": self.name}
        said["axes"] = [axis.to_json() for axis in self.axes]
        said["datasets"] = [level.to_json() for level in self.levels]
        if self.type is not None:
            said["type"] = self.type
        if self.metadata:
            about = self.metadata.items()
            said["metadata"] = {k: list(v) if isinstance(v, tuple) else v for k, v in about}
        return {"version": VERSION, self.key: [said]}

    @classmethod
    def from_json(cls, data: Any) -> Multiscale:
        """Read the first image that metadata describe."""
        images = as_list(as_ome(data, cls.key)[cls.key], cls.key)
        try:
            return cls._read(as_object(images[0], "image") if images else {})
        except WeftError as error:
            raise error.at(f"{cls.key}[0]") from None

    @classmethod
    def _read(cls, said: Mapping[str, Any]) -> Multiscale:
        axes = [
            read_at(f"axes[{n}]", Axis.from_json, axis)
            for n, axis in enumerate(as_list(said.get("axes"), "axes"))
        ]
        levels = [
            read_at(f"datasets[{n}]", Level.from_json, level)
            for n, level in enumerate(as_list(said.get("datasets"), "datasets"))
        ]
        if said.get("coordinateTransformations") is not None:
            levels = _moved(levels, said["coordinateTransformations"])
        about = as_object(said.get("metadata") or {}, "metadata")
        kind = as_text(said, "type", None)
        name = as_text(said, "name", None)
        return cls(tuple(axes), tuple(levels), name, kind, FrozenMap(about.items()))


def _moved(levels: Sequence[Level], data: Any) -> list[Level]:
    """Levels with what is said of all of them applied behind what is said of each."""
    scale, shift = _read_steps(data)
    made = []
    for level in levels:
        if len(level.scale) != len(scale):
            raise WeftError(
                f"coordinateTransformations: {len(scale)} numbers for {len(level.scale)} axes"
            )
        size = tuple(a * b for a, b in zip(level.scale, scale))
        start = tuple(t * s + u for t, s, u in zip(level.translation, scale, shift))
        made.append(Level(level.path, size, start))
    return made
