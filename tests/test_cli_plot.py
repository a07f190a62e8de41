"""``fastdr plot``: every kind of picture from files, and what it refuses."""

import numpy as np
import pytest

import fastdr

pytest.importorskip("matplotlib")
testing = pytest.importorskip("typer.testing")
from matplotlib import image  # noqa: E402

from fastdr.cli import application  # noqa: E402
from fastdr.cli_plot import _read_labels  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory, digits):
    """Models of each kind, rows and labels, as files."""
    from sklearn.datasets import load_digits
    labels, rows = load_digits().target, digits[:400] + 0.01 * np.arange(400)[:, None]
    made = tmp_path_factory.mktemp("plot")
    np.save(made / "rows.npy", rows)
    np.save(made / "labels.npy", labels[:400])
    (made / "labels.txt").write_text("\n".join(f"digit {label}" for label in labels[:400]))
    fastdr.PCA().fit(rows).model_.save(made / "pca.fdr")
    fastdr.LinearDiscriminantAnalysis(shrinkage=0.1).fit(rows, labels[:400]).model_.save(
        made / "lda.fdr")
    fastdr.AutoEncoder((8, 2), max_epochs=2, random_state=0).fit(rows).model_.save(made / "ae.fdr")
    signals = np.random.default_rng(0).uniform(size=(3000, 2)) @ [[1.0, 2.0], [2.0, 1.0]]
    np.save(made / "mixed.npy", signals)
    fastdr.FastICA().fit(signals).model_.save(made / "ica.fdr")
    return made


def run(folder, *arguments):
    return testing.CliRunner().invoke(application(), ["plot", *(
        str(folder / each) if "." in each and "/" not in each else each for each in arguments)])


@pytest.mark.parametrize("arguments", [
    "pca.fdr", "pca.fdr -k 5", "pca.fdr --kind loadings", "pca.fdr rows.npy --kind scores",
    "pca.fdr rows.npy --kind scores --labels labels.npy --axes 2,3",
    "pca.fdr rows.npy --kind biplot --labels labels.txt", "pca.fdr rows.npy --kind errors -k 9",
    "pca.fdr rows.npy --kind reconstructions --shape 8x8 --images 4", "ae.fdr --kind losses",
    "ae.fdr rows.npy --kind errors", "lda.fdr rows.npy --kind discriminants --labels labels.npy",
    "ica.fdr mixed.npy --kind sources"])
def test_pictures(folder, tmp_path, arguments):
    path = tmp_path / "picture.png"
    done = run(folder, *arguments.split(), "--out", str(path))
    assert done.exit_code == 0, done.output
    assert done.output == f"picture written to {path}\n"
    assert image.imread(path)[..., :3].std() > 0.03
    assert [each.name for each in tmp_path.iterdir()] == ["picture.png"]


@pytest.mark.parametrize(("suffix", "start"), [
    ("pdf", b"%PDF"), ("svg", b"<?xml"), ("PNG", b"\x89PNG")])
def test_formats(folder, tmp_path, suffix, start):
    path = tmp_path / f"picture.{suffix}"
    assert run(folder, "pca.fdr", "--out", str(path)).exit_code == 0
    assert path.read_bytes().startswith(start)


def test_the_header_of_csv(folder, tmp_path):
    rows = np.load(folder / "mixed.npy")[:50]
    fastdr.PCA().fit(rows).model_.save(tmp_path / "m.fdr")
    np.savetxt(tmp_path / "x.csv", rows, delimiter=",", header="a,2", comments="")
    for given, code in (([], 1), (["--header"], 0)):
        done = run(folder, str(tmp_path / "m.fdr"), str(tmp_path / "x.csv"), "--kind", "scores",
                   "--out", str(tmp_path / "new.png"), *given)
        assert done.exit_code == code, done.output


def test_pictures_of_chosen_columns(folder, tmp_path):
    rows = np.load(folder / "rows.npy")[:, 20:23]
    np.savetxt(tmp_path / "x.csv", rows, delimiter=",", header="a,b,c", comments="")
    model = fastdr.PCA().fit(fastdr.open_rows(tmp_path / "x.csv", columns=["c", "a"])).model_
    model.save(tmp_path / "m.fdr")
    for given, code in ((["--columns", "c,a"], 0), (["--columns", "a,c"], 1), ([], 1)):
        done = run(folder, str(tmp_path / "m.fdr"), str(tmp_path / "x.csv"), "--kind", "scores",
                   "--out", str(tmp_path / "new.png"), *given)
        assert done.exit_code == code, done.output


def test_help_names_what_can_be_read(folder):
    assert ".feather, .h5, .hdf5," in " ".join(run(folder, "--help").output.split())


def test_pictures_follow_links_and_keep_the_mode(folder, tmp_path):
    link, target = tmp_path / "link.png", tmp_path / "real.png"
    target.touch(0o600)
    before = target.stat().st_mode
    link.symlink_to(target)
    assert run(folder, "pca.fdr", "--out", str(link)).exit_code == 0
    assert link.is_symlink()
    assert image.imread(target).size
    assert target.stat().st_mode == before


