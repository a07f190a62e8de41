"""Thread count, ordered map, BLAS limit: settings, order, errors, restoration."""

import os
import threading
import time
import weakref
from contextlib import nullcontext

import numpy as np
import pytest
import scipy.linalg  # noqa: F401 - loads its BLAS before the threads are counted
from threadpoolctl import threadpool_info, threadpool_limits

import fastdr
from fastdr.threads import available_cpus, blas_limit, ordered_map


def blas_counts():
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


def test_default_is_what_the_process_may_use(run_python):
    code = "import fastdr; print(fastdr.get_num_threads())"
    env = {k: v for k, v in os.environ.items()
           if k not in {"FASTDR_NUM_THREADS", "OMP_NUM_THREADS"}}
    assert int(run_python(code, env=env)) == available_cpus()
    assert int(run_python(code, env={**env, "OMP_NUM_THREADS": "3"})) == 3
    assert int(run_python(code, env={**env, "OMP_NUM_THREADS": "3",
                                     "FASTDR_NUM_THREADS": "5"})) == 5


def test_a_bad_environment_variable_is_named(run_python):
    code = ("import fastdr\n"
            "try: fastdr.get_num_threads()\n"
            "except ValueError as error: print(error)")
    text = run_python(code, env={**os.environ, "FASTDR_NUM_THREADS": "many"})
    assert "FASTDR_NUM_THREADS='many'" in text
    assert "positive integer" in text


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs CPU affinity")
def test_affinity_limits_the_default(run_python):
    code = ("import os, fastdr; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); "
            "print(fastdr.get_num_threads())")
    env = {k: v for k, v in os.environ.items()
           if k not in {"FASTDR_NUM_THREADS", "OMP_NUM_THREADS"}}
    assert int(run_python(code, env=env)) == 1


def test_set_and_scoped_counts():
    fastdr.set_num_threads(3)
    assert fastdr.get_num_threads() == 3
    with fastdr.num_threads(2):
        assert fastdr.get_num_threads() == 2
        with fastdr.num_threads(1):
            assert fastdr.get_num_threads() == 1
        assert fastdr.get_num_threads() == 2
    assert fastdr.get_num_threads() == 3


def test_a_scoped_count_is_of_the_calling_thread_only():
    seen = []
    fastdr.set_num_threads(4)
    with fastdr.num_threads(1):
        other = threading.Thread(target=lambda: seen.append(fastdr.get_num_threads()))
        other.start()
        other.join(30)
    assert seen == [4]


def test_a_scoped_count_is_restored_after_an_error():
    fastdr.set_num_threads(3)
    with pytest.raises(RuntimeError), fastdr.num_threads(2):
        raise RuntimeError
    assert fastdr.get_num_threads() == 3


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "2", float("nan")])
def test_a_bad_count_is_refused(count):
    with pytest.raises((ValueError, TypeError), match="positive integer"):
        fastdr.set_num_threads(count)
    with pytest.raises((ValueError, TypeError), match="positive integer"), \
            fastdr.num_threads(count):
        pass


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 100])
def test_ordered_map_keeps_order_and_takes_each_index_once(threads, count):
    taken = []
    with fastdr.num_threads(threads):
        found = ordered_map(lambda i: (taken.append(i), i * i)[1], count)
    assert found == [i * i for i in range(count)]
    assert sorted(taken) == list(range(count))


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_ordered_map_raises_the_first_error_and_goes_on_working(threads):
    def fail(i):
        if i >= 3:
            raise KeyError(i)
        return i

    with fastdr.num_threads(threads):
        with pytest.raises(KeyError):
            ordered_map(fail, 20)
        assert ordered_map(int, 5) == [0, 1, 2, 3, 4]


def test_ordered_map_nests_without_deadlock():
    def outer(i):
        return sum(ordered_map(lambda j: i * j, 10))

    with fastdr.num_threads(3):
        assert ordered_map(outer, 20) == [45 * i for i in range(20)]


