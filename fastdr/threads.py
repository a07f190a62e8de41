"""Thread count, the limit it sets to BLAS, and work shared by threads.

A few Python threads help in the whole library: kernels are serial and release the GIL, so that
takes no OpenMP runtime, survives ``fork`` (helpers are made again in the child) and nests safely:
work that is already on a helper runs where it is.

Compiled work hands out its own parts, and helpers join it without the GIL, for which they would
wait asleep. Solvers call much short work one after another, so a helper that has done its part
looks for the next for some 2 ms before it sleeps: to be woken takes 50 µs and more.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from fastdr._threads import Called, Calls, Seat, Work

if TYPE_CHECKING:
    from threadpoolctl import LibController

Result = TypeVar("Result")
_CALM_FLOPS = 1e8


class _State:
    """What the module knows about this process; reset in a forked child."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.calls = Calls()
        self.helpers = 0
        self.asleep: list[_Helper] = []
        self.blas: list[LibController] | None = None
        self.blas_users = 0
        self.blas_before: list[int] = []


_state = _State()
_local = threading.local()
_count: int | None = None


def _after_fork() -> None:
    global _state
    blas, _state = _state.blas, _State()
    _state.blas = blas


os.register_at_fork(after_in_child=_after_fork)


def available_cpus() -> int:
    """CPUs this process may use: affinity, then the cgroup quota (Linux)."""
    try:
        cpus = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        cpus = os.cpu_count() or 1
    return max(1, min(cpus, _quota()))


@cache
def _quota() -> int:
    """CPUs that the cgroup allows, read once; 2**20 if it does not say."""
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
        return 1 << 20 if quota == "max" else int(quota) // int(period)
    except (OSError, ValueError):
        return 1 << 20


def _default_threads() -> int:
    for variable in ("FASTDR_NUM_THREADS", "OMP_NUM_THREADS"):
        text = os.environ.get(variable, "").split(",")[0].strip()
        if text:
            try:
                return _checked(int(text))
            except ValueError:
                if variable == "FASTDR_NUM_THREADS":
                    raise ValueError(f"{variable}={text!r} is not a positive integer.") from None
    return available_cpus()


def _checked(count: int) -> int:
    number = isinstance(count, int | float | np.integer | np.floating)
    if isinstance(count, bool) or not number or not count >= 1 or count != count // 1:
        raise ValueError(f"number of threads must be a positive integer, got {count!r}.")
    return int(count)


def get_num_threads() -> int:
    """Return how many threads fastdr may use in calls from this thread.

    Examples
    --------
    >>> import fastdr
    >>> with fastdr.num_threads(1):
    ...     fastdr.get_num_threads()
    1
    """
    global _count
    scoped: int | None = getattr(_local, "count", None)
    if scoped is not None:
        return scoped
    if _count is None:
        _count = _default_threads()
    return _count


def set_num_threads(count: int | None) -> None:
    """Set how many threads fastdr uses in this process.

    Parameters
    ----------
    count : int or None
        A positive number; None returns to the default: ``FASTDR_NUM_THREADS``, else
        ``OMP_NUM_THREADS``, else the CPUs this process may run on.

    Raises
    ------
    ValueError
        If `count` is not a positive integer.

    Notes
    -----
    Results do not depend on this number, not even in the last bit.

    Examples
    --------
    >>> import fastdr
    >>> fastdr.set_num_threads(2)
    >>> fastdr.get_num_threads()
    2
    >>> fastdr.set_num_threads(None)
    """
    global _count
    _count = None if count is None else _checked(count)


@contextmanager
def num_threads(count: int) -> Iterator[None]:
    """Limit fastdr to `count` threads inside a ``with`` block, for the calling thread only.

    Raises ValueError if `count` is not a positive integer.

    Examples
    --------
    >>> import fastdr
    >>> with fastdr.num_threads(1):
    ...     C = fastdr.covariance([[0.0, 1.0], [2.0, 5.0]])
    >>> C
    array([[2., 4.],
           [4., 8.]])
    """
    before = getattr(_local, "count", None)
    _local.count = _checked(count)
    try:
        yield
    finally:
        _local.count = before


@contextmanager
def blas_limit(count: int | None = None) -> Iterator[None]:
    """Hold BLAS to `count` threads, default `get_num_threads()`, if the CPUs available are more.

    Users in several threads share one limit; the caller's own is restored by the last of them.
    """
    count = count or get_num_threads()
    if count >= available_cpus():
        yield
        return
    with _state.lock:
        if _state.blas is None:
            from threadpoolctl import ThreadpoolController

            found = ThreadpoolController().select(user_api="blas")  # scans the process, so is kept
            _state.blas = found.lib_controllers
        if _state.blas_users == 0:  # their own limits, without a report on each, which takes 20 µs
            _state.blas_before = [library.get_num_threads() for library in _state.blas]
            _set_limits(_state.blas, [count] * len(_state.blas))
        _state.blas_users += 1
    try:
        yield
    finally:
        with _state.lock:
            _state.blas_users -= 1
            if _state.blas_users == 0:
                _set_limits(_state.blas, _state.blas_before)


