"""Projections against brute force over all points, and against islpy's integer sets."""

import pickle
from itertools import product
from typing import ClassVar

import islpy as isl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import boxes, projections

from weft import Projection, WeftError, ZRange
from weft.space import integer


@st.composite
def projected_boxes(draw, least=0):
    p = draw(projections())
    return p, draw(boxes(p.index_ndim, st.integers(least, 4)))


def touched(p, box):
    return {cell for index in box for cell in p(index)}


@given(projections(), st.data())
def test_a_point_goes_to_its_window(p, data):
    index = tuple(data.draw(st.integers(-5, 5)) for _ in range(p.index_ndim))
    start = tuple(sum(a * i for a, i in zip(row, index)) + b for row, b in zip(p.matrix, p.offset))
    assert p(index) == ZRange.of(p.shape, start)
    assert p.image(ZRange.of((1,) * p.index_ndim, index)) == p(index)


@given(projected_boxes())
def test_image_is_the_brute_force_bounding_box(case):
    p, box = case
    image = p.image(box)
    windows = [p(index) for index in box]
    assert image == (windows[0].hull(*windows[1:]) if windows else ZRange(p.offset, p.offset))
    assert p(box) == image


@given(projected_boxes())
def test_is_dense_is_the_brute_force_truth(case):
    p, box = case
    if box.is_empty:
        assert p.is_dense(box)
    else:
        assert p.is_dense(box) == (touched(p, box) == set(p.image(box)))


@given(projected_boxes(), st.data())
def test_preimage_is_the_smallest_box_of_touching_indices(case, data):
    p, within = case
    box = data.draw(boxes(p.ndim))
    touching = [index for index in within if p(index) & box]
    found = p.preimage(box, within=within)
    if touching:
        expected = [ZRange.of((1,) * p.index_ndim, index) for index in touching]
        assert found == expected[0].hull(*expected[1:])
    else:
        assert found == ZRange(within.start, within.start)


@given(st.permutations(range(3)), st.data())
def test_preimage_needs_no_bounds_where_each_index_stands_alone(order, data):
    scale = [data.draw(st.sampled_from([-3, -2, -1, 1, 2, 3])) for _ in range(3)]
    rows = [[scale[r] * (c == order[r]) for c in range(3)] for r in range(3)]
    p = Projection(rows, shape=[data.draw(st.integers(1, 3)) for _ in range(3)])
    box = data.draw(boxes(3))
    index_space = ZRange((-24,) * 3, (24,) * 3)
    free, bounded = p.preimage(box), p.preimage(box, within=index_space)
    assert free == bounded or (free.is_empty and bounded.is_empty)


def test_preimage_of_a_diagonal_and_of_rows_that_disagree():
    twice = Projection([[1], [1]])
    assert twice.preimage(ZRange((2, 3), (6, 9))) == ZRange((3,), (6,))
    far = ZRange((0, 0), (10**9, 10**9))
    for rows in ([[1, -1], [1, -1]], [[1, -1], [-1, 1]], [[2, -2], [3, -3]]):
        # x - y is 0 and not 0 at once: narrowing alone would creep for 10^9 steps.
        apart = Projection(rows, offset=(0, 1))
        assert apart.preimage(ZRange((0, 0), (1, 1)), within=far).is_empty


def test_preimage_has_no_largest_number():
    far = 1 << 100
    assert Projection([[1]]).preimage(ZRange((far,), (far + 1,))) == ZRange((far,), (far + 1,))
    assert Projection([[-2]]).preimage(ZRange((-far,), (far,))).size == far
    assert Projection([[1, 1]]).preimage(ZRange((3,), (3,))).is_empty


def test_preimage_that_runs_out_of_budget_is_larger_never_smaller(monkeypatch):
    knot = Projection([[6, 10, 15], [10, 15, 6]], offset=(-31, -31))
    within, box = ZRange.of((12, 12, 12)), ZRange((0, 0), (1, 1))
    exact = knot.preimage(box, within)
    for budget in (0, 1, 2, 3, 5, 8):
        monkeypatch.setattr(integer, "BUDGET", budget)
        assert exact in knot.preimage(box, within)


@given(st.data())
def test_composition_is_application_in_turn(data):
    q = data.draw(projections())
    p = data.draw(projections(index_ndim=q.ndim))
    box = data.draw(boxes(q.index_ndim, st.integers(0, 3)))
    composed = p @ q
    for index in box:
        assert composed(index) == p(q(index))
    assert composed.index_ndim == q.index_ndim
    # In one step the coefficients may cancel; box by box they cannot, so the image is never larger.
    assert composed.image(box) in p.image(q.image(box))


