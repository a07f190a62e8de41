"""Training: the answers that are known in closed form, when it stops, and where rows come from."""

import tracemalloc

import numpy as np
import pytest
from scipy.optimize import minimize
from tolerance import rounding, subspace_angle

import fastdr
from fastdr.network_model import NetworkModel
from fastdr.sources import ArraySource, BlockSource
from fastdr.start import Shape, starting_model
from fastdr.training import Recipe, _trained_rows, loss_and_gradient, train

VARIANCES = np.array([9.0, 5.0, 2.5, 0.6, 0.3, 0.1])


@pytest.fixture
def ellipsoid(rng):
    """Rows (400, 6) whose covariance (divisor n) has the eigenvalues VARIANCES, and its axes."""
    rows = rng.standard_normal((400, 6))
    rows -= rows.mean(axis=0)
    rows = np.linalg.qr(rows)[0] * np.sqrt(400 * VARIANCES)
    axes = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    return rows @ axes, axes


def started(X, shape, init="pca", **kwargs):
    return starting_model(ArraySource(X), shape, init=init, standardize=False, dtype=None, seed=0,
                          **kwargs)


def test_a_linear_network_reaches_the_loss_of_pca_and_its_subspace(ellipsoid):
    X, axes = ellipsoid
    ae = fastdr.AutoEncoder((3,), init="random", standardize=False, learning_rate=0.02,
                            max_epochs=300, batch_size=100, early_stopping=False, random_state=1)
    ae.fit(X)
    least = VARIANCES[3:].sum()  # Baldi & Hornik (1989)
    loss = ae.reconstruction_error(X)
    assert least * (1 - 1e-12) <= loss <= least * 1.001
    np.testing.assert_allclose(ae.pca_loss_, least / VARIANCES.sum(), rtol=1e-12)
    np.testing.assert_allclose(-ae.score(X), loss / VARIANCES.sum(), rtol=1e-10)
    # A decoder at an angle loses at least the gap times its squared sine.
    decoder = np.linalg.qr(ae.model_.weights[1])[0].T
    excess = (loss - least) / (VARIANCES[2] - VARIANCES[3])
    assert subspace_angle(axes[:3], decoder) ** 2 <= excess + 1e-12


@pytest.mark.parametrize("hidden", [(3,), (5, 3)])
def test_deep_linear_networks_have_the_same_least_loss(ellipsoid, hidden):
    X, _ = ellipsoid
    sizes = (6, *hidden, *hidden[-2::-1], 6)
    layers = len(sizes) - 1
    start = started(X, Shape(sizes, ("identity",) * layers, len(hidden), False), "random")

    def value(parameters):
        return loss_and_gradient(moved(start, parameters), X)

    found = minimize(value, start.parameters, jac=True, method="L-BFGS-B",
                     options={"maxiter": 5000, "maxfun": 9000, "ftol": 0, "gtol": 1e-8})
    np.testing.assert_allclose(found.fun, VARIANCES[3:].sum() / VARIANCES.sum(), rtol=1e-8)


def moved(model, parameters):
    return NetworkModel(parameters, model.sizes, model.activations, model.code, model.mean,
                        model.scale, model.tied)


def test_weight_decay_leads_to_the_axes(ellipsoid):
    """Kunin, Bloom, Goeva & Seed (2019), theorem 2."""
    X, axes = ellipsoid
    rng = np.random.default_rng(2)
    start = NetworkModel.from_weights([rng.standard_normal((3, 6)), rng.standard_normal((6, 3))],
                                      [np.zeros(3), np.zeros(6)], ["identity"] * 2)
    penalty = 0.5
    decay = 2 * penalty / 6  # our loss is 2/d times ||X - X W1 W2||^2 / 2n, so is the penalty

    def value(parameters):
        return loss_and_gradient(moved(start, parameters), X, weight_decay=decay)

    found = minimize(value, start.parameters, jac=True, method="L-BFGS-B",
                     options={"maxiter": 5000, "maxfun": 9000, "ftol": 0, "gtol": 1e-11})
    kept, rest = VARIANCES[:3], VARIANCES[3:]
    least = rest.sum() / 2 + (2 * penalty - penalty**2 / kept).sum() / 2
    np.testing.assert_allclose(found.fun * 6 / 2, least, rtol=1e-8)
    encoder, decoder = moved(start, found.x).weights
    np.testing.assert_allclose(encoder, decoder.T, atol=1e-4)
    left, values, _ = np.linalg.svd(decoder, full_matrices=False)
    np.testing.assert_allclose(values, np.sqrt(1 - penalty / kept), atol=1e-4)
    np.testing.assert_allclose(np.abs(np.sum(left.T * axes[:3], axis=1)), 1, atol=1e-4)


