"""Discriminants and sources in other programs: Projector, Numba and ONNX against the models."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest
from reference import run_graph

import fastdr

pytestmark = pytest.mark.optional


@pytest.fixture(scope="module", params=["f8", "f4"])
def data(request):
    rng = np.random.default_rng(5)
    X = rng.laplace(size=(2000, 6))
    y = np.digitize(X[:, 0], [-1, 0, 1])
    X = X @ rng.standard_normal((6, 6)) + 4
    return X.astype(request.param), y


@pytest.fixture(scope="module", params=["discriminants", "sources", "fewer sources"])
def model(request, data):
    X, y = data
    if request.param == "discriminants":
        return fastdr.LinearDiscriminantAnalysis().fit(X, y).model_
    return fastdr.FastICA(None if request.param == "sources" else 3).fit(X).model_


def tolerance(model, X):
    """Rounding of products with the components and the way back."""
    found = model.linear_map
    eps = float(np.finfo(X.dtype).eps)
    spread = np.linalg.norm(found.components, axis=1).max()
    size = (np.abs(X).max() + np.abs(model.mean).max()) * np.sqrt(X.shape[1])
    scores = 8 * X.shape[1] * eps * spread * size
    return scores, scores * len(found.back) * np.linalg.norm(found.back, axis=1).max() + eps * size


def test_projector_does_what_the_model_does(model, data):
    X, _ = data
    scores, rows = tolerance(model, X)
    for p in (model.projector(), copy.copy(model.projector()),
              pickle.loads(pickle.dumps(model.projector()))):
        Z = p(X[:5])
        np.testing.assert_allclose(Z, model.transform(X[:5]), rtol=0, atol=scores)
        np.testing.assert_allclose(p(X[0]), Z[0], rtol=0, atol=scores)
        back = model.inverse_transform(Z)
        np.testing.assert_allclose(p.inverse(Z), back, rtol=0, atol=rows)
        gap = np.linalg.norm(X[:5] - back.astype("f8"), axis=1)
        error = 2 * gap * rows * np.sqrt(6) + 6 * rows**2
        assert (np.abs(p.error(X[:5]) - gap**2) <= error).all()
        whole = np.linalg.norm(X - model.inverse_transform(model.transform(X)).astype("f8"), axis=1)
        assert abs(model.reconstruction_error(X) - (whole**2).mean()) <= error.max()


def test_scores_of_scores_are_themselves(model, data):
    """The components undo the way back, to rounding."""
    found = model.linear_map
    identity = found.components.astype("f8") @ found.back.T.astype("f8")
    product = np.linalg.norm(found.components) * np.linalg.norm(found.back)
    np.testing.assert_allclose(identity, np.eye(len(identity)), rtol=0,
                               atol=16 * np.finfo(model.dtype).eps * product)


def test_compiled_functions(model, data):
    from fastdr import jit

    X = data[0].astype("f8")
    scores, rows = tolerance(model, data[0])
    m, Z = model.jit(), np.empty((4, model.n_outputs))
    jit.project(m, X[:4], Z)
    np.testing.assert_allclose(Z, model.transform(X[:4]), rtol=0, atol=scores)
    back = np.empty((4, 6))
    jit.inverse(m, Z, back)
    np.testing.assert_allclose(back, model.inverse_transform(Z), rtol=0, atol=rows)


def test_graphs(model, data):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    X = data[0][:7]
    Z, (scores, rows) = model.transform(X), tolerance(model, X)
    wanted = {"transform": (X, Z, scores), "inverse_transform": (
        Z, model.inverse_transform(Z), rows)}
    for method, (given, expected, atol) in wanted.items():
        found = run_graph(fastdr.to_onnx(model, method), given)
        assert found.dtype == X.dtype
        np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("activation", ["identity", "relu", "tanh", "sigmoid", "gelu"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.filterwarnings("ignore:The loss was never below")
def test_graphs_of_networks(data, activation, tied):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    X = data[0]
    model = fastdr.AutoEncoder((5, 2), activation=activation, tied=tied, max_epochs=2,
                               random_state=0).fit(X).model_
    dtype = "f4" if activation == "gelu" else X.dtype  # which onnxruntime has in float32 only
    for method, given in (("transform", X[:9]), ("inverse_transform", model.transform(X[:9]))):
        found = run_graph(fastdr.to_onnx(model, method, dtype=dtype), given.astype(dtype))
        expected = getattr(model, method)(given)
        gain = np.prod([1 + np.linalg.norm(w, 2) for w in model.weights])
        size = gain * (1 + np.abs((X - model.mean) / model.scale).max()) * max(
            1, model.scale.max()) + np.abs(model.mean).max()
        np.testing.assert_allclose(found, expected, rtol=0,
                                   atol=16 * 6 * np.finfo(dtype).eps * size)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_arrays_that_are_not_finite_are_refused(model, wrong):
    names = [each.name for each in dataclasses.fields(model)
             if getattr(getattr(model, each.name), "dtype", np.dtype(int)).kind == "f"]
    assert "means" in names or "mixing" in names
    for name in names:
        array = getattr(model, name).copy()
        array.flat[-1] = wrong
        with pytest.raises(ValueError, match=f"{name} contains NaN or infinity"):
            dataclasses.replace(model, **{name: array})
