"""ONNX graphs, run by onnxruntime, against the models themselves."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
from reference import run_graph as run
from tolerance import product_error, rounding

import fastdr
from fastdr import LinearModel
from fastdr.graphs import steps, to_onnx

pytestmark = pytest.mark.optional
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


def model_of(dtype, *, whiten=False, scaled=False, offset=3.0, rank=4):
    rng = np.random.default_rng(4)
    axes = np.linalg.qr(rng.standard_normal((12, 4)))[0].T.astype(dtype)
    return LinearModel(offset * rng.standard_normal(12), axes, [4.0, 3.0, 2.0, 1.0], rank=rank,
                       whiten=whiten, scale=rng.uniform(0.5, 2, 12) if scaled else None,
                       feature_names=tuple(f"ä{i}" for i in range(12)))


@pytest.mark.parametrize("whiten", [False, "pca", "zca"])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("offset", [0.0, 3.0, 1e5])
def test_graphs_do_what_the_model_does(floating, whiten, scaled, offset):
    model = model_of(floating, whiten=whiten, scaled=scaled, offset=offset)
    X = (model.mean + np.random.default_rng(1).standard_normal((7, 12))).astype(floating)
    Z = model.transform(X)
    found = run(to_onnx(model), X)
    assert found.dtype == floating
    size = float(np.linalg.norm((X - model.mean) / (1 if model.scale is None else model.scale),
                                axis=1).max())
    np.testing.assert_allclose(found, Z, rtol=0, atol=product_error(floating, 12, size, 1.0))
    back = run(to_onnx(model, "inverse_transform"), Z)
    atol = product_error(floating, 12, 2 * size, 1.0) + rounding(
        floating, 1, np.abs(model.mean).max(), 2)
    np.testing.assert_allclose(back, model.inverse_transform(Z), rtol=0, atol=atol)


def test_axes_beyond_the_rank_and_no_axes(floating):
    model = model_of(floating, whiten="pca", rank=2)
    X = np.ones((3, 12), floating)
    found = run(to_onnx(model), X)
    np.testing.assert_array_equal(found[:, 2:], 0)
    back = run(to_onnx(model, "inverse_transform"), found)
    np.testing.assert_allclose(back, model.inverse_transform(model.transform(X)), rtol=0,
                               atol=product_error(floating, 12, 20.0, 1.0))
    empty = LinearModel(np.ones(3), np.zeros((0, 3), floating), [])
    assert run(to_onnx(empty), np.ones((2, 3), floating)).shape == (2, 0)


def test_from_an_estimator_in_another_dtype(digits):
    pca = fastdr.PCA(5, whiten=True).fit(digits)
    found = run(fastdr.to_onnx(pca, dtype="float32"), digits[:9].astype("f4"))
    assert found.dtype == np.float32
    size = float(np.linalg.norm(digits - pca.mean_, axis=1).max()) / pca.model_.deviations.min()
    np.testing.assert_allclose(found, pca.transform(digits[:9]), rtol=0,
                               atol=product_error("f4", 64, size, 1.0))


def test_names_and_producer_are_written():
    graph = to_onnx(model_of("f8"))
    properties = {entry.key: entry.value for entry in graph.metadata_props}
    assert json.loads(properties["feature_names"])[3] == "ä3"
    assert (graph.producer_name, graph.producer_version) == ("fastdr", fastdr.__version__)


@dataclass
class Dense:
    """Two dense layers, as an auto-encoder has them."""

    first: np.ndarray
    bias: np.ndarray
    second: np.ndarray
    dtype = np.dtype("f4")

    def transform(self, X):
        return np.tanh(X @ self.first + self.bias) @ self.second


def test_another_model_joins_with_one_line():
    steps.register(Dense, lambda m, method: [
        ("MatMul", m.first), ("Add", m.bias), ("Tanh", None), ("MatMul", m.second)])
    rng = np.random.default_rng(0)
    model = Dense(*(rng.standard_normal(s).astype("f4") for s in [(6, 5), 5, (5, 2)]))
    X = rng.standard_normal((4, 6)).astype("f4")
    # tanh of onnxruntime is a rational approximation, good to some units in the last place
    np.testing.assert_allclose(run(to_onnx(model), X), model.transform(X), rtol=0,
                               atol=rounding("f4", 11, 5.0))


def test_what_cannot_be_written_is_refused(monkeypatch):
    with pytest.raises(ValueError, match="not fitted"):
        to_onnx(fastdr.PCA())
    with pytest.raises(TypeError, match="int has no ONNX graph"):
        to_onnx(3)
    with pytest.raises(ValueError, match="method='fit'"):
        to_onnx(model_of("f8"), "fit")
    with pytest.raises(TypeError, match="float16"):
        to_onnx(model_of("f8"), dtype="float16")
    small = LinearModel(np.zeros(2), [[0.6, 0.8]], [1e-90], whiten="pca")
    with pytest.raises(ValueError, match="range of float32"):
        to_onnx(small, dtype="f4")
    with pytest.raises(ValueError, match="range of float32"):
        to_onnx(LinearModel([1e300, 0.0], [[0.6, 0.8]], [1.0]), dtype="f4")
    assert run(to_onnx(small), np.ones((1, 2))).shape == (1, 1)
    apart = fastdr.UnmixingModel([0.0, 1e-50], [[1e30, 1e50]], [[1e-60], [1e-50]])
    for method in ("transform", "inverse_transform"):
        with pytest.raises(ValueError, match="operands of MatMul leave the range of float32"):
            to_onnx(apart, method, dtype="f4")
    kept = fastdr.UnmixingModel([0.0, 1e-50], [[1e-50, 1.0]], [[1e-60], [1.0]])
    assert run(to_onnx(kept, dtype="f4"), np.ones((1, 2), "f4")) == 1.0
    monkeypatch.setattr("fastdr.graphs.LARGEST", 100)
    with pytest.raises(ValueError, match="2 GB"):
        to_onnx(model_of("f8"))
