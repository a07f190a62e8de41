"""Products of sparse rows, compiled by Numba; beside `_jit` the only module that imports it.

Rows are CSR: row i has values[p] at column indices[p] for indptr[i] <= p < indptr[i + 1]; indptr
int64, indices int32. Dense matrices are strips: rows of 64 bytes, 8 float64 or 16 float32, which
are a cache line and a vector. Numba leaves loops that short scalar, so the two that matter are
written in LLVM's vectors, which it fits to the machine. Nothing is checked here, and nothing is
cached on disk (see `_jit`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from llvmlite import ir
from numba import config, njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from fastdr.validation import AnyArray, FloatArray

LINE = 64  # bytes of a row of a strip
_I32 = ir.IntType(32)


class _Lines:
    """Rows of a strip as vectors of the dtype of `values`, for the body of an intrinsic."""

    def __init__(self, context: Any, builder: Any, values: Any) -> None:
        self.builder, self.align = builder, values.dtype.bitwidth // 8
        self.vector = ir.VectorType(context.get_value_type(values.dtype), LINE // self.align)

    def rows(self, data: Any) -> Any:
        """Return a pointer to numbers as one to rows."""
        return self.builder.bitcast(data, self.vector.as_pointer())

    def load(self, row: Any) -> Any:
        """Return a row; it need not stand at the beginning of a cache line."""
        return self.builder.load(row, align=self.align)

    def store(self, value: Any, row: Any) -> None:
        """Store a row."""
        self.builder.store(value, row, align=self.align)

    def times_plus(self, scalar: Any, row: Any, addend: Any) -> Any:
        """Return scalar row + addend, with one rounding where the machine can."""
        undefined, zeros = ir.Constant(self.vector, ir.Undefined), [0] * self.vector.count
        single = self.builder.insert_element(undefined, scalar, ir.Constant(_I32, 0))
        every = ir.Constant(ir.VectorType(_I32, self.vector.count), zeros)
        product = self.builder.fmul(self.builder.shuffle_vector(single, undefined, every), row,
                                    flags=("contract",))
        return self.builder.fadd(product, addend, flags=("contract",))


@contextmanager
def _entries(builder: Any, indices: Any, values: Any, first: Any, last: Any) -> Iterator[Any]:
    """Loop over first <= p < last with (values[p], indices[p])."""
    count = builder.sub(last, first)
    with cgutils.for_range(builder, count, intp=count.type) as loop:
        entry = builder.add(first, loop.index)
        column = builder.zext(builder.load(builder.gep(indices, [entry])), count.type)
        yield builder.load(builder.gep(values, [entry])), column


def _data(context: Any, builder: Any, signature: Any, args: Any) -> list[Any]:
    """Return pointers to the numbers of the four arrays."""
    return [make_array(kind)(context, builder, array).data
            for kind, array in zip(signature.args[:4], args[:4], strict=True)]


@intrinsic
def _gather(_: Any, indices: Any, values: Any, strip: Any, line: Any, first: Any, last: Any
            ) -> Any:
    """line += sum of values[p] strip[indices[p]] over first <= p < last."""  # noqa: D403
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        columns, numbers, *rows = _data(context, builder, signature, args)
        lines = _Lines(context, builder, values)
        given, out = map(lines.rows, rows)
        total = cgutils.alloca_once_value(builder, lines.load(out))
        with _entries(builder, columns, numbers, *args[4:]) as (value, column):
            row = lines.load(builder.gep(given, [column]))
            builder.store(lines.times_plus(value, row, builder.load(total)), total)
        lines.store(builder.load(total), out)
        return context.get_dummy_value()

    return types.void(indices, values, strip, line, types.int64, types.int64), code


@intrinsic
def _scatter(_: Any, indices: Any, values: Any, line: Any, strip: Any, first: Any, last: Any
             ) -> Any:
    """strip[indices[p]] += values[p] line over first <= p < last."""  # noqa: D403
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        columns, numbers, *rows = _data(context, builder, signature, args)
        lines = _Lines(context, builder, values)
        given, out = map(lines.rows, rows)
        row = lines.load(given)
        with _entries(builder, columns, numbers, *args[4:]) as (value, column):
            target = builder.gep(out, [column])
            lines.store(lines.times_plus(value, row, lines.load(target)), target)
        return context.get_dummy_value()

    return types.void(indices, values, line, strip, types.int64, types.int64), code


if config.DISABLE_JIT:  # intrinsics have no Python behind them

    def _gather(indices: Any, values: Any, strip: Any, line: Any, first: Any, last: Any) -> None:
        line += values[first:last] @ strip[indices[first:last]]

    def _scatter(indices: Any, values: Any, line: Any, strip: Any, first: Any, last: Any) -> None:
        strip[indices[first:last]] += np.outer(values[first:last], line)


@njit(nogil=True)
def add_product(indptr: Any, indices: Any, values: Any, strip: AnyArray, out: AnyArray) -> None:
    """out += A strip."""  # noqa: D403
    for row in range(indptr.size - 1):
        _gather(indices, values, strip, out[row], indptr[row], indptr[row + 1])


@njit(nogil=True)
def add_adjoint(indptr: Any, indices: Any, values: Any, strip: AnyArray, out: AnyArray) -> None:
    """out += A' strip."""  # noqa: D403
    for row in range(indptr.size - 1):
        _scatter(indices, values, strip[row], out, indptr[row], indptr[row + 1])


