"""Labels of an image: images of integers that say what each element belongs to.

They lie in the group `labels` of the image, which lists them, and have its levels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from weft.errors import WeftError
from weft.store.attributes import change_attributes
from weft.store.create import locked
from weft.store.dtypes import as_dtype
from weft.store.hierarchy import find_node, member_of, read_node, write_group
from weft.store.ome.channels import as_color, is_byte
from weft.store.ome.image import (
    Image,
    ImageWriter,
    create_image,
    is_empty_image,
    merged,
    open_image,
)
from weft.store.ome.metadata import VERSION, as_list, as_ome
from weft.store.sink import Sink
from weft.store.target import is_path


class Labels(Mapping[str, Image]):
    """The label images of an image, by name.

    >>> import numpy as np, tempfile, weft.store
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with weft.store.create_image(
    ...         f"{folder}/a", (None, 8, 8), "uint8", (1, 4, 4), axes="tyx"
    ...     ) as writer:
    ...         writer.append(np.zeros((2, 8, 8), "uint8"))
    ...     image = weft.store.open_image(f"{folder}/a")
    ...     with image.labels.create("cells", colors={1: "red"}) as writer:
    ...         writer.append(np.ones((2, 8, 8), "uint32"))
    ...     cells = image.labels["cells"]
    ...     print(list(image.labels), [level.shape for level in cells.levels])
    ['cells'] [(2, 8, 8), (2, 4, 4)]
    """

    def __init__(self, image: Image) -> None:
        self._image, self._sink = image, image.sink.below("labels")

    def _names(self) -> list[str]:
        node = find_node(self._sink)
        if node is None or node.kind != "labels":
            return []
        names = as_list(as_ome(node.ome, "labels")["labels"], "labels")
        for name in names:
            if not isinstance(name, str) or not is_path(name):
                raise WeftError(
                    f"{self._sink.url} lists {name!r}, which is not a path inside of it"
                )
        return names

    def __getitem__(self, name: str) -> Image:
        if name not in self._names():
            raise KeyError(f"{self._image.url} has no labels {name!r}, only {self._names()}")
        return open_image(member_of(self._sink, name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def __repr__(self) -> str:
        return f"<Labels {', '.join(self._names())} of {self._image.url}>"

    def create(
        self,
        name: str,
        dtype: Any = "uint32",
        *,
        colors: Mapping[int, Any] | Sequence[Mapping[str, Any]] = (),
        properties: Mapping[int, Mapping[str, Any]] | Sequence[Mapping[str, Any]] = (),
        source: Mapping[str, Any] | None = None,
        method: str = "mode",
        attributes: Mapping[str, Any] | None = None,
        **image: Any,
    ) -> ImageWriter:
        """Create a label image, of integers, to which frames are appended as to the image itself.

        It has the axes of the image except for channels, its sizes, chunks, scales and levels,
        unless `image`, which are arguments of `create_image`, say otherwise. Coarser levels have
        the most frequent label of a window, or with the method "first" the first one. `colors` are
        those of labels, as channels have them or with an opacity, (255, 0, 0, 128); `properties`
        are anything that is known about labels.
        """
        if "0.4" in str(self._image.ome.get("version")):
            raise WeftError(f"{self._image.url} is of OME-NGFF 0.4, which is read, and not written")
        if not is_path(name) or "/" in name:
            raise WeftError(f"{name!r} is not a name of labels")
        kind = as_dtype(dtype)[0]
        if "int" not in kind:
            raise WeftError(f"labels are integers, got {kind}")
        about: dict[str, Any] = {"version": VERSION}
        if colors:
            about["colors"] = _listed(colors, "colors", _as_rgba)
        if properties:
            about["properties"] = _listed(properties, "properties", dict)
        about["source"] = dict(source or {"image": "../../"})
        given = merged({"ome": {"image-label": about}}, attributes, "attributes")
        options = {**self._like_image(image), **image}
        options |= {"dtype": dtype, "method": method, "attributes": given, "name": name}
        sink = self._sink.below(name)
        with locked(self._sink) as lock:
            try:
                if name not in self._names() and is_empty_image(sink):
                    options["overwrite"] = True
                writer = create_image(sink, **options)
                try:
                    self._list(self._sink, name)
                except BaseException:
                    writer.close()
                    raise
            finally:
                lock.release()
        return writer

    def _list(self, sink: Sink, name: str) -> None:
        """List a label image in the group, which is created for the first one."""

        def change(attributes: dict[str, Any]) -> None:
            ome = attributes.setdefault("ome", {"version": VERSION})
            if name not in ome.setdefault("labels", []):
                ome["labels"].append(name)

        if read_node(sink) is None:
            write_group(sink, {"ome": {"version": VERSION, "labels": [name]}})
        else:
            change_attributes(sink, change)

    def _like_image(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments of `create_image` for an image of the same place and levels."""
        image, finest = self._image, self._image.levels[0]
        kept = [dim for dim, axis in enumerate(image.axes) if axis.type in ("time", "space")]
        if "axes" in given:
            return {"levels": len(image.levels)}

        def of(values: Sequence[Any]) -> tuple[Any, ...]:
            return tuple(values[dim] for dim in kept)

        dim = image.append_dim
        sizes = [None if one == dim else n for one, n in enumerate(finest.shape)]
        return {
            "shape": of(sizes),
            "chunks": of(finest.chunks),
            "shards": of(finest.metadata.shards),
            "axes": of(image.axes),
            "scale": of(image.scales[0]),
            "translation": of(image.translations[0]),
            "factors": of(image.factors),
            "levels": len(image.levels),
            "append_dim": kept.index(dim) if dim in kept else 0,
        }


def _as_rgba(given: Any) -> dict[str, Any]:
    """Return the colour of a label, as four numbers from 0 to 255."""
    if isinstance(given, Sequence) and len(given) == 4 and all(map(is_byte, given)):
        return {"rgba": [int(part) for part in given]}
    digits = as_color(given)
    return {"rgba": [*(int(digits[n : n + 2], 16) for n in (0, 2, 4)), 255]}


def _listed(
    given: Any, what: str, read: Callable[[Any], Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return what is known about labels as OME-NGFF lists it: an object for each label."""
    if isinstance(given, Mapping):
        pairs = list(given.items())
        entries = [{"label-value": value, **read(about)} for value, about in pairs]
    else:
        entries = [dict(one) for one in given]
    values = [one.get("label-value") for one in entries]
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int):
            raise WeftError(f"{what}: a label is an integer, got {value!r}")
    (value, count), *_ = Counter(values).most_common(1)
    if count > 1:
        raise WeftError(f"{what}: label {value} occurs {count} times")
    return entries
