"""scikit-learn's names patched: where, by whom, how long; what ours refuses; scripts."""

import logging
import pickle
import subprocess
import sys
import textwrap
import threading
import types
from contextlib import contextmanager

import numpy as np
import pytest
import sklearn.decomposition
import sklearn.discriminant_analysis
import sklearn.manifold._t_sne
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.decomposition import PCA, FastICA, fastica
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import NeighborhoodComponentsAnalysis
from sklearn.pipeline import make_pipeline
from sklearn.utils.validation import check_is_fitted
from tolerance import eigenvalue_error

import fastdr
from fastdr import backend

THEIRS = {"PCA": PCA, "FastICA": FastICA, "LinearDiscriminantAnalysis": LinearDiscriminantAnalysis}
HOMES = {"PCA": sklearn.decomposition, "FastICA": sklearn.decomposition,
         "LinearDiscriminantAnalysis": sklearn.discriminant_analysis}
WORDS = {"PCA": ("pca", "decomposition"), "FastICA": ("ica", "decomposition"),
         "LinearDiscriminantAnalysis": ("lda", "discriminant_analysis")}


def namespaces():
    """Return where each of scikit-learn's classes stands in loaded modules, by module and name."""
    theirs = set(map(id, THEIRS.values()))
    return {(label, name) for label, module in list(sys.modules.items())
            if isinstance(module, types.ModuleType)
            for name, value in list(vars(module).items()) if id(value) in theirs}


@pytest.fixture(autouse=True)
def _nothing_is_left_behind():
    before = namespaces()
    yield
    assert namespaces() == before
    assert not backend._in_place


@pytest.mark.parametrize("name", sorted(THEIRS))
def test_every_module_that_has_the_name_gets_ours(name):
    own = sys.modules[__name__]
    theirs = getattr(own, name)
    private = sys.modules[theirs.__module__]
    with fastdr.patched():
        for module in (HOMES[name], private, own):
            assert getattr(module, name) is getattr(backend, name)
            assert issubclass(getattr(module, name), getattr(fastdr, name))
    for module in (HOMES[name], private, own):
        assert getattr(module, name) is theirs


@pytest.mark.filterwarnings("ignore:.*did not converge")
def test_the_libraries_of_scikit_learn_look_ours_up(rng, caplog):
    X = rng.standard_normal((30, 5))
    with fastdr.patched(), caplog.at_level(logging.INFO, "fastdr.backend"):
        assert sklearn.manifold._t_sne.PCA is backend.PCA
        NeighborhoodComponentsAnalysis(2, init="pca", max_iter=1).fit(X, np.arange(30) % 2)
        NeighborhoodComponentsAnalysis(1, init="lda", max_iter=1).fit(X, np.arange(30) % 2)
    assert "PCA.fit: by fastdr" in caplog.text
    assert "LinearDiscriminantAnalysis.fit: by fastdr" in caplog.text


def test_patching_is_repeatable_nests_and_is_undone():
    for _ in range(3):
        fastdr.patch_sklearn()
    assert sklearn.decomposition.PCA is backend.PCA
    with fastdr.patched():
        fastdr.unpatch_sklearn()  # waits for the end of the block
        assert sklearn.decomposition.PCA is backend.PCA
    assert sklearn.decomposition.PCA is THEIRS["PCA"]
    with fastdr.patched(), fastdr.patched(["PCA"]):
        pass
    with pytest.raises(KeyError), fastdr.patched():  # noqa: PT012
        with fastdr.patched():
            pass
        assert sklearn.decomposition.PCA is backend.PCA
        raise KeyError
    fastdr.unpatch_sklearn()
    fastdr.unpatch_sklearn()


def test_some_names_only_and_no_others():
    with fastdr.patched("FastICA"):
        assert sklearn.decomposition.FastICA is backend.FastICA
        assert sklearn.decomposition.PCA is THEIRS["PCA"]
    with pytest.raises(ValueError, match="no 'NMF'; it has PCA, "), fastdr.patched(["NMF"]):
        pass
    with pytest.raises(AttributeError, match="no attribute 'NMF'"):
        _ = backend.NMF


def test_overlapping_blocks_of_threads():
    seen, start = [], threading.Barrier(8)

    def work(seed):
        start.wait()
        for _ in range(5):
            with fastdr.patched():
                seen.append(sklearn.decomposition.PCA is backend.PCA)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert seen == [True] * 40


