"""Applications of operators in stages."""

from tests.runtime.cases import case, numbers, shape_of
from tests.runtime.cases_contract import matmul


@case("prod_of")
def prod_of(rng):
    return matmul(rng)


@case("reduce_blocks")
def reduce_blocks(rng):
    shape = shape_of(rng)
    said = {
        "dimension": int(rng.integers(0, len(shape))),
        "blocks": int(rng.integers(1, 5)),
        "monoid": str(rng.choice(["sum", "max", "min", "prod"])),
    }
    return [numbers(rng, shape, "int64")], said


@case("attention_blocks")
def attention_blocks(rng):
    heads = shape_of(rng, 0, 2, 3)
    q, k, d, e = (int(n) for n in rng.integers(1, 6, 4))
    shapes = [(*heads, q, d), (*heads, k, d), (*heads, k, e)]
    said = {"blocks": int(rng.integers(1, 4)), "causal": bool(rng.random() < 0.5)}
    return [numbers(rng, shape) for shape in shapes], said