@pytest.mark.parametrize(("arguments", "words"), [
    ("pca.fdr --kind scores", "kind scores needs rows; give DATA"),
    ("pca.fdr rows.npy --kind reconstructions", "needs --shape, like 8x8"),
    ("pca.fdr rows.npy --kind reconstructions --shape 8x7", "has 56 pixels but X has 64"),
    ("lda.fdr rows.npy --kind discriminants", "needs --labels"),
    ("lda.fdr --kind scree", "expected a fitted PCA or a LinearModel, got DiscriminantModel"),
    ("pca.fdr mixed.npy --kind scores", "has 2 columns, but the model was fitted to 64"),
    ("pca.fdr rows.npy --kind errors", "pass k"),
    ("pca.fdr -k 65", "chosen=65 is not between 1 and the 64"),
    ("missing.fdr", "missing.fdr")])
def test_refusals(folder, tmp_path, arguments, words):
    path = tmp_path / "old.png"
    path.write_text("old")
    done = run(folder, *arguments.split(), "--out", str(path))
    assert done.exit_code == 1
    assert done.output.startswith("fastdr: error: ")
    assert words in done.output
    assert path.read_text() == "old"


@pytest.mark.parametrize(("k", "kind", "words"), [
    (0, "scree", "no components to draw"), (0, "loadings", "no components to draw"),
    (0, "biplot --axes 1,2", "no components to draw"), (0, "errors", "no components to draw"),
    (0, "reconstructions --shape 8x8", "no components to draw"),
    (0, "scores", "needs two scores, but the model has 0"),
    (1, "scores", "needs two scores, but the model has 1")])
def test_too_few_components_to_draw(folder, tmp_path, k, kind, words):
    fastdr.PCA(k).fit(np.load(folder / "rows.npy")).model_.save(tmp_path / "k.fdr")
    rows = [] if kind in ("scree", "loadings") else ["rows.npy"]
    done = run(folder, str(tmp_path / "k.fdr"), *rows, "--kind", *kind.split(), "--out",
               str(tmp_path / "new.png"))
    assert done.exit_code == 1
    assert words in done.output


def test_a_bad_row_is_named(folder, tmp_path):
    rows = np.load(folder / "rows.npy")
    rows[321, 5] = np.nan
    np.save(tmp_path / "bad.npy", rows)
    done = run(folder, "pca.fdr", str(tmp_path / "bad.npy"), "--kind", "scores", "--out",
               str(tmp_path / "new.png"))
    assert done.exit_code == 1
    assert "row 321, column 5 is nan" in done.output


@pytest.mark.parametrize(("arguments", "words"), [
    ("--axes 1-2", "not two whole numbers"), ("--axes 1,2,3", "not two whole numbers"),
    ("--kind reconstructions --shape 8", "not a height and a width"), ("--kind pie", "pie")])
def test_usage(folder, tmp_path, arguments, words):
    kind = "" if "--kind" in arguments else "--kind scores "
    done = run(folder, "pca.fdr", "rows.npy", *(kind + arguments).split(), "--out",
               str(tmp_path / "new.png"))
    assert done.exit_code == 2
    assert words in done.output


@pytest.mark.parametrize(("arguments", "option"), [
    ("rows.npy", "DATA"), ("--kind loadings -k 2", "-k"), ("--labels labels.npy", "--labels"),
    ("--no-header", "--header"), ("rows.npy --kind errors --axes 1,3", "--axes"),
    ("rows.npy --kind scores --shape 8x8", "--shape"), ("rows.npy --kind biplot -k 2", "-k")])
def test_what_a_picture_does_not_use_is_refused(folder, tmp_path, arguments, option):
    done = run(folder, "pca.fdr", *arguments.split(), "--out", str(tmp_path / "new.png"))
    assert done.exit_code == 2
    text = " ".join(done.output.translate(dict.fromkeys(map(ord, "│╭╮╰╯─"), " ")).split())
    assert f"Invalid value for {option}: does nothing in a picture of kind" in text


@pytest.mark.parametrize(("name", "content"), [
    ("l.npy", b""), ("l.npy", b"\x93NUMPY"), ("l.NPY", b"a\nb"), ("l.txt", b"\xff\xfea\0")])
def test_labels_that_are_none(folder, tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    done = run(folder, "pca.fdr", "rows.npy", "--kind", "scores", "--labels",
               str(tmp_path / name), "--out", str(tmp_path / "new.png"))
    assert done.exit_code == 1
    assert f"{name}: holds no labels: " in done.output
    assert not (tmp_path / "new.png").exists()


def test_labels_in_text(tmp_path):
    path = tmp_path / "l.txt"
    path.write_text("4\n5\n", encoding="utf-8-sig")  # as Windows marks it
    assert _read_labels(path).tolist() == [4, 5]


def test_the_name_of_the_picture_is_judged_first(folder, tmp_path):
    assert "unknown kind of picture; use .png" in run(folder, "pca.fdr", "--out",
                                                      str(tmp_path / "new.gif")).output
    assert "no such directory" in run(folder, "pca.fdr", "--out",
                                      str(tmp_path / "none" / "new.png")).output