@given(st.data())
def test_composition_of_points_is_associative(data):
    r = data.draw(projections())
    r = Projection(r.matrix, r.offset, index_ndim=r.index_ndim)  # with windows of 1
    q = data.draw(projections(index_ndim=r.ndim))
    p = data.draw(projections(index_ndim=q.ndim))
    assert (p @ q) @ r == p @ (q @ r)


@given(projections())
def test_identity_composes_to_nothing(p):
    assert p @ Projection.identity(p.index_ndim) == p
    assert Projection.identity(p.ndim) @ p == p


@given(st.integers(0, 4).flatmap(lambda n: st.tuples(st.permutations(range(n)), boxes(n))))
def test_permutation_is_numpy_transpose(case):
    order, box = case
    image = Projection.permutation(order).image(box)
    if box:
        assert image.shape == tuple(box.shape[axis] for axis in order)
    assert Projection.permutation(order).is_dense(box)


@given(projected_boxes(least=1))
def test_image_and_density_agree_with_islpy(case):
    p, box = case
    names = [f"i{c}" for c in range(p.index_ndim)]
    bounds = [f"{a} <= {n} < {b}" for n, a, b in zip(names, box.start, box.stop)]
    cells, windows = [], []
    for d, (row, base, width) in enumerate(zip(p.matrix, p.offset, p.shape)):
        start = " + ".join([f"{a}*{n}" for a, n in zip(row, names)] + [str(base)])
        cells.append(f"t{d}")
        windows.append(f"{start} <= t{d} < {start} + {width}")
    where = " and ".join(bounds + windows) or "true"
    exists = f"exists {', '.join(names)}: {where}" if names else where
    touched_set = isl.Set(f"{{ [{', '.join(cells)}] : {exists} }}")
    image = p.image(box)
    whole = " and ".join(
        f"{a} <= t{d} < {b}" for d, (a, b) in enumerate(zip(image.start, image.stop))
    )
    image_set = isl.Set(f"{{ [{', '.join(cells)}] : {whole or 'true'} }}")
    assert touched_set <= image_set
    assert (touched_set == image_set) == p.is_dense(box)
    for d in range(p.ndim):
        assert touched_set.dim_min_val(d).to_python() == image.start[d]
        assert touched_set.dim_max_val(d).to_python() == image.stop[d] - 1


class TestLinearOfSeed004:
    """`Linear(X[batch, in], W[in, out], b[out]) -> Y[batch, out]` over (batch, in, out).

    Cut along `out`, the seed prints windows of [W_out, 1] for both P_W and P_Y. A column of
    W[in, out] has in elements and one of Y[batch, out] has batch: the windows are corrected here.
    """

    batch, n_in, n_out = 6, 4, 5

    over_batch: ClassVar = {  # each index takes a whole row of X and makes a whole row of Y
        "X": Projection([[1, 0, 0], [0, 0, 0]], shape=(1, n_in)),
        "Y": Projection([[1, 0, 0], [0, 0, 0]], shape=(1, n_out)),
    }
    over_out: ClassVar = {  # a column of W and an element of b make a column of Y
        "W": Projection([[0, 0, 0], [0, 0, 1]], shape=(n_in, 1)),
        "b": Projection([[0, 0, 1]]),
        "Y": Projection([[0, 0, 0], [0, 0, 1]], shape=(batch, 1)),
    }
    over_all: ClassVar = {  # one product each; `in` is reduced, so Y does not see it
        "X": Projection([[1, 0, 0], [0, 1, 0]]),
        "W": Projection([[0, 1, 0], [0, 0, 1]]),
        "b": Projection([[0, 0, 1]]),
        "Y": Projection([[1, 0, 0], [0, 0, 1]]),
    }

    @property
    def space(self):
        return ZRange.of((self.batch, self.n_in, self.n_out))

    @property
    def tensors(self):
        shapes = {
            "X": (self.batch, self.n_in),
            "W": (self.n_in, self.n_out),
            "b": (self.n_out,),
            "Y": (self.batch, self.n_out),
        }
        return {name: ZRange.of(shape) for name, shape in shapes.items()}

    @pytest.mark.parametrize("group", ["over_batch", "over_out", "over_all"])
    def test_the_whole_index_space_reads_and_writes_whole_tensors(self, group):
        for name, p in getattr(self, group).items():
            assert p.image(self.space) == self.tensors[name]
            assert p.is_dense(self.space)
            assert touched(p, self.space) == set(self.tensors[name])

    @pytest.mark.parametrize("group", ["over_batch", "over_out", "over_all"])
    def test_coherent_blocks_stay_coherent(self, group):
        for block in self.space.tiles((4, 3, 2)):
            for p in getattr(self, group).values():
                assert touched(p, block) == set(p.image(block))

    def test_batch_shards_are_rows(self):
        first, second = self.space.split(0, [4])
        p = self.over_batch["X"]
        assert str(p.image(first)) == "[0:4, 0:4]"
        assert str(p.image(second)) == "[4:6, 0:4]"

    def test_out_shards_are_columns(self):
        first, second = self.space.split(2, [2])
        p = self.over_out["W"]
        assert str(p.image(first)) == "[0:4, 0:2]"
        assert str(p.image(second)) == "[0:4, 2:5]"

    def test_in_shards_make_partial_results_of_the_same_box(self):
        images = {self.over_all["Y"].image(part) for part in self.space.split(1, [1, 2])}
        assert images == {self.tensors["Y"]}


