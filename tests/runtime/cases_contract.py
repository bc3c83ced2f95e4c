"""Applications of matrix products."""

from tests.runtime.cases import case, numbers, shape_of, some_dtype


@case("matmul")
def matmul(rng):
    m, k, n = (int(x) for x in rng.integers(1, 7, 3))
    batch, dtype = shape_of(rng, 0, 2, 3), some_dtype(rng)
    left = (*batch, m, k) if rng.random() < 0.8 else (k,)
    right = (*(batch if rng.random() < 0.5 else ()), k, n) if rng.random() < 0.8 else (k,)
    return [numbers(rng, left, dtype), numbers(rng, right, dtype)], {}


@case("linear")
def linear(rng):
    k, n = (int(x) for x in rng.integers(1, 7, 2))
    batch, dtype = shape_of(rng, 0, 2, 4), some_dtype(rng)
    shapes = [(*batch, k), (k, n), (n,)]
    shapes = shapes[: int(rng.integers(2, 4))]
    return [numbers(rng, shape, dtype) for shape in shapes], {}


@case("dot")
def dot(rng):
    m, k, n = (int(x) for x in rng.integers(1, 7, 3))
    left = (m, k) if rng.random() < 0.5 else (k,)
    right = (k, n) if rng.random() < 0.5 else (k,)
    return [numbers(rng, left, "int64"), numbers(rng, right, "int64")], {}


@case("dot_general")
def dot_general(rng):
    batch, inner = shape_of(rng, 0, 2, 4), shape_of(rng, 0, 2, 4)
    left, right = shape_of(rng, 0, 2, 4), shape_of(rng, 0, 2, 4)

    def side(free):
        labelled = [*((n, "b", i) for i, n in enumerate(batch))]
        labelled += [*((n, "k", i) for i, n in enumerate(inner)), *((n, "f", 0) for n in free)]
        order = [labelled[int(i)] for i in rng.permutation(len(labelled))]

        def places(letter, count):
            found = {i: dim for dim, (_, kind, i) in enumerate(order) if kind == letter}
            return tuple(found[i] for i in range(count))

        shape = tuple(n for n, _, _ in order)
        return shape, places("b", len(batch)), places("k", len(inner))

    (one, b1, k1), (two, b2, k2) = side(left), side(right)
    dims = {
        "lhs_batching_dimensions": b1,
        "rhs_batching_dimensions": b2,
        "lhs_contracting_dimensions": k1,
        "rhs_contracting_dimensions": k2,
    }
    return [numbers(rng, one, "int64"), numbers(rng, two, "int64")], dims


@case("einsum")
def einsum(rng):
    sizes = dict(zip("ijklm", (int(n) for n in rng.integers(1, 5, 5))))
    equations = ["ij,jk->ik", "ij->ji", "ii->i", "ii->", "ij,jk,kl->il", "ijk,ilk->ijl", "i,j->ij"]
    equations += ["b q d, b k d -> b q k", "i j, j -> i", "ij,ij->", "ijj,j->i"]
    equation = str(rng.choice(equations))
    left = equation.partition("->")[0]
    names = [t.split() if " " in equation else list(t) for t in left.split(",")]
    shapes = [tuple(sizes.setdefault(name, 3) for name in tensor) for tensor in names]
    return [numbers(rng, shape, "int64") for shape in shapes], {"equation": equation}
