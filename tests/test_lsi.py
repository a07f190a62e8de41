"""Latent semantic indexing: cases C110 to C116, texts, updates, search, files, the command."""

import json
import tracemalloc
from importlib import import_module

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.utils.estimator_checks import check_estimator
from tolerance import assert_orthonormal, rounding
from typer.testing import CliRunner

import fastdr
from fastdr import LSI, LSIModel
from fastdr.cli import application
from fastdr.documents import read_documents

D = np.array([[1.0, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 0], [0, 0, 0, 0]])
TEXTS = ["Apples and pears", "pears, apples, plums", "gears and wheels", "wheels turn gears",
         "plums and pears", ""]
EPS = np.finfo(float).eps


def counts(rng, rows=40, features=12):
    """Counts of terms, a third of them not zero."""
    return rng.poisson(0.4, (rows, features)).astype(float)


def test_c110_c111_the_worked_example():
    """Term 3 occurs with term 2 only; an empty document is near nothing."""
    for X in (D, sp.csr_array(D), sp.coo_matrix(D.astype(int))):
        lsi = LSI(2, weighting=None).fit(X)
        np.testing.assert_allclose(lsi.singular_values_, [2, 1.618034], atol=5e-7)
        np.testing.assert_allclose(lsi.similarities([[0, 0, 0, 1]]), [[0, 0, 1, 1, 0]],
                                   atol=16 * EPS)
        assert not lsi.documents_[4].any()
        assert lsi.query(np.zeros((1, 4))) == []
        hits = lsi.query(np.array([[0, 0, 0, 1]]), top=2)
        assert [hit.document for hit in hits] == [2, 3]


@pytest.mark.parametrize("dtype", [bool, "u1", ">i4", "f2", "<f4", ">f8", object])
def test_counts_of_any_dtype(dtype):
    plain, found = LSI(2).fit(D), LSI(2).fit(D.astype(dtype))
    np.testing.assert_array_equal(found.documents_, plain.documents_)
    assert found.query(D[:1].astype(dtype)) == plain.query(D[:1])


def test_c111_folding_in_is_exact(rng):
    """Documents land where the fit put them; scaled by S, on the left singular vectors."""
    X = counts(rng)
    for weighting in ("tfidf", "log-entropy", None):
        lsi = LSI(5, weighting).fit(X)
        np.testing.assert_array_equal(lsi.transform(X), lsi.documents_)
        np.testing.assert_array_equal(lsi.transform(sp.csc_array(X[7:9])), lsi.documents_[7:9])
        assert_orthonormal(lsi.transform(X, scaled=True).T)
        assert_orthonormal(lsi.components_)


def tfidf(X):
    """Counts times ln((1 + n) / df), rows of length 1."""
    rows = X * np.log((1 + len(X)) / np.maximum((X > 0).sum(axis=0), 1))
    lengths = np.linalg.norm(rows, axis=1)
    return rows / np.where(lengths > 0, lengths, 1.0)[:, None]


def test_weightings_are_those_of_the_literature(rng):
    X = counts(rng)
    model = LSI(3).fit(X).model_
    np.testing.assert_allclose(model.weighed(X).toarray(), tfidf(X), rtol=1e-14)
    model = LSI(3, "log-entropy").fit(X).model_
    p = X / X.sum(axis=0)
    entropy = 1 + np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0).sum(axis=0) / np.log(40)
    np.testing.assert_allclose(model.weighed(X).toarray(), np.log2(1 + X) * entropy, rtol=1e-13)
    np.testing.assert_array_equal(LSI(3, None).fit(X).model_.weighed(X).toarray(), X)


def test_axes_are_those_of_a_dense_decomposition(rng):
    X = counts(rng, 60, 30)
    lsi = LSI(8).fit(X)
    full = tfidf(X)
    U, S, V = np.linalg.svd(full, full_matrices=False)
    best = (U[:, :8] * S[:8]) @ V[:8]
    gap = S[7] - S[8]
    np.testing.assert_allclose(lsi.documents_ @ lsi.components_, best, rtol=0,
                               atol=rounding(float, 30, S[0]**2 / gap))


