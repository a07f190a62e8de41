"""Networks: activations, rows through layers, gradients, updates, threads."""

import pickle
import threading

import mpmath
import numpy as np
import pytest
from reference import NETWORK_ACTIVATIONS, network_gradient, network_values
from tolerance import product_error

import fastdr
from fastdr._network import ACTIVATIONS, SLICE_ROWS, activate
from fastdr.network_model import NetworkModel
from fastdr.sources import ArraySource
from fastdr.training import Epochs, Recipe, loss_and_gradient

EXACT = {
    "tanh": (mpmath.tanh, lambda x: mpmath.sech(x) ** 2),
    "sigmoid": (lambda x: 1 / (1 + mpmath.exp(-x)),
                lambda x: 1 / (2 + 2 * mpmath.cosh(x))),
    "gelu": (lambda x: x * mpmath.ncdf(x), lambda x: mpmath.ncdf(x) + x * mpmath.npdf(x)),
}


def network(sizes=(7, 5, 3, 5, 7), activation="tanh", dtype="f8", tied=False, seed=1):
    """Return a model of small random weights, whose code and output are linear."""
    rng = np.random.default_rng(seed)
    layers = len(sizes) - 1
    weights = [(rng.standard_normal((o, i)) / np.sqrt(i)).astype(dtype)
               for i, o in zip(sizes, sizes[1:], strict=False)]
    if tied:
        weights[layers // 2:] = [w.T for w in weights[layers // 2 - 1::-1]]
    biases = [0.3 * rng.standard_normal(size) for size in sizes[1:]]
    names = [activation] * layers
    names[int(np.argmin(sizes[1:-1]))] = names[-1] = "identity"
    return NetworkModel.from_weights(
        weights, biases, names, mean=rng.standard_normal(sizes[0]),
        scale=rng.uniform(0.5, 2, sizes[0]), tied=tied)


def pointwise(name, x):
    z = np.array(x, ndmin=2)
    slope = np.empty_like(z)
    activate(name, z, np.zeros(z.size, z.dtype), slope)
    return z[0], slope[0]


@pytest.mark.parametrize("name", EXACT)
def test_activations_keep_their_digits(floating, rng, name):
    eps = np.finfo(floating).eps
    x = np.concatenate([rng.uniform(-12, 12, 300), rng.standard_normal(100),
                        10.0 ** rng.uniform(-30, 0, 40) * rng.choice([-1, 1], 40)])
    x = x.astype(floating)
    values, slopes = pointwise(name, x)
    value, slope = EXACT[name]
    with mpmath.workprec(200):
        true = np.array([[float(f(mpmath.mpf(float(t)))) for t in x] for f in (value, slope)])
    # exp(-x^2 / 2) magnifies the rounding of its argument
    growth = 1 + x.astype(float) ** 2 / 2 if name == "gelu" else 1.0
    assert (np.abs(values - true[0]) <= 4 * eps * growth * np.abs(true[0])).all()
    largest = np.maximum(np.abs(true[1]), 1.0) if name == "gelu" else np.abs(true[1])
    assert (np.abs(slopes - true[1]) <= 4 * eps * largest).all()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_at_the_ends(floating, name):
    big = 80.0 if floating == "f4" else 600.0
    x = np.array([-big, 0.0, big, np.nan] * 9, floating)
    values, slopes = pointwise(name, x)
    with np.errstate(over="ignore"):
        expected = NETWORK_ACTIVATIONS[name][0](x[:3].astype(float))
    np.testing.assert_allclose(values[:3], expected, rtol=4 * np.finfo(floating).eps,
                               atol=np.finfo(floating).tiny * big)
    assert np.isnan(values[3::4]).all()
    assert np.isfinite(slopes[:3]).all()
    np.testing.assert_array_equal(values[4:7], values[:3])


def test_rows_of_any_layout_and_dtype_pass_the_layers(stored, layout, dtype, rng):
    model = network(dtype="f4" if dtype in ("f2", "f4") else "f8")
    X = (rng.standard_normal((300, 7)) * 3 + 2).astype(dtype)
    given = stored(X, layout)
    before = given.copy()
    scaled = (X.astype(float) - model.mean) / model.scale
    _, values = network_values(model.weights, model.biases, model.activations, scaled)
    bound = product_error(model.dtype, 7 * 4, np.abs(scaled).max() * 7, 3)
    Z = model.transform(given)
    assert Z.dtype == model.dtype
    np.testing.assert_allclose(Z, values[2], rtol=0, atol=bound)
    rebuilt = values[4] * model.scale + model.mean
    np.testing.assert_allclose(model.reconstruct(given), rebuilt, rtol=0, atol=4 * bound)
    np.testing.assert_allclose(model.inverse_transform(Z), model.reconstruct(given), rtol=0,
                               atol=4 * bound)
    errors = ((rebuilt - X.astype(float)) ** 2).sum(axis=1)
    np.testing.assert_allclose(model.reconstruction_error(given, per_row=True), errors, rtol=0,
                               atol=bound * (1 + np.sqrt(errors.max())) * 50)
    np.testing.assert_array_equal(given, before)


def test_a_row_does_not_depend_on_the_others(floating, rng):
    model = network(dtype=floating)
    X = rng.standard_normal((2000, 7)).astype(floating)
    whole = model.transform(X)
    for part in (slice(0, 1), slice(100, 1500), slice(1999, 2000)):
        np.testing.assert_allclose(model.transform(X[part]), whole[part], rtol=0,
                                   atol=product_error(floating, 7, 7, 3))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gradient_equals_central_differences(rng, name, tied):
    model = network(activation=name, tied=tied)
    X = rng.standard_normal((40, 7))
    loss, gradient = loss_and_gradient(model, X, weight_decay=0.2)
    step = 1e-5
    numeric = np.empty_like(gradient)
    for place in range(gradient.size):
        ends = []
        for sign in (1, -1):
            moved = model.parameters.copy()
            moved[place] += sign * step
            twin = NetworkModel(moved, model.sizes, model.activations, model.code, model.mean,
                                model.scale, tied)
            ends.append(loss_and_gradient(twin, X, weight_decay=0.2)[0])
        numeric[place] = (ends[0] - ends[1]) / (2 * step)
    assert np.linalg.norm(gradient - numeric) <= 1e-6 * np.linalg.norm(gradient)
    errors = model.row_errors(X, np.ones(7))
    squares = sum((w**2).sum() for w in model.weights[:2 if tied else 4])
    np.testing.assert_allclose(loss, errors.mean() / 7 + 0.1 * squares, rtol=1e-13)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gradient_equals_its_twin(floating, rng, name, tied):
    sizes = (500, 150, 20, 150, 500)  # more blocks than one a layer, more slices than one a batch
    model = network(sizes, name, floating, tied)
    X = rng.standard_normal((300, 500))
    loss, gradient = loss_and_gradient(model, X)
    scaled = (X - model.mean) / model.scale
    weights = [w.astype(float) for w in model.weights]
    true, by_weights, by_biases = network_gradient(weights, model.biases, model.activations,
                                                   scaled, scaled)
    np.testing.assert_allclose(loss, true, rtol=100 * np.finfo(floating).eps)
    found = NetworkModel(gradient, sizes, model.activations, model.code, model.mean, model.scale,
                         tied)
    for layer, (w, b) in enumerate(zip(found.weights, found.biases, strict=True)):
        expected = by_weights[layer] + (by_weights[3 - layer].T if tied else 0)
        scale = np.linalg.norm(expected) / np.sqrt(np.sqrt(expected.size))
        bound = product_error(floating, 500 + 300, scale, 1)
        np.testing.assert_allclose(w, expected, rtol=0, atol=bound)
        np.testing.assert_allclose(b, by_biases[layer], rtol=0, atol=bound * 10)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_updates_equal_their_twins(floating, rng, optimizer):
    model = network(dtype=floating)
    X = rng.standard_normal((70, 7))  # batches of 32, 32 and 6
    recipe = Recipe(optimizer, momentum=0.8, weight_decay=0.01, batch_size=32)
    epochs = Epochs(model, recipe, seed=5)
    loss = epochs.run(ArraySource(X), 0.01)
    order = np.random.Generator(np.random.Philox(key=[5, 0])).permutation(70)
    parts = [part.astype(float) for pair in zip(model.weights, model.biases, strict=True)
             for part in pair]
    first, second = [0 * p for p in parts], [0 * p for p in parts]
    total = 0.0
    for step, start in enumerate((0, 32, 64), start=1):
        rows = (X[order[start:start + 32]] - model.mean) / model.scale
        part, by_weights, by_biases = network_gradient(parts[::2], parts[1::2],
                                                       model.activations, rows, rows)
        total += part * len(rows)
        slopes = [s for pair in zip(by_weights, by_biases, strict=True) for s in pair]
        for i, slope in enumerate(slopes):
            slope = slope + (0.01 * parts[i] if i % 2 == 0 else 0)
            if optimizer == "sgd":
                first[i] = 0.8 * first[i] + slope
                parts[i] = parts[i] - 0.01 * first[i]
            else:
                first[i] = 0.9 * first[i] + 0.1 * slope
                second[i] = 0.999 * second[i] + 0.001 * slope**2
                root = np.sqrt(second[i] / (1 - 0.999**step)) + 1e-8
                parts[i] = parts[i] - 0.01 * first[i] / (1 - 0.9**step) / root
    expected = np.concatenate([p.ravel() for p in parts])
    slack = 50 * np.finfo(floating).eps
    if optimizer == "adam":  # it divides slopes by their size, so their rounding by it too
        size = np.sqrt(np.concatenate([s.ravel() for s in second]))
        slack = slack * (1 + 3 * 0.01 * size.max() / size)
    assert (np.abs(epochs.parameters - expected) <= slack).all()
    np.testing.assert_allclose(loss, total / 70, rtol=100 * np.finfo(floating).eps)
    assert epochs.steps == 3


@pytest.mark.parametrize("tied", [False, True])
def test_results_do_not_depend_on_the_number_of_threads(floating, rng, tied):
    model = network((200, 120, 8, 120, 200), "gelu", floating, tied)
    X = rng.standard_normal((3 * 512 + 100, 200)).astype(floating)
    recipe = Recipe(batch_size=512, noise=0.2)
    assert SLICE_ROWS < 512
    found = {}
    for count in (1, 2, 3, 8):
        with fastdr.num_threads(count):
            epochs = Epochs(model, recipe, seed=3)
            losses = [epochs.run(ArraySource(X), 1e-3) for _ in range(2)]
            found[count] = (losses, epochs.parameters.tobytes(),
                            model.transform(X).tobytes(),
                            model.reconstruction_error(X, per_row=True).tobytes())
    assert all(value == found[1] for value in found.values())


def test_many_python_threads_train_at_once(rng):
    model = network((200, 120, 8, 120, 200))
    X = rng.standard_normal((1000, 200))
    recipe = Recipe(batch_size=256)

    def run():
        epochs = Epochs(model, recipe, seed=3)
        epochs.run(ArraySource(X), 1e-3)
        found.append(epochs.parameters.tobytes())

    found = []
    run()
    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 7
    assert len(set(found)) == 1


def test_a_forked_child_trains_on(run_python):
    code = """
import os, warnings, numpy as np, fastdr
warnings.filterwarnings("ignore", message=".*fork.*")
X = np.random.default_rng(0).standard_normal((600, 200))
make = lambda: fastdr.AutoEncoder((100, 4), max_epochs=2, random_state=0, batch_size=300).fit(X)
before = make().model_.parameters
child = os.fork()
if child == 0:
    os._exit(0 if np.array_equal(make().model_.parameters, before) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run_python(code).strip() == "0"


def test_rows_that_are_not_finite_are_named(floating, rng):
    model = network(activation="relu", dtype=floating)
    X = rng.standard_normal((1500, 7)).astype(floating)
    for value, word in ((np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")):
        X[1234, 5] = value
        for method in (model.transform, model.reconstruct, model.reconstruction_error):
            with pytest.raises(ValueError, match=f"X contains {word} at row 1234, column 5"):
                method(X)
    with pytest.raises(ValueError, match="Z contains NaN at row 0, column 1"):
        model.inverse_transform([[0.0, np.nan, 0.0]])
    with pytest.raises(ValueError, match="leave the range of float32 when scaled"):
        network(dtype="f4").transform(np.full((1, 7), 1e300))


@pytest.mark.parametrize(("parts", "words"), [
    ({"activations": ["tanh"]}, "2 weights, 2 biases and 1 activations"),
    ({"weights": [np.ones((1, 2)), np.ones((2, 2))]}, r"layer 1 has weights of shape \(2, 2\)"),
    ({"biases": [np.ones(2), np.ones(2)]}, r"layer 0 .* biases of shape \(2,\) behind 2 values"),
    ({"activations": ["tanh", "softmax"]}, "activation='softmax' is not allowed; it must be one"),
    ({"weights": [np.ones((1, 2)), np.ones((3, 1))], "biases": [np.ones(1), np.ones(3)]},
     "the last layer has 3 outputs; expected the 2 features"),
    ({"code": 2}, "code=2 must be a number of layers from 1 to 1"),
    ({"tied": True, "weights": [np.ones((1, 2)), np.zeros((2, 1))]}, "not those of layer 0"),
    ({"code": True}, "code=True must be a number of layers"),
    ({"code": 1.0}, "code=1.0 must be a number of layers"),
    ({"weights": [1.0, np.ones((2, 1))]}, r"layer 0 has weights of shape \(\) .* behind d values"),
    ({"weights": [np.full((1, 2), np.nan), np.ones((2, 1))]}, "parameters contains NaN"),
    ({"biases": [[np.inf], np.zeros(2)]}, "parameters contains NaN or infinity"),
    ({"mean": [0.0, np.nan]}, "mean contains NaN"),
    ({"scale": [1.0, 0.0]}, "scale must be positive"),
    ({"scale": [1.0, 1e-310]}, "scale must be positive and finite, 2.23e-308 or more"),
    ({"scale": [1.0, np.inf]}, "scale must be positive and finite"),
    ({"mean": [1.0]}, r"mean has shape \(1,\); expected \(2,\)"),
])
def test_weights_that_do_not_fit_are_refused(parts, words):
    given = {"weights": [np.ones((1, 2)), np.ones((2, 1))], "biases": [np.zeros(1), np.zeros(2)],
             "activations": ["tanh", "identity"]}
    with pytest.raises(ValueError, match=words):
        NetworkModel.from_weights(**{**given, **parts})


def test_widths_are_checked_and_outputs_can_be_given(rng):
    model = network()
    with pytest.raises(ValueError, match="X has 6 columns, but this model expects 7"):
        model.transform(np.ones((2, 6)))
    with pytest.raises(ValueError, match="Z has 4 columns, but this model expects 3"):
        model.inverse_transform(np.ones((2, 4)))
    out = np.empty((5, 3))
    X = rng.standard_normal((5, 7))
    assert model.transform(X, out=out) is out
    with pytest.raises(ValueError, match="out is float64 of shape"):
        model.transform(X, out=np.empty((5, 2)))


@pytest.mark.parametrize("tied", [False, True])
def test_models_are_frozen_and_survive_pickle_and_file(tmp_path, rng, floating, tied):
    model = network(dtype=floating, tied=tied)
    with pytest.raises(AttributeError):
        model.code = 1
    with pytest.raises(ValueError, match="read-only"):
        model.weights[0][0, 0] = 1
    model.save(tmp_path / "net.fdr")
    X = rng.standard_normal((9, 7))
    for twin in (fastdr.load(tmp_path / "net.fdr"), pickle.loads(pickle.dumps(model)),
                 NetworkModel.from_weights(model.weights, model.biases, model.activations,
                                           mean=model.mean, scale=model.scale, tied=tied)):
        assert (twin.dtype, twin.sizes, twin.code) == (model.dtype, model.sizes, model.code)
        np.testing.assert_array_equal(twin.parameters, model.parameters)
        np.testing.assert_array_equal(twin.reconstruct(X), model.reconstruct(X))
