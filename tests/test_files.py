"""Files in every format: the same rows come back, and each fault is named."""

import gzip
import os
import subprocess
import sys
import zipfile

import numpy as np
import pytest

import fastdr.files
from fastdr.files import SUFFIXES, open_source
from fastdr.progress import with_progress
from fastdr.sinks import open_sink
from fastdr.sources import prefetched

NAMES = ["length", "shaku"]


def rows(dtype=np.float64, count=25):
    values = np.random.default_rng(5).standard_normal((count, 2)) * 100
    return values.astype(dtype)


def read(path, **options):
    return np.concatenate([np.array(block) for block in open_source(path, **options).blocks()])


def write(path, X, columns=None, step=10):
    with open_sink(path, columns) as sink:
        for start in range(0, len(X), step):
            sink.write(X[start:start + step])
    return path


def fails(path, words, **options):
    with pytest.raises(ValueError, match=words) as caught:
        read(path, **options)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("dtype", ["f8", "f4", "i4", "u1"])
def test_rows_written_are_the_rows_read(tmp_path, suffix, dtype):
    X = rows(dtype)
    path = write(tmp_path / f"x{suffix}", X, NAMES)
    source = open_source(path, block_rows=7)
    assert source.shape == ((None if "csv" in suffix else 25), 2)
    assert source.rereadable
    for _ in range(2):  # a source can be read again
        blocks = list(source.blocks())
        assert [len(block) for block in blocks[:2]] == [7, 7]
        np.testing.assert_array_equal(np.concatenate(blocks).astype(dtype), X)
    if suffix in {".csv", ".csv.gz", ".parquet"}:
        assert source.columns == NAMES
    else:
        assert source.dtype == dtype
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_strided_blocks_of_swapped_bytes_are_written_right(tmp_path, suffix):
    X = np.asfortranarray(rows(">f8"))[::-2]
    np.testing.assert_array_equal(read(write(tmp_path / f"x{suffix}", X)), X)


def test_numpy_reads_what_the_sink_wrote(tmp_path):
    X = rows("f4")
    np.testing.assert_array_equal(np.load(write(tmp_path / "x.npy", X)), X)
    with np.load(write(tmp_path / "x.npz", X)) as archive:
        np.testing.assert_array_equal(archive["X"], X)


def test_equal_rows_make_equal_gzip_files(tmp_path):
    first = write(tmp_path / "a.csv.gz", rows()).read_bytes()
    assert write(tmp_path / "b.csv.gz", rows()).read_bytes() == first


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
def test_members_of_numpy_archives(tmp_path, save, order):
    X = np.array(rows(), order=order)
    path = tmp_path / "x.npz"
    save(path, X=X, y=np.arange(25))
    np.testing.assert_array_equal(read(path, block_rows=4), X)  # the only table
    np.testing.assert_array_equal(read(path, member="X"), X)
    fails(path, r"\[y\]: holds a 1-D array of shape \(25,\); expected a 2-D one", member="y")
    fails(path, r"has no member 'Z'; it holds X \(25, 2\), y \(25,\)", member="Z")
    save(path, X=X, Y=X)
    fails(path, r"choose one member of this file; it holds X \(25, 2\), Y \(25, 2\)")


def test_large_members_in_fortran_order_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "x.npz"
    np.savez(path, np.asfortranarray(rows()))
    monkeypatch.setattr(fastdr.files, "WHOLE_MEMBER_BYTES", 100)
    fails(path, r"\[arr_0\]: is in Fortran order and 0.0 GiB, .* save it with numpy.save")


def test_fortran_order_npy(tmp_path):
    np.save(tmp_path / "x.npy", np.asfortranarray(rows()))
    np.testing.assert_array_equal(read(tmp_path / "x.npy", block_rows=3), rows())


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_rows_without_columns(tmp_path, suffix):
    path = write(tmp_path / f"x{suffix}", np.ones((25, 0)))
    for source in (open_source(path), open_source(path, block_rows=10),
                   fastdr.open_rows(path, memory=1000)):
        assert np.concatenate(list(source.blocks())).shape == (25, 0)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