def test_texts_are_cut_counted_and_found():
    lsi = LSI(2).fit(TEXTS)
    np.testing.assert_array_equal(lsi.terms_, ["and", "apples", "gears", "pears", "plums",
                                               "turn", "wheels"])
    same = LSI(2).fit(CountVectorizer().fit_transform(TEXTS), terms=lsi.terms_)
    np.testing.assert_array_equal(lsi.documents_, same.documents_)
    assert {hit.document for hit in lsi.query("apples", 3)} == {0, 1, 4}
    assert {hit.document for hit in lsi.similar(2, 1)} == {3}
    assert 2 not in [hit.document for hit in lsi.similar(2, 6)]
    assert lsi.query("unknown words") == []
    assert lsi.query("") == []
    assert {term for term, _ in lsi.terms(1, 2)} == {"gears", "wheels"}
    assert lsi.similarities(["plums"]).shape == (1, 6)
    assert (lsi.similarities(["", "nothing"]) == 0).all()
    assert np.abs(lsi.similarities(TEXTS)).max() <= 1
    assert lsi.model_.titles[1] == "pears, apples, plums"


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learns_contract():
    outcomes = check_estimator(fastdr.LSI(2), on_fail=None)
    failed = {told["check_name"] for told in outcomes if told["status"] == "failed"}
    # Texts are one column and have no number of features; errors have other words and types.
    assert failed <= {"check_n_features_in", "check_n_features_in_after_fitting", "check_fit1d",
                      "check_positive_only_tag_during_fit", "check_transformer_data_not_an_array"}


def test_documents_as_a_frame_and_beside_other_columns():
    pd = pytest.importorskip("pandas")
    texts = ["a red boat", "the red car", "a blue car", "boats and cars"]
    lsi = fastdr.LSI(2).set_output(transform="pandas")
    placed = lsi.fit_transform(texts)
    assert list(placed.columns) == ["lsi0", "lsi1"]
    np.testing.assert_array_equal(placed, fastdr.LSI(2).fit(texts).transform(texts))
    assert lsi.query("red", top=1)[0].cosine > 0.5
    frame = pd.DataFrame({"text": texts, "size": [1.0, 2.0, 3.0, 4.0]})
    both = ColumnTransformer([("lsi", fastdr.LSI(2), "text"), ("size", "passthrough", ["size"])])
    both.set_output(transform="pandas")
    assert list(both.fit_transform(frame).columns) == ["lsi__lsi0", "lsi__lsi1", "size__size"]


def test_vectorizers_of_the_user(tmp_path):
    cutter = CountVectorizer(ngram_range=(1, 2), stop_words="english", min_df=2)
    lsi = LSI(2, vectorizer=cutter).fit(TEXTS)
    assert "and" not in lsi.terms_
    lsi.model_.save(tmp_path / "i.fdr")
    again = LSI.load(tmp_path / "i.fdr")
    assert again.vectorizer.get_params() == cutter.get_params()
    assert again.query("pears") == lsi.query("pears")
    fixed = LSI(2, vectorizer=CountVectorizer(vocabulary=["gears", "pears"])).fit(TEXTS)
    assert fixed.add(["quinces"]).terms_.tolist() == ["gears", "pears"]
    with pytest.raises(ValueError, match="a CountVectorizer of scikit-learn or None"):
        LSI(2, vectorizer=TfidfVectorizer()).fit(TEXTS)
    own = LSI(2, vectorizer=CountVectorizer(tokenizer=str.split, token_pattern=None)).fit(TEXTS)
    with pytest.raises(TypeError, match="cannot be written"):
        own.model_.save(tmp_path / "own.fdr")


