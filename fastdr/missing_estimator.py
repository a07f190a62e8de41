"""What `PCA` does with rows that have missing cells: fit by EM, impute, score, likelihood."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from fastdr.axes_estimator import AxesEstimator, residual_bar, whitening
from fastdr.centring import rows_meant
from fastdr.inputs import as_bytes
from fastdr.latent import Latent
from fastdr.likelihood import Maximum, maximised, peak_bytes, start
from fastdr.missing import ObservedRows, has_missing, observed_rows
from fastdr.models import LinearModel, times_power
from fastdr.pca_model import Wanted, likely_model
from fastdr.plan import readable
from fastdr.sources import Source, gathered
from fastdr.sparse import SparseSource
from fastdr.validation import (
    AccuracyWarning,
    AnyArray,
    FloatArray,
    as_vector,
    whole,
)

TOL = 1e-7  # change of axes, variances and noise in a step of EM


class MissingEstimator(AxesEstimator):
    """An estimator of axes whose rows may have NaN for missing cells if ``missing`` is "em"."""

    missing: str | None
    n_components: Any
    svd_solver: str
    mean: ArrayLike | None
    tol: float
    max_iter: int
    max_memory: int | str | None
    progress: bool
    certificate: bool | str
    warm_start: bool

    if TYPE_CHECKING:
        def _fitted(self, source: Source, weights: FloatArray | None) -> LinearModel: ...

    @property
    def _takes_missing(self) -> bool:
        return vars(self).get("missing") == "em"  # IncrementalPCA has no such parameter

    @property
    def _map(self) -> Callable[[Any], AnyArray]:
        return self.model_.transform_observed if self._takes_missing else self.model_.transform

    @property
    def _wanted(self) -> Wanted:
        return Wanted(self.svd_solver, whitening(self.whiten), self._feature_labels)

    @property
    def n_iter_(self) -> int:
        """Steps of EM; 1 if no cell was missing."""
        return int(self.model_.report.get("iterations", 1))

    def impute(self, X: ArrayLike) -> AnyArray:
        """Return rows with their missing cells, NaN, filled, each by its mean given the others.

        Parameters
        ----------
        X : (n, d) rows, NaN where cells are missing; the fitted rows or others.

        Returns
        -------
        (n, d) array in the working dtype of `X`
            Observed cells as they are; `X` as an array if no cell is missing.

        Raises
        ------
        ValueError
            For infinity, and for a row without an observed cell.

        Notes
        -----
        The mean is that under probabilistic PCA with the fitted axes, variances and noise. It
        needs no ``missing="em"``: axes of complete rows fill others.

        Examples
        --------
        >>> import numpy as np
        >>> from fastdr import PCA
        >>> pca = PCA(1).fit(np.array([[1.0, 2], [2, 4], [3, 6]]))
        >>> pca.impute([[10.0, np.nan]]).round(6)
        array([[10., 20.]])
        """
        with self._rows(X, missing=True) as rows:
            return self.model_.impute(rows)

    def score_samples(self, X: ArrayLike) -> FloatArray:
        """Return the log-likelihood of each row, (n,), under probabilistic PCA.

        O(d k) a row, no d x d matrix (Tipping & Bishop 1999). -inf with a RuntimeWarning if the
        model is singular: no noise is left and the rank is below d. With ``missing="em"`` it is
        that of the observed cells of each row.
        """
        if not self._takes_missing:
            return super().score_samples(X)
        with self._rows(X) as rows:
            return self.model_.log_likelihood_observed(rows)

    def _observed(self, source: Source) -> tuple[Source, bool]:
        """Return rows and whether cells of them are missing and may be; refuse sparse ones."""
        if not self._takes_missing:
            return source, False
        if isinstance(source, SparseSource):
            raise TypeError("missing='em' takes dense rows only: cells that a sparse matrix does "
                            "not store are zeros, not missing.")
        source = source if source.rereadable else gathered(source)
        return source, has_missing(source)

    def _fitted_observed(self, source: Source, weights: FloatArray | None) -> LinearModel:
        """Find axes of rows with missing cells, which are read many times and so from memory."""
        source = gathered(source)
        size, features = source.array.shape
        known = None if self.mean is None else as_vector(self.mean, features, "mean")
        count = rows_meant(size, weights, known is not None)
        self._check_observed(min(count, features - 1))
        self._check_memory(size, features)
        rows = observed_rows(source, weights, known, self.standardize)
        self._check_cells(rows)
        if not rows.squares.any():  # then nothing is unknown
            return self._fitted(rows.restored(), weights)
        self._warn_constant(rows.squares, 6)
        first = self._first(rows, weights)
        with residual_bar(self.progress, "em", "step") as callback:
            found = maximised(
                rows, first, float(self.tol) or TOL, int(self.max_iter), callback
                and (lambda steps, left: callback(steps, np.ones(1), np.full(1, left))))
        self._warn_unlikely(found, rows)
        return likely_model(rows, found, count, self._wanted)

    def _first(self, rows: ObservedRows, weights: FloatArray | None) -> Latent:
        """Return where EM begins: the earlier model if wanted, or PCA with means in the gaps."""
        model, features = vars(self).get("model_"), len(rows.mean)
        scale = 1.0 if rows.scale is None else rows.scale
        shape = (int(self.n_components), features)
        if self.warm_start and model is not None and model.components.shape == shape:
            offset = (np.ldexp(model.mean, rows.exponent) - rows.mean) / scale
            exponent = 0 if rows.scale is not None else rows.exponent
        else:
            plain = clone(self).set_params(
                missing=None, standardize=False, whiten=False, certificate=False,
                warm_start=False, mean=None if rows.estimated else np.zeros(features))
            model, exponent = plain._fitted(rows.filled(), weights), 0
            offset = model.mean
        factor = 2 * (exponent - model.exponent)
        share = rows.divisor / rows.weight  # of a likely variance in an unbiased one
        return start(rows, model.components, share * times_power(model.variances, factor), offset,
                     share * float(times_power(model.noise_variance, factor)))

    def _check_observed(self, most: int) -> None:
        """Refuse what EM cannot do."""
        if not whole(self.n_components, 1) or self.n_components > most:
            raise ValueError(f"n_components={self.n_components!r} is not allowed where cells are "
                             f"missing; it must be an integer from 1 to min(n_samples, n_features "
                             f"- 1)={most}, as noise must be left to tell axes by.")
        if self.certificate in ("proof", True):
            raise ValueError(f"certificate={self.certificate!r} is not allowed where cells are "
                             "missing: the likelihood may have several maxima, and nothing proves "
                             "that the one found is the largest. report_ has its gradient.")

    def _check_memory(self, rows: int, features: int) -> None:
        """Refuse what takes more than `max_memory`."""
        if self.max_memory is None:
            return
        memory = as_bytes(self.max_memory, "max_memory")
        needed = peak_bytes(rows, features, int(self.n_components))
        if needed > memory:
            raise ValueError(f"EM does not fit in {readable(memory)} beyond the data: "
                             f"{self.n_components} axes of {features} features need about "
                             f"{readable(needed)}. Allow more memory or fewer threads, or pass a "
                             "smaller n_components.")

    def _check_cells(self, rows: ObservedRows) -> None:
        """Refuse more unknowns than observed cells."""
        features, axes = len(rows.mean), int(self.n_components)

        def unknowns(axes: int) -> int:
            return features * axes - axes * (axes - 1) // 2 + rows.estimated * features + 1

        if rows.cells <= unknowns(axes):
            most = next((k for k in range(axes, 0, -1) if unknowns(k) < rows.cells), 0)
            raise ValueError(
                f"n_components={axes} makes {unknowns(axes)} unknown numbers (axes, mean, noise), "
                f"but only {rows.cells} of {rows.cells + rows.missing} cells are observed; "
                + (f"pass at most {most}." if most else "give more rows."))

    def _warn_unlikely(self, found: Maximum, rows: ObservedRows) -> None:
        if found.step.latent.noise <= rows.floor:
            warnings.warn("The observed cells are matched to the last digits that count: without "
                          "noise the likelihood has no maximum, and other axes may match them as "
                          "well. Pass a smaller n_components unless the rows are known to be free "
                          "of noise.", AccuracyWarning, 6)
        if not found.converged:
            warnings.warn(f"EM stopped after {found.steps} step(s). One more would change axes, "
                          f"variances or noise by {found.change:.1e}, more than tol="
                          f"{float(self.tol) or TOL:.0e}; the last raised the log-likelihood by "
                          f"{found.growth:.1e}. Raise max_iter or tol, or pass a smaller "
                          "n_components.", ConvergenceWarning, 6)