def test_adam_with_weight_decay_comes_near_the_same_answer(ellipsoid):
    X, axes = ellipsoid
    ae = fastdr.AutoEncoder((2,), init="random", standardize=False, learning_rate=0.03,
                            weight_decay=0.05, max_epochs=400, batch_size=400,
                            early_stopping=False, random_state=0).fit(X)
    penalty = 6 * 0.05 / 2
    values = np.linalg.svd(ae.model_.weights[1], compute_uv=False)
    scaled = VARIANCES[:2] / (VARIANCES.sum() / 6)
    np.testing.assert_allclose(values, np.sqrt(1 - penalty / scaled), rtol=0.01)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("activation", ["identity", "relu", "gelu"])
@pytest.mark.parametrize("standardize", [False, True])
def test_the_start_is_pca_to_rounding(ellipsoid, floating, activation, tied, standardize):
    X = (ellipsoid[0] * [1, 10, 1, 0.1, 1, 1] + 7).astype(floating)
    names = (activation, activation, "identity", activation, activation, "identity")
    start = starting_model(ArraySource(X), Shape((6, 8, 4, 2, 4, 8, 6), names, 3, tied),
                           init="pca", standardize=standardize, dtype=None, seed=0)
    pca = fastdr.PCA(2, standardize=standardize).fit(X)
    scale = pca.scale_ if standardize else np.sqrt(pca.total_variance_ / 6)
    scale = scale * np.sqrt(399 / 400)
    errors = ((X - pca.inverse_transform(pca.transform(X))) / scale) ** 2
    loss = start.row_errors(X, np.ones(6)).mean() / 6
    slack = rounding(floating, 30, 1)
    np.testing.assert_allclose(loss, errors.mean(), atol=slack)
    np.testing.assert_allclose(start.pca_loss, errors.mean(), atol=slack)
    np.testing.assert_allclose(start.reconstruct(X), pca.inverse_transform(pca.transform(X)),
                               atol=rounding(floating, 60, np.abs(X).max()))


@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
def test_bounded_activations_start_near_pca(ellipsoid, activation):
    X, _ = ellipsoid
    start = started(X, Shape((6, 8, 2, 8, 6), (activation, "identity", activation, "identity"),
                             2, False))
    loss = start.row_errors(X, np.ones(6)).mean() / 6
    assert start.pca_loss < loss < start.pca_loss + 0.1


def test_too_few_units_pass_fewer_scores(ellipsoid):
    X, _ = ellipsoid
    start = started(X, Shape((6, 5, 3, 5, 6), ("relu", "identity", "relu", "identity"), 2, False))
    two_of_three = VARIANCES[2:].sum() / VARIANCES.sum()
    np.testing.assert_allclose(start.row_errors(X, np.ones(6)).mean() / 6, two_of_three)
    np.testing.assert_allclose(start.pca_loss, VARIANCES[3:].sum() / VARIANCES.sum())


def test_the_best_epoch_is_kept(rng):
    X = rng.standard_normal((60, 10))
    ae = fastdr.AutoEncoder((40, 2), learning_rate=0.02, batch_size=8, max_epochs=60, patience=7,
                            random_state=0).fit(X)
    curve = ae.held_out_loss_curve_
    seed = ae._seed()
    held_out = X[~_trained_rows(60, 0.1, seed)]
    assert len(held_out) == 6
    assert ae.loss_ == pytest.approx(-ae.score(held_out), rel=1e-12)
    if ae.best_epoch_:
        assert ae.loss_ == curve.min() == curve[ae.best_epoch_ - 1]
    assert ae.n_epochs_ == len(curve) == ae.best_epoch_ + 7 < 60
    assert ae.report_["stopped"] == "no better for 7 epochs"


