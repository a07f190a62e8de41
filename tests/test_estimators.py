"""Every estimator: what users of scikit-learn do with one, in one table."""

import copy
import pickle

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import fastdr

# An estimator joins with one line here: what makes it, and a parameter with values to search.
TABLE = {
    "PCA": (fastdr.PCA(2), {"n_components": [1, 2, 3]}),
    "PCA zca": (fastdr.PCA(3, whiten="zca", standardize=True), {"whiten": ["zca", "pca", False]}),
    "PCA missing": (fastdr.PCA(2, missing="em"), {"n_components": [1, 2, 3]}),
    "LinearDiscriminantAnalysis": (fastdr.LinearDiscriminantAnalysis(n_components=2),
                                   {"shrinkage": [None, 0.1, "auto"]}),
    "FastICA": (fastdr.FastICA(2), {"fun": ["logcosh", "cube"]}),
    "AutoEncoder": (fastdr.AutoEncoder((2,), max_epochs=10, random_state=0),
                    {"hidden": [(1,), (2,), (8, 2)]}),
}
# Estimators with parameters that the modules' own tests do not check.
CHECKED = [
    fastdr.FastICA(algorithm="deflation"),
    fastdr.FastICA(n_components=1, whiten=False),
    fastdr.LinearDiscriminantAnalysis(solver="eigen"),
    fastdr.PCA(1, svd_solver="randomized"),
    fastdr.PCA(1, missing="em"),
]

pytestmark = pytest.mark.filterwarnings(
    "ignore::fastdr.AccuracyWarning",  # flowers have no independent sources
    "ignore::sklearn.exceptions.ConvergenceWarning", "ignore:Ignoring n_components")


@pytest.fixture(params=TABLE.values(), ids=TABLE.keys())
def row(request):
    """An estimator that is not fitted, and values of a parameter."""
    estimator, values = request.param
    return clone(estimator), values


@pytest.fixture(scope="module")
def flowers():
    """Iris: rows and labels."""
    return load_iris(return_X_y=True)


@pytest.mark.parametrize("estimator", CHECKED, ids=str)
@pytest.mark.filterwarnings("ignore:.*small singular values")
def test_checks_of_scikit_learn(estimator):
    for result in check_estimator(estimator, on_skip=None):
        skipped = result["check_name"] == "check_array_api_input"  # needs SCIPY_ARRAY_API=1
        assert result["status"] == "passed" or skipped, result


def test_pickles_and_copies(row, flowers):
    X, y = flowers
    fitted = row[0].fit(X, y)
    for other in (pickle.loads(pickle.dumps(fitted)), clone(fitted).fit(X, y)):
        np.testing.assert_array_equal(other.transform(X), fitted.transform(X))


def test_files_of_joblib_and_mapped_rows(row, flowers, tmp_path):
    X, y = flowers
    joblib.dump((X, row[0].fit(X, y)), tmp_path / "both.joblib")
    mapped, fitted = joblib.load(tmp_path / "both.joblib", mmap_mode="r")
    assert isinstance(mapped, np.memmap)
    assert not mapped.flags.writeable
    expected = row[0].transform(X)
    np.testing.assert_array_equal(fitted.transform(mapped), expected)
    np.testing.assert_array_equal(clone(fitted).fit(mapped, y).transform(mapped), expected)
    np.testing.assert_array_equal(mapped, X)


def test_grid_search_in_processes(row, flowers):
    X, y = flowers
    estimator, values = row
    pipeline = make_pipeline(StandardScaler(), estimator, GaussianNB())
    name = pipeline.steps[1][0]
    grid = {f"{name}__{parameter}": each for parameter, each in values.items()}
    search = GridSearchCV(pipeline, grid, cv=3, n_jobs=2).fit(X, y)
    assert search.best_score_ > 0.8
    serial = cross_val_score(search.best_estimator_, X, y, cv=3)
    assert serial.mean() == search.best_score_  # to the bit, in another process


def test_columns_of_frames(row, flowers):
    pandas = pytest.importorskip("pandas")
    X, y = flowers
    frame = pandas.DataFrame(X, columns=["a", "b", "c", "d"], index=np.arange(150) + 7)
    columns = ColumnTransformer([("reduced", row[0], ["a", "c", "d"])], remainder="passthrough")
    out = columns.set_output(transform="pandas").fit(frame, y).transform(frame)
    expected = clone(row[0]).fit(X[:, [0, 2, 3]], y).transform(X[:, [0, 2, 3]])
    np.testing.assert_array_equal(out.to_numpy()[:, :-1], expected)
    np.testing.assert_array_equal(out["remainder__b"], frame["b"])
    assert list(out.index) == list(frame.index)
    prefix = f"reduced__{type(row[0]).__name__.lower()}"
    assert list(out.columns)[:-1] == [f"{prefix}{i}" for i in range(expected.shape[1])]
    assert list(columns.get_feature_names_out()) == list(out.columns)