@njit(nogil=True)
def add_gram_action(indptr: Any, indices: Any, values: Any, weights: FloatArray, strip: AnyArray,
                    centre: AnyArray, out: AnyArray, sums: AnyArray) -> None:
    """out += A' W T and sums += 1' W T with T = A strip - 1 centre, in one read of A.

    W is diag(`weights`), the identity if there are none.
    """  # noqa: D403
    line = np.empty(centre.size, centre.dtype)
    for row in range(indptr.size - 1):
        for column in range(line.size):
            line[column] = -centre[column]
        _gather(indices, values, strip, line, indptr[row], indptr[row + 1])
        for column in range(line.size):
            if weights.size:
                line[column] *= weights[row]
            sums[column] += line[column]
        _scatter(indices, values, line, out, indptr[row], indptr[row + 1])


@njit(nogil=True)
def add_gram(indptr: Any, indices: Any, values: Any, weights: FloatArray, out: FloatArray) -> None:
    """Add A' W A to the upper triangle of out (d, d); indices ascend in each row."""
    for row in range(indptr.size - 1):
        for first in range(indptr[row], indptr[row + 1]):
            value = np.float64(values[first])
            if weights.size:
                value *= weights[row]
            target = out[indices[first]]
            for second in range(first, indptr[row + 1]):
                target[np.uint32(indices[second])] += value * values[second]


@njit(nogil=True)
def add_moments(indptr: Any, indices: Any, values: Any, weights: FloatArray, counts: Any,
                weight: FloatArray, mean: FloatArray, rest: FloatArray, squares: FloatArray
                ) -> None:
    """Update, for each column, the stored entries' count, weight, mean, sum of squares about it.

    One pass in float64 (Welford 1962, West 1979); entries of weight 0 are passed over. `rest` is
    what rounding took from the mean (Knuth's two-sum), which may be more than the entries vary.
    """
    for row in range(indptr.size - 1):
        added = weights[row] if weights.size else 1.0
        if added == 0.0:
            continue
        for entry in range(indptr[row], indptr[row + 1]):
            column = np.uint32(indices[entry])
            before = mean[column]
            step = (values[entry] - before) - rest[column]
            held = weight[column]
            weight[column] = held + added
            counts[column] += 1
            share = added / weight[column]
            moved = step * share
            if share > 0.5:  # light entries before may be far off
                before, rest[column] = values[entry], 0.0
                moved = -step * (held / weight[column])
            after = before + moved
            taken = after - before
            rest[column] += (before - (after - taken)) + (moved - taken)
            mean[column] = after
            squares[column] += step * step * (held * share)