@pytest.mark.parametrize("early_stopping", [True, False])
@pytest.mark.parametrize("rate", [1e4, 1e30])
def test_a_loss_that_explodes_stops_and_keeps_the_last_good_weights(ellipsoid, floating, rate,
                                                                    early_stopping):
    X = ellipsoid[0].astype(floating)
    make = fastdr.AutoEncoder((4, 2), optimizer="sgd", learning_rate=rate, random_state=0,
                              batch_size=16, early_stopping=early_stopping)
    with pytest.warns(fastdr.autoencoder.ConvergenceWarning, match=r"the loss was \S+ in "
                      "epoch .* weights of epoch 0 are kept. Use a learning_rate below"):
        make.fit(X)
    assert make.diverged_
    assert np.isfinite(make.model_.parameters).all()
    assert -make.score(X) == pytest.approx(make.pca_loss_, abs=1e-5)
    assert np.isfinite(make.loss_curve_).all()


def test_training_that_does_not_help_says_so(ellipsoid):
    X, _ = ellipsoid
    make = fastdr.AutoEncoder((3,), init="random", max_epochs=1, learning_rate=1e-6,
                              random_state=0)
    with pytest.warns(fastdr.autoencoder.ConvergenceWarning, match="never below .* which is more"):
        make.fit(X)


def blocks_of(X, size):
    return BlockSource(lambda: (X[i:i + size] for i in range(0, len(X), size)), X.shape[1],
                       dtype=X.dtype)


@pytest.mark.parametrize("early_stopping", [True, False])
def test_streams_and_mapped_files_train_alike(ellipsoid, stored, floating, early_stopping):
    X = ellipsoid[0].astype(floating)
    make = fastdr.AutoEncoder((4, 2), max_epochs=4, batch_size=64, random_state=3,
                              optimizer="sgd", early_stopping=early_stopping)
    expected = make.fit(X).model_
    for given in (stored(X, "memmap"), stored(X, "F"), stored(X, "swapped"),
                  stored(X, "reversed"), stored(X, "unaligned")):
        assert make.fit(given).model_.parameters.tobytes() == expected.parameters.tobytes()
    for size in (1, 7, 400):
        model = make.fit(blocks_of(X, size)).model_
        # Statistics of a stream are merged block by block.
        np.testing.assert_allclose(model.parameters, expected.parameters,
                                   atol=rounding(floating, 400, 1))
        assert len(model.held_out_losses) == 4 * early_stopping


@pytest.mark.parametrize(("later", "words"), [
    (250, "300 rows when it was first read, and has 250 now"),
    (350, "300 rows when it was first read, and has more now")])
def test_a_stream_of_other_rows_the_second_time_is_refused(rng, later, words):
    X = rng.standard_normal((350, 4))
    ends = iter([300, later])
    source = BlockSource(lambda: iter(np.split(X[:next(ends)], 10)), 4)
    with pytest.raises(ValueError, match=words):
        fastdr.AutoEncoder((2,), max_epochs=1).fit(source)


@pytest.mark.parametrize(("rows", "words"), [
    (np.ones((2, 3)), "X has 3 columns, but this model expects 4"),
    (np.full((2, 4), np.nan), "NaN at row 0"),
    (np.full((2, 4), 1e300), "leaves the range of float64")])
def test_gradients_of_rows_that_have_none_are_refused(rng, rows, words):
    model = fastdr.AutoEncoder((2,), max_epochs=1).fit(rng.standard_normal((20, 4))).model_
    with pytest.raises(ValueError, match=words):
        loss_and_gradient(model, rows)


def test_windows_of_a_stream_hold_every_row_once(monkeypatch, rng):
    monkeypatch.setattr("fastdr.training.block_rows", lambda features: 10)
    from fastdr.training import _shuffled
    X = np.arange(333.0)[:, None] * [1, -1]
    mask = rng.random(333) < 0.7
    seen, sizes = [], []
    for rows, order in _shuffled(blocks_of(X, 23), mask, 8, np.dtype("f8"), rng):
        seen += rows[order, 0].tolist()
        sizes.append(len(order))
    assert sorted(seen) == np.flatnonzero(mask).tolist()
    assert seen != sorted(seen)
    assert all(size % 8 == 0 for size in sizes[:-1])
    assert max(sizes) <= 40 + 23


def test_training_copies_no_more_rows_than_it_shuffles(tmp_path, monkeypatch, rng):
    monkeypatch.setattr("fastdr.training.block_rows", lambda features: 100)
    X = np.memmap(tmp_path / "rows.bin", "f4", "w+", shape=(20_000, 100))
    X[:] = rng.standard_normal(X.shape)
    start = started(X, Shape((100, 4, 100), ("identity", "identity"), 1, False))
    recipe = Recipe(max_epochs=2, noise=0.1)
    for given in (ArraySource(X), ArraySource(X.astype("f2")), blocks_of(X, 100)):
        tracemalloc.start()
        train(start, given, recipe, seed=0)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < X.nbytes / 4


