"""Channels, and other metadata of callers: kept, or refused."""

import json

import numpy as np
import pytest
from tests.store.ome_validators import is_accepted

from weft import WeftError
from weft.store import Axis, Channel, create_image, open_image
from weft.store.hierarchy import read_group, sink_of
from weft.store.ome.channels import as_color

IMAGE = {
    "shape": (None, 3, 8, 8),
    "dtype": "uint8",
    "chunks": (1, 1, 8, 8),
    "axes": "tcyx",
    "levels": 2,
}


def test_colours():
    for given in (
        "#00FF00",
        "00ff00",
        "#0f0",
        "green",
        "Green",
        (0, 255, 0),
        [0, np.uint8(255), 0],
    ):
        assert as_color(given) == "00FF00"
    for given in (
        "greenish",
        "#00FF0",
        "00FF0000",
        (0, 256, 0),
        (0, 1.0, 0),
        (0, 0),
        3,
        None,
        True,
    ):
        with pytest.raises(WeftError, match="is not a colour"):
            as_color(given)


def test_channels_are_written_as_omero_does(tmp_path):
    path = tmp_path / "a.zarr"
    channels = [
        "DAPI",
        Channel("GFP", "#0f0", window=(10, 4000), active=False, inverted=True),
        {"label": "mCherry", "color": "FF0000", "emissionWave": 610},
    ]
    with create_image(path, channels=channels, **IMAGE | {"dtype": "uint16"}) as writer:
        writer.append(np.ones((3, 8, 8), "uint16"))
    assert is_accepted(path)
    omero = read_group(sink_of(path))["ome"]["omero"]
    assert omero["rdefs"] == {"defaultT": 0, "defaultZ": 0, "model": "color"}
    assert omero["channels"][0] == {
        "label": "DAPI",
        "color": "0000FF",
        "active": True,
        "coefficient": 1,
        "family": "linear",
        "inverted": False,
        "window": {"min": 0, "max": 65535, "start": 0, "end": 65535},
    }
    assert omero["channels"][1]["window"] == {"min": 0, "max": 65535, "start": 10, "end": 4000}
    assert omero["channels"][2]["emissionWave"] == 610
    found = open_image(path).channels
    assert [channel.name for channel in found] == ["DAPI", "GFP", "mCherry"]
    assert (found[1].active, found[1].inverted, found[1].window) == (False, True, (10, 4000))
    assert repr(found[2]).startswith("Channel(name='mCherry', color='FF0000', window=(0, 65535)")


def test_windows_follow_the_dtype(tmp_path):
    for dtype, limits in [
        ("uint8", (0, 255)),
        ("int16", (-32768, 32767)),
        ("float32", (0, 1)),
        ("bool", (0, 1)),
        ("bfloat16", (0, 1)),
    ]:
        image = {"shape": (8, 8), "chunks": (8, 8), "axes": "yx", "dtype": dtype}
        create_image(tmp_path / dtype, channels=["only"], **image).close()
        (channel,) = open_image(tmp_path / dtype).channels
        assert channel.window == channel.limits == limits
        assert channel.color == "FFFFFF"
        assert (
            read_group(sink_of(tmp_path / dtype))["ome"]["omero"]["rdefs"]["model"] == "greyscale"
        )
    image = {"shape": (8, 8), "chunks": (8, 8), "axes": "yx", "dtype": "float32"}
    create_image(tmp_path / "wide", channels=[Channel(window=(-5.0, 7.5))], **image).close()
    (channel,) = open_image(tmp_path / "wide").channels
    assert (channel.name, channel.limits) == ("Channel 0", (-5.0, 7.5))


def test_channels_that_cannot_be_are_refused(tmp_path):
    three = ["a", "b", "c"]
    for more, message in [
        ({"channels": ["a", "b"]}, "2 channels are named, and the image has 3"),
        ({"channels": "abc"}, "channels: expected a list, got 'abc'"),
        ({"channels": ["a", "b", 3]}, r"channels\[2\]: channel: expected an object, got 3"),
        ({"channels": ["a", "b", Channel(window=(3, 1))]}, r"channels\[2\]: a window of \(3, 1\)"),
        (
            {"channels": [*three[:2], Channel(window=(0, 300), limits=(0, 255))]},
            r"a window of \(0, 300\) is not inside of \(0, 255\)",
        ),
        (
            {"channels": three, "append_dim": 1, "shape": (4, None, 8, 8)},
            "axis c has no end: its channels cannot be named",
        ),
        (
            {"attributes": {"ome": {"omero": {"channels": [{"label": "a"}] * 3}}}},
            r"omero\.channels\[0\]: a channel needs a color",
        ),
        (
            {"channels": three, "attributes": {"ome": {"omero": {"channels": []}}}},
            r"attributes\.ome\.omero\.channels: \[\] was given",
        ),
    ]:
        with pytest.raises(WeftError, match=message):
            create_image(tmp_path / "a", **IMAGE | more)
        assert not (tmp_path / "a").exists(), more
    for wrong, message in [
        (lambda: Channel(3), "channel: name: expected text, got 3"),
        (lambda: Channel(active=1), "channel: active: expected true or false, got 1"),
        (lambda: Channel(inverted="no"), "channel: inverted: expected true or false"),
        (lambda: Channel(coefficient=float("nan")), "coefficient: expected a finite number"),
        (lambda: Channel(window=(0, None)), "window: expected a finite number, got None"),
        (lambda: Channel(window=3), "window: expected two numbers, got 3"),
        (lambda: Channel(color="nope"), "'nope' is not a colour"),
    ]:
        with pytest.raises(WeftError, match=message):
            wrong()


