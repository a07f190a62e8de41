"""What users see of a fitted discriminant: predictions, and attributes by scikit-learn's names."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin

from fastdr.discriminant_model import DiscriminantModel
from fastdr.estimator import LinearEstimator, Report
from fastdr.validation import AnyArray, FloatArray


class DiscriminantEstimator(ClassifierMixin, LinearEstimator):  # type: ignore[misc]
    """A classifier and transformer around a `DiscriminantModel`."""

    model_: DiscriminantModel

    def decision_function(self, X: ArrayLike) -> AnyArray:
        """Return log odds of the second of two classes, (n,), or linear discriminants (n, C).

        The latter are as large as squared distances from ``xbar_``, and rounded accordingly:
        where classes are so far apart that this matters, ``predict`` compares distances instead.
        """
        with self._rows(X) as rows:
            return self.model_.decisions(rows)

    def predict(self, X: ArrayLike) -> AnyArray:
        """Return the most probable class of each row, (n,)."""
        with self._rows(X) as rows:
            return self.model_.predict(rows)

    def predict_proba(self, X: ArrayLike) -> AnyArray:
        """Return the probabilities of the classes for each row, (n, C)."""
        with self._rows(X) as rows:
            return self.model_.probabilities(rows)

    def predict_log_proba(self, X: ArrayLike) -> AnyArray:
        """Return their logarithms, accurate also where the probability is next to 0 or 1."""
        with self._rows(X) as rows:
            return self.model_.log_probabilities(rows)

    @property
    def classes_(self) -> AnyArray:
        """Labels in ascending order."""
        return self.model_.classes

    @property
    def priors_(self) -> FloatArray:
        """Probabilities of the classes."""
        return self.model_.priors

    @property
    def means_(self) -> FloatArray:
        """Class means, (C, d)."""
        return self.model_.means

    @property
    def xbar_(self) -> FloatArray:
        """Overall mean, (d,)."""
        return self.model_.mean

    @property
    def scalings_(self) -> AnyArray:
        """Directions as columns, (d, r)."""
        return self.model_.directions.T

    @property
    def separations_(self) -> FloatArray:
        """Variance between classes over variance within, (r,)."""
        return self.model_.separations

    @property
    def explained_variance_ratio_(self) -> FloatArray:
        """Shares of the variance between classes, (k,)."""
        return self.model_.ratios[:self.n_components_]

    @property
    def n_components_(self) -> int:
        """Columns of ``transform``."""
        return self.model_.n_components

    @property
    def coef_(self) -> AnyArray:
        """Coefficients of ``decision_function``, (C, d), or (1, d) for two classes."""
        return self._of_decisions(self.model_.coefficients)

    @property
    def intercept_(self) -> AnyArray:
        """Intercepts of ``decision_function``, (C,), or (1,) for two classes."""
        return self._of_decisions(self.model_.intercepts)

    def _of_decisions(self, values: FloatArray) -> AnyArray:
        """Return numbers by class as ``decision_function`` uses them.

        In the dtype of the fit, or in float64 if that does not hold them.
        """
        if len(self.classes_) == 2:
            values = values[1:] - values[:1]
        with np.errstate(over="ignore"):
            narrow = values.astype(self.model_.directions.dtype, copy=False)
        return narrow if np.isfinite(narrow).all() else values

    @property
    def covariance_(self) -> FloatArray:
        """Within-class covariance, (d, d), shrunk if asked for; divisor n."""
        if self.model_.covariance is None:
            raise AttributeError("covariance_ was not kept; fit with store_covariance=True.")
        return self.model_.covariance

    @property
    def report_(self) -> Report:
        """How the fit went; prints as a table."""
        return Report(self.model_.report)
