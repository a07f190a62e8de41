"""Rows of every origin give the fit of the array, in little memory; what is wrong is named."""

import gc
import threading
from contextlib import suppress
from itertools import repeat

import numpy as np
import pytest
from scipy.sparse import csr_array
from tolerance import eigenvalue_error

import fastdr
from fastdr import PCA, IncrementalPCA, open_rows
from fastdr.inputs import as_bytes
from fastdr.sources import BlockSource, prefetched

NAMES = ["p", "q", "r"]


@pytest.fixture
def X(rng):
    return rng.standard_normal((1500, 3)) * [5, 3, 1] + 100


def as_hdf5(X, folder):
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "x.h5", "w") as file:
        file["labels"] = np.arange(len(X))
        file.create_dataset("deep/rows", data=X, chunks=(700, 3), compression="gzip")
    return folder / "x.h5"


def as_zarr(X, folder):
    zarr = pytest.importorskip("zarr")
    array = zarr.open(str(folder / "x.zarr"), mode="w", shape=X.shape, chunks=(700, 2),
                      dtype=X.dtype)
    array[:] = X
    return folder / "x.zarr"


def as_zarr_group(X, folder):
    zarr = pytest.importorskip("zarr")
    zarr.open_group(str(folder / "g"), mode="w")
    array = zarr.open_array(str(folder / "g" / "rows"), mode="w", shape=X.shape, chunks=(999, 3),
                            dtype=X.dtype)
    array[:] = X
    return folder / "g"


def as_npy_folder(X, folder):
    (folder / "parts").mkdir()
    for index, part in enumerate(np.array_split(X, 3)):
        np.save(folder / "parts" / f"{index}.npy", part)
    return folder / "parts"


def table(X, names=NAMES):
    pyarrow = pytest.importorskip("pyarrow")
    return pyarrow.table(dict(zip(names, X.T, strict=True)))


def as_parquet_folder(X, folder):
    parquet = pytest.importorskip("pyarrow.parquet")
    (folder / "parts").mkdir()
    for index, part in enumerate(np.array_split(X, 3)):
        parquet.write_table(table(part), folder / "parts" / f"{index}.parquet",
                            row_group_size=500)
    return folder / "parts"


def as_arrow(X, folder):
    feather = pytest.importorskip("pyarrow.feather")
    feather.write_feather(table(X), folder / "x.feather", chunksize=900)
    return folder / "x.feather"


def as_arrow_folder(X, folder):
    ipc = pytest.importorskip("pyarrow.ipc")
    (folder / "parts").mkdir()
    for index, part in enumerate(np.array_split(X, 3)):
        rows = table(part)
        with ipc.new_file(folder / "parts" / f"{index}.arrow", rows.schema) as writer:
            writer.write_table(rows)
    return folder / "parts"


def as_npy(X, folder):
    np.save(folder / "x.npy", X)
    return folder / "x.npy"


def as_csv(X, folder):
    np.savetxt(folder / "x.csv", X, delimiter=",", header=",".join(NAMES), comments="")
    return folder / "x.csv"


FILES = [as_hdf5, as_zarr, as_zarr_group, as_npy_folder, as_parquet_folder, as_arrow,
         as_arrow_folder, as_npy, as_csv]


def as_dataset(X):
    dataset = pytest.importorskip("pyarrow.dataset")
    return dataset.dataset(table(X))


OBJECTS = {
    "array": lambda X: X, "list": lambda X: X.tolist(), "table": table,
    "batch": lambda X: table(X).combine_chunks().to_batches()[0],
    "reader": lambda X: table(X).to_reader(max_chunksize=900), "dataset": as_dataset,
    "pandas": lambda X: pytest.importorskip("pandas").DataFrame(X, columns=NAMES),
    "polars": lambda X: pytest.importorskip("polars").DataFrame(X, schema=NAMES),
    "generator": lambda X: (part for part in np.array_split(X, 7)),
    "iterator of frames": lambda X: iter([pytest.importorskip("pandas").DataFrame(
        part, columns=NAMES) for part in np.array_split(X, 7)]),
}
ONCE = {"reader", "generator", "iterator of frames"}


