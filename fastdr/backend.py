"""Replace scikit-learn's decompositions by ours wherever they are looked up.

``python -m fastdr.backend script.py`` runs a script that way.
"""

from __future__ import annotations

import argparse
import copyreg
import inspect
import logging
import runpy
import sys
from abc import ABCMeta
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from pathlib import Path
from threading import RLock
from types import ModuleType, new_class
from typing import Any, ClassVar, NamedTuple

import numpy as np

FITTED = ("model_", "moments_", "n_features_in_", "feature_names_in_")  # what ours keeps
logger = logging.getLogger("fastdr.backend")


class DropIn:
    """One of our estimators under a name of scikit-learn.

    What ours refuses to fit is fitted by scikit-learn's original, kept as ``original_``, which
    then answers for it; the log says so and why.
    """

    ours: ClassVar[Any]
    theirs: ClassVar[Any]

    def __getattr__(self, name: str) -> Any:
        """Return what the original has learned, if it was needed."""
        theirs = self._in_use()
        if theirs is None:
            return object.__getattribute__(self, name)  # for the message of a property
        return getattr(theirs, name)

    def __sklearn_tags__(self) -> Any:
        """Accept the sparse input that the original accepts."""
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.sparse |= self.theirs().__sklearn_tags__().input_tags.sparse
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """Pickle an original by its state, for its class cannot be found by name now."""
        state: dict[str, Any] = super().__getstate__()  # type: ignore[assignment]
        if "original_" in state:
            state["original_"] = state["original_"].__getstate__()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickle of ours, or one that scikit-learn wrote, which its class answers."""
        theirs = state.get("original_")
        if "_sklearn_version" in state:
            fitted = any(name.endswith("_") and not name.startswith("_") for name in state)
            theirs = state if fitted else None
            names = {*self.theirs().get_params(deep=False), "_sklearn_output_config"}
            state = {name: value for name, value in state.items() if name in names}
        super().__setstate__(  # type: ignore[misc]
            {name: value for name, value in state.items() if name != "original_"})
        if theirs is not None:
            self._use(_revived(self.theirs, theirs))

    def _in_use(self) -> Any:
        """Return the original if it is what was fitted, else None."""
        state = self.__dict__
        return None if "model_" in state else state.get("original_")

    def _use(self, original: Any) -> None:
        for name in FITTED:
            self.__dict__.pop(name, None)
        self.__dict__["original_"] = original

    def _unfitted_original(self) -> Any:
        """Return the original with our parameters; those left alone have its own defaults.

        Raises ValueError if one is set that only ours has.
        """
        accepted = self.theirs().get_params(deep=False)
        given = {name: getattr(self, name)
                 for name, default in _defaults(self.ours).items()
                 if not _same(getattr(self, name), default)}
        unknown = given.keys() - accepted.keys()
        if unknown:
            raise ValueError(f"scikit-learn's {type(self).__name__} has no {sorted(unknown)}.")
        return self.theirs(**given)


class Unmixer(DropIn):
    """The same with what scikit-learn's function ``fastica`` asks of its class."""

    def _validate_params(self) -> None:
        self._unfitted_original()._validate_params()

    def _fit_transform(self, X: Any, compute_sources: bool = False) -> Any:
        """Fit as the class does: what the function left at its defaults gets those of ours."""
        theirs, ours = self.theirs().get_params(deep=False), _defaults(self.ours)
        for name, value in theirs.items():
            if _same(getattr(self, name), value):
                setattr(self, name, ours[name])
        sources = self.fit_transform(X)
        return sources if compute_sources else None

    @property
    def _unmixing(self) -> Any:
        white = None if self.whiten is False else self.whitening_
        return self.components_ if white is None else self.components_ @ np.linalg.pinv(white)


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
FITTING = ("fit", "fit_transform", "partial_fit")
ANSWERING = ("transform", "inverse_transform", "predict", "predict_proba", "predict_log_proba",
             "decision_function", "score", "score_samples", "get_covariance", "get_precision")

