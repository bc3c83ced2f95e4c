"""Sections of long programs: nested, disjoint, and few at a time."""

from hypothesis import given
from hypothesis import strategies as st

from weft.report.plan_graph import FEW, split_into_sections


def check(sections, low, high):
    """Sections lie in order between two places, and those inside them within."""
    for one in sections:
        assert low <= one.start < one.stop <= high
        check(one.inner, one.start, one.stop)
        low = one.stop


def shown(sections, size):
    """The sections of an open level, and the nodes outside sections."""
    return len(sections) + size - sum(one.stop - one.start for one in sections)


def most_shown(sections, size):
    inner = [most_shown(one.inner, one.stop - one.start) for one in sections]
    return max([shown(sections, size), *inner])


@given(
    st.lists(st.sampled_from("abcd"), max_size=300),
    st.integers(1, 20),
    st.sampled_from(["v", "a.b", "one/two/three"]),
)
def test_sections_lie_inside_each_other(tokens, times, stem):
    tokens = tokens[:60] * times
    names = [f"{stem}{n}" for n in range(len(tokens))]
    sections = split_into_sections(tokens, names)
    check(sections, 0, len(tokens))
    if len(tokens) <= FEW:
        assert sections == ()


def test_repeated_layers_are_found_after_others():
    layer = ["norm", "matmul", "gelu", "matmul", "add"]
    tokens = ["embed", "place", *layer * 12, "norm", "logits"]
    sections = split_into_sections(tokens, [f"v{n}" for n in range(len(tokens))])
    assert [(one.title, one.start, one.stop) for one in sections][:2] == [
        ("layer 0", 2, 7),
        ("layer 1", 7, 12),
    ]
    assert sections[-1].stop == 62


def test_many_layers_are_bundled():
    tokens = ["a", "b", "c", "d"] * 300
    sections = split_into_sections(tokens, [f"v{n}" for n in range(1200)])
    assert sections[0].title == "layers 0 to 17"
    assert [one.title for one in sections[1].inner][:1] == ["layer 18"]
    assert most_shown(sections, 1200) <= FEW


def test_common_prefixes_take_precedence_over_repeats():
    names = [f"{part}.{n}.x" for part in ("encoder", "decoder") for n in range(30)]
    sections = split_into_sections(["a", "b"] * 30, names)
    assert [one.title for one in sections] == ["encoder", "decoder"]


def test_graphs_without_structure_are_divided_into_sections():
    sections = split_into_sections(list(range(100)), [f"v{n}" for n in range(100)])
    assert sections[0].title == "operators 0 to 9"
    assert most_shown(sections, 100) <= FEW