def read(source):
    return np.concatenate([np.array(block) for block in source.blocks()])


def assert_fits(source, X):
    expected = PCA().fit(X)
    found = PCA().fit(source)
    bound = eigenvalue_error(3, expected.explained_variance_[0])
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=0,
                               atol=bound)
    return found


@pytest.mark.parametrize("write", FILES)
@pytest.mark.parametrize("options", [{}, {"block_rows": 50}, {"memory": 2000},
                                     {"memory": "1MB", "prefetch": False}], ids=str)
def test_files_of_every_kind(X, tmp_path, write, options):
    path = write(X, tmp_path)
    source = open_rows(path, **options)
    assert source.shape == (None if write is as_csv else 1500, 3)
    for _ in range(2):
        blocks = [np.array(block) for block in source.blocks()]
        np.testing.assert_array_equal(np.concatenate(blocks), X)
    if options.get("memory") == 2000:
        assert max(block.nbytes for block in blocks) <= 500
    if options.get("block_rows"):
        assert max(map(len, blocks)) == 50
    if source.columns is not None:
        assert source.columns == NAMES
    assert_fits(source, X)
    assert_fits(open_rows(str(path), **options), X)


@pytest.mark.parametrize("kind", OBJECTS)
@pytest.mark.parametrize("options", [{}, {"block_rows": 64}, {"prefetch": True}], ids=str)
def test_objects_of_every_kind(X, kind, options):
    source = open_rows(OBJECTS[kind](X), **options)
    assert source.rereadable == (kind not in ONCE)
    model = assert_fits(source, X)
    assert ("source" in model.report_) == (kind in ONCE)
    if kind in ONCE:
        assert model.report_["source"] == "read once, cannot be read again"
        with pytest.raises(ValueError, match="can be read once, and it has been"):
            read(source)
    else:
        np.testing.assert_array_equal(read(source), X)


@pytest.mark.parametrize("kind", ["table", "reader", "generator", "dataset"])
def test_fit_takes_objects_as_they_are(X, kind):
    assert_fits(OBJECTS[kind](X), X)
    stream = IncrementalPCA(2).partial_fit(OBJECTS[kind](X)).partial_fit(OBJECTS[kind](X))
    assert stream.n_samples_seen_ == 3000
    if kind == "table":
        assert list(PCA().fit(OBJECTS[kind](X)).feature_names_in_) == NAMES
    lda = fastdr.LinearDiscriminantAnalysis().fit(OBJECTS[kind](X), X[:, 0] > 100)
    expected = fastdr.LinearDiscriminantAnalysis().fit(X, X[:, 0] > 100)
    np.testing.assert_allclose(lda.coef_, expected.coef_, rtol=1e-9)


@pytest.mark.parametrize("write", [as_hdf5, as_zarr])
def test_open_stores_are_not_read_whole(X, tmp_path, write):
    path, expected = write(X, tmp_path), PCA(2).fit(X)
    if write is as_hdf5:
        import h5py
        with h5py.File(path) as file:
            found = PCA(2).fit(file["deep/rows"])
            scores = found.transform(file["deep/rows"])
            assert_fits(open_rows(file["deep/rows"], block_rows=11), X)
    else:
        import zarr
        found = PCA(2).fit(zarr.open(str(path), mode="r"))
        scores = found.transform(zarr.open(str(path), mode="r"))
    np.testing.assert_allclose(scores, expected.transform(X), atol=1e-11)


