"""Where something is created: what is refused, what is replaced, and what survives a kill."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import zarr
from tests.trials import EXAMPLES

from weft.errors import WeftError
from weft.store import (
    Stream,
    create,
    create_image,
    create_plate,
    create_shards,
    open_image,
    open_plate,
    open_shards,
)
from weft.store import (
    open as open_store,
)
from weft.store.target import ArrayKeys, is_ours

OLD = np.arange(5 * 6 * 4, dtype="uint16").reshape(5, 6, 4)


def write(path, frames=OLD, **more):
    with create(path, (None, 6, 4), "uint16", (1, 3, 4), (2, 6, 4), **more) as writer:
        writer.append(frames)


def image(path, **more):
    given = {"shape": (None, 6, 4), "dtype": "uint16", "chunks": (1, 3, 4), "axes": "tyx"}
    return create_image(path, **(given | {"levels": 2} | more))


def plate(path, **more):
    given = {"shape": (6, 4), "dtype": "uint16", "chunks": (3, 4), "axes": "yx", "levels": 2}
    return create_plate(path, "AB", "12", **(given | more))


CREATORS = {
    "create": lambda path, **more: create(path, (None, 6, 4), "uint16", (1, 3, 4), **more).close(),
    "create_shards": lambda path, **more: create_shards(path, (6, 4), "uint16", (3, 4), **more),
    "create_image": lambda path, **more: image(path, **more).close(),
    "create_plate": lambda path, **more: plate(path, **more).close(),
}


def tree(path: Path) -> dict[str, bytes | str]:
    """Everything below a path, links as such."""
    found: dict[str, bytes | str] = {}
    for base, folders, files in os.walk(path):
        for name in files + [one for one in folders if os.path.islink(os.path.join(base, one))]:
            file = Path(base, name)
            where = file.relative_to(path).as_posix()
            found[where] = os.readlink(file) if file.is_symlink() else file.read_bytes()
    return found


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("kind", sorted(CREATORS))
@pytest.mark.parametrize(
    "names",
    [
        ["c/src/main.c"],
        ["c/0/0"],
        ["c"],
        ["notes.txt"],
        [".git/config"],
        [".film.mp4.partial"],
        ["c/.0.partial"],
        [".zarray"],
        ["0/zarr.json.bak"],
    ],
    ids=lambda names: names[0],
)
def test_a_folder_with_other_files_is_refused_and_untouched(tmp_path, kind, overwrite, names):
    target = tmp_path / "proj"
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text("precious")
    before = tree(target)
    with pytest.raises(WeftError, match=r"proj is not empty and holds no Zarr v3 array") as caught:
        CREATORS[kind](target, overwrite=overwrite)
    assert names[0] in str(caught.value)
    assert tree(target) == before


@pytest.mark.parametrize("kind", sorted(CREATORS))
@pytest.mark.parametrize("text", ["{", "[]", '{"zarr_format": 2}', '{"node_type": "array"}'])
def test_a_zarr_json_that_describes_nothing_is_refused(tmp_path, kind, text):
    (tmp_path / "zarr.json").write_text(text)
    with pytest.raises(WeftError, match=r"zarr.json that describes no Zarr v3 array or group"):
        CREATORS[kind](tmp_path, overwrite=True)
    assert tree(tmp_path) == {"zarr.json": text.encode()}


@pytest.mark.parametrize("kind", sorted(CREATORS))
def test_empty_folders_and_leftovers_of_killed_writers_are_free(tmp_path, kind):
    for name in (".weft.lock", ".zarr.json.0123456789ab.partial"):
        (tmp_path / name).write_text("")
    CREATORS[kind](tmp_path)
    assert not any(is_ours(name) for name in tree(tmp_path))


@pytest.mark.parametrize("kind", sorted(CREATORS))
def test_nothing_is_replaced_through_a_link(tmp_path, kind):
    real, link = tmp_path / "real", tmp_path / "link"
    write(real)
    link.symlink_to(real)
    before = tree(real)
    with pytest.raises(WeftError, match="link is a symbolic link, and an array is not replaced"):
        CREATORS[kind](link, overwrite=True)
    assert tree(real) == before


@pytest.mark.parametrize("where", ["c", "c/0", "c/0/0/0", "c/9"])
def test_links_inside_an_array_are_refused(tmp_path, where):
    elsewhere, path = tmp_path / "elsewhere", tmp_path / "a"
    write(path)
    source = path / where
    if source.is_dir():
        source.rename(elsewhere)
    else:
        elsewhere.mkdir()
        (elsewhere / "data").write_text("precious")
        source.unlink(missing_ok=True)
    source.symlink_to(elsewhere)
    before = tree(tmp_path)
    with pytest.raises(WeftError, match=f"{where} lies among the shards of the array"):
        write(path, overwrite=True)
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    "name", ["c/notes.txt", "c/0/0/x", "c/7", "c/0/0/1", "c/00/0/0", "c/99/0/0", "c/0/0/0.bak"]
)
def test_files_among_the_shards_are_refused_and_files_beside_them_stay(tmp_path, name):
    write(tmp_path / "a")
    for one in ("README.md", "docs/page.md", name):
        (tmp_path / "a" / one).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "a" / one).write_text("precious")
    before = tree(tmp_path)
    with pytest.raises(WeftError, match=f"{name} lies among the shards of the array and does not"):
        write(tmp_path / "a", overwrite=True)
    assert tree(tmp_path) == before
    (tmp_path / "a" / name).unlink()
    write(tmp_path / "a", OLD[:1], overwrite=True)
    found = tree(tmp_path / "a")
    assert sorted(found) == ["README.md", "c/0/0/0", "docs/page.md", "zarr.json"]
    assert np.array_equal(open_store(tmp_path / "a").read(), OLD[:1])


@pytest.mark.parametrize("separator", ["/", "."])
@pytest.mark.parametrize("name", ["default", "v2"])
@pytest.mark.parametrize("is_sharded", [False, True])
def test_arrays_of_zarr_python_are_replaced_whole(tmp_path, name, separator, is_sharded):
    """Whatever their keys are called; only files that are no keys stay."""
    array = zarr.create_array(
        tmp_path / "a",
        shape=(5, 6),
        dtype="uint8",
        chunks=(1, 3),
        shards=(2, 6) if is_sharded else None,
        chunk_key_encoding={"name": name, "separator": separator},
    )
    array[:] = 7
    (tmp_path / "a" / "0.txt").write_text("precious")
    create_shards(tmp_path / "a", (4,), "uint8", (4,), overwrite=True)
    assert sorted(tree(tmp_path / "a")) == ["0.txt", "zarr.json"]


def test_shards_that_were_never_promised_are_removed_and_not_resurrected(tmp_path):
    """A writer that is killed leaves complete shards that its metadata do not count."""
    write(tmp_path / "a")
    said = json.loads((tmp_path / "a/zarr.json").read_text())
    (tmp_path / "a/zarr.json").write_text(json.dumps(said | {"shape": [1, 6, 4]}))
    with open_store(tmp_path / "a", mode="a") as writer:
        writer.append(np.zeros((4, 6, 4), "uint16"))
    assert open_store(tmp_path / "a").read()[1:].max() == 0
    assert np.array_equal(zarr.open_array(tmp_path / "a")[:1], OLD[:1])
    assert sorted(tree(tmp_path / "a")) == ["c/0/0/0", "c/1/0/0", "c/2/0/0", "zarr.json"]
    assert open_store(tmp_path / "a").verify().shards == 3, "an index alone is one"


def test_a_scalar_array_is_replaced_and_replaces(tmp_path):
    path = tmp_path / "a"
    for shape in ((), (6, 4), (), ()):
        writer = create_shards(path, shape, "uint16", shape, overwrite=True)
        assert writer.reader().read().tolist() == np.zeros(shape).tolist()
        writer.write(writer.shard_box((0,) * len(shape)), np.full(shape, 7, "uint16"))
        assert zarr.open_array(path)[...].tolist() == np.full(shape, 7).tolist()


def test_existing_files_are_named_and_kept_without_overwrite(tmp_path):
    for kind, create_it in CREATORS.items():
        create_it(tmp_path / kind)
    held = {
        "create": "an array",
        "create_shards": "an array",
        "create_image": "an image",
        "create_plate": "a plate",
    }
    for there in CREATORS:
        before = tree(tmp_path / there)
        for create_it in CREATORS.values():
            what = held.get(there, "a group")
            with pytest.raises(WeftError, match=f"{there} holds {what} already"):
                create_it(tmp_path / there)
        assert tree(tmp_path / there) == before


@pytest.mark.parametrize("there", sorted(CREATORS))
@pytest.mark.parametrize("kind", sorted(CREATORS))
def test_any_kind_replaces_any_kind(tmp_path, there, kind):
    """What belonged to the old one is gone; the same files are there as in a new folder."""
    old, fresh = tmp_path / "old", tmp_path / "fresh"
    if there == "create":
        write(old)
    elif there == "create_image":
        with image(old) as writer:
            writer.append(OLD)
    elif there == "create_plate":
        with plate(old) as wells:
            wells.field("B", "2", 0).append(OLD[0])
    else:
        CREATORS[there](old)
    CREATORS[kind](old, overwrite=True)
    CREATORS[kind](fresh)
    assert sorted(tree(old)) == sorted(tree(fresh))


def test_a_group_with_members_does_not_become_an_array(tmp_path):
    with Stream(tmp_path / "run") as stream:
        stream.create("camera", (None, 6, 4), "uint16", (1, 3, 4)).append(OLD)
    before = tree(tmp_path)
    with pytest.raises(WeftError, match="is a group, and holds more than an array would replace"):
        write(tmp_path / "run", overwrite=True)
    assert tree(tmp_path) == before


def test_a_stream_refuses_a_folder_of_other_files(tmp_path):
    (tmp_path / "notes.txt").write_text("precious")
    with pytest.raises(
        WeftError, match="not empty and holds no Zarr v3 array or group: there is no"
    ):
        Stream(tmp_path)
    assert tree(tmp_path) == {"notes.txt": b"precious"}


def test_members_that_lead_elsewhere_are_refused(tmp_path):
    """Metadata may list any path: none outside the group is touched."""
    write(tmp_path / "other")
    image(tmp_path / "a").close()
    text = (tmp_path / "a/zarr.json").read_text()
    for path in ("../other", "/etc", ".", "0/../../other", ".hidden", ""):
        said = json.loads(text)
        said["attributes"]["ome"]["multiscales"][0]["datasets"][0]["path"] = path
        (tmp_path / "a/zarr.json").write_text(json.dumps(said))
        before = tree(tmp_path)
        with pytest.raises(WeftError, match="which is not a path inside of it"):
            image(tmp_path / "a", overwrite=True)
        assert tree(tmp_path) == before


def test_one_writer_at_a_time_has_an_image(tmp_path):
    with image(tmp_path / "a") as writer:
        writer.append(OLD)
        for again in (
            lambda: image(tmp_path / "a", overwrite=True),
            lambda: open_image(tmp_path / "a", mode="a"),
            lambda: write(tmp_path / "a", overwrite=True),
        ):
            with pytest.raises(WeftError, match="a is locked by another writer"):
                again()
    assert np.array_equal(open_image(tmp_path / "a").levels[0].read(), OLD)


def test_one_writer_at_a_time_holds_a_plate_and_its_images(tmp_path):
    with plate(tmp_path / "p") as wells:
        field = wells.field("B", "2", 0)
        with pytest.raises(WeftError, match="p is locked by another writer"):
            plate(tmp_path / "p", overwrite=True)
        field.append(OLD[0])
    with pytest.raises(WeftError, match="p is closed: no image can be added"):
        wells.field("B", "2", 1)
    for path in ("p/B/2/0/0", "p/B/2/0/1"):
        with open_store(tmp_path / path, mode="a"):
            before = sorted(tree(tmp_path))
            with pytest.raises(WeftError, match=f"{path} is locked by another writer"):
                plate(tmp_path / "p", overwrite=True)
            assert sorted(tree(tmp_path)) == before
    plate(tmp_path / "p", overwrite=True).close()


def test_a_refused_creation_leaves_no_folder(tmp_path):
    with pytest.raises(WeftError, match="is for device='cuda'"):
        create(tmp_path / "x/y/a", (None, 4), "uint8", (1, 4), encoder="nvcomp")
    assert tree(tmp_path) == {}
    assert not (tmp_path / "x").exists()
    with pytest.raises(WeftError, match="there is no Zarr array at"):
        open_store(tmp_path / "x", mode="a")
    assert not (tmp_path / "x").exists()


def test_keys_are_read_as_they_are_written():
    grid = {"name": "regular", "configuration": {"chunk_shape": [2]}}
    with pytest.raises(WeftError, match="chunk grid or key encoding that is not supported"):
        ArrayKeys.of({"shape": [2], "chunk_grid": {"name": "rectilinear"}})
    encoding = {"name": "v2", "configuration": {"separator": "x"}}
    with pytest.raises(WeftError, match="unsupported separator of keys, 'x'"):
        ArrayKeys.of({"shape": [2], "chunk_grid": grid, "chunk_key_encoding": encoding})


def test_a_journal_of_another_program_is_refused(tmp_path):
    write(tmp_path / "a")
    (tmp_path / "a/.weft.replaced").write_text("precious")
    with pytest.raises(WeftError, match="is not the journal of a replacement"):
        write(tmp_path / "a", overwrite=True)
    assert np.array_equal(open_store(tmp_path / "a").read(), OLD)


# -- kills

KILLED = """
    import os, shutil, signal, sys
    import numpy as np
    from weft.errors import WeftError
    from weft.store import *
    from weft.store import open as open_store

    root, kind, step = sys.argv[1], sys.argv[2], int(sys.argv[3])
    path, kept = f"{root}/a", f"{root}/kept"
    old = np.arange(1, 1 + 5 * 6 * 4, dtype="uint16").reshape(5, 6, 4)
    new = old[::-1] + 500
    grid = ("uint16", (1, 3, 4), (2, 6, 4))

    def make(where, values, **more):
        if kind == "array":
            with create(where, (None, 6, 4), *grid, **more) as writer:
                writer.append(values)
                writer.flush()
        elif kind == "shards":
            writer = create_shards(where, values.shape, *grid, **more)
            writer.write(ZRange.of(values.shape), values)
        else:
            with create_image(where, (None, 6, 4), *grid, axes="tyx", levels=2, **more) as writer:
                writer.append(values)

    def read():
        return open_image(path).levels[0].read() if kind == "image" else open_store(path).read()

    def check():
        found = read()
        if not np.array_equal(found, old):
            if kind == "shards" and len(found):  # those that were written
                assert found.shape == new.shape and np.all((found == new) | (found == 0)), found
            else:
                assert np.array_equal(found, new[: len(found)]), found
        # The next writer gets a whole array, whatever it finds.
        make(path, new[:1], overwrite=True)
        assert np.array_equal(read(), new[:1])
        names = [name for _, _, files in os.walk(path) for name in files]
        assert not [name for name in names if name.startswith(".")], names

    def apart(work, *given):
        child = os.fork()
        if child:
            return os.waitpid(child, 0)[1]
        try:
            work(*given)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    def replaced(limit):
        # Every change of the file system is a moment at which the process may end.
        left = [limit]
        def counted(call):
            def counting(*given, **more):
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*given, **more)
            return counting
        for name in ("open", "replace", "unlink", "rmdir", "pwritev", "mkdir", "copy_file_range"):
            setattr(os, name, counted(getattr(os, name)))
        make(path, new, overwrite=True)

    from weft.space import ZRange
    assert apart(make, kept, old) == 0
    for limit in range(0, 10_000, step):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(kept, path)
        status = apart(replaced, limit)
        assert apart(check) == 0, limit
        if status == 0:
            break
        assert status == signal.SIGKILL, status
    print(limit)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["array", "shards", "image"])