def test_a_tensor_of_rank_zero():
    total = Projection([], index_ndim=2)
    assert total.image(ZRange.of((3, 4))) == ZRange((), ())
    assert total.is_dense(ZRange.of((3, 4)))
    assert total.preimage(ZRange((), ()), within=ZRange.of((3, 4))) == ZRange.of((3, 4))
    assert (Projection([], index_ndim=1) @ Projection([[1, 2]])).index_ndim == 2


def test_mixed_signs_take_the_right_corners():
    p = Projection([[1, -1]])
    box = ZRange((0, 0), (4, 3))
    assert p.image(box) == ZRange((-2,), (4,))
    # The shortcut that maps two opposite corners would have said [0:2].
    assert p((0, 0)).hull(p((3, 2))) == ZRange((0,), (2,))


def test_is_a_value():
    p = Projection([[2, 1]], offset=[-1], shape=[3])
    assert p == Projection(((2, 1),), (-1,), (3,))
    assert pickle.loads(pickle.dumps(p)) == p
    assert len({p, Projection([[2, 1]], [-1], [3])}) == 1
    assert str(p) == "[2*i0+i1-1+:3]"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Projection([[1, 2], [3]]), "row 1 of matrix has 1 dimension where 2 are"),
        (lambda: Projection([[1]], offset=(1, 2)), "offset has 2 dimensions where 1 are expected"),
        (lambda: Projection([[1]], shape=(1, 2)), "window has 2 dimensions where 1 are expected"),
        (lambda: Projection([[1]], shape=(0,)), "dimension 0 has a window of 0; at least 1"),
        (lambda: Projection([[1.5]]), "row 0 of matrix must be a sequence of integers: [1.5]"),
        (lambda: Projection([[1]])((1, 2)), "index has 2 dimensions where 1 are expected"),
        (
            lambda: Projection([[1]]).image(ZRange((), ())),
            "index box [] is not a box of rank 1, as",
        ),
        (
            lambda: Projection([[1]]).is_dense((3,)),
            "index box (3,) is not a box of rank 1, as [i0]",
        ),
        (
            lambda: Projection([[1]]).preimage(ZRange((), ())),
            "tensor box [] is not a box of rank 1",
        ),
        (lambda: Projection(None), "matrix must be a list of Iterable: None"),
        (lambda: Projection([], index_ndim=-1), "index_ndim is -1; it cannot be negative"),
        (lambda: Projection([], index_ndim=1.5), "index_ndim must be an integer: 1.5"),
        (lambda: Projection.identity(-2), "ndim is -2; it cannot be negative"),
        (
            lambda: Projection([[1, 0]]).preimage(ZRange((0,), (4,))),
            "index dimension 1 is not bounded by the tensor box [0:4]",
        ),
        (lambda: Projection.permutation((0, 2)), "(0, 2) is not a permutation of 2 dimensions"),
        (
            lambda: Projection([[1, 1]]) @ Projection([[1]]),
            "the result of [i0] has 1 dimension where 2 are expected",
        ),
    ],
)
def test_invalid_arguments_are_refused(make, message):
    with pytest.raises(WeftError) as caught:
        make()
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("extents", list(product((1, 2, 3), (1, 2, 3))))
def test_dense_rows_need_the_short_steps_first(extents):
    p = Projection([[2, 1]])
    box = ZRange.of(extents)
    assert p.is_dense(box) == (touched(p, box) == set(p.image(box)))
