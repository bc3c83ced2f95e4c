"""Check the meshes and shardings of a graph, which are kept as text, when the graph is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from weft.errors import LayoutError, ParseError, WeftError
from weft.text.shardy import Axis, MeshText, read_mesh, read_sharding, write_axis, write_symbol
from weft.values import MONOIDS, Point, counted


def read_meshes(texts: Iterable[str]) -> dict[str, MeshText]:
    """The meshes of a graph by name; refuses what is no mesh, and two of one name.

    >>> read_meshes(['@m = <["x"=2]>'])["m"].axes
    [('x', 2)]
    """
    found: dict[str, MeshText] = {}
    texts = list(texts)
    for number, text in enumerate(texts):
        try:
            mesh = read_mesh(text)
        except WeftError as error:
            raise error.at(f"meshes[{number}]")  # noqa: B904 - it is the same error
        if mesh.name in found:
            raise LayoutError(
                f"meshes[{number}]: two meshes are named {write_symbol(mesh.name)}: "
                f"{', '.join(texts)}"
            )
        found[mesh.name] = mesh
    return found


def check_sharding(text: str, shape: Point, meshes: Mapping[str, MeshText] | None) -> None:
    """Refuse the text of a sharding that does not fit an array of that shape, or the meshes.

    Without meshes only the notation and the rank are checked: a region has those of its graph.

    >>> check_sharding('<@m, [{"z"}]>', (8,), read_meshes(['@m = <["x"=2]>']))
    Traceback (most recent call last):
    weft.errors.LayoutError: "z" cuts dimension 0 and is not an axis of @m: <@m, [{"z"}]>
    """
    if not isinstance(text, str):
        raise LayoutError(f"a sharding is text in a graph, got {text!r}")
    try:
        said = read_sharding(text)
    except ParseError as error:
        error.args = (f"{text!r} is not a sharding: {error}",)
        raise
    mesh = None if meshes is None else meshes.get(said.mesh)
    if meshes is not None and mesh is None:
        names = ", ".join(map(write_symbol, meshes)) or "none"
        raise LayoutError(
            f"mesh {write_symbol(said.mesh)} is not known: {text}", hint=f"known are {names}"
        )
    if len(said.dims) != len(shape) and (said.dims or (mesh is not None and mesh.axes)):
        raise LayoutError(
            f"the sharding has {counted(len(said.dims), 'dimension')} and the array has "
            f"{len(shape)}, {list(shape)}: {text}"
        )
    uses = [(axis, f"cuts dimension {n}") for n, dim in enumerate(said.dims) for axis in dim.axes]
    uses += [(axis, "is replicated") for axis in said.replicated]
    for axis, monoid in said.partial:
        if monoid not in MONOIDS:
            raise LayoutError(
                f'axis {write_axis(axis)} is unreduced by "{monoid}", which is not a monoid: {text}'
            )
        uses.append((axis, f"is unreduced by {monoid}"))
    if mesh is not None:
        _check_axes(text, uses, mesh)


def _check_axes(text: str, uses: list[tuple[Axis, str]], mesh: MeshText) -> None:
    """Refuse axes that the mesh does not have, and those that are used twice."""
    sizes, used = dict(mesh.axes), list[tuple[str, int, int, str]]()
    for axis, role in uses:
        name, before, size = (axis, 1, 0) if isinstance(axis, str) else axis
        if name not in sizes:
            raise LayoutError(
                f"{write_axis(axis)} {role} and is not an axis of {write_symbol(mesh.name)}: {text}"
            )
        whole = sizes[name]
        size = size or whole
        if before < 1 or size < 1 or whole % (before * size):
            raise LayoutError(
                f'{write_axis(axis)} {role} and is no part of "{name}"={whole}: {text}'
            )
        for other, start, count, earlier in used:
            if other == name and start < before * size and before < start * count:
                raise LayoutError(
                    f'"{name}" is used twice: {write_axis(axis)} {role}, and part of it {earlier}: '
                    f"{text}"
                )
        used.append((name, before, size, role))