def test_rows_without_columns_are_no_text_or_table(tmp_path, suffix):
    with pytest.raises(ValueError, match=r"written to \.npy and \.npz files only"):
        write(tmp_path / f"x{suffix}", np.ones((25, 0)))


@pytest.mark.parametrize(("array", "words"), [
    (np.arange(3.0), r"holds a 1-D array of shape \(3,\); expected a 2-D one: save it as array"),
    (np.ones((2, 2, 2)), r"holds a 3-D array of shape \(2, 2, 2\); .* reshaped to \(rows, feat"),
    (np.ones((0, 3)), r"shape \(0, 3\); at least one row is needed"),
    (np.ones((2, 2), complex), r"has dtype complex128; allowed are float64"),
    (np.ones((2, 2), np.longdouble), r"has dtype (float128|longdouble)"),
    (np.array([["a"]]), r"has dtype <U1"),
    (np.array([[None]]), r"has dtype object"),
])
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_arrays_that_are_not_tables_of_numbers(tmp_path, suffix, array, words):
    path = tmp_path / f"x{suffix}"
    (np.save if suffix == ".npy" else np.savez)(path, array)
    fails(path, words)


def test_missing_unknown_and_empty_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.npy: no such file"):
        open_source(tmp_path / "none.npy")
    allowed = r"unknown suffix '\.txt'; allowed are \.npy, \.npz, \.csv, \.csv\.gz, \.parquet"
    fails(tmp_path / "x.txt", allowed)
    (tmp_path / "d.npy").mkdir()
    fails(tmp_path / "d.npy", "is a folder with no files to read")
    for suffix in SUFFIXES:
        path = tmp_path / f"empty{suffix}"
        path.touch()
        fails(path, "the file is empty")
    np.save(tmp_path / "x.npy", rows())
    fails(tmp_path / "x.npy", "only .npz, HDF5 and Zarr files have", member="X")
    with pytest.raises(ValueError, match="block_rows must be a positive integer, got 0"):
        open_source(tmp_path / "x.npy", block_rows=0)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".csv.gz", ".parquet"])
