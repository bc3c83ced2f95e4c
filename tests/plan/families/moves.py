"""Operations that move elements and compute none."""

from itertools import accumulate

from tests.plan.writer import SIZES, Kind, Writer, integers

BITS = {"ui8": 8, "bf16": 16, "f32": 32, "i32": 32}


def transpose(w: Writer) -> None:
    a = w.any()
    kind = w.kinds[a]
    order = w.rng.sample(range(len(kind.shape)), len(kind.shape))
    made = Kind(tuple(kind.shape[dim] for dim in order), kind.element)
    w.emit("transpose", [a], [made], [integers("permutation", order)])


def reshape(w: Writer) -> None:
    """The same prime factors grouped anew, in order or not, and single dimensions anywhere."""
    rng, a = w.rng, w.any()
    kind = w.kinds[a]
    if 0 in kind.shape:
        return
    primes = [p for size in kind.shape for p in _primes(size)]
    if rng.random() < 0.5:
        rng.shuffle(primes)
    cuts = sorted(rng.randint(0, len(primes)) for _ in range(rng.randint(0, 3)))
    shape = []
    for start, stop in zip([0, *cuts], [*cuts, len(primes)]):
        size = 1
        for prime in primes[start:stop]:
            size *= prime
        shape += [size] if size > 1 or rng.random() < 0.3 else []
    for _ in range(rng.choice([0, 0, 1, 2])):
        shape.insert(rng.randint(0, len(shape)), 1)
    w.emit("reshape", [a], [Kind(tuple(shape), kind.element)])


def _primes(size: int) -> list[int]:
    found = []
    for prime in (2, 3, 5, 7):
        while size % prime == 0:
            found.append(prime)
            size //= prime
    return found + [size] * (size > 1)


def broadcast_in_dim(w: Writer) -> None:
    rng, a = w.rng, w.any(0, 4)
    kind = w.kinds[a]
    shape = [rng.choice(SIZES) for _ in range(len(kind.shape) + rng.randint(0, 2))]
    where = rng.sample(range(len(shape)), len(kind.shape))
    where = where if rng.random() < 0.3 else sorted(where)
    for dim, size in zip(where, kind.shape):
        shape[dim] = shape[dim] if size == 1 and rng.random() < 0.5 else size
    made = Kind(tuple(shape), kind.element)
    w.emit("broadcast_in_dim", [a], [made], [integers("broadcast_dimensions", where)])


def reverse(w: Writer) -> None:
    a = w.any()
    dims = [dim for dim in range(len(w.kinds[a].shape)) if w.rng.random() < 0.5]
    w.emit("reverse", [a], [w.kinds[a]], [integers("dimensions", dims)])


def slice_(w: Writer) -> None:
    rng, a = w.rng, w.any(1)
    kind, rows = w.kinds[a], []
    for size in kind.shape:
        start = rng.randrange(size) if rng.random() < 0.4 else 0
        stop = rng.randint(start + 1, size) if rng.random() < 0.4 else size
        rows.append((start, stop, rng.choice([1, 1, 1, 2, 3])))
    columns = zip(("start_indices", "limit_indices", "strides"), zip(*rows))
    made = tuple(-(-(stop - start) // step) for start, stop, step in rows)
    w.emit("slice", [a], [Kind(made, kind.element)], [integers(*column) for column in columns])


def pad(w: Writer) -> None:
    rng, a = w.rng, w.any(1)
    kind, rows, shape = w.kinds[a], [], []
    for size in kind.shape:
        low, high, inner = (rng.choice([0, 0, 0, -1, 1, 2]) for _ in "lhi")
        inner = max(0, inner)
        made = (size - 1) * (inner + 1) + 1 + low + high
        if made < 1:
            low = high = inner = 0
            made = size
        rows.append((low, high, inner))
        shape.append(made)
    columns = zip(("edge_padding_low", "edge_padding_high", "interior_padding"), zip(*rows))
    said = [integers(*column) for column in columns]
    w.emit("pad", [a, w.scalar(kind.element)], [Kind(tuple(shape), kind.element)], said)


def concatenate(w: Writer) -> None:
    rng, a = w.rng, w.any(1)
    kind = w.kinds[a]
    dim, parts = rng.randrange(len(kind.shape)), [a]
    for _ in range(rng.randint(0, 3)):
        size = kind.shape[dim] if rng.random() < 0.4 else rng.choice(SIZES)
        parts.append(w.need((*kind.shape[:dim], size, *kind.shape[dim + 1 :]), kind.element))
    rng.shuffle(parts)
    *_, total = accumulate(w.kinds[n].shape[dim] for n in parts)
    made = Kind((*kind.shape[:dim], total, *kind.shape[dim + 1 :]), kind.element)
    w.emit("concatenate", parts, [made], [f"dimension = {dim} : i64"])


def _part(w: Writer, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size if w.rng.random() < 0.6 else w.rng.randint(1, size) for size in shape)


def _starts(w: Writer, shape: tuple[int, ...]) -> list[int]:
    """Where a slice starts: computed, so that it may be cut off from constants, or not."""
    one = w.scalar("i32") if w.rng.random() < 0.5 else w.need((), "i32")
    return [one if w.rng.random() < 0.7 else w.scalar("i32") for _ in shape]


def dynamic_slice(w: Writer) -> None:
    a = w.any(1)
    kind = w.kinds[a]
    made = Kind(_part(w, kind.shape), kind.element)
    said = [integers("slice_sizes", made.shape)]
    w.emit("dynamic_slice", [a, *_starts(w, kind.shape)], [made], said)


def dynamic_update_slice(w: Writer) -> None:
    a = w.any(1)
    kind = w.kinds[a]
    update = w.need(_part(w, kind.shape), kind.element)
    w.emit("dynamic_update_slice", [a, update, *_starts(w, kind.shape)], [kind])


def bitcast_convert(w: Writer) -> None:
    """To elements of the same size, to smaller ones, or to larger ones if the shape allows."""
    a = w.any(0, 4, elements=list(BITS))
    kind, element = w.kinds[a], w.rng.choice(sorted(BITS))
    given, made, shape = BITS[kind.element], BITS[element], kind.shape
    if made < given:
        shape = (*shape, given // made)
    elif made > given:
        if shape[-1:] != (made // given,):
            return
        shape = shape[:-1]
    w.emit("bitcast_convert", [a], [Kind(shape, element)])


def made_of_nothing(w: Writer) -> None:
    if w.rng.random() < 0.5:
        kind = Kind(w.shape(1), w.rng.choice(["f32", "i32"]))
        dim = w.rng.randrange(len(kind.shape))
        w.emit("iota", [], [kind], [f"iota_dimension = {dim} : i64"])
    else:
        kind = Kind(w.shape(), w.rng.choice(["f32", "i1"]))
        value = "true" if kind.element == "i1" else "1.0"
        w.emit("constant", [], [kind], [f"value = dense<{value}> : {kind}"])


FAMILIES = (
    *(transpose, reshape, reshape, reshape, broadcast_in_dim, broadcast_in_dim, reverse, slice_),
    *(slice_, pad, pad, concatenate, dynamic_slice, dynamic_update_slice, bitcast_convert),
    made_of_nothing,
)
