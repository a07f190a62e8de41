"""The only judge of user input: dtypes, shapes, finiteness and the words of each refusal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from fastdr.mapped import AnyArray as AnyArray
from fastdr.mapped import read

FloatArray = NDArray[np.float64]
Shared = TypeVar("Shared")

_ALLOWED = "float64, float32, float16, bool and integers of 8 to 64 bits"
MAY_BE_MISSING = ", or let them be missing (missing=True, --missing)"
_IMPUTES = ", as PCA(missing='em') does"
_SCAN_BYTES = 1 << 22
_MOST_COLUMNS = (1 << 31) - 1  # of a sparse matrix, whose kernels take indices of 32 bits
MOST_WEIGHT = 1e150  # whose square is far from the end of float64
LARGEST_SQUARE = 1 << 15  # order; a larger square matrix takes more than 8 GB


class AccuracyWarning(UserWarning):
    """A result is returned, but it is less certain than the caller may expect."""


def working_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Dtype of results for input of `dtype`: float32 for float16/32, float64 for the rest."""
    return np.dtype(np.float32 if np.dtype(dtype).kind == "f" and np.dtype(dtype).itemsize < 8
                    else np.float64)


def narrowed(values: FloatArray, dtype: DTypeLike, name: str) -> AnyArray:
    """Return `values` of float64 in the `dtype` of the results; refuse those it does not hold."""
    largest = float(np.abs(values).max(initial=0.0))
    limits = np.finfo(dtype)
    if not (float(limits.tiny) <= largest <= float(limits.max) or largest == 0):
        raise ValueError(f"the largest of {name} is {largest:.1e}, which {limits.dtype} does not "
                         "hold; multiply X by a power of ten, or pass it as float64.")
    return values.astype(dtype, copy=False)


def as_matrix(X: Any, name: str = "X", *, min_rows: int = 1, owner: str | None = None) -> AnyArray:
    """Return `X` as a two-dimensional array without copying an array that is one.

    Raises TypeError for sparse input and unusable dtypes, ValueError for wrong shapes.
    """
    if is_sparse(X) or hasattr(X, "todense"):
        raise TypeError(f"{name} is sparse ({type(X).__name__}); fastdr needs a dense array here. "
                        f"Pass {name}.toarray() if it fits in memory.")
    check_masks(X, name)
    plain = isinstance(X, np.ndarray) and X.dtype != object
    array = np.asarray(X) if plain else _array_of(X, name)
    _check_dtype(array, name)
    if array.ndim != 2:
        raise ValueError(_shape_message(array, name))
    _check_shape(array.shape, owner, min_rows)
    return array


def check_masks(values: Any, name: str) -> None:
    """Refuse masked values, also those in rows of a list, which NumPy would read."""
    if type(values) is np.ndarray:
        return
    parts = values if isinstance(values, list | tuple) else (values,)
    if any(isinstance(part, np.ma.MaskedArray) and np.ma.is_masked(part) for part in parts):
        raise ValueError(f"{name} has masked values; fill them or drop their rows first.")


def _check_shape(shape: tuple[int, ...], owner: str | None, min_rows: int = 1) -> None:
    rows, features = shape
    need = "" if owner is None else f" by {owner}"
    if rows < min_rows:
        raise ValueError(f"Found array with {rows} sample(s) (shape={shape}) while a "
                         f"minimum of {min_rows} is required{need}.")
    if features < 1:
        raise ValueError(f"Found array with 0 feature(s) (shape={shape}) while a "
                         f"minimum of 1 is required{need}.")


def is_sparse(X: Any) -> bool:
    """Whether `X` is a sparse matrix or array of SciPy."""
    return hasattr(X, "tocsr")