_lock = RLock()
_kept: set[str] = set()  # by patch_sklearn
_blocks: Counter[str] = Counter()  # by open blocks of patched()
_in_place: set[str] = set()


def _defaults(cls: Any) -> dict[str, Any]:
    parameters = inspect.signature(cls.__init__).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not each.empty}


def _same(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and bool(value == default))


def _fitting(name: str, ours: Callable[..., Any]) -> Callable[..., Any]:
    """Return `ours` with the original behind it, for what it refuses."""
    @wraps(ours)
    def method(self: Any, X: Any, *args: Any, **keywords: Any) -> Any:
        going_on = name == "partial_fit" and self._in_use()
        try:
            if going_on or _asks_for_its_own_kind(X):
                raise TypeError("earlier rows went there" if going_on else
                                f"array_api_dispatch is on, and X is a {type(X).__name__}")
            result = ours(self, X, *args, **keywords)
        except (TypeError, ValueError, NotImplementedError) as refusal:
            if name == "partial_fit" and "model_" in vars(self):
                raise
            try:
                original = going_on or self._unfitted_original()
                result = getattr(original, name)(X, *args, **keywords)
            except np.linalg.LinAlgError:
                raise refusal from None
            except (TypeError, ValueError, NotImplementedError) as error:
                raise error from refusal
            self._use(original)
            logger.warning("%s.%s: scikit-learn's original is used: %s", type(self).__name__,
                           name, refusal)
            return self if result is original else result
        self.__dict__.pop("original_", None)
        if logger.isEnabledFor(logging.INFO):
            how = self.report_ if "model_" in vars(self) else {}
            logger.info("%s.%s: by fastdr%s", type(self).__name__, name, "".join(
                f"; {key} {how[key]}" for key in ("solver", "algorithm", "method", "reason")
                if key in how))
        return result

    return method


def _answering(name: str, ours: Callable[..., Any]) -> Callable[..., Any]:
    """Return `ours`, or the original's method if that is what was fitted."""
    @wraps(ours)
    def method(self: Any, *args: Any, **keywords: Any) -> Any:
        theirs = self._in_use()
        if theirs is not None:
            return getattr(theirs, name)(*args, **keywords)
        return ours(self, *args, **keywords)

    return method


def _asks_for_its_own_kind(X: Any) -> bool:
    """Whether scikit-learn was told to return arrays of X's library, which is not NumPy."""
    return (hasattr(X, "__array_namespace__") and not isinstance(X, np.ndarray)
            and bool(import_module("sklearn").get_config()["array_api_dispatch"]))


def __getattr__(name: str) -> Any:
    """Make the class that stands for scikit-learn's `name` on first use."""
    if name not in REPLACED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    entry = REPLACED[name]
    theirs = getattr(import_module(entry.theirs), name)
    ours = getattr(import_module(entry.ours), name)

    def fill(namespace: dict[str, Any]) -> None:
        namespace.update(__module__=__name__, __doc__=ours.__doc__, ours=ours, theirs=theirs)
        for names, wrapper in ((FITTING, _fitting), (ANSWERING, _answering)):
            for method in names:
                if hasattr(theirs, method) and hasattr(ours, method):
                    inner = getattr(ours, method)  # scikit-learn wraps containers once more
                    namespace[method] = wrapper(method, getattr(inner, "__wrapped__", inner))

    made: Any = new_class(name, (entry.joint, ours), {"metaclass": ABCMeta}, fill)
    made.register(theirs)  # what was made before the patch stays an instance
    with _lock:
        return globals().setdefault(name, made)


def patch_sklearn(names: Iterable[str] | None = None) -> None:
    """Let scikit-learn's names stand for fastdr's estimators, until ``unpatch_sklearn``.

    Parameters
    ----------
    names : iterable of str, optional
        Of ``PCA``, ``FastICA``, ``LinearDiscriminantAnalysis``; all by default.

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
    return _revived(getattr(sys.modules[__name__], name).theirs, state)


def _revived(cls: Any, state: Mapping[str, Any]) -> Any:
    original = cls.__new__(cls)
    original.__setstate__(dict(state))
    return original


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
