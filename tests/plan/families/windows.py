"""Operations that slide a window."""

from typing import NamedTuple

from tests.plan.writer import (
    ELEMENTS,
    FLOATS,
    ORDERED,
    SIZES,
    Kind,
    Writer,
    integers,
    monoid,
    pairs,
    region,
)  # fmt: skip


class Window(NamedTuple):
    """A window along one dimension."""

    size: int = 1
    stride: int = 1
    low: int = 0
    high: int = 0
    base: int = 1
    dilation: int = 1

    def count(self, along: int) -> int:
        padded = (along - 1) * self.base + 1 + self.low + self.high
        reach = (self.size - 1) * self.dilation + 1
        return (padded - reach) // self.stride + 1 if padded >= max(1, reach) else 0


def window(w: Writer, along: int, dilated: bool = True) -> Window:
    """A window that fits at least once; often it does nothing, or tiles the dimension."""
    rng = w.rng
    if rng.random() < 0.4:
        return Window()
    size = rng.choice([1, 2, 2, 3, 4])
    if rng.random() < 0.3:
        found = Window(size, size)
    else:
        low, high = (rng.choice([0, 0, 0, 1, 2, -1]) for _ in "lh")
        base, dilation = (rng.choice([1, 1, 1, 2, 3]) if dilated else 1 for _ in "bd")
        found = Window(size, rng.choice([1, 1, 2, 3]), low, high, base, dilation)
    inside = (along - 1) * found.base + 1 + min(found.low, found.high, found.low + found.high)
    return found if inside >= 1 and found.count(along) > 0 else Window()


def columns(windows: list[Window], *names: str) -> list[str]:
    fields = list(zip(*windows)) or [()] * len(Window._fields)
    return [
        integers(name, fields[Window._fields.index(field)])
        for name, field in (named.split("=") for named in names)
    ]


def padding(windows: list[Window]) -> list[str]:
    edges = [edge for found in windows for edge in (found.low, found.high)]
    return [pairs("padding", edges)] if edges else []


def reduce_window(w: Writer) -> None:
    rng, a = w.rng, w.any(1, 4)
    shape = w.kinds[a].shape
    inputs = [a] + [w.need(shape, rng.choice(ELEMENTS)) for _ in range(rng.choice([0, 0, 1]))]
    elements = [w.kinds[n].element for n in inputs]
    found = [window(w, size) for size in shape]
    made = tuple(one.count(size) for one, size in zip(found, shape))
    names = ("window_dimensions=size", "window_strides=stride", "base_dilations=base")
    w.emit(
        "reduce_window",
        [*inputs, *map(w.scalar, elements)],
        [Kind(made, element) for element in elements],
        [*columns(found, *names, "window_dilations=dilation"), *padding(found)],
        [region(elements, monoid(rng, elements))],
    )


def select_and_scatter(w: Writer) -> None:
    a = w.any(1, 4, elements=ORDERED)
    kind = w.kinds[a]
    found = [window(w, size, dilated=False) for size in kind.shape]
    source = w.need([one.count(size) for one, size in zip(found, kind.shape)], kind.element)
    one = f"tensor<{kind.element}>"
    choose = (
        f"{{\n  ^bb0(%x: {one}, %y: {one}):\n    %p = stablehlo.compare GE, %x, %y : "
        f"({one}, {one}) -> tensor<i1>\n    stablehlo.return %p : tensor<i1>\n  }}"
    )
    said = [*columns(found, "window_dimensions=size", "window_strides=stride"), *padding(found)]
    regions = [choose, region([kind.element], "add")]
    w.emit("select_and_scatter", [a, source, w.scalar(kind.element)], [kind], said, regions)


def convolution(w: Writer) -> None:
    """Up to three spatial dimensions, any order of dimensions, groups of features or batches."""
    rng = w.rng
    a = w.any(2, 5, elements=FLOATS)
    shape, element = w.kinds[a].shape, w.kinds[a].element
    places = {side: rng.sample(range(len(shape)), len(shape)) for side in ("in", "kernel", "out")}
    batch, features, *spatial = places["in"]
    groups, batch_groups = 1, 1
    if rng.random() < 0.5:
        groups = rng.choice(_divisors(shape[features]))
    elif rng.random() < 0.5:
        batch_groups = rng.choice(_divisors(shape[batch]))
    found = [window(w, shape[dim]) for dim in spatial]
    each = rng.choice(SIZES[:6]) * groups * batch_groups
    sizes = {
        "kernel": [shape[features] // groups, each, *(one.size for one in found)],
        "out": [
            shape[batch] // batch_groups,
            each,
            *(one.count(shape[dim]) for one, dim in zip(found, spatial)),
        ],
    }
    kernel, made = (_placed(places[side], sizes[side]) for side in ("kernel", "out"))
    said = [
        f"dimension_numbers = #stablehlo.conv<raw {_numbers(places)}>",
        *columns(found, "window_strides=stride", "lhs_dilation=base", "rhs_dilation=dilation"),
        *padding(found),
        f"feature_group_count = {groups} : i64",
        f"batch_group_count = {batch_groups} : i64",
    ]
    if found and rng.random() < 0.3:
        words = ", ".join(rng.choice(["true", "false"]) for _ in found)
        said.append(f"window_reversal = array<i1: {words}>")
    w.emit("convolution", [a, w.need(kernel, element)], [Kind(made, element)], said)


def _divisors(size: int) -> list[int]:
    return [n for n in range(1, size + 1) if size % n == 0]


def _placed(places: list[int], sizes: list[int]) -> tuple[int, ...]:
    return tuple(sizes[places.index(dim)] for dim in range(len(sizes)))


def _numbers(places: dict[str, list[int]]) -> str:
    words = {
        "in": ("input", "batch", "feature"),
        "kernel": ("kernel", "input_feature", "output_feature"),
        "out": ("output", "batch", "feature"),
    }
    return ", ".join(
        f"{tensor}_{first}_dimension = {dims[0]}, {tensor}_{second}_dimension = {dims[1]}, "
        f"{tensor}_spatial_dimensions = {dims[2:]}"
        for (tensor, first, second), dims in zip(words.values(), places.values())
    )


FAMILIES = (reduce_window, reduce_window, select_and_scatter, convolution, convolution, convolution)
