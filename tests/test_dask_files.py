"""Files that Dask's workers read in parts, and the command's words about a cluster."""

import numpy as np
import pytest

from fastdr.dask_files import _edges, dask_rows
from fastdr.files import open_source

dask = pytest.importorskip("dask")
pytest.importorskip("distributed")
testing = pytest.importorskip("typer.testing")
from fastdr.cli import application  # noqa: E402

FORMATS = ["npy", "npy-F", "folder", "parquet", "parquets", "arrow", "hdf5", "zarr"]
NAMES = list("abcd")


@pytest.fixture
def X(rng):
    return rng.standard_normal((100, 4))


def write(X, kind, folder):
    """Write rows in a format, in pieces of 30 where it has any; return the path and a member."""
    if kind in {"npy", "npy-F"}:
        np.save(folder / "x.npy", np.asarray(X, order="F" if kind == "npy-F" else "C"))
        return folder / "x.npy", None
    if kind == "folder":
        (folder / "x").mkdir()
        for index, start in enumerate(range(0, len(X), 30)):
            part = X[start:start + 30]
            np.save(folder / "x" / f"{index}.npy", part.astype("f4") if index == 1 else part)
        return folder / "x", None
    if kind in {"parquet", "parquets", "arrow"}:
        pa = pytest.importorskip("pyarrow")
        table = pa.table(dict(zip(NAMES, X.T, strict=True)))
        if kind == "arrow":
            with pa.ipc.new_file(str(folder / "x.arrow"), table.schema) as file:
                file.write_table(table, max_chunksize=30)
            return folder / "x.arrow", None
        from pyarrow import parquet
        if kind == "parquet":
            parquet.write_table(table, folder / "x.parquet", row_group_size=30)
            return folder / "x.parquet", None
        (folder / "x").mkdir()
        for index, start in enumerate((0, 45, 90)):
            parquet.write_table(table.slice(start, 45), folder / "x" / f"{index}.parquet",
                                row_group_size=20)
        return folder / "x", None
    if kind == "hdf5":
        h5py = pytest.importorskip("h5py")
        with h5py.File(folder / "x.h5", "w") as file:
            file.create_dataset("rows", data=X, chunks=(30, 4))
            file.create_dataset("others", data=X[:5])
        return folder / "x.h5", "rows"
    zarr = pytest.importorskip("zarr")
    zarr.create_array(str(folder / "x.zarr"), data=X, chunks=(30, 4))
    return folder / "x.zarr", None


@pytest.mark.parametrize("kind", FORMATS)
def test_parts_are_the_rows(X, tmp_path, kind, monkeypatch):
    path, member = write(X, kind, tmp_path)
    whole = np.concatenate(list(open_source(path, member=member).blocks()))
    monkeypatch.setattr("fastdr.dask_files.block_rows", lambda *_: 60)  # parts of 15
    monkeypatch.setattr("fastdr.dask_files.PARTS", 7)
    rows = dask_rows(path, member=member)
    with dask.config.set(scheduler="synchronous"):
        found = rows.collection.compute()
        np.testing.assert_array_equal(found, whole)
        assert found.dtype == rows.dtype
        assert len(rows.chunks) >= 4
        assert sum(rows.lengths) == 100
        assert rows.columns == (NAMES if kind in {"parquet", "parquets", "arrow"} else None)
        assert np.concatenate(list(rows.blocks())).shape == (100, 4)
    source = open_source(path, member=member)
    for first, last in ((0, 100), (0, 1), (29, 31), (7, 93), (99, 100), (30, 60)):
        np.testing.assert_array_equal(source.between(first, last), whole[first:last])


def test_columns_are_chosen(X, tmp_path):
    path, _ = write(X, "parquet", tmp_path)
    rows = dask_rows(path, columns=["d", "b"])
    with dask.config.set(scheduler="synchronous"):
        np.testing.assert_array_equal(rows.collection.compute(), X[:, [3, 1]])
    assert rows.columns == ["d", "b"]


@pytest.mark.parametrize(("size", "step", "cuts", "edges"), [
    (10, 4, None, [0, 4, 8, 10]), (8, 4, None, [0, 4, 8]), (3, 4, None, [0, 3]),
    (10, 4, [0, 3, 6, 9, 10], [0, 6, 10]), (10, 4, [0, 10], [0, 10]),
    (10, 1, [0, 3, 3, 10], [0, 3, 10]), (10, 20, [0, 5, 10], [0, 10])])
def test_edges(size, step, cuts, edges):
    assert _edges(size, step, cuts) == edges


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_files_that_cannot_be_cut_are_refused(X, tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    np.savetxt(path, X, delimiter=",") if suffix == ".csv" else np.savez(path, X=X)
    with pytest.raises(ValueError, match=f"x{suffix}: cannot be cut into parts for workers"):
        dask_rows(path)


@pytest.mark.parametrize("command", ["fit", "transform"])
def test_a_scheduler_that_does_not_answer(X, tmp_path, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    run = testing.CliRunner().invoke
    assert run(application(), ["fit", "x.npy", "-o", "m.fdr"]).exit_code == 0
    given = ["x.npy", "-o", "z.npy"] if command == "fit" else ["m.fdr", "x.npy", "-o", "z.npy"]
    done = run(application(), [command, *given, "--dask", "tcp://127.0.0.1:9", "--dask-timeout",
                               "0.3"])
    assert done.exit_code == 1
    assert done.stderr == ("fastdr: error: no Dask scheduler answered at tcp://127.0.0.1:9 within "
                           "0.3 s; start one with: dask scheduler\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.fdr", "x.npy"]


def test_texts_are_not_for_a_cluster(tmp_path):
    (tmp_path / "x.txt").write_text("one\ntwo\n")
    done = testing.CliRunner().invoke(application(), [
        "fit", str(tmp_path / "x.txt"), "--text", "-o", str(tmp_path / "m.fdr"), "--dask", "tcp://h"])
    assert done.exit_code == 2
    assert "--dask" in done.stderr