def _set_limits(libraries: list[LibController], counts: list[int]) -> None:
    """Set the limit of each BLAS, whichever thread did so before.

    From version 3.8 on threadpoolctl leaves that to one thread until it gives it up; what others
    ask for does nothing, without a word.
    """
    give_up = next((library.clear_controlling_thread for library in libraries
                    if hasattr(library, "clear_controlling_thread")), lambda force: None)
    give_up(force=True)
    for library, count in zip(libraries, counts, strict=True):
        library.set_num_threads(count)
    give_up(force=True)


@contextmanager
def calm_blas(flops: float) -> Iterator[None]:
    """Hold BLAS to the calling thread if the work inside takes it a few milliseconds at most.

    Threads of BLAS that have been woken spin for a while after their part, and would take the
    cores from the next `ordered_map`.
    """
    if flops > _CALM_FLOPS:
        yield
        return
    with blas_limit(1):
        yield


class _Helper:
    """A thread that joins work, looks for more for some 2 ms, and sleeps until it is called."""

    def __init__(self, state: _State) -> None:
        self.state, self.asleep = state, threading.Lock()
        self.asleep.acquire()
        threading.Thread(target=self._run, name="fastdr", daemon=True).start()

    def wake(self, index: int, count: int) -> None:
        """Wake it, one of `count`, elsewhere than on the processor of the caller."""
        self.seat.take(index, count)
        self.asleep.release()

    def _run(self) -> None:
        self.seat = Seat()
        while True:
            self.state.calls.help()
            with self.state.lock:
                if self.state.calls.wanted:
                    continue
                self.state.asleep.append(self)
            self.asleep.acquire()
            self.seat.leave()


def _call(state: _State, work: Work, helpers: int) -> None:
    """Have `helpers` threads join: those that look for work, those asleep, new ones."""
    with state.lock:
        wanted = max(0, min(helpers, state.calls.offer(work, helpers)))
        woken = [state.asleep.pop() for _ in range(min(wanted, len(state.asleep)))]
        new = max(0, min(wanted - len(woken), helpers - state.helpers))
        state.helpers += new
    for index, helper in enumerate(woken):
        helper.wake(index, len(woken))
    made = 0
    try:
        while made < new:
            _Helper(state)
            made += 1
    except RuntimeError:
        pass  # the system gives no more threads: those there are do the work
    finally:
        with state.lock:
            state.helpers -= new - made


@contextmanager
def helped(work: Work, most: int | None = None) -> Iterator[None]:
    """Let helpers join work inside a ``with`` block; all have left when the block is.

    With the caller they are `get_num_threads()` at most, and `most`.
    """
    threads = get_num_threads() if most is None else min(most, get_num_threads())
    if threads <= 1 or getattr(_local, "working", False):
        yield
        return
    state = _state
    try:  # whatever interrupts it, no offer of work may outlive the work
        _call(state, work, threads - 1)
        yield
    finally:
        state.calls.withdraw(work)


def together(work: Work, most: int | None = None) -> None:
    """Do work, with helpers as in `helped`."""
    with helped(work, most):
        work.work()


class _Map(Generic[Result]):
    """The indices of one map, each taken by whatever thread has time."""

    def __init__(self, function: Callable[[int], Result], count: int) -> None:
        self.function = function
        self.results: list[Result] = [None] * count  # type: ignore[list-item]
        self.errors: dict[int, BaseException] = {}
        self.pending = iter(range(count))
        self.lock = threading.Lock()

    def take(self) -> int | None:
        """Return the next index; None if there is none, which stays so."""
        with self.lock:
            return next(self.pending, None)

    def work(self) -> None:
        """Call the function for one index after another until there is none or one fails."""
        _local.working = True
        try:
            while (index := self.take()) is not None:
                try:
                    self.results[index] = self.function(index)
                except BaseException as error:
                    self.errors[index] = error
                    self.pending = iter(())
        finally:
            _local.working = False


def ordered_map(function: Callable[[int], Result], count: int) -> list[Result]:
    """Return ``[function(0), …, function(count - 1)]``, computed by up to `get_num_threads()`.

    The calling thread works too. Each index is taken once, results stand in index order, the
    first exception (by index) is raised after all threads have stopped.
    """
    threads = min(get_num_threads(), count)
    if threads <= 1 or getattr(_local, "working", False):
        return [function(index) for index in range(count)]
    job = _Map(function, count)
    with helped(Called(job.work), threads):
        job.work()
    if job.errors:
        raise job.errors[min(job.errors)]
    return job.results


def ordered_sum(function: Callable[[int], Any], count: int) -> Any:
    """Return ``function(0) + … + function(count - 1)``, arrays that are added in this order.

    As `ordered_map`, but each is added as soon as those before it are, so few are held at a time.
    """
    waiting: dict[int, Any] = {}
    lock, total, done = threading.Lock(), None, 0

    def add(index: int) -> None:
        nonlocal total, done
        part = function(index)
        with lock:
            waiting[index] = part
            while done in waiting:
                part = waiting.pop(done)
                if total is None:
                    total = part
                else:
                    total += part
                done += 1

    ordered_map(add, count)
    return total