def test_c116_updates_at_full_rank_equal_one_fit(rng):
    X = counts(rng)
    whole = LSI(12, None).fit(X)
    parts = LSI(12, None).fit(X[:5]).add(X[5:20]).add(X[20:])
    np.testing.assert_allclose(parts.singular_values_, whole.singular_values_, rtol=1e-10)
    np.testing.assert_allclose(parts.documents_ @ parts.components_, X, atol=1e-10)
    assert parts.bound_ <= rounding(float, 12, whole.singular_values_[0]**2)
    assert_orthonormal(parts.components_)


def test_c116_decay_weighs_what_was_there(rng):
    X = counts(rng)
    decayed = LSI(12, None).fit(X[:20]).add(X[20:], decay=0.5)
    stacked = LSI(12, None).fit(np.vstack([X[:20] / 2, X[20:]]))
    np.testing.assert_allclose(decayed.singular_values_, stacked.singular_values_, rtol=1e-10)


@pytest.mark.parametrize("order", ["as it is", "sorted", "spikes last"])
def test_the_bound_of_truncated_updates_holds(rng, order):
    X = counts(rng, 300, 40)
    if order == "sorted":
        X = X[np.argsort(X[:, 0])]
    elif order == "spikes last":
        X[280:] *= 30
    true = np.linalg.svd(X, compute_uv=False)[:6]**2
    lsi = LSI(6, None).fit(X[:60])
    assert lsi.bound_ == 0
    for first in range(60, 300, 80):
        lsi.add(X[first:first + 80])
        assert_orthonormal(lsi.components_)
    missing = true - lsi.singular_values_**2
    assert (missing >= -rounding(float, 40, true[0])).all()
    assert (missing <= lsi.bound_).all()
    assert lsi.bound_ < true.sum()
    placed = lsi.documents_.T @ lsi.documents_
    np.testing.assert_allclose(placed, np.diag(lsi.singular_values_**2), rtol=0,
                               atol=rounding(float, 300, true[0]))


def test_the_bound_covers_what_a_loose_iteration_missed(rng):
    """Nothing proves that the first value was found, so all that is left may be along its axis."""
    turn, back = (np.linalg.qr(rng.standard_normal((n, 300)))[0] for n in (400, 500))
    values = np.full(300, 0.3)
    values[:3] = 1.0, 0.95, 0.9
    X = sp.csr_array((turn * values) @ back.T)
    for k, tol in ((1, 0.9), (2, 0.5), (3, 0.5)):
        lsi = LSI(k, None, tol=tol).fit(X).add(sp.csr_array((1, 500)))
        assert (values[:k]**2 - lsi.singular_values_**2 <= lsi.bound_ + rounding(float, 9, 1)).all()


@pytest.mark.parametrize("power", [-960, -700, -300, 300, 700, 1000])
def test_counts_of_any_size(rng, power):
    """Squares of them need not exist where rows are scaled to length 1; bounds are in squares."""
    X = counts(rng, 30)
    plain, scaled = LSI(4).fit(X), LSI(4).fit(np.ldexp(X, power))
    np.testing.assert_array_equal(scaled.documents_, plain.documents_)
    asked = np.ldexp(X[:3], power)
    np.testing.assert_array_equal(plain.similarities(asked), plain.similarities(X[:3]))
    if abs(power) < 500:
        entropy = LSI(12, "log-entropy").fit(np.ldexp(X, power))
        assert (entropy.singular_values_ > 0).all()
    else:
        with pytest.raises(ValueError, match="leave the range of float64; multiply the rows"):
            LSI(4, None).fit(np.ldexp(X, power))
    raw = LSI(4, None).fit(X)
    np.testing.assert_allclose(raw.similarities(asked), raw.similarities(X[:3]), rtol=0,
                               atol=rounding(float, 4, 1))
    assert raw.query(asked[:1])[0].document == 0
    if power > 500:
        with pytest.raises(ValueError, match="leave the range"):
            raw.add(asked)