def test_metadata_of_the_caller_are_kept(tmp_path):
    """Below "ome" too, at any depth."""
    window = {"min": 0, "max": 9, "start": 0, "end": 9}
    given = {
        "microscope": {"objective": 20},
        "ome": {
            "_creator": {"name": "me", "version": 3},
            "version": "0.5",
            "multiscales": [
                {
                    "coordinateTransformations": [
                        {"type": "scale", "scale": [1, 1, 10, 10]},
                        {"type": "translation", "translation": [0, 0, 1, 2]},
                    ],
                    "note": "kept",
                    "axes": [{}, {"longName": "wavelength"}, {}, {}],
                    "metadata": {"kwargs": {"order": 1}},
                }
            ],
            "omero": {
                "id": 7,
                "channels": [{"color": "FF0000", "window": window, "lut": n} for n in range(3)],
            },
        },
    }
    axes = ["t", "c", Axis("y", unit="micrometer"), Axis("x", unit="micrometer")]
    with create_image(tmp_path / "a", attributes=given, **IMAGE | {"axes": axes}) as writer:
        assert writer.metadata.levels[0].scale == (1, 1, 10, 10)
    found = read_group(sink_of(tmp_path / "a"))
    assert found["microscope"] == {"objective": 20}
    ome = found["ome"]
    assert ome["_creator"] == {"name": "me", "version": 3}
    assert ome["omero"] == given["ome"]["omero"]
    (image,) = ome["multiscales"]
    assert image["note"] == "kept"
    assert image["axes"][1] == {"name": "c", "type": "channel", "longName": "wavelength"}
    assert image["metadata"]["kwargs"] == {"order": 1}
    assert image["metadata"]["factors"] == [1, 1, 2, 2]
    read = open_image(tmp_path / "a")
    assert read.scales == ((1, 1, 10, 10), (1, 1, 20, 20))
    assert read.translations[0] == (0, 0, 1, 2)
    with open_image(tmp_path / "a", mode="a") as writer:
        writer.append(np.ones((3, 8, 8), "uint8"))
    assert read_group(sink_of(tmp_path / "a")) == found, "a writer that continues keeps all of it"


def test_metadata_that_contradict_are_refused(tmp_path):
    for more, message in [
        (
            {"attributes": {"ome": {"version": "0.4"}}},
            r"attributes\.ome\.version: '0\.4' was given",
        ),
        ({"attributes": {"ome": 3}}, r"attributes\.ome: 3 was given"),
        (
            {"attributes": {"ome": {"multiscales": [{"name": "b"}]}}},
            r"attributes\.ome\.multiscales\[0\]\.name: 'b' was given, and 'a' is written",
        ),
        (
            {"attributes": {"ome": {"multiscales": [{"datasets": [{"path": "0"}]}]}}},
            r"multiscales\[0\]\.datasets: .* was given",
        ),
        ({"dimension_names": ["a", "b", "c", "d"]}, "dimension_names of .*, and axes of"),
        ({"scale": {"z": 2}}, "scale: there is no axis 'z', only"),
        ({"translation": {"y": "a"}}, "translation: expected finite numbers, got 'a'"),
    ]:
        with pytest.raises(WeftError, match=message):
            create_image(tmp_path / "a", **IMAGE | more)
        assert not (tmp_path / "a").exists(), more


def test_invalid_channels_of_others_are_refused_only_when_asked_for(tmp_path):
    """Channels that break the rules are refused only where they are asked for."""
    create_image(tmp_path / "a", **IMAGE).close()
    file = tmp_path / "a" / "zarr.json"
    data = json.loads(file.read_text())
    data["attributes"]["ome"]["omero"] = {"channels": [{"color": "not one"}]}
    file.write_text(json.dumps(data))
    image = open_image(tmp_path / "a")
    with pytest.raises(WeftError, match=r"omero\.channels\[0\]: 'not one' is not a colour"):
        image.channels
    del data["attributes"]["ome"]["omero"]
    file.write_text(json.dumps(data))
    assert open_image(tmp_path / "a").channels == ()