@pytest.mark.parametrize("keep", [0.02, 0.6, 0.98])
def test_truncated_files(tmp_path, suffix, keep):
    path = write(tmp_path / f"x{suffix}", rows(count=400))
    data = path.read_bytes()
    path.write_bytes(data[:int(len(data) * keep)])
    fails(path, "truncated")


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".csv.gz", ".parquet"])
def test_foreign_content(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    path.write_bytes(b"PLAIN TEXT, not at all what the suffix says\n" * 9)
    fails(path, r": not an? (NumPy array|\.npz|gzip|Parquet) file, ")


@pytest.mark.parametrize("note", ["readme.txt", "data/"])
def test_notes_beside_the_arrays_of_an_archive(tmp_path, note):
    path = tmp_path / "x.npz"
    np.savez(path, X=rows())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(note, "" if note.endswith("/") else "how these were measured")
    np.testing.assert_array_equal(read(path), rows())


@pytest.mark.parametrize(("place", "value", "words"), [
    (6, 1, "is encrypted"), (8, 97, "compression method is not supported")])
def test_members_that_cannot_be_unpacked(tmp_path, place, value, words):
    path = tmp_path / "x.npz"
    np.savez(path, X=rows())
    data = bytearray(path.read_bytes())
    data[place] = data[data.index(b"PK\x01\x02") + place + 2] = value
    path.write_bytes(data)
    fails(path, words)


@pytest.mark.parametrize(("shape", "words"), [
    ("(-2, -3)", "at least one row"), ("(-1, 3)", "at least one row"), ("(2, -3)", "at least one"),
    ("(True, 6)", "at least one row"), (f"({1 << 62}, 4)", "truncated"), ("(2, 3", "not a NumPy"),
    ("(2.0, 3)", "not a NumPy"), ("(2, 3) + 1 *", "not a NumPy"), ("[" * 2000, "not a NumPy")])
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_headers_that_no_array_has(tmp_path, suffix, shape, words):
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    data = b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + bytes(48)
    path = tmp_path / f"x{suffix}"
    if suffix == ".npy":
        path.write_bytes(data)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("X.npy", data)
    for block_rows in (None, 1):
        fails(path, words, block_rows=block_rows)


def test_damaged_member(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, rows(count=5000))
    data = bytearray(path.read_bytes())
    data[40_000] ^= 255
    path.write_bytes(data)
    fails(path, "damaged")


def test_binary_csv(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"1,2\n\xff\xfe,4\n")
    fails(tmp_path / "x.csv", "not a text file in UTF-8")
    (tmp_path / "x.csv").write_text("a" * 200_000 + ",b\n1,2\n")
    fails(tmp_path / "x.csv", "no cells separated by commas .field larger")


@pytest.mark.parametrize(("text", "columns"), [
    ("1,2\n3,4\n", None),
    ("a,b\n1,2\n3,4", ["a", "b"]),
    ("# a,b\n1,2\n3,4\n", ["a", "b"]),
    ("\ufeffa,b\r\n1,2\r\n3,4\r\n\r\n", ["a", "b"]),
    ('"a, of x"," b"\n"1", 2\n3,4 \n\n  \n', ["a, of x", "b"]),
    ("1e0,+2\n3.,.4e1\n", None),
])
def test_dialects_of_csv(tmp_path, text, columns):
    path = tmp_path / "x.csv"
    path.write_text(text, encoding="utf-8", newline="")
    assert open_source(path).columns == columns
    for block_rows in (None, 1):
        assert read(path, block_rows=block_rows).tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(("text", "header", "columns", "rows"), [
    ("0,1\n0.5,2\n", None, ["0", "1"], [[0.5, 2]]),  # pandas, without names
    ("0,1,2\n1,2,3.0\n", None, ["0", "1", "2"], [[1, 2, 3]]),
    ("0,1\n1,1e3\n", None, ["0", "1"], [[1, 1000]]),
    ("0,1\n", None, None, [[0, 1]]),
    ("0\n0.5\n", None, None, [[0], [0.5]]),
    ("0.0,1.0\n0.5,2\n", None, None, [[0, 1], [0.5, 2]]),
    ("1,2\n0.5,2\n", None, None, [[1, 2], [0.5, 2]]),
    ("1,0\n0.5,2\n", None, None, [[1, 0], [0.5, 2]]),
    ("2019,2020\n0.5,2\n", None, None, [[2019, 2020], [0.5, 2]]),
    ("2019,2020\n0.5,2\n", True, ["2019", "2020"], [[0.5, 2]]),
    ("0\n0.5\n", True, ["0"], [[0.5]]),
    ("0,1\n2,3\n", True, ["0", "1"], [[2, 3]]),
    ("0,1\n2,3\n", False, None, [[0, 1], [2, 3]]),
    ("0,1\n0.5,2\n", False, None, [[0, 1], [0.5, 2]]),
])
def test_headers_of_csv_that_are_numbers(tmp_path, text, header, columns, rows):
    path = tmp_path / "x.csv"
    path.write_text(text)
    assert open_source(path, header=header).columns == columns
    assert read(path, header=header).tolist() == rows
    assert fastdr.open_rows(path, header=header).columns == columns


@pytest.mark.parametrize("columns", [None, [2019, 2020, 2021]])
@pytest.mark.parametrize("whole", [False, True])
def test_frames_without_names_of_their_own(tmp_path, columns, whole):
    pandas = pytest.importorskip("pandas")
    X = np.arange(12).reshape(4, 3) + (0 if whole else 0.5)
    path = tmp_path / "x.csv"
    pandas.DataFrame(X, columns=columns).to_csv(path, index=False)
    header = None if columns is None and not whole else True
    assert read(path, header=header).tolist() == X.tolist()


def test_headers_are_of_csv_files_alone(tmp_path):
    write(tmp_path / "x.npy", rows())
    for header in (True, False):
        with pytest.raises(ValueError, match=r"only \.csv and \.csv\.gz files have header lines"):
            open_source(tmp_path / "x.npy", header=header)
        with pytest.raises(ValueError, match=r"no \.csv files are read from folders"):
            open_source(tmp_path, header=header)
        with pytest.raises(ValueError, match="was given, but X is not a file"):
            fastdr.open_rows(rows(), header=header)


@pytest.mark.parametrize(("text", "words"), [
    ("0,1\n2,3\n", r"line 1, 0,1, may be names or a row, .* \(--header, --no-header\)"),
    ("0,1\r\n-2,+3\r\n", r"line 1, 0,1, may be names or a row"),
    (",0,1\n0,0.5,2\n", r"column 1 has no name .* index=False"),
    ("a,2\n1,2\n", r"line 1, column 1 is 'a', not a number .*--header if it has names"),
    ("a,b\n1,2\n3,\n", r"line 3, column 2 \('b'\) is blank; remove or impute"),
    ("1,2\n,4\n", r"line 2, column 1 is blank"),
    ("a,b\n1,2\n3,NA\n", r"line 3, column 2 \('b'\) is 'NA', not a number"),
    ("a,b\n1,2\nnan,4\n", r"line 3, column 1 \('a'\) is nan; remove .*missing=True, --missing"),
    ("1,2\n3,-inf\n", r"line 2, column 2 is -inf"),
    ("1,2\n3,4,5\n", r"line 2 has 3 cells; expected 2"),
    ("1,2\n3\n", r"line 2 has 1 cells; expected 2"),
    ("a,b,c\n1,2\n", r"line 2 has 2 cells; expected 3"),
    ("1,2\n\n3,4\n", r"line 2 is blank"),
    ("1\n2\n\n3\n", r"line 3 is blank"),
    ("\n1,2\n", r"line 1 is blank; expected rows of numbers\."),
    ("a,b\n", r"line 2 is blank; expected rows of numbers below the header line"),
    (",a\n0,1\n", r"column 1 has no name .* index=False"),
    ("1;2\n3;4\n", r"line 2, column 1 \('1;2'\) is '3;4', not a number \(cells are sep"),
    ("5.1,setosa\n4.9,setosa\n", r"line 1, column 2 is 'setosa', not a number"),
    *((f'a,b\n1,2\n3,"{cell}"\n', rf"line 3, column 2 \('b'\) is '{cell}', not a number")
      for cell in ("1_000", "1,000", "\u0661\u0662", "\uff11", "0x10", "1d5", "1;5")),
    ('"a\nb",c\n1,2\n', "line 2 has a quote without its pair"),
    ('a,b\n1,"2\n3",4\n', "line 2 has a quote without its pair"),
    ('a,b\n1,2\n3,"4\n', "line 3 has a quote without its pair"),
])
@pytest.mark.parametrize("options", [{}, {"block_rows": 1}], ids=str)
def test_faults_in_csv_are_named_by_line_and_column(tmp_path, text, words, options):
    path = tmp_path / "x.csv"
    path.write_text(text, encoding="utf-8")
    fails(path, words, **options)
    if not any(word in words for word in ("blank", "nan")):
        fails(path, words, missing=True, **options)


@pytest.mark.parametrize("block_rows", [None, 1])
def test_cells_of_csv_may_be_missing(tmp_path, block_rows):
    path = tmp_path / "x.csv"
    path.write_text('a,b,c\n1,2,3\n,"", 6\n7,nan,\n')
    np.testing.assert_array_equal(read(path, missing=True, block_rows=block_rows),
                                  [[1, 2, 3], [np.nan, np.nan, 6], [7, np.nan, np.nan]])
    np.testing.assert_array_equal(read(path, missing=True, columns=["c"]), [[3], [6], [np.nan]])
    for row, words in (("4,,-inf", "column 3 .* is -inf"), ("4,,NA", "column 3 .* is 'NA'"),
                       ("4,", "line 3 has 2 cells; expected 3"), ("", "line 3 is blank")):
        path.write_text(f"a,b,c\n1,,3\n{row}\n7,8,9\n")
        fails(path, words, missing=True, block_rows=block_rows)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_null_cells_of_tables_may_be_missing(tmp_path, suffix):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import feather, parquet

    table = arrow.table({"a": [1, None, 3], "b": [0.5, 1.5, None]})
    path = tmp_path / f"x{suffix}"
    (parquet.write_table if suffix == ".parquet" else feather.write_feather)(table, path)
    expected = np.array([[1, 0.5], [np.nan, 1.5], [3, np.nan]])
    fails(path, r"row 1, column 0 \('a'\) is null; .* \(missing=True, --missing\)")
    for given in (path, tmp_path, table):
        source = fastdr.open_rows(given, missing=True)
        np.testing.assert_array_equal(np.concatenate(list(source.blocks())), expected)
    whole = fastdr.open_rows(arrow.table({"a": arrow.array([1, 2], "int8")}), missing=True)
    assert whole.dtype == np.float64                # which has a NaN
    single = fastdr.open_rows(arrow.table({"a": arrow.array([1, None], "float32")}), missing=True)
    assert single.dtype == np.float32


def test_estimators_that_take_missing_cells_read_null_cells(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    X = np.random.default_rng(1).standard_normal((60, 5)) * [5, 4, 1, 1, 1]
    X[3, 2] = np.nan
    table = arrow.table({f"x{j}": arrow.array(X[:, j], from_pandas=True) for j in range(5)})
    assert table["x2"].null_count == 1
    found, expected = (fastdr.PCA(2, missing="em").fit(rows) for rows in (table, X))
    np.testing.assert_array_equal(found.components_, expected.components_)
    np.testing.assert_array_equal(found.transform(table), expected.transform(X))
    with pytest.raises(ValueError, match="is null"):
        fastdr.PCA(2).fit(table)


def test_faults_in_a_later_block_of_csv(tmp_path):
    path = tmp_path / "x.csv.gz"
    with gzip.open(path, "wt") as file:
        file.writelines(["0.25,1\n"] * 900_000 + ["7,\n"])
    fails(path, "line 900001, column 2 is blank")


def test_parquet_of_frames(tmp_path):
    pandas = pytest.importorskip("pandas")
    path = tmp_path / "x.parquet"
    frame = pandas.DataFrame({"a": [1, 2, 3], "b": [0.5, 1.5, 2.5], "c": [True, False, True]},
                             index=pandas.Index([7, 8, 9], name="id"))
    frame.to_parquet(path)
    source = open_source(path)
    assert source.columns == ["a", "b", "c"]
    assert source.dtype == np.float64
    np.testing.assert_array_equal(read(path, block_rows=2), frame.to_numpy(float))
    frame.assign(d="text").to_parquet(path)
    fails(path, "column 'd' is (large_)?string, not numeric; choose columns without it")
    frame.assign(b=[0.5, None, 2.5]).to_parquet(path)
    fails(path, r"row 1, column 1 \('b'\) is null", block_rows=1)
    frame[:0].to_parquet(path)
    fails(path, "holds 0 rows of 3 columns")


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
@pytest.mark.parametrize("dtypes", [("f8", "i8"), ("i8", "f8", "i8"), ("i1", "i2", "i1"),
                                    ("u1", "i1"), ("f4", "f8", "f4"), ("?", "f4")], ids=str)
def test_files_of_a_folder_may_differ_in_dtype(tmp_path, suffix, dtypes):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import feather, parquet

    parts = [np.array([[1.1e-9, 0], [1, 200.75]]).astype(dtype) for dtype in dtypes]
    for index, part in enumerate(parts):
        table = arrow.table({"a": part[:, 0], "b": part[:, 1]})
        path = tmp_path / f"{index}{suffix}"
        (parquet.write_table if suffix == ".parquet" else feather.write_feather)(table, path)
    source = open_source(tmp_path)
    assert source.dtype == np.result_type(*dtypes)
    np.testing.assert_array_equal(np.concatenate(list(source.blocks())), np.concatenate(parts))
    np.testing.assert_array_equal(source.between(1, 3), np.concatenate(parts)[1:3])


def test_columns_of_tables_are_numbers_and_have_names_of_their_own(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    for index, cells in enumerate((["1.5", "2"], [1.5, 2])):  # the last of which is right
        parquet.write_table(arrow.table({"a": cells}), tmp_path / f"{index}.parquet")
    with pytest.raises(ValueError, match=r"0\.parquet: column 'a' is string, not numeric"):
        open_source(tmp_path)
    twice = arrow.table([[1.0], [2.0], [3.0]], names=["a", "b", "a"])
    parquet.write_table(twice, tmp_path / "0.parquet")
    for given in (twice, tmp_path / "0.parquet"):
        for columns in (None, ["a"]):
            with pytest.raises(ValueError, match="has 2 columns 'a'"):
                fastdr.open_rows(given, columns=columns)
        assert fastdr.open_rows(given, columns=["b"]).shape == (1, 1)


@pytest.mark.parametrize("open_file", [open_source, lambda path: open_sink(path).__enter__()])
def test_parquet_without_pyarrow(tmp_path, monkeypatch, open_file):
    path = write(tmp_path / "x.parquet", rows())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError, match=r'need pyarrow; run: pip install "fastdr\[io\]"'):
        open_file(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_the_old_file_stays_when_writing_fails(tmp_path, suffix, error):
    path = write(tmp_path / f"x{suffix}", rows())
    before = path.read_bytes()
    with pytest.raises(error), open_sink(path) as sink:  # noqa: PT012
        sink.write(np.ones((3, 2)))
        raise error
    with pytest.raises(ValueError, match="no rows were written"), open_sink(path):
        pass
    with pytest.raises(ValueError, match="block has 3 columns, those before it 2"):  # noqa: PT012
        with open_sink(path) as sink:
            sink.write(np.ones((3, 2)))
            sink.write(np.ones((3, 3)))
    with pytest.raises(ValueError, match="1 column names for 2 columns"):
        write(path, rows(), ["a"])
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("names", [
    ["a", "b"], ["a", "a"], ["ü", 'q,"'], ["a", "#"], ["a\nb", "c"], ["a", " b"], ["", "b"],
    ["# a", "b"], ["a\r", "b"], ["a\u2028b", "c"]], ids=ascii)
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
def test_names_are_read_back_or_refused(tmp_path, suffix, names):
    path = tmp_path / f"x{suffix}"
    try:
        write(path, rows()[:, :2], names)
    except ValueError as error:
        assert "write to another kind of file" in str(error)  # noqa: PT017
        assert not list(tmp_path.iterdir())
        assert (names == ["a", "a"]) == (suffix == ".parquet")
    else:
        assert open_source(path).columns == names
        np.testing.assert_array_equal(read(path), rows()[:, :2])
        if names[0] == names[1]:
            with pytest.raises(ValueError, match=r"x\.csv.*: has 2 columns 'a'"):
                open_source(path, columns=["a"])


def test_sinks_refuse_bad_paths(tmp_path):
    with pytest.raises(ValueError, match=r"unknown suffix '\.xls'"), open_sink(tmp_path / "x.xls"):
        pass
    with pytest.raises(FileNotFoundError, match="no such directory"):
        write(tmp_path / "none" / "x.npy", rows())


def test_sinks_follow_links_and_the_umask(tmp_path):
    (tmp_path / "real").mkdir()
    link = tmp_path / "x.npy"
    link.symlink_to(tmp_path / "real" / "x.npy")
    write(link, rows())
    assert link.is_symlink()
    plain = tmp_path / "plain"
    plain.touch()
    assert link.stat().st_mode == plain.stat().st_mode


@pytest.fixture(params=["folder", "pipe", "loop"])
def irregular(request, tmp_path):
    """Something that is not a regular file, and the words that refuse to write there."""
    path = tmp_path / "out.npy"
    if request.param == "folder":
        path.mkdir()
        return path, "is a directory; name a file"
    if request.param == "loop":
        path.symlink_to(path)
    elif hasattr(os, "mkfifo"):
        os.mkfifo(path)
    else:
        pytest.skip("Windows has no pipes in folders")
    return path, "is a device, a pipe or a link to itself"


def test_sinks_refuse_what_is_not_a_file(tmp_path, irregular):
    path, words = irregular
    kind = path.lstat().st_mode
    fails_to_open = pytest.raises(ValueError, match=f"out.npy: {words}")
    with fails_to_open, open_sink(path):
        raise AssertionError("opened")
    assert path.lstat().st_mode == kind
    assert os.listdir(tmp_path) == ["out.npy"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_sinks_keep_the_mode_of_what_they_replace(tmp_path, suffix):
    path = write(tmp_path / f"x{suffix}", rows())
    path.chmod(0o400)
    before = path.stat().st_mode
    with open_sink(path) as sink:
        sink.write(np.ones((3, 2)))
        part = next(entry for entry in tmp_path.iterdir() if entry != path)
        assert part.stat().st_mode & 0o077 == 0 or os.name == "nt"
    assert path.stat().st_mode == before
    np.testing.assert_array_equal(read(path), np.ones((3, 2)))


def test_sinks_refuse_folders_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(PermissionError, match=r"x\.npy: no permission to write to"):
        open_sink(tmp_path / "x.npy").__enter__()


FULL = """
import errno, resource, sys
import numpy as np
from fastdr import moments
from fastdr.sinks import open_sink
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, resource.RLIM_INFINITY))
X = np.random.default_rng(0).standard_normal((2000, 30))
try:
    if sys.argv[1].endswith("fdr"):
        moments(X).save(sys.argv[1])
    else:
        with open_sink(sys.argv[1]) as sink:
            sink.write(X)
except OSError as error:
    sys.exit(error.errno != errno.EFBIG or "out." not in str(error))
sys.exit("no error")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files")
@pytest.mark.parametrize("suffix", [*SUFFIXES, ".fdr"])
def test_where_no_more_can_be_written_the_file_is_named_and_nothing_left(tmp_path, suffix):
    subprocess.run([sys.executable, "-P", "-c", FULL, tmp_path / f"out{suffix}"], check=True)
    assert not os.listdir(tmp_path)


def sparse(path, count, features):
    """Make an .npy file of zeros that takes no room on disk."""
    np.lib.format.open_memmap(path, "w+", "f8", (count, features)).flush()
    return path


LIMITED = """
import resource, sys
import numpy as np
from fastdr.files import open_source
from fastdr.sinks import open_sink
used = int(next(l for l in open("/proc/self/status") if l.startswith("VmData")).split()[1]) << 10
resource.setrlimit(resource.RLIMIT_DATA, (used + (150 << 20),) * 2)
with open_sink(sys.argv[2]) as sink:
    for block in open_source(sys.argv[1]).blocks():
        sink.write(block[:, :1] + 1)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_DATA as Linux counts it")
@pytest.mark.parametrize("suffix", [".npy", ".npz", ".parquet"])
def test_files_larger_than_the_memory_allowed(tmp_path, suffix):
    path = sparse(tmp_path / "x.npy", 600_000, 64)  # 293 MiB
    if suffix == ".npz":
        with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(path, "x.npy", compresslevel=1)
    if suffix == ".parquet":
        write(tmp_path / "x.parquet", np.load(path, mmap_mode="r"), step=30_000)
    # Arrow's own allocator reserves a gigabyte of addresses, which the limit counts
    done = subprocess.run([sys.executable, "-P", "-c", LIMITED, tmp_path / f"x{suffix}",
                           tmp_path / "out.npy"], capture_output=True, text=True, check=False,
                          env=os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system"})
    assert done.returncode == 0, done.stderr
    assert np.load(tmp_path / "out.npy", mmap_mode="r").shape == (600_000, 1)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_text_tells_how_far_it_was_read(tmp_path, suffix, capsys):
    X = np.random.default_rng(0).standard_normal((40_000, 4))
    path = write(tmp_path / f"x{suffix}", X, ["a", "b", "c", "d"])
    size = path.stat().st_size
    source = open_source(path, block_rows=4000)
    assert source.place() == (0, size)
    places = [source.place()[0] for _ in source.blocks()]
    shares = np.array(places) / size
    assert np.abs(shares - np.arange(1, 11) / 10).max() < 0.1  # it is read ahead a little
    assert places[-1] == size
    chosen = prefetched(open_source(path, columns=["b", "d"], block_rows=4000))
    shown = with_progress(chosen, "rows", leave=True)
    np.testing.assert_array_equal(np.concatenate(list(shown.blocks())), X[:, [1, 3]])
    told = capsys.readouterr().err
    assert "rows: 100%" in told
    assert "40000 rows" in told
    assert "?" not in told.rsplit("\r", 1)[-1]