def test_blas_limit_is_restored_also_after_errors_and_nesting(monkeypatch):
    monkeypatch.setattr("fastdr.threads.available_cpus", lambda: 4)
    with threadpool_limits(2, "blas"), fastdr.num_threads(1):
        before = blas_counts()
        with blas_limit():
            assert set(blas_counts()) == {1}
            with blas_limit():
                assert set(blas_counts()) == {1}
            assert set(blas_counts()) == {1}
        assert blas_counts() == before
        with pytest.raises(RuntimeError), blas_limit():
            raise RuntimeError
        assert blas_counts() == before


@pytest.mark.parametrize("first", ["nobody", "us", "threadpoolctl"])
def test_blas_is_limited_in_whatever_thread(monkeypatch, first):
    """Also where another thread limited it before, or does so now."""
    monkeypatch.setattr("fastdr.threads.available_cpus", lambda: 4)
    found = []

    def limited():
        before = blas_counts()
        with blas_limit(1):
            found.append(set(blas_counts()))
        found.append(blas_counts() == before)

    with threadpool_limits(2, "blas") if first == "threadpoolctl" else nullcontext():
        if first == "us":
            limited()
            found.clear()
        thread = threading.Thread(target=limited)
        thread.start()
        thread.join()
        assert found == [{1}, True]
        limited()
        assert found == [{1}, True] * 2


def test_limits_of_others_work_after_ours(monkeypatch):
    """A thread that was the first to limit BLAS does not keep it from those that come later."""
    monkeypatch.setattr("fastdr.threads.available_cpus", lambda: 4)
    found = []

    def theirs():
        with threadpool_limits(1, "blas"):
            found.append(set(blas_counts()))

    before = blas_counts()
    with blas_limit(1):
        pass
    thread = threading.Thread(target=theirs)
    thread.start()
    thread.join()
    assert found == [{1}]
    assert blas_counts() == before


def test_blas_is_left_alone_unless_threads_were_limited(monkeypatch):
    monkeypatch.setattr("fastdr.threads.available_cpus", lambda: 2)
    with threadpool_limits(1, "blas"), fastdr.num_threads(2), blas_limit():
        assert set(blas_counts()) == {1}


def test_a_fit_restores_the_callers_blas_limit(rng):
    X = rng.standard_normal((3000, 300))
    with threadpool_limits(2, "blas"):
        before = blas_counts()
        fastdr.PCA(5).fit_transform(X)
        fastdr.PCA(5, svd_solver="svd").fit_transform(X)
        fastdr.covariance(X)
        assert blas_counts() == before


SHAPES = [(3, 2), (257, 1), (5000, 7), (4099, 64), (1000, 200), (600, 700), (2900, 530),
          (40, 3000)]


@pytest.mark.parametrize("shape", SHAPES)
def test_results_do_not_depend_on_the_number_of_threads(rng, shape, floating):
    X = (rng.standard_normal(shape) + 3).astype(floating)
    weight = rng.random(shape[0])
    V = rng.standard_normal((min(5, shape[1]), shape[1]))
    V = np.linalg.qr(V.T)[0].T

    def results():
        found = fastdr.moments(X), fastdr.moments(X, weight)
        return [found[0].mean, found[0].scatter, found[1].mean, found[1].scatter,
                fastdr.project(X, V, found[0].mean), fastdr.reconstruction_error(X, V),
                fastdr.reconstruct(X @ V.T.astype(floating), V)]

    with fastdr.num_threads(1):
        one = results()
    for count in (2, 3, 8):
        with fastdr.num_threads(count):
            for found, expected in zip(results(), one, strict=True):
                np.testing.assert_array_equal(found, expected)


