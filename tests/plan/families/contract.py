"""Products, reductions and sorting."""

from tests.plan.writer import ELEMENTS, FLOATS, ORDERED, Kind, Writer, integers, monoid, region


def dot_general(w: Writer) -> None:
    """Some dimensions of two values batched and contracted, the second made to fit the first."""
    rng = w.rng
    a = w.any(1, 4, elements=FLOATS)
    left = w.kinds[a].shape
    roles = [rng.choice(["batch", "contract", "free"]) for _ in left]
    paired = [dim for dim, role in enumerate(roles) if role != "free"]
    right = [(dim, left[dim]) for dim in paired]
    right += [(-1, size) for size in w.shape(0, 2)]
    rng.shuffle(right)
    b = w.need([size for _, size in right], w.kinds[a].element)
    places = {dim: place for place, (dim, _) in enumerate(right) if dim >= 0}
    dims = {
        role: _some_order(w, [dim for dim in paired if roles[dim] == role])
        for role in ("batch", "contract")
    }
    shape = [left[dim] for dim in dims["batch"]]
    shape += [size for dim, size in enumerate(left) if roles[dim] == "free"]
    shape += [size for dim, size in right if dim < 0]
    numbers = ", ".join(
        f"{side}_{word}_dimensions = {[d if side == 'lhs' else places[d] for d in dims[role]]}"
        for side in ("lhs", "rhs")
        for word, role in (("batching", "batch"), ("contracting", "contract"))
    )
    said = f"dot_dimension_numbers = #stablehlo.dot<{numbers}>"
    w.emit("dot_general", [a, b], [Kind(tuple(shape), w.kinds[a].element)], [said])


def _some_order(w: Writer, dims: list[int]) -> list[int]:
    return w.rng.sample(dims, len(dims))


def dot(w: Writer) -> None:
    a = w.any(1, 2, elements=FLOATS)
    left, right = w.kinds[a].shape, w.shape(0, 1)[: w.rng.randint(0, 1)]
    b = w.need((left[-1], *right), w.kinds[a].element)
    w.emit("dot", [a, b], [Kind((*left[:-1], *right), w.kinds[a].element)])


def reduce(w: Writer) -> None:
    """One value or several of one shape, by a monoid or by what is none."""
    rng = w.rng
    a = w.any(1)
    shape = w.kinds[a].shape
    inputs = [a] + [w.need(shape, rng.choice(ELEMENTS)) for _ in range(rng.choice([0, 0, 0, 1, 2]))]
    elements = [w.kinds[n].element for n in inputs]
    dims = sorted(rng.sample(range(len(shape)), rng.randint(0, len(shape))))
    kept = tuple(size for dim, size in enumerate(shape) if dim not in dims)
    body = region(elements, monoid(rng, elements))
    w.emit(
        "reduce",
        [*inputs, *map(w.scalar, elements)],
        [Kind(kept, element) for element in elements],
        [integers("dimensions", dims)],
        [body],
    )


def sort(w: Writer) -> None:
    a = w.any(1, elements=ORDERED)
    shape = w.kinds[a].shape
    inputs = [a] + [w.need(shape, w.rng.choice(ELEMENTS)) for _ in range(w.rng.choice([0, 0, 1]))]
    kinds = [w.kinds[n] for n in inputs]
    pairs = [f"%x{n}: tensor<{k.element}>, %y{n}: tensor<{k.element}>" for n, k in enumerate(kinds)]
    one = f"tensor<{kinds[0].element}>"
    body = (
        f"{{\n  ^bb0({', '.join(pairs)}):\n    %p = stablehlo.compare LT, %x0, %y0 : "
        f"({one}, {one}) -> tensor<i1>\n    stablehlo.return %p : tensor<i1>\n  }}"
    )
    dim = w.rng.randrange(len(shape))
    w.emit("sort", inputs, kinds, [f"dimension = {dim} : i64", "is_stable = true"], [body])


FAMILIES = (dot_general, dot_general, dot_general, dot, reduce, reduce, sort)