def test_sources_are_transformed_block_by_block(X):
    pca = PCA(2).fit(X)
    np.testing.assert_array_equal(pca.transform(open_rows(X, block_rows=999)), pca.transform(X))
    np.testing.assert_array_equal(pca.transform(iter(np.array_split(X, 3))), pca.transform(X))
    table_scores = PCA(2).fit_transform(table(X))
    np.testing.assert_allclose(table_scores, pca.transform(X), atol=1e-11)
    with pytest.raises(TypeError, match="reads the rows twice"):
        PCA(2).fit_transform(iter([X]))
    with pytest.raises(ValueError, match="X has 2 features, but PCA is expecting 3"):
        pca.transform(iter([X[:, :2]]))
    with pytest.raises(ValueError, match="feature names"):
        PCA(2).fit(table(X)).transform(table(X, ["p", "r", "q"]))
    X[1321, 1] = np.nan
    with pytest.raises(ValueError, match="NaN at row 1321, column 1"):
        pca.transform(open_rows(X, block_rows=100))
    with pytest.raises(ValueError, match="NaN at row 1321, column 1"):
        PCA().fit(open_rows(X, block_rows=100))


@pytest.mark.parametrize("origin", ["parquet", "feather", "csv", "table", "pandas", "polars"])
def test_columns_by_name_and_order(X, tmp_path, origin):
    writers = {"parquet": as_parquet_folder, "feather": as_arrow, "csv": as_csv}
    rows = (writers[origin](X, tmp_path) if origin in writers else OBJECTS[origin](X))
    source = open_rows(rows, columns=["r", "p"])
    assert source.columns == ["r", "p"]
    np.testing.assert_array_equal(read(source), X[:, [2, 0]])
    with pytest.raises(ValueError, match=r"no column 'z'.*'p'"):
        open_rows(rows, columns=["z"])


def test_what_has_no_columns_or_members(X, tmp_path):
    for rows in (as_npy(X, tmp_path), as_npy_folder(X, tmp_path), X, as_hdf5(X, tmp_path),
                 as_zarr(X, tmp_path)):
        with pytest.raises(ValueError, match="columns"):
            open_rows(rows, columns=["p"])
    for rows in (as_npy(X, tmp_path), tmp_path / "parts", X):
        with pytest.raises(ValueError, match="member='a' was given"):
            open_rows(rows, member="a")
    with pytest.raises(ValueError, match=r"no member 'a'.*deep/rows \(1500, 3\)"):
        open_rows(tmp_path / "x.h5", member="a")
    assert open_rows(tmp_path / "x.h5", member="/deep/rows").shape == (1500, 3)


def test_faults_of_files_and_folders(X, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "mixed").mkdir()
    np.save(tmp_path / "mixed" / "a.npy", X)
    (tmp_path / "mixed" / "b.parquet").write_bytes(b"x")
    (tmp_path / "widths").mkdir()
    np.save(tmp_path / "widths" / "a.npy", X)
    np.save(tmp_path / "widths" / "b.npy", X[:, :2])
    (tmp_path / "x.arrow").write_bytes(b"no arrow")
    (tmp_path / "x.h5").write_bytes(b"no hdf5")
    for name, words in (("empty", "no files to read"), ("mixed", "npy and .parquet files"),
                        ("widths", "b.npy: has 2 columns, but a.npy in the same folder has 3"),
                        ("x.arrow", "not an Arrow file"), ("x.h5", "not an HDF5 file")):
        if name == "x.h5":
            pytest.importorskip("h5py")
        with pytest.raises(ValueError, match=words):
            open_rows(tmp_path / name)
    with pytest.raises(FileNotFoundError, match="no such file"):
        open_rows(tmp_path / "none.h5")
    parts = as_parquet_folder(X, tmp_path)
    pytest.importorskip("pyarrow.parquet").write_table(table(X, ["p", "q", "s"]),
                                                       parts / "9.parquet")
    with pytest.raises(ValueError, match=r"9.parquet: has columns.*'s'.*0.parquet"):
        open_rows(parts)
    for bad in ("lots", "-1", 0, "5 XB"):
        with pytest.raises(ValueError, match="memory="):
            open_rows(X, memory=bad)
    with pytest.raises(ValueError, match="too few"):
        open_rows(X, memory=50)
    with pytest.raises(ValueError, match="block_rows"):
        open_rows(X, block_rows=0)