def test_panels_far_from_the_shift_do_not_depend_on_the_number_of_threads(rng, floating):
    X = rng.standard_normal((3000, 530))
    X += 10.0 * (np.arange(3000) // 200)[:, None]
    X = X.astype(floating)
    with fastdr.num_threads(1):
        one = fastdr.moments(X)
    assert np.abs(one.scatter - np.cov(X.T) * 2999).max() <= 1e-5 * np.trace(one.scatter)
    for count in (2, 3, 8):
        with fastdr.num_threads(count):
            found = fastdr.moments(X)
            np.testing.assert_array_equal(found.scatter, one.scatter)
            np.testing.assert_array_equal(found.mean, one.mean)


@pytest.mark.parametrize("bad", [0, 255, 1300, 2899])
def test_one_value_that_is_not_finite_is_found_among_parts(rng, bad):
    X = rng.standard_normal((2900, 530))
    X[bad, 7] = np.nan
    with fastdr.num_threads(2), pytest.raises(ValueError, match="NaN"):
        fastdr.moments(X)


@pytest.mark.parametrize("shape", [(5000, 30), (60, 900)])
def test_gram_and_its_action_do_not_depend_on_the_number_of_threads(rng, shape, floating):
    from fastdr.operators import gram, gram_apply
    X, mean = rng.standard_normal(shape).astype(floating), rng.standard_normal(shape[1])
    V = rng.standard_normal((shape[1], 8))
    few = X[:500]
    with fastdr.num_threads(1):
        one = gram(few, mean), gram_apply(X, V, mean)
    for count in (2, 3, 8):
        with fastdr.num_threads(count):
            np.testing.assert_array_equal(gram(few, mean), one[0])
            np.testing.assert_array_equal(gram_apply(X, V, mean), one[1])


@pytest.mark.parametrize("columns", [1, 8, 16, 19, 70])
def test_a_gram_action_of_any_width_does_not_depend_on_threads(rng, columns, floating):
    from fastdr.operators import gram_apply
    X, V = rng.standard_normal((4000, 90)) + 2, rng.standard_normal((90, columns))
    X, V, mean = X.astype(floating), V.astype(floating), X.mean(0)
    A = X.astype(np.float64) - mean
    places = [None, None, np.full((90, columns), 7, floating)]
    for apart in (False, True):
        with fastdr.num_threads(1):
            one = gram_apply(X, V, mean, apart=apart)
        error = np.abs(one - A.T @ (A @ V)).max()
        assert error <= 4000 * np.finfo(floating).eps * np.abs(one).max()
        for count, out in zip((2, 3, 8), places, strict=True):
            with fastdr.num_threads(count):
                np.testing.assert_array_equal(gram_apply(X, V, mean, out=out, apart=apart), one)
    np.testing.assert_array_equal(gram_apply(X[:0], V, mean, out=places[2]), 0)


def test_scratch_memory_that_is_kept_does_not_show(rng, floating):
    from fastdr.operators import gram_apply

    def results(X):
        moments = fastdr.moments(X)
        V = np.eye(X.shape[1], 5, dtype=floating)
        return [moments.scatter, fastdr.project(X, V.T, moments.mean),
                fastdr.reconstruction_error(X, V.T, moments.mean),
                gram_apply(X, V, moments.mean), gram_apply(X, V, moments.mean, apart=True)]

    X = rng.standard_normal((6001, 130)).astype(floating)
    loud = np.full((6001, 130), 1e15, floating) * rng.choice([-1, 1], (6001, 130)).astype(floating)
    with fastdr.num_threads(2):
        before = results(X)
        results(loud)
        for found, expected in zip(results(X), before, strict=True):
            np.testing.assert_array_equal(found, expected)


def test_compiled_work_goes_on_while_others_hold_the_gil(run_python):
    code = """
import sys, threading, time, numpy as np, fastdr
X = np.random.default_rng(0).standard_normal((400_000, 64)); C = np.eye(64)[:8]
fastdr.set_num_threads(2)
expected = fastdr.project(X, C)
sys.setswitchinterval(0.05)  # longer than a product takes: whoever wants the GIL waits so long
stop = False
def busy():
    while not stop:
        sum(range(1000))
other = threading.Thread(target=busy); other.start()
try:
    found = [fastdr.project(X, C) for _ in range(3)]
finally:
    stop = True; other.join()
print(all((Z == expected).all() for Z in found))
"""
    assert run_python(code).strip() == "True"


def test_many_python_threads_may_share_one_input(rng):
    X = rng.standard_normal((20_000, 40))
    expected = fastdr.covariance(X)
    found, errors = [], []

    def work():
        try:
            found.extend(fastdr.covariance(X) for _ in range(5))
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=work, daemon=True) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert not errors
    assert len(found) == 40
    assert all((C == expected).all() for C in found)