def as_csr(X: Any, name: str = "X", *, owner: str | None = None) -> Any:
    """Return sparse `X` as CSR with ascending columns in each row and none of them twice.

    A CSR matrix that is so already is returned itself, any other is converted once; `X` is never
    changed. Raises TypeError for unusable dtypes, ValueError for wrong shapes and indices.
    """
    if X.ndim != 2:
        raise ValueError(f"{name} is sparse with {X.ndim} dimension(s); expected 2: (rows, "
                         "features).")
    _check_shape(X.shape, owner)
    if X.shape[1] > _MOST_COLUMNS:
        raise ValueError(f"{name} has {X.shape[1]} columns; at most {_MOST_COLUMNS} are allowed.")
    if X.format in ("csr", "csc"):
        _check_indices(X, name)
    elif X.format == "bsr":
        X.check_format(full_check=True)
    csr = X.tocsr()
    _check_dtype(csr.data, name)
    if not csr.has_canonical_format:
        csr = csr.copy() if csr is X else csr
        csr.sum_duplicates()
    return csr


def _check_indices(X: Any, name: str) -> None:
    """Refuse indices that a compiled loop must not follow."""
    major, minor = X.shape if X.format == "csr" else X.shape[::-1]
    pointers, indices = X.indptr, X.indices
    if (len(pointers) != major + 1 or pointers[0] != 0 or (np.diff(pointers) < 0).any()
            or pointers[-1] > min(len(indices), len(X.data))):
        raise ValueError(f"{name}.indptr is not that of a {X.format} matrix of shape {X.shape}: it "
                         f"must have {major + 1} entries, begin with 0, ascend and end at most at "
                         f"the number of indices and data, {min(len(indices), len(X.data))}.")
    indices = indices[:pointers[-1]]
    if len(indices) and not 0 <= indices.min() <= indices.max() < minor:
        wrong = indices.min() if indices.min() < 0 else indices.max()
        kind = "column" if X.format == "csr" else "row"
        raise ValueError(f"{name}.indices contains {kind} {wrong}, but {name} has {minor} {kind}s, "
                         f"0 to {minor - 1}.")


def _array_of(X: Any, name: str) -> AnyArray:
    """Convert lists, frames and other containers, once."""
    if X is None or isinstance(X, str | bytes):
        raise TypeError(f"{name} is {type(X).__name__}; expected a two-dimensional array.")
    for column in getattr(X, "get_columns", list)():  # of polars, which makes numbers of dates
        if column.dtype.is_temporal():
            raise TypeError(f"{name} has dates or times (column {column.name!r}; pick the numeric "
                            "columns).")
    try:
        array = np.asarray(X)
    except ValueError as error:  # ragged nested sequences
        raise ValueError(f"{name} cannot be read as a rectangular array: {error}") from None
    if array.dtype == object and hasattr(X, "iloc"):  # pandas has cells that are NA, not NaN
        array = X.to_numpy(na_value=np.nan)
    if array.dtype == object:
        try:
            return array.astype(np.float64)
        except (TypeError, ValueError) as error:
            if "complex" in str(error):
                raise ValueError(f"Complex data not supported\n{array}\n") from None
            raise type(error)(f"{name} has values that are not numbers: {error}"
                              f"{_column_without_numbers(X)}") from None
    return array


def _column_without_numbers(X: Any) -> str:
    """Name the first column of a frame that does not hold numbers, if there is one."""
    if len(getattr(X, "shape", ())) != 2 or not hasattr(X, "columns"):
        return ""
    for column, dtype in zip(X.columns, X.dtypes, strict=True):
        kind = getattr(dtype, "kind", "O")
        try:
            if kind not in "fiubmM":
                np.asarray(X[column]).astype(np.float64)
        except (TypeError, ValueError):
            kind = "not numbers"
        if kind not in "fiubO":
            return f" (column {column!r}; pick the numeric columns)"
    return ""


def _check_dtype(array: AnyArray, name: str) -> None:
    dtype = array.dtype
    if dtype.kind == "c":
        raise ValueError(f"Complex data not supported\n{array}\n")
    if dtype.kind not in "fiub" or (dtype.kind == "f" and dtype.itemsize > 8):
        hint = (f"convert with {name}.astype(float)" if dtype.kind in "fOUS"
                else "pick the numeric columns")
        raise TypeError(f"{name} has dtype {dtype}; allowed are {_ALLOWED}: {hint}.")


