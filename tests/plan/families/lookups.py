"""Gather and scatter: any dimensions hidden, batched or seen in part, indices of any rank."""

from typing import NamedTuple

from tests.plan.writer import Kind, Writer, integers, monoid, region


class Lookup(NamedTuple):
    """What gather and scatter share: the slices of an array at some indices."""

    indices: tuple[int, ...]
    slices: tuple[int, ...]
    """The size of a slice in each dimension of the array."""
    made: tuple[int, ...]
    """The shape of all slices together."""
    numbers: tuple[list[int], ...]
    """Window dimensions, hidden, batching, the places of those in the indices, mapped."""
    vector: int


def lookup(w: Writer, shape: tuple[int, ...]) -> Lookup:
    rng = w.rng
    roles = [rng.choice(["seen", "seen", "hidden", "batching"]) for _ in shape]
    if set(roles) == {"batching"}:
        roles[0] = "hidden"  # or an index would have no element
    slices = tuple(
        (size if rng.random() < 0.5 else rng.randint(1, size)) if role == "seen" else 1
        for size, role in zip(shape, roles)
    )
    batching, hidden, visible = (
        [dim for dim, role in enumerate(roles) if role == wanted]
        for wanted in ("batching", "hidden", "seen")
    )
    free = w.shape(0, 2)[: rng.randint(0, 2)]
    order = [*batching, *(-1 - n for n in range(len(free)))]
    rng.shuffle(order)
    batch = [shape[n] if n >= 0 else free[-1 - n] for n in order]
    others = [dim for dim in range(len(shape)) if dim not in batching]
    mapped = rng.sample(others, rng.randint(1, len(others)))
    vector = rng.randint(0, len(batch))
    indices = (*batch[:vector], len(mapped), *batch[vector:])
    if len(mapped) == 1 and rng.random() < 0.5:
        vector, indices = len(batch), tuple(batch)
    places = [order.index(dim) + (order.index(dim) >= vector) for dim in batching]
    seen = [slices[dim] for dim in visible]
    window = sorted(rng.sample(range(len(batch) + len(seen)), len(seen)))
    sizes, rest = iter(seen), iter(batch)
    made = tuple(next(sizes) if n in window else next(rest) for n in range(len(batch) + len(seen)))
    return Lookup(indices, slices, made, (window, hidden, batching, places, mapped), vector)


def _text(found: Lookup, names: str) -> str:
    said = [f"{name} = {dims}" for name, dims in zip(names.split(), found.numbers)]
    return ", ".join([*said, f"index_vector_dim = {found.vector}"])


def gather(w: Writer) -> None:
    a = w.any(1, 3)
    found = lookup(w, w.kinds[a].shape)
    names = (
        "offset_dims collapsed_slice_dims operand_batching_dims start_indices_batching_dims "
        "start_index_map"
    )
    said = [
        f"dimension_numbers = #stablehlo.gather<{_text(found, names)}>",
        integers("slice_sizes", found.slices),
    ]
    made = Kind(found.made, w.kinds[a].element)
    w.emit("gather", [a, w.need(found.indices, "i32")], [made], said)


def scatter(w: Writer) -> None:
    """One array or two, by a monoid or by what is none."""
    a = w.any(1, 3)
    inputs = [a] + ([w.like(a)] if w.rng.random() < 0.2 else [])
    kind = w.kinds[a]
    found = lookup(w, kind.shape)
    names = (
        "update_window_dims inserted_window_dims input_batching_dims "
        "scatter_indices_batching_dims scatter_dims_to_operand_dims"
    )
    said = [f"scatter_dimension_numbers = #stablehlo.scatter<{_text(found, names)}>"]
    elements = [kind.element] * len(inputs)
    updates = [w.need(found.made, kind.element) for _ in inputs]
    body = region(elements, monoid(w.rng, elements))
    operands = [*inputs, w.need(found.indices, "i32"), *updates]
    w.emit("scatter", operands, [kind] * len(inputs), said, [body])


FAMILIES = (gather, gather, scatter, scatter)
