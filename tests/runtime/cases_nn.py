"""Applications of what neural networks are made of."""

from tests.runtime.cases import case, numbers, shape_of

REAL = ("float64", "float32")


@case("softmax", "log_softmax")
def softmax(rng):
    shape = shape_of(rng)
    attributes = {"dimension": int(rng.integers(-len(shape), len(shape)))}
    return [numbers(rng, shape, str(rng.choice(REAL)))], attributes


def norm(rng, most):
    shape, dtype = shape_of(rng), str(rng.choice(REAL))
    vectors = [numbers(rng, shape[-1:], dtype) for _ in range(int(rng.integers(0, most + 1)))]
    return [numbers(rng, shape, dtype), *vectors], {"eps": 1e-3} if rng.random() < 0.5 else {}


@case("layer_norm")
def layer_norm(rng):
    return norm(rng, 2)


@case("rms_norm")
def rms_norm(rng):
    return norm(rng, 1)


@case("attention")
def attention(rng):
    q, k, d, e, heads, group = (int(n) for n in rng.integers(1, 6, 6))
    batch = shape_of(rng, 0, 1, 4)
    few, many = (*batch, heads), (*batch, heads * (group if rng.random() < 0.5 else 1))
    if rng.random() < 0.3:
        few = many = ()
    dtype = str(rng.choice(REAL))
    attributes = {"causal": bool(rng.random() < 0.5)} if rng.random() < 0.7 else {}
    attributes |= {"scale": 0.3} if rng.random() < 0.3 else {}
    shapes = [(*many, q, d), (*few, k, d), (*few, k, e)]
    return [numbers(rng, shape, dtype) for shape in shapes], attributes
