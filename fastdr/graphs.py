"""Fitted models as ONNX graphs, for every runtime that reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import singledispatch
from importlib import import_module
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike

import fastdr
from fastdr.embedding import LinearlyMapped
from fastdr.network_model import NetworkModel
from fastdr.validation import AnyArray

Method = Literal["transform", "inverse_transform"]
Step = tuple[str, AnyArray | None]  # an ONNX operator and its second operand, if it takes one
OPSET, IR_VERSION = 13, 7  # read by every runtime of 2020 and later
GELU_OPSET, GELU_IR_VERSION = 20, 9  # of 2023 and later
ACTIVATIONS = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid", "gelu": "Gelu"}
LARGEST = 1 << 31  # bytes of a file in protobuf's format


@singledispatch
def steps(model: Any, method: Method) -> list[Step]:
    """Return what `method` of a model does to rows, as a chain of operators.

    Operands are arrays of the shapes that NumPy's operators of the same meaning take; "Sub" and
    "Add" keep float64 operands whole even in a float32 graph.
    """
    raise TypeError(f"{type(model).__name__} has no ONNX graph; pass a fitted fastdr model or "
                    "estimator.")


@steps.register
def _linear(model: LinearlyMapped, method: Method) -> list[Step]:
    mean, components, back, scale, divisors, turned = model.linear_map
    chain = list[Step]()
    if method == "transform":
        chain.append(("Sub", mean))
        if scale is not None:
            chain.append(("Div", scale))
        chain.append(("MatMul", components.T))
        if divisors is not None:
            chain.append(("Div", divisors))
        if turned:
            chain.append(("MatMul", back))
        return chain
    if turned:
        chain.append(("MatMul", components.T))
    if divisors is not None:
        chain.append(("Mul", np.where(np.isfinite(divisors), divisors, 0.0)))
    chain.append(("MatMul", back))
    if scale is not None:
        chain.append(("Mul", scale))
    return [*chain, ("Add", mean)]


@steps.register
def _network(model: NetworkModel, method: Method) -> list[Step]:
    encodes = method == "transform"
    chain: list[Step] = [("Sub", model.mean), ("Div", model.scale)] if encodes else []
    half = slice(None, model.code) if encodes else slice(model.code, None)
    for weights, biases, activation in zip(model.weights[half], model.biases[half],
                                           model.activations[half], strict=True):
        chain += [("MatMul", weights.T), ("Add", biases)]
        if activation != "identity":
            chain.append((ACTIVATIONS[activation], None))
    return chain if encodes else [*chain, ("Mul", model.scale), ("Add", model.mean)]


def to_onnx(model: Any, method: Method = "transform", *, dtype: DTypeLike | None = None) -> Any:
    """Return a fitted model's `transform` or `inverse_transform` as an ONNX model.

    Parameters
    ----------
    model : fitted model or estimator
        For example a `LinearModel`, a `PCA` or an `AutoEncoder`.
    method : {"transform", "inverse_transform"}
    dtype : float32 or float64, optional
        Of rows, results and arithmetic; by default that of the model's components. A float32
        graph subtracts a float64 mean in two parts, so rows far from zero lose nothing.

    Returns
    -------
    onnx.ModelProto
        Input "rows" (n, d) and output "scores" (n, k), or the reverse; n is free. Save it with
        ``onnx.save`` or pass its ``SerializeToString()`` to a runtime. Feature names stand in
        its metadata, as JSON.

    Raises
    ------
    ModuleNotFoundError
        If onnx is not installed.
    TypeError
        If the model has no graph, or `dtype` is another.
    ValueError
        If the model is not fitted, `method` is unknown, or the arrays leave the range of float32
        or the 2 GB of a file.

    Notes
    -----
    Opset 13, or 20 for GELU, which onnxruntime has in float32 only. NaN and infinity pass
    through: a graph cannot refuse rows.

    Examples
    --------
    >>> import numpy as np
    >>> from fastdr import LinearModel
    >>> from fastdr.graphs import steps
    >>> model = LinearModel(mean=[1.0, 2.0], components=[[0.0, 1.0]], variances=[4.0])
    >>> [operator for operator, operand in steps(model, "transform")]  # what the graph will hold
    ['Sub', 'MatMul']
    """
    if hasattr(model, "fit"):
        if not hasattr(model, "model_"):
            raise ValueError(f"this {type(model).__name__} is not fitted; call fit first.")
        model = model.model_
    if method not in ("transform", "inverse_transform"):
        raise ValueError(f"method={method!r} is not 'transform' or 'inverse_transform'.")
    chain = steps(model, method)
    kind = np.dtype(model.dtype if dtype is None else dtype)
    if kind not in (np.float32, np.float64):
        raise TypeError(f"dtype={dtype!r} is not float32 or float64.")
    return _model_proto(_import_onnx(), list(_fitting(chain, kind)), kind, method,
                        getattr(model, "feature_names", None))


def _import_onnx() -> Any:
    try:
        return import_module("onnx")
    except ModuleNotFoundError:
        raise ModuleNotFoundError('to_onnx needs onnx; run: pip install "fastdr[onnx]"') from None


def _fitting(chain: list[Step], kind: np.dtype[Any]) -> Iterator[Step]:
    """Yield the steps with operands in the dtype of the graph."""
    size = sum(operand.size for _, operand in chain if operand is not None) * kind.itemsize
    if size >= LARGEST:
        raise ValueError(f"the graph would hold {size / 1e9:.1f} GB of numbers; ONNX files end at "
                         "2 GB. Keep fewer components or use dtype='float32'.")
    for operator, operand in chain:
        if operand is None:
            yield operator, None
            continue
        with np.errstate(over="ignore", under="ignore"):
            rounded = operand.astype(kind)
        gone = (np.abs(rounded) < np.finfo(kind).tiny) & (operand != 0)
        lost = (gone.any() if operator in ("Div", "Mul") else  # where each entry is a factor
                operator == "MatMul" and gone.any() and not rounded[~gone].any())
        if lost or (np.isinf(rounded) & np.isfinite(operand)).any():
            raise ValueError(f"operands of {operator} leave the range of {kind}; use "
                             "dtype='float64'.")
        rest = (operand - rounded).astype(kind) if operator in ("Add", "Sub") else np.zeros(1)
        if rest.any():  # the larger part is next to the rows when subtracted, last when added
            parts = [rounded, rest] if operator == "Sub" else [rest, rounded]
            yield from ((operator, part) for part in parts)
        else:
            yield operator, rounded


def _model_proto(onnx: Any, chain: list[Step], kind: np.dtype[Any], method: Method,
                 names: tuple[str, ...] | None) -> Any:
    """Write the chain as a graph of one node a step."""
    helper, arrays = onnx.helper, import_module("onnx.numpy_helper")
    first, last = (("rows", "scores") if method == "transform" else ("scores", "rows"))
    nodes, operands = [], []
    for index, (operator, operand) in enumerate(chain):
        inputs = [f"step{index}" if index else first]
        if operand is not None:
            inputs.append(f"operand{index}")
            operands.append(arrays.from_array(np.ascontiguousarray(operand), inputs[1]))
        output = last if index == len(chain) - 1 else f"step{index + 1}"
        nodes.append(helper.make_node(operator, inputs, [output]))
    widths = [operand.shape for operator, operand in chain
              if operator == "MatMul" and operand is not None]
    number = helper.np_dtype_to_tensor_dtype(kind)
    graph = helper.make_graph(
        nodes, f"fastdr_{method}",
        [helper.make_tensor_value_info(first, number, ["n", widths[0][0]])],
        [helper.make_tensor_value_info(last, number, ["n", widths[-1][1]])], operands)
    gelu = any(operator == "Gelu" for operator, _ in chain)
    made = helper.make_model(
        graph, producer_name="fastdr", producer_version=fastdr.__version__,
        ir_version=GELU_IR_VERSION if gelu else IR_VERSION,
        opset_imports=[helper.make_opsetid("", GELU_OPSET if gelu else OPSET)])
    if names is not None:
        helper.set_model_props(made, {"feature_names": json.dumps(list(names))})
    onnx.checker.check_model(made, full_check=True)
    return made