def test_a_kill_leaves_the_old_array_or_the_new_one(tmp_path, kind):
    """The process is killed before its changes of the file system: before each in `make fuzz`."""
    step = {"array": 9, "shards": 9, "image": 23}[kind]
    if EXAMPLES >= 1000:
        step = 1
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path), kind, str(step)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 30


def test_a_new_image_that_was_interrupted_anywhere_is_created_again(tmp_path):
    """The journal is there, and any of its levels: a folder, an unfinished file, a whole one."""
    form = {"shape": (None, 8, 8), "dtype": "uint8", "chunks": (1, 8, 8), "axes": "tyx"}
    create_image(tmp_path / "whole", levels=2, **form).close()
    level = (tmp_path / "whole" / "0" / "zarr.json").read_text()
    journal = {"old": "", "empty": "{}", "new": "{}", "members": ["0", "1"]}
    for number, files in enumerate([[], ["1/"], ["0/.zarr.json.0123456789ab.partial"], [LEVEL]]):
        path = tmp_path / str(number)
        path.mkdir()
        (path / ".weft.replaced").write_text(json.dumps(journal))
        for file in files:
            (path / file).parent.mkdir(exist_ok=True)
            if file.endswith("/"):
                (path / file).mkdir(exist_ok=True)
            else:
                (path / file).write_text(level if file == LEVEL else "{")
        create_image(path, levels=2, **form).close()
        assert not (path / ".weft.replaced").exists()