@pytest.mark.parametrize("kind", ["f8", "f4"])
@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_output_is_a_frame(row, flowers, library, kind):
    frames = pytest.importorskip(library)
    X, y = flowers
    X = X.astype(kind)
    given = frames.DataFrame(dict(zip("abcd", X.T, strict=True)))
    plain = clone(row[0]).fit(X, y).transform(X)
    out = row[0].set_output(transform=library).fit(given, y).transform(given)
    assert isinstance(out, frames.DataFrame)
    assert list(row[0].feature_names_in_) == list("abcd")
    assert {str(each).lower() for each in out.dtypes} == {str(plain.dtype)}
    np.testing.assert_array_equal(out.to_numpy(), plain)


SEEDED = [name for name, row in TABLE.items() if hasattr(row[0], "random_state")]


@pytest.mark.parametrize("name", SEEDED)
def test_seeds_of_every_kind_repeat_and_others_are_refused_by_name(name, flowers):
    X = flowers[0]
    makers = [lambda: 7, lambda: np.int64(7), lambda: 2**40, lambda: np.random.default_rng(7),
              lambda: np.random.RandomState(7)]
    for make in makers:
        first, again = (clone(TABLE[name][0]).set_params(random_state=make()).fit(X).transform(X)
                        for _ in range(2))
        np.testing.assert_array_equal(first, again)
    for wrong in (-1, 1.5, True, "7", np.nan, [7]):
        with pytest.raises(ValueError, match="random_state=.* must be an integer of at least 0, "):
            clone(TABLE[name][0]).set_params(random_state=wrong).fit(X)


def public_arrays(model):
    """Arrays that a model keeps and gives away, by name."""
    found = {name: getattr(model, name) for name in dir(model) if not name.startswith("_")}
    return {name: value for name, value in found.items()
            if isinstance(value, np.ndarray) and getattr(model, name) is value}


@pytest.mark.parametrize("name", [*TABLE, "TruncatedSVD", "LSI"])
def test_models_stay_frozen_in_use_and_in_copies(name, flowers):
    X, y = flowers
    made = TABLE[name][0] if name in TABLE else getattr(fastdr, name)(2)
    model = clone(made).fit(X, y).model_ if name != "LSI" else made.fit(X).model_
    before = pickle.dumps(model)
    expected = model.transform(X)
    arrays = public_arrays(model)
    assert len(pickle.dumps(model)) == len(before)
    for twin in (model, pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert public_arrays(twin).keys() == arrays.keys()
        for part, array in public_arrays(twin).items():
            assert not array.flags.writeable, part
            np.testing.assert_array_equal(array, arrays[part])
        np.testing.assert_array_equal(twin.transform(X), expected)


def test_coefficients_of_a_discriminant_are_no_way_into_it(flowers):
    lda = fastdr.LinearDiscriminantAnalysis().fit(*flowers)
    for array in (lda.coef_, lda.intercept_):
        with pytest.raises(ValueError, match="read-only"):
            array *= 2


@pytest.mark.parametrize("estimator", [
    fastdr.PCA(2), fastdr.IncrementalPCA(2), fastdr.IncrementalPCA(2, window=100),
    fastdr.IncrementalPCA(2, forgetting=0.99), fastdr.LinearDiscriminantAnalysis()], ids=str)
def test_moments_that_batches_leave_are_no_way_into_the_stream(estimator, flowers):
    X, y = flowers
    more = {"classes": [0, 1, 2]} if hasattr(estimator, "predict") else {}
    made = [clone(estimator).partial_fit(X, y, **more) for _ in range(2)]
    kept = pickle.dumps(made[0].moments_)
    for name, array in vars(made[0].moments_).items():
        if isinstance(array, np.ndarray) and array.dtype.kind == "f":
            with pytest.raises(ValueError, match="read-only"):
                getattr(made[0].moments_, name)[...] = 0
    assert pickle.dumps(made[0].moments_) == kept
    for each in made:
        each.partial_fit(X[:7], y[:7])
    np.testing.assert_array_equal(made[0].transform(X), made[1].transform(X))