def test_modules_that_derive_a_class_keep_the_one_they_derive_from(monkeypatch, caplog):
    module = types.ModuleType("deriving_library")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec("""
from sklearn.decomposition import PCA
class Mine(PCA):
    def fit(self, X, y=None):
        return PCA.fit(self, X)
""", vars(module))
    with fastdr.patched():
        assert module.PCA is THEIRS["PCA"]
        assert module.Mine(1).fit(np.eye(3)).components_.shape == (1, 3)
    assert "PCA is left alone in deriving_library" in caplog.text
    del module.Mine


def test_classes_derived_while_patched_are_ours(rng):
    with fastdr.patched():
        class Mine(PCA):
            def __init__(self, number=2):
                super().__init__(number)
                self.number = number

        mine = clone(Mine(number=1)).fit(rng.standard_normal((9, 3)))
        assert mine.report_["solver"]
        assert mine.components_.shape == (1, 3)


def test_what_was_made_before_goes_on(rng):
    X = rng.standard_normal((20, 4))
    before = PCA(2).fit(X)
    with fastdr.patched():
        assert isinstance(before, PCA)
        copied = pickle.loads(pickle.dumps(before))
        during = PCA(2).fit(X)
    for each in (before, copied):
        assert type(each) is THEIRS["PCA"]
        assert not isinstance(during, THEIRS["PCA"])
    np.testing.assert_array_equal(copied.transform(X), before.transform(X))
    again = pickle.loads(pickle.dumps(during))
    np.testing.assert_array_equal(again.transform(X), during.transform(X))


@pytest.mark.parametrize("fitted", [True, False])
def test_pickles_that_scikit_learn_wrote(rng, fitted):
    X = rng.standard_normal((20, 4))
    before = PCA(2, whiten=True)
    before = before.fit(X) if fitted else before
    written = pickle.dumps(before)
    with fastdr.patched():
        read = pickle.loads(written)
        assert type(read) is PCA
        assert read.get_params()["whiten"] is True
        if fitted:
            np.testing.assert_array_equal(read.transform(X), before.transform(X))
            np.testing.assert_array_equal(read.components_, before.components_)
        assert clone(read).fit(X).report_["solver"]


@pytest.mark.filterwarnings("ignore:n_components is too large", "ignore::fastdr.AccuracyWarning",
                            "ignore:FastICA did not converge")
def test_what_ours_refuses_is_fitted_by_the_original(rng, caplog):
    X = sparse.random_array((60, 20), density=0.2, rng=rng, format="csr")
    with fastdr.patched(["FastICA"]):
        ours = FastICA(2, random_state=0, max_iter=3, tol=1.0).fit(np.eye(9))
        ours.set_params(n_components=30)
        Z = ours.fit(X.toarray()).transform(X.toarray())
        assert "FastICA.fit: scikit-learn's original is used: n_components=30 exc" in caplog.text
        assert Z.shape == (60, 20)
        assert ours.n_features_in_ == 20
        assert ours.original_.tol == 1.0
        assert ours.original_.whiten_solver == "svd"  # its own default, as ours was left alone
        np.testing.assert_array_equal(ours.components_, ours.original_.components_)
        np.testing.assert_array_equal(
            pickle.loads(pickle.dumps(ours)).transform(X.toarray()), Z)
        assert list(ours.get_feature_names_out())[:2] == ["fastica0", "fastica1"]
        with pytest.raises(AttributeError, match="model_"):
            _ = ours.model_
        ours.set_params(n_components=2).fit(X.toarray())
        assert not hasattr(ours, "original_")
        assert ours.transform(X.toarray()).shape == (60, 2)
        mixed = FastICA(30, random_state=0, n_init=2)  # of ours alone: nobody can do it
        with pytest.raises(ValueError, match="scikit-learn's FastICA has no"):
            mixed.fit(X.toarray())


@pytest.fixture
def refused(monkeypatch):
    """A context in which ours refuses all rows."""
    def refuse(*arguments, **keywords):
        raise TypeError("no rows are taken")

    @contextmanager
    def context():
        with monkeypatch.context() as patch:
            patch.setattr("fastdr.estimator.as_matrix", refuse)
            yield

    return context