@pytest.mark.parametrize("weighting", ["tfidf", "log-entropy", None])
def test_c114_new_terms_are_welcome(rng, weighting):
    """Ids 9 to 11 have never been seen; known terms keep their weights."""
    X = counts(rng, 15)
    X[:5, 9:] = 0
    X[5:, 9:] += rng.poisson(0.5, (10, 3))
    lsi = LSI(12, weighting).fit(X[:5, :9])
    old = lsi.model_.term_weights
    lsi.add(X[5:])
    assert lsi.components_.shape == (len(lsi.singular_values_), 12)
    np.testing.assert_array_equal(lsi.model_.term_weights[:9], old)
    np.testing.assert_allclose(lsi.model_.term_weights[9:],
                               LSI(12, weighting).fit(X).model_.term_weights[9:], rtol=1e-14)
    np.testing.assert_allclose(lsi.documents_ @ lsi.components_, np.vstack([
        lsi.model_.weighed(X[:5]).toarray(), lsi.model_.weighed(X[5:]).toarray()]), atol=1e-12)


def test_added_texts_bring_their_words():
    lsi = LSI(3).fit(TEXTS)
    lsi.add(["wheels and sprockets", "sprockets"], titles=["x", "y"])
    assert "sprockets" in lsi.terms_
    assert lsi.model_.titles[-2:] == ("x", "y")
    assert lsi.query("sprockets", 2)[0].document in (6, 7)
    model = lsi.model_
    with pytest.raises(ValueError, match="there are no documents"):
        lsi.add([])
    with pytest.raises(ValueError, match="decay=0"):
        lsi.add(["a"], decay=0)
    with pytest.raises(ValueError, match="9 terms, of which the index names 8"):
        lsi.add(np.ones((1, 9)))
    with pytest.raises(ValueError, match="has shape"):
        lsi.add(["plums"], titles=["one", "too many"])
    assert lsi.model_ is model


@pytest.mark.parametrize(("documents", "error", "words"), [
    ([], ValueError, "there are no documents"),
    (["", "  ", "!"], ValueError, "empty vocabulary"),
    (np.zeros((3, 4)), ValueError, "the matrix is zero"),
    (sp.csr_array((3, 4)), ValueError, "the matrix is zero"),
    ("one text", TypeError, "give a list of texts"), (b"bytes", TypeError, "give a list"),
    (["text", 3], TypeError, "mixes texts and int"),
    (["text", None], TypeError, "mixes texts and NoneType"), (7, TypeError, "expected texts"),
    (np.array([[1.0, np.nan]]), ValueError, "NaN at row 0, column 1"),
    (sp.csr_array([[1.0, np.inf]]), ValueError, "infinity|NaN"),
    (np.array([[1.0, -1]]), ValueError, "negative counts"),
    (np.zeros((0, 4)), ValueError, "0 sample")])
def test_documents_that_cannot_be_used_are_refused(documents, error, words):
    lsi = LSI(2).fit(TEXTS)
    model = lsi.model_
    with pytest.raises(error, match=words):
        lsi.fit(documents)
    assert lsi.model_ is model


