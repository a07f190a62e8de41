"""Streams, windows and fading: sums over batches equal sums over the rows they stand for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import scatter
from scipy.sparse import csr_array
from tolerance import merge_error, rounding, scatter_error

from fastdr.low_rank import LowRankMoments
from fastdr.sources import BlockSource
from fastdr.sparse import SparseSource
from fastdr.statistics import Moments
from fastdr.streams import Stream, grown
from fastdr.windows import Window

EPS = np.finfo(float).eps


def cut(X, sizes):
    """Yield consecutive slices of the rows, `sizes` in turn until they end."""
    start = index = 0
    while start < len(X):
        size = sizes[index % len(sizes)]
        yield slice(start, start + size)
        start, index = start + size, index + 1


def fed(state, X, sizes, weights=None):
    for part in cut(X, sizes):
        state = state.add(X[part], None if weights is None else weights[part])
    return state


def assert_moments(found, rows, weights=None):
    """The moments are those of the rows, within rounding of a merge in float64."""
    weights = np.ones(len(rows)) if weights is None else weights
    rows = rows.astype(np.longdouble)
    mean = weights @ rows / weights.sum()
    centred = (rows - mean).astype(float)
    exact = (centred.T * weights) @ centred
    merges = len(rows) / 64 + 8
    limit = merge_error(found, merges) + scatter_error("f8", len(rows), exact)
    np.testing.assert_array_less(np.abs(found.scatter - exact), limit + 1e-300)
    size = EPS * np.abs(mean) + 4 * EPS * np.sqrt(np.diagonal(exact) / weights.sum())
    np.testing.assert_array_less(np.abs(found.mean - mean), merges * size.astype(float) + 1e-300)
    assert found.weight == pytest.approx(weights.sum(), rel=len(rows) * EPS)


BATCHES = st.lists(st.sampled_from([1, 2, 7, 255, 256, 257, 600]), min_size=1, max_size=6)


@given(sizes=BATCHES, features=st.sampled_from([1, 3, 300]), weighted=st.booleans(),
       offset=st.sampled_from([0.0, 1e6]))
def test_a_stream_is_all_its_rows(sizes, features, weighted, offset):
    rng = np.random.default_rng(len(sizes))
    X = rng.standard_normal((620, features)) + offset
    weights = rng.integers(0, 4, 620).astype(float) if weighted else None
    stream = fed(Stream(features), X, sizes, weights)
    assert stream.seen == (np.count_nonzero(weights) if weighted else 620)
    assert sum(len(batch.rows) for batch in stream.waiting) < max(256, features)
    assert_moments(stream.total(), X, weights)


@given(sizes=BATCHES, length=st.sampled_from([1, 2, 100, 255, 256, 257, 513, 700, 5000]),
       features=st.sampled_from([2, 300]), weighted=st.booleans())
def test_a_window_is_its_last_rows_after_every_batch(sizes, length, features, weighted):
    rng = np.random.default_rng(length)
    X = rng.standard_normal((1500, features)) + np.arange(1500)[:, None]
    weights = rng.integers(0, 3, 1500).astype(float) if weighted else None
    window, checked = Window(features, length), 0
    for part in cut(X, sizes):
        window = window.add(X[part], None if weights is None else weights[part])
        if part.stop < 500 * checked or not window.seen:
            continue
        checked += 1
        there = (np.arange(min(part.stop, 1500)) if weights is None
                 else np.flatnonzero(weights[:part.stop]))[-length:]
        assert_moments(window.total(), X[there], None if weights is None else weights[there])
        assert window.held < length + max(256, features)
        few = window.few()
        assert (few is None) == (len(there) >= features)
        if few is not None:
            np.testing.assert_array_equal(few.rows, X[there])
    assert checked > 2


def test_a_window_forgets_large_rows_without_a_trace(rng):
    X = np.concatenate([1e12 * rng.standard_normal((900, 3)), rng.standard_normal((900, 3))])
    window = fed(Window(3, 600), X, [100])
    assert_moments(window.total(), X[-600:])


@given(sizes=BATCHES, forgetting=st.sampled_from([0.5, 0.9, 0.999]), weighted=st.booleans())
def test_forgetting_counts_rows_whatever_their_batches(sizes, forgetting, weighted):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((700, 4)) + 1e3
    weights = rng.integers(0, 4, 700) if weighted else np.ones(700, int)
    found = fed(Stream(4, forgetting), X, sizes, weights.astype(float)).total()
    repeated = np.repeat(X, weights, axis=0)
    age = np.arange(len(repeated))[::-1]
    assert_moments(found, repeated, forgetting**age)
    assert found.square_weight == pytest.approx((forgetting ** (2.0 * age)).sum(), rel=1e3 * EPS)


def test_zero_weights_are_absent_rows(rng):
    X = rng.standard_normal((40, 3))
    weights = np.repeat([1.0, 0.0], 20)
    for state in (Stream(3), Stream(3, 0.9), Window(3, 30)):
        found = state.add(X[:30], weights[:30]).add(X[30:], weights[30:]).total()
        expected = state.add(X[:20], weights[:20]).total()
        np.testing.assert_array_equal(found.scatter, expected.scatter)
        assert found.count == expected.count == 20


def test_later_changes_of_a_batch_do_not_reach_the_stream(rng):
    batch = rng.standard_normal((5, 2))
    first = batch.copy()
    streams = [state.add(batch) for state in (Stream(2), Window(2, 9))]
    batch[:] = np.nan
    for stream in streams:
        np.testing.assert_allclose(stream.total().mean, first.mean(0), rtol=4 * EPS)


def test_values_are_never_changed_by_adding(rng):
    X = rng.standard_normal((1000, 2))
    for state in (Stream(2), Window(2, 400)):
        before = fed(state, X[:700], [100])
        total = before.total()
        before.add(X[700:])
        np.testing.assert_array_equal(before.total().scatter, total.scatter)


@given(cuts=st.lists(st.integers(1, 899), min_size=1, max_size=4, unique=True), order=st.randoms())
def test_merging_streams_is_associative_and_commutative(cuts, order):
    X = np.random.default_rng(0).standard_normal((900, 5)) + 1e6
    edges = [0, *sorted(cuts), 900]
    parts = [fed(Stream(5), X[a:b], [60]) for a, b in zip(edges, edges[1:], strict=False)]
    order.shuffle(parts)
    while len(parts) > 1:
        index = order.randrange(len(parts) - 1)
        parts[index:index + 2] = [parts[index].merge(parts[index + 1])]
    assert parts[0].seen == 900
    assert_moments(parts[0].total(), X)


def test_squares_out_of_range_are_refused():
    for factor in (1e-170, 1e160):
        with pytest.raises(ValueError, match="leave the range of float64; multiply"):
            Stream(2).add(np.array([[1.0, 2], [3, 5]] * 200) * factor)
    constant = Stream(2).add(np.full((300, 2), 1e-200)).total()
    assert not constant.scatter.any()


@pytest.mark.parametrize("state", [Stream(2), Window(2, 5000)], ids=["stream", "window"])
@pytest.mark.parametrize("value", [1e-170, 1e160])
@pytest.mark.parametrize("batches", [2, 5])
def test_squares_of_steps_between_batches_out_of_range_are_refused(state, value, batches):
    """The rows of each batch are equal, so none of them is refused by itself."""
    with pytest.raises(ValueError, match="leave the range of float64; multiply"):
        fed(state, np.repeat(value * (np.arange(batches) % 2 * 2.0 - 1), 600).reshape(-1, 2),
            [300]).total()


def test_equal_batches_have_no_squares_to_refuse():
    for state in (Stream(2), Window(2, 5000)):
        assert not fed(state, np.full((900, 2), 1e-170), [300]).total().scatter.any()


def test_moments_out_of_range_are_refused(rng):
    X = rng.standard_normal((20, 2))
    for factor in (1e200, 1e-135):
        with pytest.raises(ValueError, match="leave the range of float64"):
            Stream(2).add_moments(Moments.of(X * factor))


def test_sparse_squares_that_vanish_are_refused(rng):
    X = csr_array(rng.standard_normal((300, 2)) * 1e-170)
    with pytest.raises(ValueError, match="leave the range of float64"):
        grown(Stream(2), SparseSource.of(X), None).total()


def test_blocks_name_the_row_of_the_source(rng):
    X = rng.standard_normal((600, 3))
    X[444, 1] = np.nan
    for step in (30, 300):
        source = BlockSource(lambda step=step: (X[i:i + step] for i in range(0, 600, step)), 3,
                             columns=["p", "q", "r"])
        with pytest.raises(ValueError, match=r"NaN at row 444, column 1 \('q'\)"):
            grown(Stream(3), source, None)


def test_nothing_seen_has_no_moments():
    for state in (Stream(2), Window(2, 5)):
        assert state.few() is None
        with pytest.raises(ValueError, match="no rows"):
            state.add(np.ones((3, 2)), np.zeros(3)).total()


@pytest.mark.parametrize("forgetting", [1.0, 0.999])
def test_many_single_rows_lose_nothing(rng, forgetting):
    X = rng.standard_normal((20_000, 2)) + 1e8
    found = fed(Stream(2, forgetting), X, [1]).total()
    weights = forgetting ** np.arange(20_000.0)[::-1]
    if forgetting == 1:
        np.testing.assert_array_less(np.abs(found.scatter - scatter(X)), merge_error(found, 80)
                                     + rounding("f8", 80, np.trace(found.scatter)))
    else:
        assert_moments(found, X, weights)


def test_fading_scales_what_weights_scale(rng):
    X = rng.standard_normal((20, 2))
    faded, weighted = Moments.of(X).faded(0.25), Moments.of(X, np.full(20, 0.25))
    for name in ("count", "weight", "square_weight", "mean", "scatter"):
        np.testing.assert_allclose(getattr(faded, name), getattr(weighted, name), rtol=40 * EPS)


@pytest.mark.parametrize("factor", [-1, 0, np.nan, np.inf, "1"])
@pytest.mark.parametrize("kind", [Moments, LowRankMoments])
def test_fading_is_by_a_positive_number(kind, factor):
    with pytest.raises(ValueError, match=f"factor={factor!r} is not allowed; it must be a finite"):
        kind.of(np.eye(3)).faded(factor)


@pytest.mark.slow
def test_a_million_single_rows_lose_nothing():
    """Each is merged by itself, as a stream would that keeps no rows."""
    X = np.random.default_rng(0).standard_normal((1_000_000, 1)) + 1e6
    zeros = np.zeros((1, 1)), np.zeros(1)
    total = Moments(1, 1.0, 1.0, X[0], *zeros)
    for row in X[1:]:
        total = total.merge(Moments(1, 1.0, 1.0, row, *zeros))
    expected = Moments.of(X)
    assert total.count == len(X)
    # each merge rounds once, either way: a random walk (Higham & Mary 2019)
    steps = 4 * EPS * np.sqrt(len(X))
    assert total.scatter[0, 0] == pytest.approx(expected.scatter[0, 0], rel=steps)
    assert total.mean[0] == pytest.approx(expected.mean[0], rel=EPS)
