"""What estimators with a `LinearModel` share: scikit-learn's attributes, scores, likelihood."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted
from tqdm.auto import tqdm

from fastdr.certificate import Certificate
from fastdr.estimator import LinearEstimator, Report
from fastdr.models import LinearModel, Whitening, times_power
from fastdr.validation import AnyArray, FloatArray, as_numbers, is_flag


class AxesEstimator(LinearEstimator):
    """An estimator whose model is one of orthogonal axes; ``whiten`` is one of its parameters."""

    model_: LinearModel
    whiten: bool | str
    standardize: bool

    def _replace(self, name: str, value: Any) -> None:
        """Set one part of the model by hand, as scikit-learn's attributes allow."""
        model = vars(self).get("model_")
        if name == "mean" and model is None:
            mean = as_numbers(value, name)
            model = LinearModel(mean, np.zeros((0, mean.size)), np.zeros(0))
        elif name == "components":
            axes = as_numbers(value, name)
            if model is None:
                model = LinearModel(np.zeros(axes.shape[1]), axes, np.zeros(len(axes)))
            elif len(axes) != len(model.variances):
                model = replace(model, components=axes, variances=np.zeros(len(axes)), rank=0)
        elif model is None:
            raise AttributeError(f"set components_ and mean_ before {name}.")
        self.model_ = replace(model, rank=-1, whiten=whitening(self.whiten), **{name: value})

    def _squared_units(self, variances: Any) -> Any:
        return times_power(variances, -2 * self.model_.exponent)

    @property
    def components_(self) -> AnyArray:
        """Axes, (k, d) orthonormal rows."""
        return self.model_.components

    @components_.setter
    def components_(self, value: ArrayLike) -> None:
        self._replace("components", value)

    @property
    def mean_(self) -> FloatArray:
        """Centre, (d,)."""
        return self.model_.mean

    @mean_.setter
    def mean_(self, value: ArrayLike) -> None:
        self._replace("mean", value)

    @property
    def explained_variance_(self) -> FloatArray:
        """Variances along the axes, (k,), descending, squared units of the (scaled) input."""
        variances: FloatArray = self._squared_units(self.model_.variances)
        return variances

    @explained_variance_.setter
    def explained_variance_(self, value: ArrayLike) -> None:
        self._replace("variances", value)

    @property
    def noise_variance_(self) -> float:
        """Mean variance of the min(n, d) - k axes left out; 0 if there are none."""
        return float(self._squared_units(self.model_.noise_variance))

    @noise_variance_.setter
    def noise_variance_(self, value: float) -> None:
        self._replace("noise_variance", value)

    @property
    def explained_variance_ratio_(self) -> FloatArray:
        """Shares of the total variance, (k,); 0 for constant data."""
        total = self.model_.total_variance
        return self.model_.variances / (total if total > 0 else 1.0)

    @property
    def singular_values_(self) -> FloatArray:
        """Singular values of the centred rows, (k,), descending."""
        return self.model_.deviations * math.sqrt(self.model_.report["divisor"])

    @property
    def total_variance_(self) -> float:
        """Variance along all axes, kept or not."""
        return float(self._squared_units(self.model_.total_variance))

    @property
    def scale_(self) -> FloatArray | None:
        """Standard deviations that columns are divided by, (d,), or None."""
        return self.model_.scale

    @property
    def rank_(self) -> int:
        """Kept axes that vary by more than rounding."""
        return self.model_.rank

    @property
    def n_components_(self) -> int:
        """Number of axes kept."""
        return len(self.model_.components)

    @property
    def n_samples_(self) -> int:
        """Rows fitted; what the weights stand for if there were any."""
        return self.model_.count

    @property
    def report_(self) -> Report:
        """How the fit went; prints as a table."""
        return Report.of(self.model_.report, self.certificate_)

    @property
    def certificate_(self) -> Certificate | None:
        """Bounds on the variances, in their units; None if the fit made none."""
        told = self.model_.certificate
        return told and told.times(1.0, -2 * self.model_.exponent)

    @property
    def solver_used_(self) -> str:
        """Solver that the fit used."""
        return str(self.model_.report["solver"])

    def _warn_constant(self, squares: FloatArray, level: int = 5) -> None:
        """Warn of columns that do not vary, at `level` of the stack."""
        constant = np.flatnonzero(squares == 0)
        if constant.size == squares.size:
            warnings.warn("All rows are equal: every variance is 0 and the axes are arbitrary.",
                          UserWarning, level)
        elif constant.size and self.standardize:
            shown = ", ".join(map(str, constant[:5])) + (", ..." if constant.size > 5 else "")
            warnings.warn(f"{constant.size} constant column(s) ({shown}) cannot be scaled to unit "
                          "deviation; they are divided by 1 and add nothing.", UserWarning, level)

    def reconstruction_error(self, X: ArrayLike, per_row: bool = False) -> Any:
        """Return the squared distance of rows to their reconstruction from k axes.

        Parameters
        ----------
        X : (n, d) rows.
        per_row : bool, default False
            Return one value a row, (n,), instead of the mean.

        Returns
        -------
        float or ndarray
            Squared input units. On the fitted rows the mean is the sum of the variances left
            out times (n - 1) / n (exactly that sum with a known mean).

        Examples
        --------
        >>> import numpy as np
        >>> from fastdr import PCA
        >>> X = np.array([[3.0, 0], [-3, 0], [0, 1], [0, -1]])
        >>> PCA(1).fit(X).reconstruction_error(X, per_row=True)
        array([0., 0., 1., 1.])
        """
        with self._rows(X) as rows:
            return self.model_.reconstruction_error(rows, per_row)

    def score_samples(self, X: ArrayLike) -> FloatArray:
        """Return the log-likelihood of each row, (n,), under probabilistic PCA.

        O(d k) a row, no d x d matrix (Tipping & Bishop 1999). -inf with a RuntimeWarning if the
        model is singular: no noise is left and the rank is below d.
        """
        with self._rows(X) as rows:
            return self.model_.log_likelihood(rows)

    def score(self, X: ArrayLike, y: Any = None) -> float:
        """Return the mean log-likelihood of rows."""
        return float(np.mean(self.score_samples(X)))

    def get_covariance(self) -> FloatArray:
        """Return the model's covariance (d, d), whitened or not; see `LinearModel.covariance`."""
        check_is_fitted(self)
        return self.model_.covariance()

    def get_precision(self) -> FloatArray:
        """Return the inverse of ``get_covariance()``; see `LinearModel.precision`."""
        check_is_fitted(self)
        return self.model_.precision()

    def loadings(self, as_frame: bool = False) -> Any:
        """Return how features and axes go together: components times deviations, (d, k).

        With ``standardize=True`` these are correlations. `as_frame` labels them by feature and
        axis in a pandas DataFrame.

        Examples
        --------
        >>> import numpy as np
        >>> from fastdr import PCA
        >>> X = np.array([[1.0, 2], [2, 4], [3, 6]])
        >>> PCA(1, standardize=True).fit(X).loadings().round(12)
        array([[1.],
               [1.]])
        """
        check_is_fitted(self)
        values = (self.components_ * self.model_.deviations[:, None]).T
        if not as_frame:
            return values
        features = self.model_.feature_names or [f"x{i}" for i in range(len(values))]
        axes = [f"pca{i}" for i in range(values.shape[1])]
        return import_module("pandas").DataFrame(values, index=features, columns=axes)


def whitening(whiten: Any) -> Whitening:
    """Return the kind of whitening that the parameter names."""
    kind: Whitening = ("pca" if whiten else False) if is_flag(whiten) else whiten
    return kind


def is_whitening(whiten: Any) -> bool:
    """Whether the parameter names a kind of whitening."""
    return is_flag(whiten) or (isinstance(whiten, str) and whiten in ("pca", "zca"))


@contextmanager
def residual_bar(shown: bool, description: str, unit: str = "column") -> Iterator[Any]:
    """Provide a callback that shows columns (or what `unit` says) and a residual, or None."""
    if not shown:
        yield None
        return
    with tqdm(desc=description, unit=unit, leave=False) as bar:

        def callback(columns: int, values: FloatArray, residuals: FloatArray) -> None:
            scale = float(values[0]) or 1.0
            bar.set_postfix(residual=f"{float(residuals.max()) / scale:.1e}", refresh=False)
            bar.update(max(0, columns - bar.n))
            bar.refresh()

        yield callback
