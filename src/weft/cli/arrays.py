"""Arrays that commands read: .npy and .npz files of numbers, checked before they are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from weft.cli.foreign import reading
from weft.errors import WeftError
from weft.lang.graph import Value
from weft.values import counted


def read_weights(path: Path, wanted: Iterable[Value]) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file, by name; no other is read."""
    with reading(path, ".npz file of numbers"), ZipFile(path) as file:
        return dict(_members(path, file, list(wanted)))


def _members(
    path: Path, file: ZipFile, wanted: list[Value]
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    there = [name.removesuffix(".npy") for name in file.namelist()]
    missing = [value.name for value in wanted if value.name not in there]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise WeftError(
            f"{path} has no array for {', '.join(missing[:3])}{more}",
            hint=f"it has {counted(len(there), 'array')}: {', '.join(there[:6])}"
            + " ..." * (len(there) > 6),
        )
    for value in wanted:
        with file.open(f"{value.name}.npy") as stream:
            _check(value, *_header(stream))
        with file.open(f"{value.name}.npy") as stream:
            yield value.name, np.lib.format.read_array(stream, allow_pickle=False)


def read_inputs(given: Iterable[str], values: Mapping[str, Value]) -> dict[str, NDArray[Any]]:
    """The arrays of arguments such as image=image.npy."""
    found: dict[str, NDArray[Any]] = {}
    for text in given:
        name, equals, place = text.partition("=")
        if not equals or name not in values:
            raise WeftError(
                f"--input {text}: it is NAME=FILE.npy, and NAME an input of the model",
                hint=f"its first inputs are {', '.join(list(values)[:4])}",
            )
        with Path(place).open("rb") as stream, reading(place, ".npy file of numbers"):
            _check(values[name], *_header(stream))
            stream.seek(0)
            found[name] = np.lib.format.read_array(stream, allow_pickle=False)
    return found


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The shape and the data type that a file says it has."""
    version = np.lib.format.read_magic(stream)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in read:
        raise WeftError(f"version {version} of .npy files is not known")
    shape, _, dtype = read[version](stream)
    return tuple(shape), dtype


def _check(value: Value, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if shape != value.shape:
        raise WeftError(f"{value.name} has shape {list(value.shape)}, and its array {list(shape)}")
    if dtype.kind not in "biuf":
        raise WeftError(f"{value.name}: an array of {dtype} is not one of real numbers")


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays to an .npz file."""
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