@pytest.mark.parametrize("name", backend.REPLACED)
def test_what_the_original_has_fitted_is_fitted(rng, refused, name):
    X, y = rng.laplace(size=(300, 4))**3, np.arange(300) % 3
    made = getattr(backend, name)()
    with pytest.raises(NotFittedError):
        check_is_fitted(made)
    with refused():
        made.fit(X, y)
    assert "original_" in vars(made)
    check_is_fitted(made)
    check_is_fitted(pickle.loads(pickle.dumps(made)))
    assert "original_" not in vars(made.fit(X, y))
    check_is_fitted(made)


@pytest.mark.parametrize("name", ["PCA", "IncrementalPCA"])
def test_the_original_knows_nothing_of_rows_in_batches(rng, refused, name):
    X = rng.standard_normal((60, 3))
    other = rng.standard_normal((50, 3)) * [1, 5, 1] + 5
    ours = getattr(backend, name)(2).partial_fit(X)
    seen, mean = ours.n_samples_seen_, ours.mean_
    with refused(), pytest.raises(TypeError, match="no rows are taken"):
        ours.partial_fit(other)  # it would go on without the rows before
    assert (ours.n_samples_seen_, "original_" in vars(ours)) == (seen, False)
    np.testing.assert_array_equal(ours.mean_, mean)
    with refused():
        ours.fit(other)
    assert vars(ours).keys() - ours.get_params().keys() == {"original_"}
    for attribute in ("mean_", "components_", "n_samples_seen_", "n_features_in_"):
        np.testing.assert_array_equal(getattr(ours, attribute, None),
                                      getattr(ours.original_, attribute, None))


def test_what_both_refuse_is_an_error_of_scikit_learn_after_ours():
    with fastdr.patched(), pytest.raises(ValueError, match="Input X contains NaN") as caught:
        PCA(1).fit([[1.0, 2], [np.nan, 3], [0, 0]])
    assert "at row 1, column 0" in str(caught.value.__cause__)
    with fastdr.patched():
        pca = PCA(2).fit(np.eye(3))
        with pytest.raises(ValueError, match="n_components"):
            pca.set_params(n_components=9).fit(np.eye(3))
        assert pca.transform(np.eye(3)).shape == (3, 2)  # as it was


def test_what_differs_is_said_when_it_is_replaced(caplog):
    with caplog.at_level(logging.INFO, "fastdr.backend"), fastdr.patched():
        PCA(1).fit(np.eye(3))
    for name, entry in backend.REPLACED.items():
        for difference in entry.differences:
            assert f"{name} differs: {difference}" in caplog.text
    assert "PCA of fastdr.backend stands now in sklearn." in caplog.text
    assert "PCA.fit: by fastdr; solver" in caplog.text
    assert "PCA of sklearn.decomposition._pca stands now in" in caplog.text


def test_the_function_fastica_is_ours_too(rng):
    X = rng.laplace(size=(2000, 3)) @ rng.standard_normal((3, 3))
    with fastdr.patched():
        whitening, unmixing, sources, mean = fastica(X, random_state=0, return_X_mean=True)
        ica = FastICA(random_state=0).fit(X)
    np.testing.assert_array_equal(sources, ica.transform(X))
    bound = 1e3 * np.finfo(float).eps * np.abs(sources).max()
    np.testing.assert_allclose((X - mean) @ (unmixing @ whitening).T, sources, rtol=0, atol=bound)


@pytest.mark.parametrize("jobs", [1, 2])
def test_searches_in_processes_use_ours(jobs):
    iris = load_iris()
    with fastdr.patched():
        search = GridSearchCV(make_pipeline(PCA(), LinearDiscriminantAnalysis()),
                              {"pca__n_components": [1, 2, 3]}, n_jobs=jobs)
        search.fit(iris.data, iris.target)
    assert search.best_params_ == {"pca__n_components": 3}
    assert isinstance(search.best_estimator_[0], fastdr.PCA)