@pytest.mark.parametrize(("call", "error", "words"), [
    (lambda lsi: lsi.transform(np.ones((1, 3))), ValueError, "3 terms, but the index knows 7"),
    (lambda lsi: lsi.query("pears", top=0), ValueError, "top=0"),
    (lambda lsi: lsi.query(TEXTS), ValueError, "one text, but 6 were given; ask similarities"),
    (lambda lsi: lsi.add(TEXTS, decay="half"), ValueError, "decay='half'"),
    (lambda lsi: lsi.add(TEXTS, decay=np.nan), ValueError, "decay=nan"),
    (lambda lsi: lsi.set_params(n_components=0).add(TEXTS), ValueError, "n_components=0"),
    (lambda lsi: lsi.similar(0, top=0), ValueError, "top=0"),
    (lambda lsi: lsi.terms(0, top=-1), ValueError, "top=-1"),
    (lambda lsi: lsi.fit(D, terms="abca"), ValueError, "the term 'a' names two columns"),
    (lambda lsi: lsi.fit(D, terms="abcd").add(np.ones((2, 5)), terms="b"), ValueError,
     "the term 'b' names two columns"),
    (lambda lsi: lsi.similar(6), ValueError, "document=6 is not the number of a document, 0 to 5"),
    (lambda lsi: lsi.similar(-1), ValueError, "document=-1"),
    (lambda lsi: lsi.terms(2), ValueError, "component=2 is not the number of an axis, 0 to 1"),
    (lambda lsi: lsi.fit(TEXTS, terms=["a"]), ValueError, "texts bring their own"),
    (lambda lsi: lsi.fit(TEXTS, titles=["a"]), ValueError, "titles has shape"),
    (lambda lsi: lsi.fit(D, terms=["a"]), ValueError, "feature_names has shape"),
    (lambda lsi: LSI(2).fit(D).query("a"), TypeError, "without names of terms"),
    (lambda lsi: LSI(2).fit(D).add(["a"]), TypeError, "without names of terms"),
    (lambda lsi: LSI(0).fit(D), ValueError, "n_components=0"),
    (lambda lsi: LSI(2, "bm25").fit(D), ValueError, "weighting='bm25'"),
    (lambda lsi: LSI.load("missing.fdr"), FileNotFoundError, "missing")])
def test_what_cannot_be_asked_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call(LSI(2).fit(TEXTS))


