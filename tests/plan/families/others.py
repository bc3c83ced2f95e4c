"""Decompositions, transforms, random bits, and what talks between devices."""

from tests.plan.writer import COMPLEX, FLOATS, SIZES, Kind, Writer, integers, region

GROUPS = "replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>"
CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"


def cholesky(w: Writer) -> None:
    size, batch = w.rng.choice(SIZES), w.shape(0, 2)[: w.rng.randint(0, 2)]
    a = w.need((*batch, size, size), "f32")
    w.emit("cholesky", [a], [w.kinds[a]], ["lower = true"])


def triangular_solve(w: Writer) -> None:
    rng = w.rng
    n, m, batch = rng.choice(SIZES), rng.choice(SIZES), w.shape(0, 2)[: rng.randint(0, 2)]
    left = rng.random() < 0.5
    turn = rng.choice(["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"])
    a = w.need((*batch, n, n), "f32")
    b = w.need((*batch, *((n, m) if left else (m, n))), "f32")
    said = [
        f"left_side = {str(left).lower()}",
        *("lower = true", "unit_diagonal = false"),
        f"transpose_a = #stablehlo<transpose {turn}>",
    ]
    w.emit("triangular_solve", [a, b], [w.kinds[b]], said)


def fft(w: Writer) -> None:
    rng = w.rng
    word = rng.choice(["FFT", "IFFT", "RFFT", "IRFFT"])
    a = w.any(1, 4, elements=["f32" if word == "RFFT" else COMPLEX])
    shape = w.kinds[a].shape
    last = {"RFFT": shape[-1] // 2 + 1, "IRFFT": 2 * (shape[-1] - 1) + rng.randint(0, 1)}
    made = (*shape[:-1], last.get(word, shape[-1]))
    if 0 in made:
        return
    count = rng.randint(1, min(3, len(shape)))
    real = made if word == "IRFFT" else shape
    said = [f"fft_type = #stablehlo<fft_type {word}>", integers("fft_length", real[-count:])]
    w.emit("fft", [a], [Kind(made, "f32" if word == "IRFFT" else COMPLEX)], said)


def batch_norm_inference(w: Writer) -> None:
    a = w.any(1, elements=FLOATS)
    kind = w.kinds[a]
    dim = w.rng.randrange(len(kind.shape))
    along = [w.need((kind.shape[dim],), kind.element) for _ in range(4)]
    said = ["epsilon = 0.1 : f32", f"feature_index = {dim} : i64"]
    w.emit("batch_norm_inference", [a, *along], [kind], said)


def rng_bit_generator(w: Writer) -> None:
    state = w.need((2,), "ui64")
    said = ["rng_algorithm = #stablehlo<rng_algorithm THREE_FRY>"]
    w.emit("rng_bit_generator", [state], [w.kinds[state], Kind(w.shape(1), "ui8")], said)


def keep_shape(w: Writer) -> None:
    """Collectives after which a value has the shape that it had."""
    name = w.rng.choice(["collective_broadcast", "collective_permute", "cross-replica-sum"])
    a = w.any()
    said = "source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>"
    w.emit(name, [a], [w.kinds[a]], [said if name == "collective_permute" else GROUPS])


def all_reduce(w: Writer) -> None:
    a = w.any(elements=FLOATS)
    operands = [a] + ([w.like(a)] if w.rng.random() < 0.3 else [])
    body = region([w.kinds[a].element], w.rng.choice(["add", "maximum"]))
    w.emit("all_reduce", operands, [w.kinds[a]] * len(operands), [GROUPS, CHANNEL], [body])


def change_shape(w: Writer) -> None:
    """Collectives that put parts together, hand them out, or both."""
    rng = w.rng
    a = w.any(1, elements=FLOATS)
    shape, element = w.kinds[a].shape, w.kinds[a].element
    dim, other = rng.randrange(len(shape)), rng.randrange(len(shape))
    even = [d for d, size in enumerate(shape) if size % 2 == 0]
    name = rng.choice(["all_gather", "reduce_scatter", "all_to_all"])
    made, regions = list(shape), []
    if name == "all_gather":
        made[dim] *= 2
        said = [f"all_gather_dim = {dim} : i64", GROUPS, CHANNEL]
    elif not even:
        return
    elif name == "reduce_scatter":
        dim, regions = rng.choice(even), [region([element], "add")]
        made[dim] //= 2
        said = [f"scatter_dimension = {dim} : i64", GROUPS, CHANNEL]
    else:
        dim = rng.choice(even)
        made[dim] //= 2
        made[other] *= 2
        said = [f"split_dimension = {dim} : i64", f"concat_dimension = {other} : i64"]
        said += ["split_count = 2 : i64", GROUPS]
    operands = [a, w.like(a)] if name != "reduce_scatter" and rng.random() < 0.2 else [a]
    w.emit(name, operands, [Kind(tuple(made), element)] * len(operands), said, regions)


FAMILIES = (
    *(cholesky, triangular_solve, fft, batch_norm_inference, rng_bit_generator),
    *(keep_shape, all_reduce, change_shape, change_shape),
)
