"""Independent component analysis, a drop-in for scikit-learn's FastICA."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.random import Generator, RandomState
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import ConvergenceWarning
from tqdm.auto import tqdm

from fastdr.centring import centred_rows, rows_meant
from fastdr.contrasts import CODES, BuiltIn, Contrast, Custom, peaked_sign
from fastdr.estimator import LinearEstimator, Report
from fastdr.models import fix_signs
from fastdr.panels import Panels
from fastdr.progress import with_progress
from fastdr.seeds import SEEDS, as_random_state, is_seed
from fastdr.sources import Source, each_once
from fastdr.statistics import Moments
from fastdr.threads import calm_blas
from fastdr.unmixing import (
    Rotation,
    Watch,
    coarse_to_fine,
    farthest_from_normal,
    nearly_normal,
    one_by_one,
)
from fastdr.unmixing_model import UnmixingModel
from fastdr.validation import (
    AccuracyWarning,
    AnyArray,
    FloatArray,
    as_numbers,
    check_values,
    finite,
    narrowed,
    whole,
    working_dtype,
)
from fastdr.whitening import Whitening, whiten

ALGORITHMS = ("parallel", "deflation")
WHITENINGS = ("unit-variance", "arbitrary-variance")
SOLVERS = ("auto", "eigh", "svd")
NOT_WHITE = 0.1  # error of second moments at which rows are no longer called white


class FastICA(LinearEstimator):
    """Independent component analysis: the linear mixture undone, up to order, sign and scale.

    Whitens the rows, then turns them to where a contrast of the sources is stationary: some
    fixed-point steps of FastICA, then L-BFGS on the orthogonal group (Picard-O), which also
    converges where the model of independent sources holds only roughly. The answer comes with
    the size of the gradient reached, and sources in an order and with signs that do not depend
    on the start.

    Parameters
    ----------
    n_components : int or None, default None
        Number of sources; min(n - 1, d) if None. Fewer are found, with a warning, if the rank of
        the rows is less.
    algorithm : {"parallel", "deflation"}, default "parallel"
        All sources together, or one after the other by fixed points; the latter are less
        accurate and depend on the start.
    whiten : {"unit-variance", "arbitrary-variance"} or False, default "unit-variance"
        Sources have variance 1 (divisor n), or 1 / n; False takes the rows as white and
        centred already.
    fun : {"logcosh", "exp", "cube"} or callable, default "logcosh"
        The contrast. A callable takes x and returns g(x) and the mean of g'(x) over the last
        axis, as for scikit-learn.
    fun_args : dict, optional
        ``{"alpha": a}`` with a in [1, 2] for "logcosh"; keywords of a callable.
    max_iter : int, default 200
        Steps over all rows at most, for one start.
    tol : float, default 1e-7
        Largest entry of the relative gradient to stop at. scikit-learn's is the change of W in
        one step, which may be small far from the answer.
    w_init : (k, k) array, optional
        Where to start in white coordinates; made orthogonal.
    whiten_solver : {"auto", "eigh", "svd"}, default "auto"
        "svd": QR (TSQR) and SVD of the rows. Others: eigen-decomposition of the covariance with
        an accuracy test and QR behind it.
    random_state : int, Generator, RandomState or None, default None
        For the start; None is the same as 0, so that results repeat.
    extended : bool, default True
        Find flat sources (uniform, sine) as well as peaked ones (Laplace, speech). False takes
        all for peaked: right if they are, and then a little safer.
    n_init : int, default 1
        Number of starts; the answer whose contrasts are farthest from those of normal sources
        is kept.
    progress : bool, default False
        Show the steps and their gradient on stderr.

    Attributes
    ----------
    components_ : (k, d) unmixing matrix, in the working dtype of the data.
    mixing_ : (d, k) its pseudo-inverse. Columns stand in the order of the variance they add to the
        rows, descending, the entry of largest magnitude of each is positive.
    mean_ : (d,) float64.
    whitening_ : (k, d) from centred rows to white ones; absent if ``whiten=False``.
    n_iter_ : int, steps taken over all rows.
    n_features_in_ : int
    feature_names_in_ : (d,) array of str, for frames only.
    certificate_ : dict that prints as a table: the gradient at the answer and whether it is
        within `tol`, the defect of orthogonality, sources too close to normal to tell apart.
        Of float32 rows, the gradient that float32 arithmetic sees; see the guide.
    report_ : dict that prints as a table: what the fit did.
    model_ : UnmixingModel, the frozen fitted state.

    Notes
    -----
    A pass is O(n k²), whitening O(n d²). Whitened rows are kept up to 1 GB, beyond that they are
    made anew in each pass. If rows are many, a share of them improves the start first. Results
    do not depend on the number of threads. Up to d + 1 distinct rows, the corners of a simplex once
    they are white, are put in order first if they take up to 16 MB, each with how often it occurs:
    what rounding decides there does not depend on how they came.

    References
    ----------
    Hyvarinen, IEEE Trans. Neural Networks 10 (1999); Ablin, Cardoso & Gramfort, ICASSP (2018).

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> S = rng.laplace(size=(5000, 2))
    >>> X = S @ [[2.0, 1.0], [1.0, 1.0]] + 10.0
    >>> ica = FastICA().fit(X)
    >>> np.abs(np.corrcoef(ica.transform(X).T, S.T)[:2, 2:]).round(1)
    array([[1., 0.],
           [0., 1.]])
    >>> ica.certificate_["converged"]
    True
    """

    model_: UnmixingModel

    def __init__(self, n_components: int | None = None, *, algorithm: str = "parallel",
                 whiten: str | bool = "unit-variance",
                 fun: str | Callable[..., tuple[Any, Any]] = "logcosh",
                 fun_args: dict[str, Any] | None = None, max_iter: int = 200, tol: float = 1e-7,
                 w_init: ArrayLike | None = None, whiten_solver: str = "auto",
                 random_state: int | Generator | RandomState | None = None, extended: bool = True,
                 n_init: int = 1, progress: bool = False) -> None:
        self.n_components = n_components
        self.algorithm = algorithm
        self.whiten = whiten
        self.fun = fun
        self.fun_args = fun_args
        self.max_iter = max_iter
        self.tol = tol
        self.w_init = w_init
        self.whiten_solver = whiten_solver
        self.random_state = random_state
        self.extended = extended
        self.n_init = n_init
        self.progress = progress

    def _fitted(self, source: Source, weights: FloatArray | None) -> UnmixingModel:
        self._check_parameters()
        if not source.rereadable:
            raise ValueError("FastICA reads the rows several times, but this source can be read "
                             "once only; write it to a file or an array first.")
        contrast = self._contrast()
        panels, whitening = self._panels(*each_once(source, weights))
        starts = self._starts(panels.features)
        found = [self._search(panels, contrast, start) for start in starts]
        best = farthest_from_normal(panels, contrast, found)
        return self._model(panels, contrast, whitening, found[best], best)

    def _check_parameters(self) -> None:
        """Refuse parameters outside their range, by name."""
        allowed = {
            "n_components": (self.n_components is None or whole(self.n_components, 1),
                             "an integer of at least 1, or None"),
            "algorithm": (self.algorithm in ALGORITHMS, " or ".join(map(repr, ALGORITHMS))),
            "whiten": (self.whiten is False or self.whiten in WHITENINGS,
                       f"{', '.join(map(repr, WHITENINGS))} or False"),
            "fun": (callable(self.fun) or (isinstance(self.fun, str) and self.fun in CODES),
                    f"one of {', '.join(CODES)} or a callable"),
            "fun_args": (isinstance(self.fun_args, dict | None), "a dict or None"),
            "max_iter": (whole(self.max_iter, 1), "an integer of at least 1"),
            "tol": (finite(self.tol) and self.tol >= 0, "a finite number of at least 0"),
            "whiten_solver": (self.whiten_solver in SOLVERS, f"one of {', '.join(SOLVERS)}"),
            "random_state": (is_seed(self.random_state), SEEDS),
            "extended": (isinstance(self.extended, bool | np.bool_), "True or False"),
            "n_init": (whole(self.n_init, 1), "an integer of at least 1"),
        }
        check_values(vars(self), allowed)
        if self.algorithm == "deflation" and not self.extended:
            raise ValueError("extended=False needs algorithm='parallel': deflation finds peaked "
                             "and flat sources alike.")

    def _contrast(self) -> Contrast:
        arguments = self.fun_args or {}
        if callable(self.fun):
            function = self.fun
            return Custom(lambda x: function(x, **arguments))
        unknown = set(arguments) - {"alpha"}
        if unknown:
            raise ValueError(f"fun_args={self.fun_args!r} has {sorted(unknown, key=str)}; fun="
                             f"{self.fun!r} takes 'alpha' only.")
        alpha = arguments.get("alpha", 1.0)
        if not (finite(alpha) and 1 <= float(alpha) <= 2):
            raise ValueError(f"alpha must be in [1,2], got {alpha!r}.")
        return BuiltIn(self.fun, float(alpha) if self.fun == "logcosh" else 1.0)

    def _panels(self, source: Source, weights: FloatArray | None
                ) -> tuple[Panels, Whitening | None]:
        """Read the rows for their mean and axes, and put them into panels."""
        if self.whiten is False:
            return self._white(source, weights).in_units().keep(), None
        size, features = source.shape
        tall = size is None or size >= features
        shown = with_progress(source, "reading rows") if self.progress and tall else source
        if size is not None:
            self._number(rows_meant(size, weights, False), features)  # refuse before reading
        rows = centred_rows(shown, weights, scatter=self.whiten_solver != "svd")
        count = rows_meant(rows.count, weights, False)
        found = whiten(rows, self._number(count, features), self.whiten_solver)
        size = rows.count if size is None else size
        panels = Panels(source, weights, found.factor, found.mean, size, rows.weight,
                        working_dtype(source.dtype))
        return panels.in_units().keep(), found

    def _white(self, source: Source, weights: FloatArray | None) -> Panels:
        """Take rows that are said to be white as they are, after a look at them."""
        if self.n_components is not None:
            warnings.warn("Ignoring n_components with whiten=False.", UserWarning, 6)
        with np.errstate(over="ignore", invalid="ignore"):
            moments = Moments.of_source(source, weights)
            second = moments.about(np.zeros(source.shape[1])) / moments.weight
            error = float(np.abs(second - np.eye(len(second))).max())
        if not np.isfinite(error):
            raise ValueError("the squares of the rows leave the float64 range, so they are not "
                             "white; whiten them or scale them first.")
        if error > NOT_WHITE:
            warnings.warn(
                f"whiten=False takes rows of second moments one and uncorrelated, but theirs "
                f"differ by up to {error:.2g}; the answer is then only stationary among "
                "rotations. Leave whiten at 'unit-variance' unless that is meant.",
                AccuracyWarning, 6)
        size = moments.count if source.shape[0] is None else source.shape[0]
        return Panels(source, weights, None, None, size, moments.weight,
                      working_dtype(source.dtype))

    def _number(self, count: int, features: int) -> int:
        """Return how many components to look for."""
        most = min(count, features)
        if self.n_components is None:
            return min(count - 1, features)
        if self.n_components > most:
            raise ValueError(
                f"n_components={self.n_components} exceeds min(n_samples, n_features)={most}: the "
                f"data have {count} samples and {features} features. Pass at most {most}.")
        return int(self.n_components)

    def _starts(self, size: int) -> list[FloatArray]:
        """Return the rotations to start from, (size, size) each."""
        random = as_random_state(0 if self.random_state is None else self.random_state)
        starts = []
        if self.w_init is not None:
            first = as_numbers(self.w_init, "w_init").astype(np.float64)
            if first.shape != (size, size):
                raise ValueError("w_init has invalid shape -- should be "
                                 f"{(size, size)}, is {first.shape}.")
            if not np.isfinite(first).all():
                raise ValueError("w_init contains NaN or infinity.")
            starts.append(np.ldexp(first, -np.frexp(np.abs(first).max())[1]))
        while len(starts) < self.n_init:
            starts.append(random.normal(size=(size, size)))
        return starts

    def _search(self, panels: Panels, contrast: Contrast, start: FloatArray) -> Rotation:
        with self._watch() as watch, calm_blas(30.0 * len(start)**3):  # once for all steps
            if self.algorithm == "deflation":
                return one_by_one(panels, contrast, start, tol=self.tol, max_iter=self.max_iter,
                                  watch=watch)
            sign = None if self.extended else peaked_sign(contrast)
            return coarse_to_fine(panels, contrast, start, tol=self.tol, max_iter=self.max_iter,
                                  fixed_sign=sign, watch=watch)

    @contextmanager
    def _watch(self) -> Iterator[Watch | None]:
        """Provide a function that shows a step and its gradient, if asked for."""
        if not self.progress:
            yield None
            return
        with tqdm(desc="unmixing", unit="step", leave=False) as bar:
            def show(step: int, gradient: float) -> None:
                bar.set_postfix_str(f"gradient {gradient:.1e}", refresh=False)
                bar.update()

            yield show

    def _model(self, panels: Panels, contrast: Contrast, whitening: Whitening | None,
               found: Rotation, start: int) -> UnmixingModel:
        """Put sources in order, give them signs and say what was reached."""
        matrix = found.point.matrix
        mixing = matrix.T if whitening is None else whitening.inverse @ matrix.T
        exponent = int(np.frexp(np.abs(mixing).max())[1])
        mixing = np.ldexp(mixing, -exponent)  # so that its squares neither vanish nor overflow
        order = found.point.order(mixing)
        signed = fix_signs(mixing.T[order].copy())
        flipped = np.where(np.einsum("ij,ij->i", signed, mixing.T[order]) < 0, -1.0, 1.0)
        matrix = flipped[:, None] * matrix[order]
        scale = (math.sqrt(panels.weight * panels.unit) if self.whiten == "arbitrary-variance"
                 else 1.0)
        with np.errstate(over="ignore"):
            maps = {"components": matrix, "mixing": np.ldexp(signed.T, exponent) * scale}
            if whitening is not None:
                maps |= {"components": matrix @ whitening.factor / scale,
                         "whitening": whitening.factor / scale}
        certificate = self._certificate(panels, contrast, found, order)
        self._warn(found, certificate)
        return UnmixingModel(
            mean=np.zeros(panels.source.shape[1]) if whitening is None else whitening.mean,
            **{name: narrowed(values, panels.dtype, f"{name}_")
               for name, values in maps.items()},
            count=panels.rows, steps=max(1, found.steps),
            feature_names=self._feature_labels,
            certificate=certificate, report=self._report(panels, whitening, found, start))

    def _certificate(self, panels: Panels, contrast: Contrast, found: Rotation,
                     order: NDArray[np.intp]) -> dict[str, Any]:
        matrix = found.point.matrix
        defect = float(np.abs(matrix @ matrix.T - np.eye(len(matrix))).max())
        near = nearly_normal(found.point, contrast, panels.effective_rows)[order]
        return {"gradient": found.gradient, "tolerance": float(self.tol),
                "converged": bool(found.gradient <= self.tol),
                "orthogonality_defect": defect,
                "nearly_normal": np.flatnonzero(near).tolist() if near.sum() > 1 else []}

    def _warn(self, found: Rotation, certificate: dict[str, Any]) -> None:
        near = certificate["nearly_normal"]
        hint = "; sources near to normal may be the reason" if near else ""
        if not certificate["converged"]:
            warnings.warn(
                "FastICA did not converge. Consider increasing tolerance or the maximum number of "
                f"iterations. The relative gradient is {found.gradient:.2g} after {found.steps} "
                f"step(s), tol={self.tol:g}{hint}.", ConvergenceWarning, 6)
        elif near:
            shown = ", ".join(map(str, near[:8])) + ", ..." * (len(near) > 8)
            warnings.warn(
                f"Sources {shown} are as near to normal as chance would make them, so they cannot "
                "be told from their own mixtures: take none of these for a source by itself. More "
                "rows or fewer n_components may help.", AccuracyWarning, 6)

    def _report(self, panels: Panels, whitening: Whitening | None, found: Rotation, start: int
                ) -> dict[str, Any]:
        return {
            "algorithm": ("fixed points, one by one" if self.algorithm == "deflation"
                          else "fixed points, then L-BFGS on rotations"),
            "contrast": self.fun if isinstance(self.fun, str) else "callable",
            "whitening": "none" if whitening is None else whitening.method,
            "variance_share": 1.0 if whitening is None else whitening.variance_share,
            "rows": panels.rows, "features": panels.source.shape[1],
            "components": panels.features, "arithmetic": str(panels.dtype),
            "steps": found.steps, "steps_on_a_share": found.coarse_steps,
            "passes_of_the_iteration": found.passes,
            "whitened_rows": "kept" if panels.kept is not None else "made in each pass",
            "starts": self.n_init, "best_start": start,
        }

    def transform(self, X: ArrayLike, copy: bool = True) -> AnyArray:
        """Return the sources (n, k) of rows (n, d); see ``UnmixingModel``. `copy` has no effect."""
        return super().transform(X)

    def inverse_transform(self, X: ArrayLike, copy: bool = True) -> AnyArray:
        """Return the rows (n, d) that sources `X` (n, k) mix to. `copy` has no effect."""
        return super().inverse_transform(X)

    @property
    def components_(self) -> AnyArray:
        """Unmixing matrix, (k, d)."""
        return self.model_.components

    @property
    def mixing_(self) -> AnyArray:
        """Mixing matrix, (d, k)."""
        return self.model_.mixing

    @property
    def mean_(self) -> FloatArray:
        """Centre, (d,)."""
        return self.model_.mean

    @property
    def whitening_(self) -> AnyArray:
        """From centred rows to white ones, (k, d)."""
        if self.model_.whitening is None:
            raise AttributeError("the rows were fitted with whiten=False.")
        return self.model_.whitening

    @property
    def n_iter_(self) -> int:
        """Steps taken."""
        return self.model_.steps

    @property
    def certificate_(self) -> Report:
        """What was reached at the answer; prints as a table."""
        return Report(self.model_.certificate)

    @property
    def report_(self) -> Report:
        """How the fit went; prints as a table."""
        return Report(self.model_.report)