def _shape_message(array: AnyArray, name: str) -> str:
    if array.ndim == 0:
        return f"Expected 2D array, got scalar array instead:\narray={array}.\n{_reshape(name)}"
    if array.ndim == 1:
        return f"Expected 2D array, got 1D array instead:\narray={array}.\n{_reshape(name)}"
    return (f"Found array with dim {array.ndim}, while dim <= 2 is required: {name} has shape "
            f"{array.shape}; reshape it to (rows, features).")


def _reshape(name: str) -> str:
    return (f"Reshape your data either using {name}.reshape(-1, 1) if it has a single feature "
            f"or {name}.reshape(1, -1) if it contains a single sample.")


def check_features(X: Any, columns: int, features: int, names: Sequence[str] | None) -> None:
    """Refuse `X` of `columns` unless they are the `features` fitted, of the same `names` if any."""
    if columns != features:
        raise ValueError(f"X has {columns} features, but this model takes rows of {features}.")
    given = getattr(X, "columns", None)
    if names is not None and given is not None and list(map(str, given)) != list(names):
        raise ValueError("X has other columns, or in another order, than the model was fitted to: "
                         f"{', '.join(map(str, given))} instead of {', '.join(names)}.")


def names_of(X: Any) -> list[str] | None:
    """Return the names of the columns of a frame if all are strings: numbers are no names."""
    names = list(getattr(X, "columns", ()))
    return names if names and all(isinstance(name, str) for name in names) else None


def as_numbers(values: Any, name: str) -> AnyArray:
    """Return what goes with rows, such as a mean, as an aligned array of real numbers."""
    check_masks(values, name)
    given = np.asarray(values)
    if given.dtype.kind not in "fiub":
        raise TypeError(f"{name} has dtype {given.dtype}; expected real numbers"
                        f"{' (complex values are refused)' if given.dtype.kind == 'c' else ''}.")
    return given if given.flags.aligned else given.copy()


def as_vector(values: ArrayLike, size: int, name: str) -> FloatArray:
    """Return `values` as a finite float64 vector of `size` entries."""
    vector = np.ascontiguousarray(as_numbers(values, name), dtype=np.float64)
    if vector.shape != (size,):
        raise ValueError(f"{name} has shape {vector.shape}; expected ({size},).")
    if not np.isfinite(vector).all():
        raise ValueError(f"{name} contains NaN or infinity at index "
                         f"{int(np.flatnonzero(~np.isfinite(vector))[0])}.")
    return vector


