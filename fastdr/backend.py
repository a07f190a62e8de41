"""Replace scikit-learn's decompositions by ours wherever they are looked up.

``python -m fastdr.backend script.py`` runs a script that way.
"""

from __future__ import annotations

import argparse
import copyreg
import logging
import runpy
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any, NamedTuple

from fastdr.drop_in import DropIn, Unmixer, drop_in, revived

logger = logging.getLogger("fastdr.backend")


class Entry(NamedTuple):
    """Where a class of ours and the one it stands for live, how they differ, what joins them."""

    ours: str
    theirs: str
    differences: tuple[str, ...]
    joint: type[DropIn] = DropIn


REPLACED = {
    "PCA": Entry("fastdr.pca", "sklearn.decomposition", (
        "variances and scores are accurate for data far from zero, with every svd_solver",
        "axes without variance (beyond the rank) are not divided by when whitening",
        "get_covariance and get_precision are right with whitening",
        "mean_ and variances are float64 for float32 rows",)),
    "IncrementalPCA": Entry("fastdr.incremental", "sklearn.decomposition", (
        "it is exact: batch_size only says how many sparse rows are made dense at a time",
        "batches may have fewer rows than components; n_components may change",)),
    "TruncatedSVD": Entry("fastdr.truncated_svd", "sklearn.decomposition", (
        "every algorithm finds the singular values to the tolerance, without a seed",)),
    "FastICA": Entry("fastdr.ica", "sklearn.decomposition", (
        "tol bounds the gradient at the answer and is 1e-7 if not given",
        "sources come in the order of the variance they add and with signs of their own",
        "random_state=None repeats",
        "fewer components are found, with a warning, if the rank is less",), Unmixer),
    "LinearDiscriminantAnalysis": Entry("fastdr.discriminant", "sklearn.discriminant_analysis", (
        "every solver finds the same directions; transform is centred at xbar_",
        "shrinkage leaves the scatter between classes as it is",
        "decisions of more than two classes by 'lsqr' and 'eigen' may differ by a number a row",)),
}
_lock = RLock()
_kept: set[str] = set()  # by patch_sklearn
_blocks: Counter[str] = Counter()  # by open blocks of patched()
_in_place: set[str] = set()


def __getattr__(name: str) -> Any:
    """Make the class that stands for scikit-learn's `name` on first use."""
    if name not in REPLACED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    entry = REPLACED[name]
    made = drop_in(getattr(import_module(entry.ours), name),
                   getattr(import_module(entry.theirs), name), entry.joint, __name__)
    with _lock:
        return globals().setdefault(name, made)


def patch_sklearn(names: Iterable[str] | None = None) -> None:
    """Let scikit-learn's names stand for fastdr's estimators, until ``unpatch_sklearn``.

    Parameters
    ----------
    names : iterable of str, optional
        Of ``PCA``, ``IncrementalPCA``, ``TruncatedSVD``, ``FastICA`` and
        ``LinearDiscriminantAnalysis``; all by default.

    Raises
    ------
    ValueError
        For another name.

    Notes
    -----
    Every name in the namespace of a loaded module that stands for such a class is replaced: in
    scikit-learn, in libraries on it and where it was imported before. Out of reach are closures,
    default arguments, containers, and subclasses and instances that exist already; where a module
    derives a class from scikit-learn's, its name is left alone. Calling it again changes
    nothing. The logger ``fastdr.backend`` says what is replaced and how it
    differs (INFO), and what scikit-learn's original was needed for (WARNING).

    Examples
    --------
    >>> import fastdr
    >>> fastdr.patch_sklearn()
    >>> from sklearn.decomposition import PCA
    >>> issubclass(PCA, fastdr.PCA)
    True
    >>> fastdr.unpatch_sklearn()
    """
    chosen = _chosen(names)
    with _lock:
        _kept.update(chosen)
        _settle(chosen)


def unpatch_sklearn(names: Iterable[str] | None = None) -> None:
    """Give scikit-learn's names back to its own classes.

    Objects made in between work on. Inside ``patched()`` it takes effect when the last such block
    ends.

    Parameters
    ----------
    names : iterable of str, optional
        As for ``patch_sklearn``.

    Examples
    --------
    >>> import fastdr
    >>> fastdr.patch_sklearn(["PCA"])
    >>> fastdr.unpatch_sklearn()
    >>> from sklearn.decomposition import PCA
    >>> PCA.__module__
    'sklearn.decomposition._pca'
    """
    chosen = _chosen(names)
    with _lock:
        _kept.difference_update(chosen)
        _settle(chosen)