@pytest.mark.parametrize("write", [as_hdf5, as_zarr])
def test_damaged_chunks_are_named(X, tmp_path, write):
    path = write(X, tmp_path)
    if path.is_file():
        data = bytearray(path.read_bytes())
        start = data.index(b"\x78\x5e" if b"\x78\x5e" in data else b"\x78", 4000)
        data[start:start + 400] = bytes(400)
        path.write_bytes(data)
    else:
        chunk = max((each for each in path.rglob("*") if each.is_file()
                     and not each.name.startswith((".z", "zarr"))), key=lambda each: each.name)
        chunk.write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"x\.(h5|zarr).*: rows \d+ to \d+ cannot be read"):
        PCA().fit(open_rows(path, block_rows=100))


def test_damaged_tables_of_contents_are_named(X, tmp_path):
    path = as_hdf5(X, tmp_path)
    sound = path.read_bytes()
    for start in range(0, 2500, 100):  # where groups, names and shapes stand
        damaged = bytearray(sound)
        damaged[start:start + 100] = b"\xa5" * 100
        path.write_bytes(damaged)
        with suppress(ValueError):  # nothing else; much is never read
            for _ in open_rows(path, prefetch=False).blocks():
                break


@pytest.mark.parametrize("text", [
    "{", "[]", '{"zarr_format": 3, "node_type": "group", "odd": 1}'])
def test_damaged_notes_of_a_store_are_named(X, tmp_path, text):
    path = as_zarr(X, tmp_path)
    mark = next(path / name for name in ("zarr.json", ".zarray") if (path / name).exists())
    mark.write_text(text)
    with pytest.raises(ValueError, match=r"x\.zarr: cannot be opened"):
        open_rows(path)


def test_arrays_in_groups_of_groups(X, tmp_path):
    zarr = pytest.importorskip("zarr")
    path = tmp_path / "g"
    for name in ("outer", "outer/inner"):
        zarr.open_group(str(path), mode="a").require_group(name)
    array = zarr.open_array(str(path / "outer" / "inner" / "rows"), mode="w", shape=X.shape,
                            dtype=X.dtype)
    array[:] = X
    for member in (None, "outer/inner/rows"):
        blocks = open_rows(path, member=member).blocks()
        np.testing.assert_array_equal(np.concatenate(list(blocks)), X)


def test_hdf5_without_numbers(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["nothing"] = h5py.Empty("f8")
    with pytest.raises(ValueError, match=r"x\.h5\[nothing\]: holds a 0-D array"):
        open_rows(tmp_path / "x.h5")


@pytest.mark.parametrize("block_rows", [None, 1])
def test_frames_whose_numbers_are_of_several_kinds(block_rows):
    pandas = pytest.importorskip("pandas")
    mixed = pandas.DataFrame({"a": pandas.array([1, 2, 3], "Int64"), "b": [True, False, True],
                              "c": [0.5, 1.5, 2.5]})
    expected = [[1, 1, 0.5], [2, 0, 1.5], [3, 1, 2.5]]
    assert read(open_rows(mixed, block_rows=block_rows)).tolist() == expected
    polars = pytest.importorskip("polars")
    numbers = polars.DataFrame({"a": [1, 2, 3], "b": [True, False, True], "c": [0.5, 1.5, 2.5]})
    assert read(open_rows(numbers, block_rows=block_rows)).tolist() == expected
    for gap in (mixed.assign(a=pandas.array([1, None, 3], "Int64")),
                numbers.with_columns(a=polars.Series([1, None, 3]))):
        missing = np.isnan(read(open_rows(gap, block_rows=block_rows)))
        assert np.argwhere(missing).tolist() == [[1, 0]]
        with pytest.raises(ValueError, match="NaN at row 1, column 0"):
            PCA().fit(open_rows(gap, block_rows=block_rows))
    for frame, words in ((mixed.assign(b=list("xyz")), "not numbers: could not convert string"),
                         (mixed[:0], r"0 sample\(s\)"), (numbers.lazy(), "not numbers")):
        with pytest.raises((TypeError, ValueError), match=words):
            open_rows(frame)


def test_columns_that_are_numbered_have_no_names(X):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X)
    for rows in (frame, open_rows(frame), iter([frame])):
        pca = PCA(2).fit(rows)
        assert not hasattr(pca, "feature_names_in_")
        assert pca.transform(frame).shape == pca.transform(X).shape  # without a warning


