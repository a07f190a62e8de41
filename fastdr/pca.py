"""Principal component analysis, a drop-in for scikit-learn's."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from functools import partial
from importlib import import_module
from numbers import Real
from typing import Any

import numpy as np
from numpy.random import RandomState
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from fastdr.centring import CentredRows, centred_rows, rows_meant
from fastdr.dimension import fraction, minka
from fastdr.estimator import ModelEstimator, Report, with_progress
from fastdr.models import LinearModel, Whitening, fix_signs, times_power
from fastdr.solvers import Choice, Spectrum, lapack, qr_svd
from fastdr.sources import Source
from fastdr.topk import RACE, few, iterative, without_scatter
from fastdr.validation import (
    AnyArray,
    FloatArray,
    as_vector,
    check_values,
    whole,
    working_dtype,
)

ALIASES = {"full": "svd", "covariance_eigh": "lapack", "arpack": "lanczos"}
ITERATIVE = ("lanczos", "arpack", "power", "randomized")
SOLVERS = ("auto", "lapack", "svd", "lanczos", "power", "randomized", *ALIASES)


class PCA(ModelEstimator):
    """Principal component analysis of rows: the orthogonal axes along which they vary most.

    Right for any offset, scale, dtype and rank; one read of the data in the usual case. With all
    components it is the Karhunen-Loeve transform, lossless to rounding.

    Parameters
    ----------
    n_components : int, float, "mle" or None, default None
        Number of axes; all min(n, d) if None. A fraction in (0, 1) keeps the fewest axes whose
        share of the variance is strictly greater. "mle" is Minka's choice (2000).
    copy : bool, default True
        Accepted for compatibility: the input is never modified and never copied.
    whiten : bool, "pca" or "zca", default False
        Scale scores to unit variance (True or "pca"); "zca" turns them back to the features.
    svd_solver : str, default "auto"
        "lapack": eigen-decomposition of the covariance, or of the Gram matrix if rows are fewer
        than features, with an accuracy test and QR behind it; "svd": QR (TSQR) and SVD at once;
        "auto": "lapack". scikit-learn's "full", "covariance_eigh" and "arpack" mean "svd",
        "lapack" and "lanczos"; "lanczos" and "randomized" are answered exactly by "lapack".
    tol, iterated_power, n_oversamples, power_iteration_normalizer, random_state
        Of the iterative solvers; exact answers do not depend on them.
    standardize : bool, default False
        Divide columns by their standard deviation: PCA of the correlation matrix, without a
        scaled copy. Constant columns are divided by 1 and add nothing.
    mean : (d,) array, optional
        A known mean to centre at; variances then have divisor n instead of n - 1.
    progress : bool, default False
        Show a bar on stderr for each pass over the rows.

    Attributes
    ----------
    components_ : (k, d) orthonormal rows, in the working dtype of the data (float32 or float64).
        The entry of largest magnitude of each is positive.
    explained_variance_ : (k,) float64, variances along the axes, descending, squared input units.
    explained_variance_ratio_ : (k,) float64, shares of the total variance; 0 for constant data.
    singular_values_ : (k,) float64, of the centred rows.
    mean_ : (d,) float64.
    scale_ : (d,) float64 deviations, or None unless `standardize`.
    n_components_, n_samples_, n_features_in_ : int
        ``n_samples_`` counts what the weights stand for.
    feature_names_in_ : (d,) array of str, for frames only.
    noise_variance_ : float, mean variance of the min(n, d) - k axes left out.
    total_variance_ : float, of all axes, kept or not.
    rank_ : int, kept axes whose deviation exceeds max(n, d) eps times the largest.
    solver_used_ : str, "lapack" or "svd".
    report_ : dict that prints as a table: what the fit did and how sure its numbers are.
    model_ : LinearModel, the frozen fitted state.

    Notes
    -----
    O(n d min(n, d)); memory of one min(n, d) square, the axes and a block of rows.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[3.0, 0, 0], [-3, 0, 0], [0, 2, 0], [0, -2, 0], [0, 0, 1], [0, 0, -1]])
    >>> pca = PCA(n_components=1).fit(X)
    >>> pca.explained_variance_ratio_.round(6)
    array([0.642857])
    >>> pca.transform([[1.0, 5, 5]])
    array([[1.]])
    """

    model_: LinearModel

    def __init__(self, n_components: Any = None, *, copy: bool = True,
                 whiten: bool | str = False, svd_solver: str = "auto", tol: float = 0.0,
                 iterated_power: int | str = "auto", n_oversamples: int = 10,
                 power_iteration_normalizer: str = "auto",
                 random_state: int | RandomState | None = None, standardize: bool = False,
                 mean: ArrayLike | None = None, progress: bool = False) -> None:
        self.n_components = n_components
        self.copy = copy
        self.whiten = whiten
        self.svd_solver = svd_solver
        self.tol = tol
        self.iterated_power = iterated_power
        self.n_oversamples = n_oversamples
        self.power_iteration_normalizer = power_iteration_normalizer
        self.random_state = random_state
        self.standardize = standardize
        self.mean = mean
        self.progress = progress

    def _fitted(self, source: Source, weights: FloatArray | None) -> LinearModel:
        self._check_parameters()
        size, features = source.shape
        count = None if size is None else rows_meant(size, weights, self.mean is not None)
        if count is not None:
            self._number(count, features)  # refuse before the data are read
        mean = None if self.mean is None else as_vector(self.mean, features, "mean")
        engine = ALIASES.get(self.svd_solver, self.svd_solver)
        known = whole(self.n_components, 1) and count is not None
        axes = int(self.n_components) if known else 0
        if engine == "auto":
            engine = "lanczos" if known and few(min(count or 0, features), axes) else "lapack"
        elif engine == "randomized" or (engine in ITERATIVE and not known):
            engine = "lapack"
        direct = engine in ITERATIVE and without_scatter(source, features, axes, weights)
        every = self.n_components in (None, "mle") or self.n_components == count
        single = working_dtype(source.dtype) == np.float32
        if self.progress and (size is None or size >= features):
            source = with_progress(source, "reading rows")
        rows = centred_rows(source, weights, mean=mean, standardize=self.standardize,
                            scatter=engine != "svd" and not direct, double=every and single)
        count = rows_meant(rows.count, weights, mean is not None)
        components, share = self._number(count, features)
        self._warn_constant(rows)
        choose = None if share is None else partial(
            fraction, total=rows.total, divisor=rows.divisor, share=share)
        found = self._spectrum(rows, engine, components, choose)
        if self.n_components == "mle":  # its evidence needs every variance, and accurate
            found = found.first(minka(found.values / rows.divisor, count))
        return self._model(rows, found, engine, count)

    def _spectrum(self, rows: CentredRows, engine: str, components: int, choose: Choice | None
                  ) -> Spectrum:
        """Find the axes by the solver `engine`."""
        if engine not in ITERATIVE:
            return (qr_svd if engine == "svd" else lapack)(rows, components, choose)
        seed = self.random_state
        if isinstance(seed, RandomState):
            seed = int(seed.randint(2**31))
        budget = RACE * min(rows.bound, rows.mean.size) if self.svd_solver == "auto" else math.inf
        return iterative(rows, components, method=engine, tol=float(self.tol),
                         rng=np.random.default_rng(seed), budget=budget)

    def _check_parameters(self) -> None:
        """Refuse parameters outside their range, by name."""
        allowed = {
            "whiten": (self.whiten in (False, True, "pca", "zca"), "False, True, 'pca' or 'zca'"),
            "svd_solver": (self.svd_solver in SOLVERS, f"one of {', '.join(SOLVERS)}"),
            "tol": (isinstance(self.tol, Real) and float(self.tol) >= 0, "a number of at least 0"),
            "n_oversamples": (whole(self.n_oversamples, 1), "an integer of at least 1"),
            "iterated_power": (self.iterated_power == "auto" or whole(self.iterated_power, 0),
                               "'auto' or an integer of at least 0"),
            "power_iteration_normalizer": (
                self.power_iteration_normalizer in ("auto", "QR", "LU", "none"),
                "'auto', 'QR', 'LU' or 'none'"),
        }
        check_values(vars(self), allowed)

    def _number(self, count: int, features: int) -> tuple[int, float | None]:
        """Return how many axes to find at most, and the share of variance to reach or None."""
        wanted, solver, most = self.n_components, self.svd_solver, min(count, features)
        if wanted is None:
            return most - (solver == "arpack"), None
        if isinstance(wanted, str) and wanted == "mle":
            if solver in ITERATIVE:
                raise ValueError(f"n_components='mle' cannot be a string with "
                                 f"svd_solver='{solver}'; use 'lapack' or 'svd'.")
            if count < features:
                raise ValueError("n_components='mle' is only supported if n_samples >= "
                                 f"n_features; got {count} and {features}.")
            return most, None
        if whole(wanted, 0):
            least = int(solver in ITERATIVE)
            if not least <= wanted <= most:
                raise ValueError(
                    f"n_components={wanted} must be between {least} and min(n_samples, "
                    f"n_features)={most} with svd_solver={solver!r}: the data have {count} "
                    f"samples and {features} features.")
            if solver == "arpack" and wanted == most:
                raise ValueError(
                    f"n_components={wanted} must be strictly less than min(n_samples, "
                    f"n_features)={most} with svd_solver='arpack'; 'lapack' finds all.")
            return int(wanted), None
        if isinstance(wanted, Real) and 0 < float(wanted) < 1:
            return most, float(wanted)
        raise ValueError(f"n_components={wanted!r} is not allowed; it must be an integer from 0 "
                         f"to min(n_samples, n_features)={most}, a fraction strictly between 0 "
                         "and 1, 'mle', or None for all.")

    def _warn_constant(self, rows: CentredRows) -> None:
        constant = np.flatnonzero(rows.squares == 0)
        if constant.size == rows.squares.size:
            warnings.warn("All rows are equal: every variance is 0 and the axes are arbitrary.",
                          UserWarning, 5)
        elif constant.size and self.standardize:
            shown = ", ".join(map(str, constant[:5])) + (", ..." if constant.size > 5 else "")
            warnings.warn(f"{constant.size} constant column(s) ({shown}) cannot be scaled to unit "
                          "deviation; they are divided by 1 and add nothing.", UserWarning, 5)

    def _model(self, rows: CentredRows, found: Spectrum, engine: str, count: int) -> LinearModel:
        """Turn eigenvalues of the scatter into a model."""
        features, axes = rows.mean.size, len(found.values)
        left_out = found.left_out / rows.divisor
        others = min(count, features) - axes
        names = getattr(self, "feature_names_in_", None)
        return LinearModel(
            mean=np.ldexp(rows.mean, -rows.exponent),
            components=fix_signs(found.vectors).astype(working_dtype(rows.source.dtype)),
            variances=found.values / rows.divisor,
            total_variance=found.total / rows.divisor,
            noise_variance=left_out / others if others else 0.0,
            rank=found.rank,
            count=count,
            left_out=left_out,
            scale=None if rows.scale is None else np.ldexp(rows.scale, -rows.exponent),
            whiten=_whitening(self.whiten),
            exponent=0 if self.standardize else rows.exponent,
            feature_names=None if names is None else tuple(map(str, names)),
            report=self._report(rows, found, engine, count))

    def _report(self, rows: CentredRows, found: Spectrum, engine: str, count: int
                ) -> dict[str, Any]:
        side = "fewer rows than features" if rows.wide else "rows at least as many as features"
        reason = "as asked" if engine == "svd" else side
        if self.svd_solver in ITERATIVE:
            reason = f"{self.svd_solver} is answered exactly by lapack in this version; {side}"
        return {
            "solver": engine, "asked_for": self.svd_solver, "reason": reason,
            "method": found.method, "passes": 1 + found.passes, "rows": count,
            "features": rows.mean.size, "components": len(found.values), "rank": found.rank,
            "weight": rows.weight, "divisor": rows.divisor, "dtype": str(rows.source.dtype),
            "variance_error": float(times_power(found.error / rows.divisor, -2 * rows.exponent)),
        }

    def _replace(self, name: str, value: Any) -> None:
        """Set one part of the model by hand, as scikit-learn's attributes allow."""
        model = vars(self).get("model_")
        if name == "mean" and model is None:
            mean = np.asarray(value, dtype=np.float64)
            model = LinearModel(mean, np.zeros((0, mean.size)), np.zeros(0))
        elif name == "components":
            axes = np.asarray(value)
            if model is None:
                model = LinearModel(np.zeros(axes.shape[1]), axes, np.zeros(len(axes)))
            elif len(axes) != len(model.variances):
                model = replace(model, components=axes, variances=np.zeros(len(axes)))
        elif model is None:
            raise AttributeError(f"set components_ and mean_ before {name}.")
        self.model_ = replace(model, rank=-1, whiten=_whitening(self.whiten), **{name: value})

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
        return self.model_.deviations * math.sqrt(self.report_["divisor"])

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
        return Report(self.model_.report)

    @property
    def solver_used_(self) -> str:
        """Solver that the fit used."""
        return str(self.report_["solver"])

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
        """
        check_is_fitted(self)
        values = (self.components_ * self.model_.deviations[:, None]).T
        if not as_frame:
            return values
        features = self.model_.feature_names or [f"x{i}" for i in range(len(values))]
        axes = [f"pca{i}" for i in range(values.shape[1])]
        return import_module("pandas").DataFrame(values, index=features, columns=axes)


def _whitening(whiten: Any) -> Whitening:
    """Return the kind of whitening that the parameter names."""
    kind: Whitening = "pca" if whiten is True else whiten
    return kind
