"""One of our estimators under a name of scikit-learn, whose original is behind it."""

from __future__ import annotations

import inspect
import logging
from abc import ABCMeta
from collections.abc import Callable, Mapping
from functools import wraps
from importlib import import_module
from types import new_class
from typing import Any, ClassVar

import numpy as np

FITTED = ("model_", "moments_", "n_features_in_", "feature_names_in_", "_state", "_model_before",
          "batch_size_", "drift_")  # what ours keeps
FITTING = ("fit", "fit_transform", "partial_fit")
ANSWERING = ("transform", "inverse_transform", "predict", "predict_proba", "predict_log_proba",
             "decision_function", "score", "score_samples", "get_covariance", "get_precision")

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

    def __sklearn_is_fitted__(self) -> bool:
        """Tell whether ours or the original is fitted."""
        return self._in_use() is not None or bool(super().__sklearn_is_fitted__())  # type: ignore[misc]

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
            self._use(revived(self.theirs, theirs))

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


def drop_in(ours: Any, theirs: Any, joint: type[DropIn], module: str) -> Any:
    """Return the class of `module` that stands for `theirs`: `ours` with `theirs` behind it."""
    def fill(namespace: dict[str, Any]) -> None:
        namespace.update(__module__=module, __doc__=ours.__doc__, ours=ours, theirs=theirs)
        for names, wrapper in ((FITTING, _fitting), (ANSWERING, _answering)):
            for method in names:
                if hasattr(theirs, method) and hasattr(ours, method):
                    inner = getattr(ours, method)  # scikit-learn wraps containers once more
                    namespace[method] = wrapper(method, getattr(inner, "__wrapped__", inner))

    made: Any = new_class(theirs.__name__, (joint, ours), {"metaclass": ABCMeta}, fill)
    made.register(theirs)  # what was made before the patch stays an instance
    return made


def revived(cls: Any, state: Mapping[str, Any]) -> Any:
    """Return an instance of a class of scikit-learn from its pickled state."""
    original = cls.__new__(cls)
    original.__setstate__(dict(state))
    return original


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
            if name == "partial_fit" and not going_on and self.__sklearn_is_fitted__():
                raise  # the original would not know of the earlier rows
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