def test_noise_is_learned_to_be_removed(rng):
    X = rng.standard_normal((3000, 2)) @ rng.standard_normal((2, 20))

    def fitted(noise):
        return fastdr.AutoEncoder((8,), init="random", noise=noise, random_state=0,
                                  max_epochs=40, learning_rate=0.01, batch_size=128).fit(X)

    noisy = X + 0.5 * X.std(axis=0) * rng.standard_normal(X.shape)
    plain, trained = fitted(0.0), fitted(0.5)
    lost = [((ae.decode(ae.encode(noisy)) - X) ** 2).mean() for ae in (plain, trained)]
    assert lost[1] < 0.5 * lost[0]
    np.testing.assert_array_equal(fitted(0.5).model_.parameters, trained.model_.parameters)


def test_rates_follow_the_schedule():
    cosine = [Recipe(max_epochs=4).rate(epoch) for epoch in range(4)]
    half = 0.5 * (1 + np.cos(np.pi * np.arange(4) / 4))
    np.testing.assert_allclose(cosine, 1e-3 * half, rtol=1e-15)
    assert Recipe(schedule="constant", learning_rate=0.3).rate(99) == 0.3


def test_training_goes_on_with_what_the_optimizer_remembers(ellipsoid):
    X, _ = ellipsoid
    shape = Shape((6, 4, 2, 4, 6), ("relu", "identity", "relu", "identity"), 2, False)
    start = started(X, shape)
    recipe = Recipe(schedule="constant", max_epochs=3, held_out=0.0, batch_size=50)
    whole = train(start, ArraySource(X), recipe, seed=0)
    ae = fastdr.AutoEncoder((4, 2), standardize=False, batch_size=50)
    ae._seed = lambda: 0
    for _ in range(3):
        ae.partial_fit(X)
    np.testing.assert_array_equal(ae.loss_curve_, whole.losses)
    np.testing.assert_array_equal(ae.model_.parameters, whole.parameters)


@pytest.mark.optional
def test_pytorch_trains_alike_and_weights_go_both_ways(rng, floating):
    torch = pytest.importorskip("torch")
    X = (rng.standard_normal((700, 3)) @ rng.standard_normal((3, 20))).astype(floating)
    shape = Shape((20, 16, 3, 16, 20), ("relu", "identity", "relu", "identity"), 2, False)
    start = starting_model(ArraySource(X), shape, init="random", standardize=True, dtype=None,
                           seed=1)
    net = torch.nn.Sequential(
        torch.nn.Linear(20, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3),
        torch.nn.Linear(3, 16), torch.nn.ReLU(), torch.nn.Linear(16, 20))
    net = net.to(getattr(torch, {"f8": "float64", "f4": "float32"}[floating.str[1:]]))
    keys = [name.partition(".")[0] for name in net.state_dict()][::2]
    net.load_state_dict({f"{key}.{part}": torch.tensor(value) for key, w, b in zip(
        keys, start.weights, start.biases, strict=True) for part, value in
        (("weight", w), ("bias", b))})
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    rows = torch.tensor((((X - start.mean) / start.scale)).astype(floating))
    curve = []
    for epoch in range(3):
        order = np.random.Generator(np.random.Philox(key=[1, epoch])).permutation(700)
        total = 0.0
        for i in range(0, 700, 64):
            batch = rows[order[i:i + 64]]
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(net(batch), batch)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)
        curve.append(total / 700)
    recipe = Recipe(schedule="constant", max_epochs=3, held_out=0.0, batch_size=64)
    ours = train(start, ArraySource(X), recipe, seed=1)
    eps = np.finfo(floating).eps
    np.testing.assert_allclose(ours.losses, curve, rtol=200 * eps)
    state = {name: value.numpy() for name, value in net.state_dict().items()}
    back = NetworkModel.from_weights(
        [state[f"{key}.weight"] for key in keys], [state[f"{key}.bias"] for key in keys],
        shape.activations, mean=start.mean, scale=start.scale)
    assert back.dtype == floating
    assert back.code == 2
    with torch.no_grad():
        theirs = net(rows).numpy() * start.scale + start.mean
    np.testing.assert_allclose(back.reconstruct(X), theirs, atol=200 * eps * np.abs(X).max())