def test_a_file_cut_while_it_is_read(X, tmp_path):
    path = as_npy(X, tmp_path)
    blocks = open_rows(path, block_rows=400, prefetch=False).blocks()
    next(blocks)
    with open(path, "r+b") as file:
        file.truncate(128 + 1000 * 24)
    next(blocks)
    with pytest.raises(ValueError, match="ends at row 1000 of 1500"):
        next(blocks)


def test_batches_must_agree(X):
    with pytest.raises(ValueError, match=r"starting at row 10 has shape \(10, 2\); expected"):
        PCA().fit(iter([X[:10], X[:10, :2]]))
    with pytest.raises(ValueError, match="without a batch"):
        open_rows(iter([]))
    with pytest.raises(TypeError, match="sparse"):
        open_rows(iter([csr_array(X)]))
    batches = iter([X, X])
    PCA().fit(batches)
    with pytest.raises(ValueError, match="may have been read before"):
        PCA().fit(batches)
    source = open_rows(iter([X, X]))
    PCA().fit(source)
    with pytest.raises(ValueError, match="can be read once, and it has been"):
        PCA().fit(source)


def test_sizes_in_words():
    assert as_bytes(17) == as_bytes("17") == as_bytes("17 b") == 17
    assert as_bytes("1.5kB") == 1500
    assert as_bytes("2 MiB") == 2 << 20


def test_reading_ahead_raises_and_stops_in_order(X):
    def blocks():
        yield X[:10]
        raise OSError("disk gone")

    source = prefetched(BlockSource(blocks, 3))
    found = source.blocks()
    np.testing.assert_array_equal(next(found), X[:10])
    with pytest.raises(OSError, match="disk gone"):
        next(found)
    endless = prefetched(BlockSource(lambda: repeat(X), 3)).blocks()
    next(endless)
    endless.close()
    gc.collect()
    assert not [thread for thread in threading.enumerate() if thread.name == "fastdr-reader"]


BUDGET = """
import resource, sys
import numpy as np
import fastdr

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

X = np.ones((5000, 51), "f4")
X[0] = 2
fastdr.PCA(3).fit(iter([X, X]))
for path in sys.argv[1:]:  # imports and their tables are not rows
    next(fastdr.open_rows(path, block_rows=1).blocks())
before = peak()
for path in sys.argv[1:]:
    fastdr.PCA(3).fit(fastdr.open_rows(path, memory="6MB"))
    print(path, peak() - before)
"""


def test_c54_memory_budget_in_a_process_of_its_own(tmp_path, run_python, rng):
    parquet = pytest.importorskip("pyarrow.parquet")
    zarr = pytest.importorskip("zarr")
    X = rng.standard_normal((150_000, 51)).astype("f4")  # 31 MB
    paths = [write(X, tmp_path) for write in (as_npy, as_npy_folder)]
    with pytest.importorskip("h5py").File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=X, chunks=(1000, 51))
    array = zarr.open(str(tmp_path / "x.zarr"), mode="w", shape=X.shape, chunks=(1000, 51),
                      dtype=X.dtype)
    array[:] = X
    parquet.write_table(table(X, [f"x{i}" for i in range(51)]), tmp_path / "x.parquet",
                        row_group_size=2000)
    paths += [tmp_path / name for name in ("x.h5", "x.zarr", "x.parquet")]
    code = f"import sys; sys.argv = ['', *{[str(path) for path in paths]!r}]\n{BUDGET}"
    for line in run_python(code).splitlines():
        assert int(line.split()[-1]) < 6_000_000 + 4_000_000, line  # with the allocators' reserve