def whole(value: Any, least: int) -> bool:
    """Whether `value` is an integer of at least `least`; True is not 1."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def finite(value: Any) -> bool:
    """Whether `value` is a real number, neither infinite nor NaN; True is not 1."""
    return isinstance(value, Real) and not is_flag(value) and math.isfinite(value)


def is_flag(value: Any) -> bool:
    """Whether `value` is True or False, of Python or NumPy."""
    return isinstance(value, bool | np.bool_)


def check_values(values: Mapping[str, Any], allowed: Mapping[str, tuple[bool, str]]) -> None:
    """Refuse the first of `values` that is out of its range: name to (valid, what is allowed)."""
    for name, (valid, range_) in allowed.items():
        if not valid:
            raise ValueError(f"{name}={values[name]!r} is not allowed; it must be {range_}.")


def check_square(order: int, instead: str) -> None:
    """Refuse to make a square matrix of more than LARGEST_SQUARE rows; say what to do `instead`."""
    if order > LARGEST_SQUARE:
        raise ValueError(f"a {order} x {order} matrix would take {order**2 * 8 / 2**30:.0f} GB; "
                         f"at most {LARGEST_SQUARE} features are allowed. {instead}")


def read_only(values: ArrayLike, dtype: DTypeLike | None = None) -> AnyArray:
    """Return a contiguous read-only view, so that a frozen value stays what it was made."""
    array = np.ascontiguousarray(values, dtype=dtype).view()
    array.flags.writeable = False
    return array


def frozen(value: Shared) -> Shared:
    """Return a dataclass whose arrays are read-only views: what it shares them with stays."""
    arrays = {name: read_only(each) for name, each in vars(value).items()
              if isinstance(each, np.ndarray)}
    return replace(value, **arrays)  # type: ignore[type-var]


def as_row(values: ArrayLike, size: int, name: str) -> AnyArray:
    """Return one row as a native, contiguous vector of `size` entries in its working dtype."""
    if isinstance(values, np.ndarray):
        row = as_matrix(values[None], name)[0]
    else:
        row = as_matrix([values], name)[0]
    if len(row) != size:
        raise ValueError(f"{name} has {len(row)} entries, but this model takes rows of {size}.")
    return np.require(row, working_dtype(row.dtype), ["C", "A"])


def as_scale(scale: ArrayLike | None, size: int) -> FloatArray | None:
    """Return column scales: positive, finite, float64."""
    if scale is None:
        return None
    vector = as_vector(scale, size, "scale")
    if (vector <= 0).any():
        raise ValueError(f"scale must be positive; entry {int(np.argmin(vector))} is "
                         f"{vector.min():g}.")
    return vector


def as_weights(sample_weight: ArrayLike | None, rows: int, *, some: bool = True
               ) -> FloatArray | None:
    """Return row weights: not negative, of a sum to MOST_WEIGHT, `some` not zero; None for none."""
    if sample_weight is None:
        return None
    given = as_numbers(sample_weight, "sample_weight")
    weights = as_vector(given if given.ndim else np.full(rows, given), rows, "sample_weight")
    if (weights < 0).any():
        raise ValueError(f"sample_weight must not be negative; row {int(np.argmin(weights))} has "
                         f"{weights.min():g}.")
    with np.errstate(over="ignore"):
        total = float(weights.sum())
    if total > MOST_WEIGHT:
        raise ValueError(f"sample_weight has sum {total:g}; at most {MOST_WEIGHT:g} is allowed. "
                         "Divide the weights by a power of ten.")
    if some and not weights.any():
        raise ValueError("sample_weight is zero for every row; give at least one positive weight.")
    return weights


def as_labels(y: Any, rows: int | None) -> AnyArray:
    """Return class labels as a vector, one for each of `rows` if known, none missing."""
    if y is None:
        raise ValueError("y is None; labels of the rows are needed.")
    check_masks(y, "y")
    labels = np.asarray(y)
    if labels.ndim != 1:
        raise ValueError(f"y has shape {labels.shape}; expected one label a row, (n,).")
    if rows is not None and len(labels) != rows:
        raise ValueError(f"y has {len(labels)} labels, but X has {rows} rows.")
    if labels.dtype.kind not in "biufUSOT":
        raise TypeError(f"y has dtype {labels.dtype}; labels may be numbers, bool or strings.")
    labels = _plain_numbers(labels)
    missing = ~np.isfinite(labels) if labels.dtype.kind == "f" else _missing(labels)
    if np.any(missing):
        row = int(np.argmax(missing))
        kind = "infinity" if labels.dtype.kind == "f" and np.isinf(labels[row]) else "NaN"
        raise ValueError(f"y contains {kind} at row {row}; every row needs a label.")
    if labels.dtype == object and len({isinstance(label, str) for label in labels}) > 1:
        raise TypeError("y mixes strings and other labels; use labels of one kind.")
    return labels


def _plain_numbers(labels: AnyArray) -> AnyArray:
    """Return numbers in an array of objects as an array of numbers, if that is exact."""
    if labels.dtype != object or not all(isinstance(x, Real | np.bool_) for x in labels):
        return labels
    plain = np.array(labels.tolist())
    return plain if plain.tolist() == labels.tolist() else labels


def _missing(labels: AnyArray) -> AnyArray:
    """Tell what labels are not equal to themselves, as NaN, or cannot say so, as NA of pandas."""
    try:
        return np.asarray(labels != labels)
    except TypeError:
        return np.array([not isinstance(label, str | Real) or label != label for label in labels])


def as_factors(components: ArrayLike, features: int | None = None) -> FloatArray:
    """Return components, (k, `features`) if these are known, as finite float64, by rows."""
    matrix = np.ascontiguousarray(as_numbers(components, "components"), dtype=np.float64)
    if matrix.ndim != 2 or features not in (None, matrix.shape[1]):
        raise ValueError(f"components has shape {matrix.shape}; expected (k, {features or 'd'}).")
    if not np.isfinite(matrix).all():
        raise ValueError("components contains NaN or infinity; all entries must be finite.")
    return matrix


def output(out: AnyArray | None, shape: tuple[int, ...], dtype: DTypeLike,
           *operands: Any) -> AnyArray:
    """Return `out` after checking it, or a new array when it is None.

    `operands` are what it must not share memory with: arrays, models, sparse rows, or None.
    """
    if out is None:
        return np.empty(shape, dtype)
    if not isinstance(out, np.ndarray) or out.shape != shape or out.dtype != np.dtype(dtype):
        given = (f"{out.dtype} of shape {out.shape}" if isinstance(out, np.ndarray)
                 else type(out).__name__)
        raise ValueError(f"out is {given}; expected a {np.dtype(dtype)} array of shape {shape}.")
    if not out.flags.carray:
        raise ValueError("out must be C-contiguous, aligned and writeable.")
    if any(np.may_share_memory(out, array) for given in operands for array in _arrays(given)):
        raise ValueError("out shares memory with an operand, which would change while it is read; "
                         "pass a separate array.")
    return out


def _arrays(given: Any) -> list[Any]:
    """Return `given` if it is an array, else the arrays that it has for attributes."""
    if hasattr(given, "__array__"):
        return [given]
    return [value for value in getattr(given, "__dict__", {}).values()
            if hasattr(value, "__array__")]


def raise_not_finite(X: AnyArray, name: str = "X", columns: Sequence[str] | None = None,
                     first_row: int = 0, allow_nan: bool = False) -> None:
    """Raise ValueError naming the first NaN or infinity of `X`; do nothing if it has none.

    Scans blocks of a few megabytes, so no mask of the whole array is made. `first_row` is the
    row of the data at which `X` begins; with `allow_nan` only infinity is an error.
    """
    if X.dtype.kind != "f":
        return
    step = max(1, _SCAN_BYTES // max(1, X.shape[1] * 8))
    first: tuple[int, int] | None = None
    count, kind = 0, "NaN"
    for start in range(0, X.shape[0], step):
        part = read(X[start:start + step])
        bad = np.isinf(part) if allow_nan else ~np.isfinite(part)
        count += int(bad.sum())
        if first is None and bad.any():
            row, column = divmod(int(np.argmax(bad)), X.shape[1])
            first = (start + row, column)
            kind = "NaN" if np.isnan(part[row, column]) else "infinity"
    if first is not None:
        row, column = first
        label = f"column {column}" if columns is None else f"column {column} ({columns[column]!r})"
        raise ValueError(
            f"Input {name} contains {kind} at row {first_row + row}, {label} ({count} non-finite "
            f"value{'s' if count > 1 else ''} in all). Remove or impute such values first"
            f"{_IMPUTES if name == 'X' and kind == 'NaN' else ''}.")


def raise_unobserved(X: AnyArray, first_row: int = 0) -> None:
    """Raise ValueError naming the first row of `X` of which every cell is NaN, if there is one."""
    empty = np.isnan(X).all(axis=1)
    if empty.any():
        raise ValueError(f"row {first_row + int(np.argmax(empty))} has no observed cell, so "
                         "nothing is known of it; leave such rows out.")


@contextmanager
def rows_named(block: AnyArray, columns: Sequence[str] | None, first_row: int,
               allow_nan: bool = False) -> Iterator[None]:
    """Let an error about NaN or infinity in a `block` name the row of all the data."""
    try:
        yield
    except ValueError:
        raise_not_finite(block, columns=columns, first_row=first_row, allow_nan=allow_nan)
        if allow_nan:
            raise_unobserved(block, first_row)
        raise