def test_the_calling_thread_does_small_work_itself(rng):
    before = threading.active_count()
    with fastdr.num_threads(8):
        fastdr.covariance(rng.standard_normal((50, 4)))
        fastdr.project(rng.standard_normal((50, 4)), np.eye(4)[:2])
    assert threading.active_count() <= before


def helpers():
    return [thread for thread in threading.enumerate() if thread.name == "fastdr"]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs CPU affinity")
def test_helpers_may_run_on_all_processors_after_they_have_been_woken():
    allowed = os.sched_getaffinity(0)
    with fastdr.num_threads(3):
        for pause in (0, 0.02, 0.02):  # looking, asleep, asleep
            all_there = threading.Barrier(3)
            ordered_map(lambda i, all_there=all_there: all_there.wait(30), 3)
            assert all(os.sched_getaffinity(helper.native_id) == allowed for helper in helpers())
            time.sleep(pause)


def test_helpers_are_as_many_as_the_largest_count_asks_for(run_python):
    code = """
import threading, time, fastdr
from fastdr.threads import ordered_map
def many():
    for count in (2, 3, 5):
        with fastdr.num_threads(count):
            for _ in range(20):
                ordered_map(lambda i: time.sleep(1e-4), 20)
callers = [threading.Thread(target=many) for _ in range(4)]
[caller.start() for caller in callers]; [caller.join() for caller in callers]
print(sum(thread.name == "fastdr" for thread in threading.enumerate()))
"""
    assert int(run_python(code)) == 4


def test_a_map_does_not_wait_for_helpers_that_others_keep():
    goes_on = threading.Event()
    with fastdr.num_threads(2):
        def keep():
            with fastdr.num_threads(2):
                ordered_map(lambda i: goes_on.wait(30), 2)

        keeper = threading.Thread(target=keep)
        keeper.start()
        try:
            assert ordered_map(lambda i: i, 50) == list(range(50))
            assert not goes_on.is_set()
        finally:
            goes_on.set()
            keeper.join(30)


def test_nothing_of_a_finished_map_is_kept():
    class Held:
        pass

    held = Held()
    dead = weakref.ref(held)
    with fastdr.num_threads(4):
        assert ordered_map(lambda i, held=held: i, 20) == list(range(20))
    del held
    deadline = time.monotonic() + 10
    while dead() is not None and time.monotonic() < deadline:
        time.sleep(1e-3)
    assert dead() is None


def refuse(*_):
    raise RuntimeError("can't start new thread")


def test_work_is_done_by_the_threads_there_are(monkeypatch):
    from fastdr import threads
    before = threads._state.helpers
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with fastdr.num_threads(before + 9):
        assert ordered_map(lambda i: i, 50) == list(range(50))
    assert threads._state.helpers == before


def test_no_offer_outlives_its_work(monkeypatch):
    from fastdr import threads
    monkeypatch.setattr(threads, "_Helper", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    before = threads._state.helpers
    with fastdr.num_threads(before + 9), pytest.raises(KeyboardInterrupt):
        ordered_map(lambda i: i, 50)
    assert not threads._state.calls.wanted
    assert threads._state.helpers == before


def test_helpers_asleep_are_woken_for_the_next_map():
    with fastdr.num_threads(2):
        for _ in range(5):
            seen, both = set(), threading.Barrier(2)
            ordered_map(lambda i, both=both, seen=seen: (
                both.wait(30), seen.add(threading.get_ident())), 2)
            assert len(seen) == 2
            time.sleep(0.02)
