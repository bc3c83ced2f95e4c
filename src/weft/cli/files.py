"""Files that commands read and write: JSON of Weft, .npy and .npz arrays."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from zipfile import ZipFile

from weft.draw import say
from weft.errors import WeftError
from weft.lang.field import parse_json, read_text
from weft.lang.graph import Value
from weft.plan import Plan
from weft.values import counted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from weft.runtime.cluster import RunRecord

# -- files of Weft --------------------------------------------------------------------------------

KINDS = {"weft": "graph", "weft_plan": "plan", "weft_run": "run"}
"""The kinds of our files, by the field with their version."""
WRITERS = {
    "graph": "weft.lang.graph_json.to_json writes one, and `weft plan` plans it",
    "plan": "`weft plan graph.json -o plan.json` writes one",
    "run": "`weft run plan.json` writes one",
}


def kind_of(text: str) -> str | None:
    """Return the kind of a file by its text: graph, plan or run; None for anything else.

    >>> kind_of('{"weft_plan": 1}'), kind_of("{}"), kind_of("[")
    ('plan', None, None)
    """
    try:
        data = parse_json(text, "the file").value
    except WeftError:
        return None
    kinds = [kind for field, kind in KINDS.items() if isinstance(data, dict) and field in data]
    return kinds[0] if kinds else None


@contextmanager
def reading(path: Path, text: str, wanted: str) -> Iterator[None]:
    """Add the name of the file to errors, and its kind if another one is wanted."""
    try:
        yield
    except WeftError as error:
        kind = kind_of(text)
        if kind not in (None, wanted):
            message = f"{path} is a {kind}, not a {wanted}"
            raise WeftError(message, hint=WRITERS[wanted]) from error
        error.add_note(f"while reading {path}")
        if "there is no operator" in str(error):
            error.add_note("hint: --import MODULE, the module that adds it")
        raise


def read_plan(path: Path) -> Plan:
    """Return the plan in a file."""
    text = read_text(path)
    with reading(path, text, "plan"):
        return Plan.from_json(text)


def read_run(path: Path) -> RunRecord:
    """Return the run record in a file."""
    try:
        from weft.runtime.cluster import RunRecord
    except ImportError as error:
        raise WeftError(
            f"the record of a run cannot be read: {error}", hint="pip install 'weft[run]'"
        ) from None
    text = read_text(path)
    with reading(path, text, "run"):
        return RunRecord.from_json(text)


def check_folder(path: Path | None) -> None:
    """Refuse a path in a folder that does not exist, before any work is done for it."""
    if path is not None and not path.parent.is_dir():
        raise WeftError(
            f"cannot write {path}: there is no folder {path.parent}",
            hint=f"create it first: mkdir -p {path.parent}",
        )


def check_file(path: Path | None) -> None:
    """Refuse a path that cannot become a file: a folder, or in a folder that does not exist."""
    check_folder(path)
    if path is not None and path.is_dir():
        raise WeftError(f"cannot write {path}: it is a folder", hint="give the name of a file")


def print_json(data: dict[str, Any]) -> None:
    """Print data for programs to read."""
    say(json.dumps(data, indent=1), sys.stdout)


def print_result(
    args: Namespace, data: Callable[[], dict[str, Any]], text: Callable[[], str]
) -> None:
    """Print a result: its data with `--json`, otherwise its text."""
    if args.json:
        print_json(data())
    else:
        say(text(), sys.stdout)


def say_written(args: Namespace, what: object) -> None:
    """Print what was written, where it does not disturb JSON."""
    say(f"wrote {what}", sys.stderr if args.json else sys.stdout)


class StatusLine:
    """A line of progress on the terminal, overwritten each time; nothing anywhere else."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet or not sys.stderr.isatty()

    def write(self, text: str) -> None:
        """Overwrite the line."""
        if not self.quiet:
            sys.stderr.write(f"\r{text}\033[K")
            sys.stderr.flush()

    def clear(self) -> None:
        """Clear the line."""
        self.write("")


# -- arrays ---------------------------------------------------------------------------------------


@contextmanager
def reading_foreign(place: str | PathLike[str], kind: str) -> Iterator[None]:
    """Refuse a file that the library for its kind cannot read, with the library's reason.

    >>> with reading_foreign("x.npy", ".npy file of numbers"):
    ...     raise EOFError("No data left in file")
    Traceback (most recent call last):
    weft.errors.WeftError: x.npy is not a valid .npy file of numbers: No data left in file
    """
    try:
        yield
    except (WeftError, OSError):
        raise
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise WeftError(f"{place} is not a valid {kind}: {reason}") from None


def open_npy(place: str | PathLike[str]) -> Any:
    """Return the array of a .npy file, mapped into memory and never unpickled."""
    import numpy as np

    with reading_foreign(place, ".npy file of numbers"):
        array = np.load(place, mmap_mode="r", allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise WeftError(f"{place} is not a .npy file of numbers: it is an archive of several")
    if array.dtype.kind not in "biufc":
        raise WeftError(f"{place} is not a .npy file of numbers: it holds {array.dtype}")
    return array


def read_weights(path: Path, wanted: Iterable[Value]) -> dict[str, NDArray[Any]]:
    """Return the wanted arrays of an .npz file, by name; no other is read."""
    with reading_foreign(path, ".npz file of numbers"), ZipFile(path) as file:
        return dict(_members(path, file, list(wanted)))


def _members(path: Path, file: ZipFile, wanted: list[Value]) -> Iterator[tuple[str, NDArray[Any]]]:
    from numpy.lib import format as npy

    names = [name.removesuffix(".npy") for name in file.namelist()]
    missing = [value.name for value in wanted if value.name not in names]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise WeftError(
            f"{path} has no array for {', '.join(missing[:3])}{more}",
            hint=f"it has {counted(len(names), 'array')}: {', '.join(names[:6])}"
            + " ..." * (len(names) > 6),
        )
    for value in wanted:
        with file.open(f"{value.name}.npy") as stream:
            _check_array(value, *_header(stream))
        with file.open(f"{value.name}.npy") as stream:
            yield value.name, npy.read_array(stream, allow_pickle=False)


def read_inputs(given: Iterable[str], values: Mapping[str, Value]) -> dict[str, NDArray[Any]]:
    """Return the arrays of arguments such as `image=image.npy`."""
    from numpy.lib import format as npy

    arrays: dict[str, NDArray[Any]] = {}
    for text in given:
        name, equals, place = text.partition("=")
        if not equals or name not in values:
            raise WeftError(
                f"--input {text}: expected NAME=FILE.npy, where NAME is an input of the model",
                hint=f"its first inputs are {', '.join(list(values)[:4])}",
            )
        with Path(place).open("rb") as stream, reading_foreign(place, ".npy file of numbers"):
            _check_array(values[name], *_header(stream))
            stream.seek(0)
            arrays[name] = npy.read_array(stream, allow_pickle=False)
    return arrays


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and the data type in the header of a .npy file."""
    from numpy.lib import format as npy

    version = npy.read_magic(stream)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in readers:
        raise WeftError(f"version {version} of .npy files is unknown")
    shape, _, dtype = readers[version](stream)
    return tuple(shape), dtype


def _check_array(value: Value, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if shape != value.shape:
        raise WeftError(f"{value.name} has shape {list(value.shape)}, but its array {list(shape)}")
    if dtype.kind not in "biuf":
        raise WeftError(f"{value.name}: expected an array of real numbers, got {dtype}")


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays to an .npz file."""
    import numpy as np

    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
