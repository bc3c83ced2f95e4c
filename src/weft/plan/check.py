"""The checker of certificates: it reads plain data, knows boxes, and nothing else of Weft.

A certificate tells the story of a plan, entry by entry. A *state* is an array on devices: the box
that each device holds, and its *label*, the number of the part if the array is partial. The
checker follows every state, and refuses the first box that is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from weft.space import Projection, ZRange, cover


class CertificateError(ValueError):
    """A certificate that proves nothing: which entry, and which box."""


class State(NamedTuple):
    """An array on devices."""

    shape: tuple[int, ...]
    boxes: list[ZRange]
    labels: list[int]

    @property
    def parts(self) -> set[int]:
        """The labels that there are."""
        return set(self.labels)


def check(certificate: Mapping[str, Any]) -> None:
    """Accept a certificate, or name the first thing in it that is wrong."""
    states: dict[str, State] = {}
    rules = {"input": _input, "move": _move, "hide": _hide, "take": _take, "apply": _apply}
    for number, entry in enumerate(certificate["entries"]):
        try:
            rules[entry["kind"]](entry, states)
        except CertificateError as error:
            raise CertificateError(
                f"entry {number}, {entry['kind']} {entry['name']}: {error}"
            ) from None
    for name in certificate["outputs"]:
        _expect(name in states, f"output {name} is never made")


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise CertificateError(otherwise)


def _box(data: Sequence[Sequence[int]]) -> ZRange:
    return ZRange(data[0], data[1])


def _state(entry: Mapping[str, Any]) -> State:
    boxes = [_box(box) for box in entry["boxes"]]
    return State(tuple(entry["shape"]), boxes, list(entry["labels"]))


def _covers(boxes: Iterable[ZRange], whole: ZRange, what: str) -> None:
    """Each point of `whole` in exactly one of the boxes; copies of a box count once."""
    found = cover([box for box in dict.fromkeys(boxes) if box], whole)
    _expect(found.is_exact, f"{what}: {found}")


def _check_whole(state: State) -> None:
    for label in sorted(state.parts):
        boxes = [box for box, at in zip(state.boxes, state.labels) if at == label]
        _covers(boxes, ZRange.of(state.shape), f"part {label} does not hold the array once")


def _input(entry: Mapping[str, Any], states: dict[str, State]) -> None:
    state = _state(entry)
    _check_whole(state)
    states[entry["name"]] = state


def _move(entry: Mapping[str, Any], states: dict[str, State]) -> None:
    """Pieces go from device to device: each new box is tiled by pieces of every part in it."""
    old, new = states[entry["from"]], _state(entry)
    pieces: dict[int, dict[int, list[ZRange]]] = {}
    for sender, receiver, start, stop in entry["pieces"]:
        box = ZRange(start, stop)
        _expect(box in old.boxes[sender], f"device {sender} sends {box}, which it does not hold")
        parts = pieces.setdefault(receiver, {})
        parts.setdefault(old.labels[sender], []).append(box)
    combined: dict[int, set[int]] = {}
    for device, box in enumerate(new.boxes):
        if box.is_empty:
            continue
        found = pieces.pop(device, {})
        for part, got in sorted(found.items()):
            shown = cover(got, box)
            _expect(shown.is_exact, f"device {device} gets part {part} of {box} wrong: {shown}")
        same = combined.setdefault(new.labels[device], set(found))
        _expect(same == set(found), f"device {device} combines parts {sorted(found)}, not {same}")
    _expect(not pieces, f"devices {sorted(pieces)} get what they do not hold")
    _partition(combined.values(), old.parts if combined else set())
    if entry.get("whole", True):
        _check_whole(new)
    states[entry["name"]] = new


def _partition(classes: Iterable[set[int]], parts: set[int]) -> None:
    seen = [part for one in classes for part in one]
    _expect(len(seen) == len(set(seen)), f"some parts are combined twice: {sorted(seen)}")
    _expect(set(seen) == parts, f"parts {sorted(parts - set(seen))} are combined nowhere")


def _hide(entry: Mapping[str, Any], states: dict[str, State]) -> None:
    """Copies become parts: of those with one label before, one label after has the values."""
    old, new = states[entry["from"]], _state(entry)
    _expect(old.boxes == new.boxes, "what is hidden stays where it is")
    shown: dict[int, set[int]] = {}
    for before, after, hidden in zip(old.labels, new.labels, entry["hidden"]):
        shown.setdefault(before, set()).update([] if hidden else [after])
    for before, seen in sorted(shown.items()):
        _expect(len(seen) == 1, f"part {before} counts {len(seen)} times, not once")
    for before, after in zip(old.labels, new.labels):
        clash = {b for b, a in zip(old.labels, new.labels) if a == after}
        _expect(clash == {before}, f"part {after} is made of parts {sorted(clash)}")
    states[entry["name"]] = new


def _take(entry: Mapping[str, Any], states: dict[str, State]) -> None:
    """Each device takes a box of what it holds."""
    old, new = states[entry["from"]], _state(entry)
    for device, (box, held) in enumerate(zip(new.boxes, old.boxes)):
        _expect(box.is_empty or box in held, f"device {device} takes {box} of {held}")
    _expect(old.labels == new.labels, "parts do not change where boxes are taken")
    states[entry["name"]] = new


def _projection(data: Mapping[str, Any], ndim: int) -> Projection:
    return Projection(data["matrix"], data["offset"], data["window"], index_ndim=ndim)


def _apply(entry: Mapping[str, Any], states: dict[str, State]) -> None:
    """Each device computes its box: it has what it needs, and all boxes make each result once."""
    sizes, reduced = tuple(entry["sizes"]), list(entry["reduced"])
    boxes = [_box(box) for box in entry["boxes"]]
    operands = [states[operand["state"]] for operand in entry["operands"]]
    for number, (data, state) in enumerate(zip(entry["operands"], operands)):
        projection = _projection(data, len(sizes))
        for device, box in enumerate(boxes):
            need = projection.image(box) & ZRange.of(state.shape)
            _expect(
                box.is_empty or need.is_empty or need in state.boxes[device],
                f"device {device} needs {need} of operand {number} and has {state.boxes[device]}",
            )
    part_of = _parts(entry, operands, len(boxes))
    for part in sorted(set(part_of)):
        mine = [box for box, at in zip(boxes, part_of) if at == part]
        _covers(mine, ZRange.of(sizes), f"the index space of part {part} is not covered once")
    inner = [
        (at, tuple((box.start[d], box.stop[d]) for d in reduced)) if not box.is_empty else None
        for box, at in zip(boxes, part_of)
    ]
    for result in entry["results"]:
        state, projection = _state(result), _projection(result, len(sizes))
        groups: dict[int, set[Any]] = {}
        for device, box in enumerate(boxes):
            if box.is_empty:
                continue
            image = projection.image(box) & ZRange.of(state.shape)
            _expect(image == state.boxes[device], f"device {device} makes {image}, not its box")
            _expect(projection.is_dense(box), f"device {device} leaves holes in {image}")
            groups.setdefault(state.labels[device], set()).add(inner[device])
        for label, found in sorted(groups.items()):
            _expect(len(found) == 1, f"part {label} of {result['name']} mixes {len(found)} parts")
        many = {found for group in groups.values() for found in group}
        _expect(len(many) == len(groups), f"{result['name']} counts a part twice")
        _expect(len(groups) < 2 or bool(entry["monoid"]), "parts are left, and no monoid for them")
        _check_whole(state)
        states[result["name"]] = state


def _parts(entry: Mapping[str, Any], operands: Sequence[State], count: int) -> list[Any]:
    """The part of the partial operands that each device works on; every combination must occur."""
    groups = [[operands[n] for n in group] for group in entry["groups"]]
    for group in groups:
        pairs = {tuple(state.labels[device] for state in group) for device in range(count)}
        for at, state in enumerate(group):
            sure = len({pair[at] for pair in pairs}) == len(pairs) == len(state.parts)
            _expect(sure, "operands that are partial together are not cut into the same parts")
    wanted = set(product(*(sorted(group[0].parts) for group in groups)))
    found = [tuple(group[0].labels[device] for group in groups) for device in range(count)]
    _expect(set(found) == wanted, f"of {len(wanted)} combinations of parts {len(set(found))} occur")
    return found