LEVEL = "0/zarr.json"


def test_a_replacement_that_was_interrupted_is_finished_by_the_next_writer(tmp_path):
    """`open_shards` after a kill between the old array and the new one has the new one."""
    writer = create_shards(tmp_path / "a", (4, 4), "uint8", (2, 2), (2, 4))
    writer.write(writer.shard_box((1, 0)), np.ones((2, 4), "uint8"))
    old = (tmp_path / "a/zarr.json").read_text()
    new = json.dumps(json.loads(old) | {"shape": [6, 4]})
    empty = json.dumps(json.loads(old) | {"shape": [0, 4]})
    journal = {"old": old, "new": new, "empty": empty, "members": []}
    (tmp_path / "a/.weft.replaced").write_text(json.dumps(journal))
    (tmp_path / "a/zarr.json").write_text(empty)
    found = open_shards(tmp_path / "a")
    assert found.shape == (6, 4)
    assert found.written() == []
    assert sorted(tree(tmp_path / "a")) == ["zarr.json"]


def test_open_plate_after_a_replacement(tmp_path):
    for value in (1, 2):
        with plate(tmp_path / "p", overwrite=True) as wells:
            wells.field("AB"[value - 1], "2", 0).append(np.full((6, 4), value, "uint16"))
    found = open_plate(tmp_path / "p")
    assert [(spot.row, spot.column) for spot in found.plate.wells] == [("B", "2")]
    assert not (tmp_path / "p/A").exists()