GUIDE = """
import sys
import numpy as np
from sklearn.datasets import load_digits, load_iris
from sklearn.decomposition import PCA, FastICA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC

# Flowers on the two axes of most variance, and on those that tell the species apart.
iris = load_iris()
pca = PCA(n_components=2)
flat = pca.fit(iris.data).transform(iris.data)
lda = LinearDiscriminantAnalysis(n_components=2)
apart = lda.fit(iris.data, iris.target).transform(iris.data)
print("variance", pca.explained_variance_ratio_.round(6))
print("between", lda.explained_variance_ratio_.round(6), flat.shape, apart.shape)
print("right", round(lda.score(iris.data, iris.target), 6))

# How many axes does probabilistic PCA want? Held-out likelihood decides.
rows = np.random.RandomState(0).randn(300, 3) @ np.random.RandomState(1).randn(3, 8)
rows += 0.3 * np.random.RandomState(2).randn(300, 8)
scores = [cross_val_score(PCA(n_components=k), rows).mean() for k in range(1, 6)]
print("axes", 1 + int(np.argmax(scores)), np.round(scores, 4))

# Digits by randomized PCA, whitened, in a pipeline.
digits = load_digits()
pipe = make_pipeline(
    PCA(n_components=16, svd_solver="randomized", whiten=True, random_state=0),
    LinearSVC(random_state=0))
print("digits", pipe.fit(digits.data[::2], digits.target[::2]).score(
    digits.data[1::2], digits.target[1::2]) > 0.85)
print(PCA(n_components="mle", svd_solver="full").fit(iris.data).n_components_)
print(PCA(0.95, svd_solver="full").fit(digits.data).n_components_)

# Blind separation.
time = np.linspace(0, 8, 2000)
signals = np.c_[np.sin(2 * time), np.sign(np.sin(3 * time)), (time % 1) - 0.5]
signals += 0.1 * np.random.RandomState(0).normal(size=signals.shape)
mixed = signals @ np.array([[1, 1, 1], [0.5, 2, 1.0], [1.5, 1.0, 2.0]]).T
ica = FastICA(n_components=3, whiten="arbitrary-variance", random_state=0)
found = ica.fit_transform(mixed)
print("sources", np.abs(np.corrcoef(found.T, signals.T)[:3, 3:]).max(axis=0) > 0.9)
print("mixing", np.allclose(mixed, found @ ica.mixing_.T + ica.mean_))
print(sys.argv[1:], __name__, PCA.__module__, file=sys.stderr)
"""


def test_a_script_of_the_users_guide_prints_what_it_does_without_us(tmp_path):
    script = tmp_path / "guide.py"
    script.write_text(GUIDE)

    def run(*command):
        done = subprocess.run([sys.executable, *command, str(script), "--some", "argument"],
                              capture_output=True, text=True, timeout=120, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done

    plain, patched = run(), run("-m", "fastdr.backend", "--verbose")
    assert patched.stdout == plain.stdout
    assert "['--some', 'argument'] __main__ fastdr.backend\n" in patched.stderr
    assert "['--some', 'argument'] __main__ sklearn.decomposition._pca" in plain.stderr
    assert "fastdr.backend: PCA.fit: by fastdr" in patched.stderr
    assert "original is used" not in patched.stderr


def test_a_script_imports_its_neighbours_and_its_errors_are_seen(tmp_path):
    (tmp_path / "neighbour.py").write_text("from sklearn.decomposition import PCA\n")
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent("""
        import neighbour, sys
        assert neighbour.PCA.__module__ == "fastdr.backend"
        sys.exit(7)
    """))
    command = [sys.executable, "-m", "fastdr.backend"]
    done = subprocess.run([*command, str(script)], capture_output=True, text=True, timeout=60,
                          cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")
    done = subprocess.run([*command, "absent.py"], capture_output=True, text=True, timeout=60,
                          cwd=tmp_path)
    assert done.returncode == 2
    assert "there is no file 'absent.py'" in done.stderr


def test_main_leaves_the_process_as_it_was(tmp_path, monkeypatch):
    (tmp_path / "script.py").write_text("from sklearn.decomposition import PCA; PCA(1)")
    monkeypatch.setattr(sys, "argv", ["before"])
    monkeypatch.setattr(sys, "path", ["first", *sys.path])
    backend.main([str(tmp_path / "script.py")])
    assert sklearn.decomposition.PCA is THEIRS["PCA"]


def test_accuracy_far_from_zero_is_what_the_patch_is_for(rng):
    X = rng.standard_normal((2000, 4)) * [4, 3, 2, 1] + 1e9
    exact = np.linalg.eigvalsh(np.cov(X - 1e9, rowvar=False))[::-1]
    bound = eigenvalue_error(4, exact[0]) + 2 * exact[0] * 1e9 * np.finfo(float).eps
    with fastdr.patched():
        ours = PCA().fit(X).explained_variance_
    assert np.abs(ours - exact).max() <= bound < np.abs(PCA().fit(X).explained_variance_
                                                        - exact).max()