def test_nearest_equals_the_sorted_similarities_for_any_number_of_threads(rng, monkeypatch):
    monkeypatch.setattr(import_module("fastdr.lsi_model"), "CHUNK_BYTES", 1 << 10)
    documents = rng.integers(-2, 3, (500, 4)).astype(float)  # many ties, some zeros
    model = LSIModel(np.eye(4), np.ones(4), documents, np.ones(4), None)
    asked = np.vstack([rng.integers(-2, 3, (70, 4)), np.zeros(4)])
    everything = model.similarities(asked)
    lengths = np.linalg.norm(asked, axis=1)[:, None] * np.linalg.norm(documents, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        expected = np.nan_to_num(asked @ documents.T / lengths)
    np.testing.assert_allclose(everything, expected, rtol=0, atol=8 * EPS)
    found = {}
    for threads in (1, 2, 3):
        fastdr.set_num_threads(threads)
        for top in (1, 17, 500, 900):
            indices, cosines = model.nearest(asked, top)
            places = np.take_along_axis(everything, indices, axis=1)
            np.testing.assert_allclose(cosines, places, rtol=0, atol=8 * EPS)
            best = -np.sort(-everything, axis=1)[:, :top]
            np.testing.assert_allclose(cosines, best, rtol=0, atol=8 * EPS)
            falls = cosines[:, :-1] - cosines[:, 1:]
            assert ((falls > 0) | ((falls == 0) & (np.diff(indices) > 0))).all()
            known = found.setdefault(top, (indices, cosines))
            np.testing.assert_array_equal(indices, known[0])
            np.testing.assert_array_equal(cosines, known[1])


def test_what_single_precision_does_not_tell_apart_is_in_order(rng):
    """A hundred documents that differ from each other by less than float32 rounds."""
    axis = rng.standard_normal(20)
    documents = np.vstack([axis + 1e-9 * rng.standard_normal((100, 20)),
                           rng.standard_normal((900, 20))])[rng.permutation(1000)]
    model = LSIModel(np.eye(20), np.ones(20), documents, np.ones(20), None)
    asked = axis + 1e-6 * rng.standard_normal(20)
    wide = documents.astype(np.longdouble)
    exact = wide @ asked / np.sqrt((wide**2).sum(axis=1)) / np.linalg.norm(asked)
    indices, cosines = model.nearest(asked, 25)
    np.testing.assert_allclose(cosines[0], np.sort(exact)[:-26:-1], rtol=0, atol=8 * EPS)
    assert (exact[indices[0]] >= np.sort(exact)[-25] - 8 * EPS).all()


def test_search_makes_no_matrix_of_similarities(rng):
    documents = rng.standard_normal((50_000, 8))
    model = LSIModel(np.eye(8), np.ones(8), documents, np.ones(8), None)
    asked = rng.standard_normal((200, 8))
    model.nearest(asked[:1])
    fastdr.set_num_threads(1)
    tracemalloc.start()
    model.nearest(asked)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60e6  # a chunk of 16 384 documents; all of the cosines have 80 MB


def test_an_index_comes_back_from_its_file_mapped(tmp_path):
    lsi = LSI(3, "log-entropy").fit(TEXTS).add(["new plums"])
    lsi.model_.save(tmp_path / "i.fdr")
    model = fastdr.load(tmp_path / "i.fdr")
    assert isinstance(model, LSIModel)
    for name in ("components", "singular_values", "documents", "term_weights"):
        np.testing.assert_array_equal(getattr(model, name), getattr(lsi.model_, name))
    for name in ("weighting", "bound", "left_out", "feature_names", "titles", "tokens"):
        assert getattr(model, name) == getattr(lsi.model_, name)
    assert not model.documents.flags.owndata
    assert LSI.load(tmp_path / "i.fdr").query("gears") == lsi.query("gears")
    fastdr.PCA(1).fit(D).model_.save(tmp_path / "p.fdr")
    with pytest.raises(ValueError, match="holds a LinearModel"):
        LSI.load(tmp_path / "p.fdr")


def run(*arguments):
    return CliRunner().invoke(application(), list(map(str, arguments)))


@pytest.mark.parametrize(("name", "content", "texts", "titles"), [
    ("d.txt", "one\r\ntwo\n", ["one", "two"], None),
    ("d.txt", "\ufeffone\ntwo", ["one", "two"], None),
    ("d.jsonl", '\ufeff"one"\n{"text": "two"}', ["one", "two"], None),
    ("d.jsonl", '{"text": "one", "title": null}\n{"text": "two", "title": 2}', ["one", "two"],
     ["", "2"])])
def test_files_of_other_systems(tmp_path, name, content, texts, titles):
    """A mark of the byte order is no text, and null is no title."""
    (tmp_path / name).write_bytes(content.encode())
    assert read_documents(tmp_path / name) == (texts, titles)


def test_the_command_fits_and_searches(tmp_path):
    (tmp_path / "d.txt").write_text("\n".join(TEXTS) + "\n")
    lines = [json.dumps({"text": text, "title": f"No. {i}"}) for i, text in enumerate(TEXTS)]
    (tmp_path / "d.jsonl").write_text("\n".join(lines))
    for name, title in (("d.txt", "wheels turn gears"), ("d.jsonl", "No. 3")):
        done = run("fit", tmp_path / name, "--text", "-k", 2, "-o", tmp_path / "i.fdr")
        assert done.exit_code == 0, done.output
        assert "6 documents, 7 terms, 2 components" in done.output
        found = json.loads(run("search", tmp_path / "i.fdr", "turn", "-n", 2, "--json").output)
        assert {hit["document"] for hit in found["hits"]} == {2, 3}
        assert title in run("search", tmp_path / "i.fdr", "turn").output
    assert "no word" in run("search", tmp_path / "i.fdr", "zebra").output
    facts = json.loads(run("fit", tmp_path / "d.txt", "--text", "-k", 2, "--weighting", "none",
                           "-o", tmp_path / "i.fdr", "--json").output)
    assert facts["documents"] == 6


def test_titles_of_found_documents_take_one_line_and_move_no_cursor(tmp_path):
    lines = [json.dumps({"text": text, "title": f"a\n\x1b[2J\u202eb {i}"})
             for i, text in enumerate(TEXTS)]
    (tmp_path / "d.jsonl").write_text("\n".join(lines))
    run("fit", tmp_path / "d.jsonl", "--text", "-k", 2, "-o", tmp_path / "i.fdr")
    shown = run("search", tmp_path / "i.fdr", "turn").output
    assert all("a [2J b" in line for line in shown.splitlines())
    assert shown.replace("\n", "").isprintable()


@pytest.mark.parametrize(("name", "content", "words"), [
    ("d.csv", "a", "read from .txt and .jsonl files"), ("d.txt", "", "no documents"),
    ("d.jsonl", '"a"\n{"body": "b"}', "line 2 is neither"), ("d.jsonl", "{", "line 1 is not JSON"),
    ("d.txt", b"\xff", "byte 0 is not UTF-8"), ("d.jsonl", "\n\n", "empty vocabulary")])
def test_the_command_refuses_files_in_one_line(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    done = run("fit", tmp_path / name, "--text", "-o", tmp_path / "i.fdr")
    assert done.exit_code == 1
    assert words in done.output
    assert not (tmp_path / "i.fdr").exists()


@pytest.fixture(scope="module")
def lee():
    """Lee's corpus: 50 documents, each pair rated by people; 300 others to learn axes from.

    Gives the texts, rated ones last, how vectors of these go with the ratings, and how gensim's do.
    """
    gensim = pytest.importorskip("gensim")
    folder = f"{gensim.__path__[0]}/test/test_data"
    texts = []
    for name in ("lee_background.cor", "lee.cor"):
        with open(f"{folder}/{name}", encoding="latin-1") as file:
            texts += file.read().splitlines()
    human = np.loadtxt(f"{folder}/similarities0-1.txt")
    pairs = np.triu_indices(50, 1)
    tokens = [gensim.utils.simple_preprocess(text) for text in texts]
    words = gensim.corpora.Dictionary(tokens)
    bags = [words.doc2bow(text) for text in tokens]
    weighted = gensim.models.TfidfModel(bags)[bags]

    def agreement(vectors):
        units = vectors / np.linalg.norm(vectors, axis=1)[:, None]
        return np.corrcoef((units @ units.T)[pairs], human[pairs])[0, 1]

    def gensims(axes, seed=None):
        model = gensim.models.LsiModel(weighted, id2word=words, num_topics=axes, random_seed=seed)
        return agreement(gensim.matutils.corpus2dense(model[weighted[300:]], axes).T)

    return texts, agreement, gensims


@pytest.mark.optional
@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
@pytest.mark.parametrize("axes", [10, 20, 30, 50, 100, 200, 300])
def test_cosines_go_with_human_ratings_as_well_as_gensims(lee, axes):
    """Of three tries of gensim, whose axes depend on a seed, the least counts, less 0.005."""
    texts, agreement, gensims = lee
    theirs = min(gensims(axes, seed) for seed in range(3))
    assert agreement(LSI(axes).fit(texts).transform(texts[300:])) >= theirs - 0.005


@pytest.mark.optional
@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
def test_log_entropy_goes_with_human_ratings_better_still(lee):
    texts, agreement, gensims = lee
    for cutter, least in ((None, gensims(100)), (CountVectorizer(stop_words="english"), 0.6)):
        ours = {weighting: agreement(LSI(100, weighting, vectorizer=cutter).fit(texts)
                                     .transform(texts[300:]))
                for weighting in ("tfidf", "log-entropy")}
        assert ours["log-entropy"] >= max(least, ours["tfidf"])


@pytest.mark.optional
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of the package, which leaves a file open
def test_reuters_sparse_equals_dense():
    """395 articles by 4258 terms, from the package lda."""
    datasets = pytest.importorskip("lda.datasets")
    X = datasets.load_reuters()
    sparse, dense = (fastdr.TruncatedSVD(20).fit(rows) for rows in (sp.csr_array(X), X))
    values = np.linalg.svd(X.astype(float), compute_uv=False)
    limit = rounding(float, np.sqrt(4258), values[0])
    np.testing.assert_allclose(sparse.singular_values_, values[:20], rtol=0, atol=limit)
    np.testing.assert_allclose(dense.singular_values_, values[:20], rtol=0, atol=limit)
