"""Principal component analysis, a drop-in for scikit-learn's."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.random import Generator, RandomState
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning

from fastdr.axes_estimator import is_whitening, residual_bar
from fastdr.batches import BatchedAxes
from fastdr.centring import CentredRows, centred_rows, rows_meant
from fastdr.dimension import TRIALS, axes_asked_for, fraction, gavish_donoho, minka, parallel
from fastdr.estimator import warn_unproved
from fastdr.inputs import as_bytes, is_opened
from fastdr.missing_estimator import MissingEstimator
from fastdr.models import LinearModel
from fastdr.pca_model import axes_model
from fastdr.plan import CERTIFICATES, ITERATIVE, NOMINAL, Plan, Rates, Task, measured
from fastdr.progress import with_progress
from fastdr.seeds import SEEDS, as_generator, is_seed
from fastdr.solvers import Spectrum, lapack, qr_svd
from fastdr.sources import ArraySource, Source, as_source
from fastdr.sparse import SparseSource
from fastdr.sparse_axes import centred_sparse, certain, sparse_axes
from fastdr.sparse_plan import plan_of
from fastdr.tall import signflipped
from fastdr.topk import Iteration, iterative
from fastdr.validation import (
    FloatArray,
    as_vector,
    as_weights,
    check_values,
    finite,
    is_flag,
    is_sparse,
    whole,
    working_dtype,
)

FULL = 1e-13  # tolerance that ARPACK's 0 stands for: as far as rounding lets
ALIASES = {"full": "svd", "covariance_eigh": "lapack", "arpack": "lanczos"}
SOLVERS = ("auto", "lapack", "svd", "lanczos", "power", "randomized", *ALIASES)


class PCA(MissingEstimator, BatchedAxes):
    """Principal component analysis of rows: the orthogonal axes along which they vary most.

    Right for any offset, scale, dtype and rank; one read of the data in the usual case. With all
    components it is the Karhunen-Loeve transform, lossless to rounding.

    Parameters
    ----------
    n_components : int, float, str or None, default None
        Number of axes; all min(n, d) if None. A fraction in (0, 1) keeps the fewest axes whose
        share of the variance is strictly greater. "mle" is Minka's choice (2000),
        "gavish-donoho" the optimal threshold for white noise (2014), "parallel" what exceeds 19
        sets of rows with random signs, each read again (Hong, Sheng & Dobriban 2020).
    copy : bool, default True
        Accepted for compatibility: the input is never modified and never copied.
    whiten : bool, "pca" or "zca", default False
        Scale scores to unit variance (True or "pca"); "zca" turns them back to the features.
    svd_solver : str, default "auto"
        "lapack": eigen-decomposition of the covariance, or of the Gram matrix if rows are fewer
        than features, with an accuracy test and QR behind it; "svd": QR (TSQR) and SVD at once;
        "lanczos": thick-restart block Lanczos on the covariance, the Gram matrix or the rows;
        "power": subspace iteration with a shift; "randomized": Halko, Martinsson & Tropp (2011),
        which warns if it misses `tol`; "auto": "lanczos" where that is faster, with "lapack"
        behind it, else "lapack"; see `plan`. scikit-learn's "full", "covariance_eigh" and
        "arpack" mean "svd", "lapack" and "lanczos".
    tol : float, default 0
        Largest residual of an iteration, relative to the largest variance. 0 means 1e-10, 1e-5
        for float32 rows, and less where small variances are wanted; 1e-4 for "randomized".
    iterated_power : int or "auto", default "auto"
        Steps of "randomized"; 7 for few axes, else 4.
    n_oversamples : int, default 10
        Columns that "randomized" adds.
    power_iteration_normalizer : str, default "auto"
        Accepted for compatibility: QR is used after each step.
    random_state : int, Generator, RandomState or None, default None
        Of the vectors that iterations begin with; None is 0, so results repeat.
    standardize : bool, default False
        Divide columns by their standard deviation: PCA of the correlation matrix, without a
        scaled copy. Constant columns are divided by 1 and add nothing.
    mean : (d,) array, optional
        A known mean to centre at; variances then have divisor n instead of n - 1.
    progress : bool, default False
        Show a bar on stderr for each pass over the rows, and the residual of an iteration.
    certificate : {"auto", "proof", "residual", True, False}, default "auto"
        "proof" (or True) proves by a Cholesky factorisation of a shifted scatter that no axis
        was missed and bounds each variance (Rump 2006), formed for that up to order 8000, n d²
        more, or else it warns; float32 rows are multiplied in float64 for it. "residual" only
        measures; "auto" proves where there is a scatter of order up to 3000 or the proof takes
        little of the time.
    max_memory : int or str, optional
        Bytes, or a text like "2GB", that the fit may take beyond the data; another way is gone
        or the fit refused before anything is read.
    warm_start : bool, default False
        Begin an iteration with the axes of the earlier fit, for more axes or new rows.
    missing : "em" or None, default None
        None refuses NaN. "em" takes it for a missing cell, and maximises the likelihood of the
        observed cells under probabilistic PCA (Tipping & Bishop 1999), from the axes that the
        solver finds with column means in the gaps. `n_components` must be an integer then.
    max_iter : int, default 1000
        Steps of EM at most. It ends when a step changes axes, variances and noise by no more
        than `tol`, 1e-7 by default; else a ConvergenceWarning says by how much.

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
    noise_variance_ : float, mean variance of the min(n, d) - k axes left out; of d - k by EM.
    total_variance_ : float, of all axes, kept or not.
    rank_ : int, kept axes whose deviation exceeds max(n, d) eps times the largest.
    solver_used_ : str, "lapack", "svd", "lanczos", "power", "randomized" or "em".
    n_iter_ : int, steps of EM; 1 if no cell is missing.
    certificate_ : Certificate or None, bounds on the variances; they concern the scatter as
        computed and its rounding, not sampling.
    report_ : dict that prints as a table: what the fit did and how sure its numbers are.
    model_ : LinearModel, the frozen fitted state.
    moments_, n_samples_seen_ : of rows in batches, after ``partial_fit`` only.

    Notes
    -----
    O(n d min(n, d)), or about 6 (k + 10) products with the covariance or the rows for few axes;
    memory of one or two min(n, d) squares or none, the axes and a block of rows. Results do not
    depend on the number of threads where an iteration finds them. Sparse rows are never made
    dense; of their variances those count as 0 that rounding of the covariance may have made.

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

    def __init__(self, n_components: Any = None, *, copy: bool = True,
                 whiten: bool | str = False, svd_solver: str = "auto", tol: float = 0.0,
                 iterated_power: int | str = "auto", n_oversamples: int = 10,
                 power_iteration_normalizer: str = "auto",
                 random_state: int | Generator | RandomState | None = None,
                 standardize: bool = False, mean: ArrayLike | None = None,
                 progress: bool = False, certificate: bool | str = "auto",
                 max_memory: int | str | None = None, warm_start: bool = False,
                 missing: str | None = None, max_iter: int = 1000) -> None:
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
        self.certificate = certificate
        self.max_memory = max_memory
        self.warm_start = warm_start
        self.missing = missing
        self.max_iter = max_iter

    @property
    def _takes_sparse(self) -> bool:
        return (ALIASES.get(self.svd_solver, self.svd_solver) != "svd"
                and not self._takes_missing)

    def _fitted(self, source: Source, weights: FloatArray | None) -> LinearModel:
        self._check_parameters()
        self.__dict__.pop("_state", None)  # of rows that came in batches
        source, gaps = self._observed(source)
        if gaps:
            return self._fitted_observed(source, weights)
        size, features = source.shape
        count = None if size is None else rows_meant(size, weights, self.mean is not None)
        if count is not None:
            self._number(count, features)  # refuse before the data are read
        mean = None if self.mean is None else as_vector(self.mean, features, "mean")
        if isinstance(source, SparseSource):
            return self._fitted_sparse(source, weights, mean)
        way = self._way(source, weights)
        reading = source
        if self.progress and (size is None or size >= features):
            reading = with_progress(source, "reading rows")
        rows = centred_rows(reading, weights, mean=mean, standardize=self.standardize,
                            scatter=way.on == "covariance", double=self._doubly(way, source))
        if way.on == "rows" and way.solver in ITERATIVE and isinstance(source, ArraySource):
            rows = replace(rows, source=source)  # without the bar, which is of blocks
        count = rows_meant(rows.count, weights, mean is not None)
        components, share = self._number(count, features)
        self._warn_constant(rows.squares)
        found = self._chosen(rows, self._spectrum(rows, way, components, share), count)
        self._warn_unconverged(found)
        warn_unproved(self.certificate, way)
        return self._model(rows, found, way, count)

    def _fitted_sparse(self, source: SparseSource, weights: FloatArray | None,
                       mean: FloatArray | None) -> LinearModel:
        """Find axes in products with what is stored; no row is ever centred by itself."""
        given, rows = centred_sparse(source, weights, mean, self.standardize)
        count = rows_meant(rows.count, weights, mean is not None)
        components, share = self._number(count, rows.mean.size)
        self._warn_constant(rows.squares)
        way = self._way(source, weights)
        with residual_bar(self.progress, "lanczos") as callback:
            found = certain(sparse_axes(
                given, components, way, share=share, certify=self.certificate is not False,
                rng=as_generator(self.random_state), tol=self._tolerance(source),
                start=self._earlier(rows.mean.size), callback=callback))
        found = self._chosen(rows, found, count)
        self._warn_unconverged(found)
        warn_unproved(self.certificate, way)
        return self._model(rows, found, way, count)

    def _task(self, source: Source, weights: FloatArray | None = None) -> Task:
        """Say what is asked for, for a plan."""
        size, features = source.shape
        if weights is not None:
            size = int(np.count_nonzero(weights))
        wanted, least = self.n_components, features if size is None else min(size, features)
        components = int(wanted) if whole(wanted, 0) else None
        few = components is not None and components < 0.1 * least
        steps = (7 if few else 4) if self.iterated_power == "auto" else int(self.iterated_power)
        stored = isinstance(source, ArraySource)
        return Task(size, features, source.dtype, components,
                    isinstance(wanted, float) and components is None,
                    ALIASES.get(self.svd_solver, self.svd_solver), self.certificate,
                    float(self.tol), stored or least < features, source.rereadable,
                    weights is not None, steps, int(self.n_oversamples), getattr(source, "most", 0))

    def _way(self, source: Source, weights: FloatArray | None = None, rates: Rates = NOMINAL
             ) -> Plan:
        """Return the plan; `rates` change nothing but its seconds."""
        memory = None if self.max_memory is None else as_bytes(self.max_memory, "max_memory")
        return plan_of(source, self._task(source, weights), rates=rates, memory=memory)

    def _doubly(self, way: Plan, source: Source) -> bool:
        """Whether float32 rows are multiplied in float64: small variances or a proof are wanted."""
        every = self.n_components is None or isinstance(self.n_components, str)
        every = every or self.n_components == min(source.shape[0] or math.inf, source.shape[1])
        return working_dtype(source.dtype) == np.float32 and (
            every or way.solver == "power" or self.certificate in (True, "proof"))

    def _spectrum(self, rows: CentredRows, way: Plan, components: int, share: float | None
                  ) -> Spectrum:
        """Find the axes as planned."""
        task = self._task(rows.source)
        prove = task.proving(way)
        if way.solver not in ITERATIVE:
            choose = None if share is None else partial(
                fraction, total=rows.total, divisor=rows.divisor, share=share)
            return (qr_svd if way.solver == "svd" else lapack)(rows, components, choose, prove)
        with residual_bar(self.progress, way.solver) as callback:
            how = Iteration(as_generator(self.random_state), way.solver,
                            self._tolerance(rows.source), way.budget,
                            self._earlier(rows.mean.size), callback, prove,
                            way.on == "rows" and way.proof, task.oversamples, task.iterations)
            return iterative(rows, components, how, read=way.on == "rows", share=share)

    def _tolerance(self, source: Source) -> float:
        """Return what to iterate to; 0 leaves it to the iteration, but not for "arpack"."""
        full = self.svd_solver == "arpack" and working_dtype(source.dtype) == np.float64
        return float(self.tol) or FULL * full

    def _earlier(self, features: int) -> FloatArray | None:
        """Return the axes of the earlier fit, if they are to be begun with."""
        model = vars(self).get("model_") or self._model_before
        if not self.warm_start or model is None or not len(model.components):
            return None
        known: FloatArray = model.components.astype(np.float64)
        return known if known.shape[1] == features else None

    def _chosen(self, rows: CentredRows, found: Spectrum, count: int) -> Spectrum:
        """Keep as many of all axes as a named rule says."""
        if self.n_components == "mle":
            return found.first(minka(found.values / rows.divisor, count))
        if self.n_components == "gavish-donoho":
            shape = (rows.count - rows.estimated, int(np.count_nonzero(rows.squares)))
            chosen = gavish_donoho(np.sqrt(found.values[:rows.bound]), shape)
            return found.first(max(1, chosen))
        if self.n_components == "parallel":
            if not rows.source.rereadable:
                raise ValueError("n_components='parallel' reads the rows again, but this source "
                                 "can be read once only.")
            if not rows.bound:
                return found.first(1)
            flipped = signflipped(rows, as_generator(self.random_state), TRIALS)[:, :rows.bound]
            return found.first(max(1, parallel(found.values[:rows.bound], flipped)))
        return found

    def plan(self, X: ArrayLike | Source, sample_weight: ArrayLike | None = None) -> Plan:
        """Return how `fit` would go about these rows, and what it would cost.

        Parameters
        ----------
        X : (n, d) array, sparse matrix or `Source`; no sums of its numbers are formed.
        sample_weight : (n,) array, optional

        Returns
        -------
        Plan
            It prints as a table: solver, reason, passes, operations, memory, seconds. The speed
            of the machine is measured once a process, in about 0.1 s. With ``missing="em"`` it
            is that for complete rows: whether some are not is not looked for.

        Raises
        ------
        ValueError
            If parameters are out of range, or nothing fits in ``max_memory``.

        Examples
        --------
        >>> PCA(5).plan(np.zeros((1000, 20))).solver
        'lapack'
        """
        self._check_parameters()
        source = (SparseSource.of(X, owner="PCA") if self._takes_sparse and is_sparse(X)
                  else self._opened(X) if is_opened(X) else as_source(X))
        size, features = source.shape
        weights = None if sample_weight is None else as_weights(sample_weight, size or 0)
        if size is not None:
            self._number(rows_meant(size, weights, self.mean is not None), features)
        way = self._way(source, weights, measured())
        if not self._takes_missing:
            return way
        return replace(way, reason=f"{way.reason}; if cells are missing, em instead, on rows in "
                                   "memory, as often as their likelihood needs")

    def _check_parameters(self) -> None:
        """Refuse parameters outside their range, by name."""
        allowed = {
            "whiten": (is_whitening(self.whiten), "False, True, 'pca' or 'zca'"),
            "standardize": (is_flag(self.standardize), "True or False"),
            "svd_solver": (self.svd_solver in SOLVERS, f"one of {', '.join(SOLVERS)}"),
            "tol": (finite(self.tol) and self.tol >= 0, "a finite number of at least 0"),
            "n_oversamples": (whole(self.n_oversamples, 1), "an integer of at least 1"),
            "iterated_power": (self.iterated_power == "auto" or whole(self.iterated_power, 0),
                               "'auto' or an integer of at least 0"),
            "certificate": (self.certificate in CERTIFICATES,
                            "'auto', 'proof', 'residual', True or False"),
            "random_state": (is_seed(self.random_state), SEEDS),
            "missing": (self.missing in (None, "em"), "None or 'em'"),
            "max_iter": (whole(self.max_iter, 1), "an integer of at least 1"),
            "power_iteration_normalizer": (
                self.power_iteration_normalizer in ("auto", "QR", "LU", "none"),
                "'auto', 'QR', 'LU' or 'none'"),
        }
        check_values(vars(self), allowed)

    def _number(self, count: int, features: int) -> tuple[int, float | None]:
        """Return how many axes to find at most, and the share of variance to reach or None."""
        iterated = ALIASES.get(self.svd_solver, self.svd_solver) in ITERATIVE
        return axes_asked_for(self.n_components, count, features, self.svd_solver, iterated)

    def _warn_unconverged(self, found: Spectrum) -> None:
        if not found.converged:
            warnings.warn(f"{found.solver} stopped after {found.columns} columns with a residual "
                          f"of {found.residual:.1e} relative to the largest variance, which is "
                          "more than tol; the variances are lower bounds. Use "
                          "svd_solver='auto' or 'lanczos', or raise tol.", ConvergenceWarning, 5)

    def _model(self, rows: CentredRows, found: Spectrum, way: Plan, count: int) -> LinearModel:
        return axes_model(rows, found, way, count, self._wanted)