@contextmanager
def patched(names: Iterable[str] | None = None) -> Iterator[None]:
    """Replace scikit-learn's names within a ``with`` block; blocks nest and may overlap.

    The names are those of the process: other threads see them replaced too, until the last
    block has ended.

    Parameters
    ----------
    names : iterable of str, optional
        As for ``patch_sklearn``.

    Examples
    --------
    >>> import fastdr
    >>> with fastdr.patched():
    ...     from sklearn.decomposition import PCA
    ...     model = PCA(2).fit([[1.0, 2, 0], [3, 4, 1], [0, 1, 1]])
    >>> isinstance(model, fastdr.PCA)
    True
    """
    chosen = _chosen(names)
    with _lock:
        _blocks.update(chosen)
        _settle(chosen)
    try:
        yield
    finally:
        with _lock:
            _blocks.subtract(chosen)
            _settle(chosen)


def _chosen(names: Iterable[str] | None) -> list[str]:
    """Return names to replace, with their classes made: no import may happen under the lock."""
    chosen = list(REPLACED) if names is None else [names] if isinstance(names, str) else [*names]
    for name in chosen:
        if name not in REPLACED:
            raise ValueError(f"fastdr replaces no {name!r}; it has {', '.join(REPLACED)}.")
        getattr(sys.modules[__name__], name)
    return list(dict.fromkeys(chosen))


def _settle(names: list[str]) -> None:
    """Bring each name into the state that is wanted now, in one look at all modules."""
    wanted = {name for name in names if name in _kept or _blocks[name]}
    come = [globals()[name] for name in names if name in wanted - _in_place]
    leave = [globals()[name] for name in names if name in _in_place - wanted]
    pairs = [(ours.theirs, ours) for ours in come] + [(ours, ours.theirs) for ours in leave]
    apart = {id(ours.theirs): _deriving(ours) for ours in come}
    for (old, new), modules in zip(pairs, _exchange(pairs, apart), strict=True):
        logger.info("%s of %s stands now in %s", new.__name__, new.__module__, ", ".join(modules))
        if old in leave:
            copyreg.dispatch_table.pop(new, None)
            _in_place.discard(new.__name__)
            continue
        copyreg.pickle(old, _reduced)
        _in_place.add(new.__name__)
        for difference in REPLACED[new.__name__].differences:
            logger.info("%s differs: %s", new.__name__, difference)


def _deriving(ours: Any) -> set[str]:
    """Return modules whose code needs the class of scikit-learn that they derive from."""
    modules = {each.__module__ for each in ours.theirs.__subclasses__()}
    if modules:
        logger.warning("%s is left alone in %s: classes there are derived from it",
                       ours.__name__, ", ".join(sorted(modules)))
    return modules


def _exchange(pairs: list[tuple[Any, Any]], apart: Mapping[int, set[str]]) -> list[list[str]]:
    """Let global names of modules for the first of a pair stand for the second; return modules.

    `apart` has modules to leave alone, by the identity of the first.
    """
    stands: dict[int, Any] = {id(old): new for old, new in pairs}
    places: dict[int, list[str]] = {key: [] for key in stands}
    for label, module in list(sys.modules.items()) if pairs else ():
        if not isinstance(module, ModuleType) or label == __name__:
            continue
        namespace = vars(module)
        for name, value in list(namespace.items()):
            if id(value) in stands and label not in apart.get(id(value), ()):
                namespace[name] = stands[id(value)]
                places[id(value)].append(label)
    return list(places.values())


def _reduced(original: Any) -> tuple[Any, ...]:
    """Pickle an instance of a class that cannot be found under its name now."""
    name = type(original).__name__
    return _revived_by_name, (name, original.__getstate__())


def _revived_by_name(name: str, state: Mapping[str, Any]) -> Any:
    return revived(getattr(sys.modules[__name__], name).theirs, state)


def main(arguments: list[str] | None = None) -> None:
    """Run a script with scikit-learn's names replaced: ``python -m fastdr.backend script.py``."""
    parser = argparse.ArgumentParser(
        prog="python -m fastdr.backend",
        description="Run a script in which scikit-learn's names stand for fastdr's estimators.")
    parser.add_argument("-v", "--verbose", action="store_true",
                        help="say on stderr what is replaced, and how each fit is done")
    parser.add_argument("script", help="file to run")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="passed on to the script")
    given = parser.parse_args(arguments)
    if not Path(given.script).is_file():
        parser.error(f"there is no file {given.script!r}")
    logging.basicConfig(format="%(name)s: %(message)s")
    logger.setLevel(logging.INFO if given.verbose else logging.WARNING)
    sys.argv = [given.script, *given.arguments]
    sys.path[0] = str(Path(given.script).resolve().parent)
    with patched():
        runpy.run_path(given.script, run_name="__main__")


if __name__ == "__main__":
    import_module("fastdr.backend").main()  # under the name that pickles of its classes have
