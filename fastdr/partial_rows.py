"""What a model of axes tells of rows with missing cells: the cells, their scores, their density."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from fastdr.embedding import LinearlyMapped
from fastdr.latent import Latent, Posterior, each_posterior
from fastdr.missing import FLOOR, has_missing
from fastdr.sources import ArraySource
from fastdr.validation import AnyArray, FloatArray, as_matrix, check_features, working_dtype

EPS = float(np.finfo(np.float64).eps)


class PartlyObserved(LinearlyMapped):
    """A model of axes under probabilistic PCA, for rows with NaN where cells are missing."""

    if TYPE_CHECKING:  # fields of the model
        mean: FloatArray
        components: AnyArray
        variances: FloatArray
        noise_variance: float
        scale: FloatArray | None
        exponent: int

        @property
        def _singular(self) -> bool: ...

        def centred(self, X: AnyArray) -> FloatArray: ...  # noqa: D102

        def log_likelihood(self, X: ArrayLike) -> FloatArray: ...  # noqa: D102

        def _no_density(self, rows: int) -> FloatArray: ...

    def impute(self, X: ArrayLike) -> AnyArray:
        """Return rows with their missing cells, NaN, filled; `X` itself if none is.

        A missing cell becomes its mean given the observed cells of its row, under probabilistic
        PCA (Tipping & Bishop 1999). Observed cells stay as they are, in the working dtype.

        Parameters
        ----------
        X : (n, d) rows of any real dtype, NaN where cells are missing.

        Raises
        ------
        ValueError, TypeError
            If `X` has infinity, a row without an observed cell, or the wrong shape or dtype, or
            if a cell to fill leaves the range of the dtype.

        Notes
        -----
        O(d k^2 + k^3) for each pattern of missing cells among some hundred rows, O(d k) a row.

        Examples
        --------
        >>> from fastdr import LinearModel
        >>> model = LinearModel(mean=[1.0, 2.0], components=[[0.6, 0.8]], variances=[4.0])
        >>> model.impute([[1.6, np.nan]]).round(6)
        array([[1.6, 2.8]])
        """
        rows = self._dense_rows(X)
        if not has_missing(ArraySource(rows)):
            return rows
        filled = rows.astype(working_dtype(rows.dtype))

        def fill(part: slice, told: Posterior) -> None:
            means = told.fitted()
            if self.exponent:
                np.ldexp(means, -self.exponent, out=means)
            if self.scale is not None:
                means *= self.scale
            means += self.mean
            np.copyto(filled[part], means, "same_kind", where=told.block.missing)
            lost = ~np.isfinite(filled[part]).all(axis=1)
            if lost.any():
                raise ValueError(f"row {part.start + int(np.argmax(lost))} lies so far from the "
                                 f"mean that its missing cells leave {filled.dtype}; its observed "
                                 "cells are no likely ones of this model.")

        each_posterior(self._latent(FLOOR), rows, self.centred, fill)
        return filled

    def transform_observed(self, X: ArrayLike) -> AnyArray:
        """Return the scores of rows with missing cells: of those rows imputed.

        They are the means of the scores given the observed cells, and for complete rows the
        scores of `transform`, to the bit.
        """
        return self.transform(self.impute(X))

    def log_likelihood_observed(self, X: ArrayLike) -> FloatArray:
        """Return the log density (n,) of the observed cells of each row; NaN is a missing cell.

        If no cell is missing that of `log_likelihood`, to the bit. Raises as `impute` does.
        """
        rows = self._dense_rows(X)
        if not has_missing(ArraySource(rows)):
            return self.log_likelihood(rows)
        if self._singular:
            return self._no_density(len(rows))
        densities = np.empty(len(rows))
        volume = np.full(self.mean.size, self.exponent * math.log(2))
        if self.scale is not None:
            volume -= np.log(self.scale)

        def judge(part: slice, told: Posterior) -> None:
            found = told.log_densities(told.squares())
            densities[part] = np.where(np.isnan(found), -math.inf, found)  # sums overflowed
            densities[part] += (told.block.observed @ volume)[told.block.groups.group]

        each_posterior(self._latent(EPS), rows, self.centred, judge)
        return densities

    def _latent(self, least: float) -> Latent:
        """Return the model of centred rows as probabilistic PCA, in the units of `variances`.

        Noise counts as no less than `least` times the sum of the variances.
        """
        axes, features = self.components.shape
        noise = self.noise_variance if axes < features else float(self.variances[-1])
        noise = max(noise, least * float(self.variances.sum())) or 1.0
        sizes = np.sqrt(np.maximum(self.variances - noise, 0.0))
        return Latent(self.components.T.astype(np.float64) * sizes, np.zeros(features), noise)

    def _dense_rows(self, X: ArrayLike) -> AnyArray:
        rows = as_matrix(X)
        check_features(rows, rows.shape[1], self.mean.size, None)
        return rows
