"""Files that are mapped, and read where a mapping could end the process; budgets of memory."""

import gc
import os
import sys

import numpy as np
import pytest

import fastdr
from fastdr import PCA, Moments, open_rows
from fastdr.mapped import READS, MappedFile, file_of, read
from fastdr.operators import gram
from fastdr.sources import ArraySource

pytestmark = pytest.mark.skipif(not READS, reason="needs preadv")


def saved(folder, X, order="C"):
    np.save(folder / "x.npy", np.asarray(X, order=order))
    return folder / "x.npy"


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", ">f4", "u1", "?", ">i8"])
@pytest.mark.parametrize("features", [1, 5, 520])
def test_a_file_gives_what_the_array_does(rng, tmp_path, dtype, order, features):
    X = (rng.standard_normal((600, features)) * 30 + 100).clip(0, 255)
    X = X > 100 if dtype == "?" else X.astype(dtype)
    source = open_rows(saved(tmp_path, X, order))
    assert isinstance(source, ArraySource)
    assert file_of(np.asarray(source.array)[3:]) is not None
    for part in (slice(None), slice(3, 500), slice(1, None, 7), slice(None, None, -1)):
        for columns in (slice(None), slice(0, 3), slice(None, None, 2)):
            view = source.array[part, columns]
            np.testing.assert_array_equal(read(view), X[part, columns])
            np.testing.assert_array_equal(read(view.T), X[part, columns].T)
    np.testing.assert_array_equal(np.concatenate(list(source.blocks())), X)
    found, expected = Moments.of_source(source), Moments.of(np.asarray(X, order="C"))
    for name in ("mean", "scatter"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    model = PCA(1).fit(X).model_
    np.testing.assert_array_equal(model.transform(source.array), model.transform(X))
    weights = rng.random(600)
    np.testing.assert_array_equal(Moments.of(source.array, weights).scatter,
                                  Moments.of(np.asarray(X, order="C"), weights).scatter)


@pytest.mark.parametrize("shape", [(40, 3000), (900, 520)])
@pytest.mark.parametrize("options", [{}, {"svd_solver": "lanczos", "n_components": 3},
                                     {"svd_solver": "svd", "n_components": 3}], ids=str)
def test_fits_are_the_same(rng, tmp_path, shape, options):
    X = rng.standard_normal(shape) + 7
    source = open_rows(saved(tmp_path, X))
    found, expected = PCA(**options).fit(source), PCA(**options).fit(X)
    np.testing.assert_allclose(found.explained_variance_, expected.explained_variance_,
                               rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(found.mean_, expected.mean_)


def test_what_is_left_mapped_is_checked(rng, tmp_path, monkeypatch):
    monkeypatch.setattr("fastdr.centring.WHOLE_BYTES", 0)
    X = rng.standard_normal((40, 30_000))
    source = open_rows(saved(tmp_path, X))
    np.testing.assert_array_equal(PCA(2).fit(source).components_, PCA(2).fit(X).components_)
    os.truncate(tmp_path / "x.npy", 1 << 20)
    with pytest.raises(ValueError, match="was cut while being read"):
        gram(source.array)


def test_what_is_computed_of_a_file_is_no_file(rng, tmp_path):
    source = open_rows(saved(tmp_path, rng.standard_normal((30, 4))))
    assert isinstance(source.array[5:][::2], MappedFile)
    for array in (source.array + 1, source.array.astype("f4"), source.array[[1, 3]],
                  np.array(source.array), rng.standard_normal((3, 2))):
        assert file_of(array) is None
        assert read(array) is array


def test_files_are_closed_with_their_arrays(rng, tmp_path):
    source = open_rows(saved(tmp_path, rng.standard_normal((30, 4))))
    number = source.array.descriptor.number
    view = source.array[3:, 1:]
    del source
    gc.collect()
    assert os.fstat(number).st_size == 128 + 30 * 4 * 8
    del view
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


CUT = """
import os, sys
import numpy as np
import fastdr
from fastdr.sources import PIECE_BYTES

path, what = sys.argv[1:]
model = fastdr.PCA(2).fit(np.random.default_rng(0).standard_normal((200, 50))).model_
source = fastdr.open_rows(path)
file = path if path.endswith(".npy") else path + "/b.npy"
reads, preadv = 0, os.preadv

def cutting(*arguments):
    global reads
    reads += 1
    if reads == (12 if what != "wide" and path == file else 3 if path != file else 1):
        os.truncate(file, 1 << 20)
    return preadv(*arguments)

os.preadv = cutting
try:
    if what == "transform":
        model.transform(source.array)
    elif what == "wide":
        fastdr.PCA(2).fit(source)
    elif what == "partial_fit":
        fastdr.IncrementalPCA(2).partial_fit(source)
    elif what == "weights":
        fastdr.PCA(2).fit(source, sample_weight=np.ones(80_000))
    else:
        fastdr.PCA(2, svd_solver=what).fit(source)
    print("no error")
except ValueError as error:
    print(error)
"""


@pytest.mark.parametrize("what", ["auto", "lanczos", "svd", "transform", "partial_fit", "folder",
                                  "wide", "weights"])
def test_a_file_that_shrinks_is_an_error(tmp_path, run_python, what):
    shape = (50, 80_000) if what == "wide" else (80_000, 50)  # 32 MB
    for name in "ab":
        rows = np.lib.format.open_memmap(tmp_path / f"{name}.npy", "w+", "f8", shape)
        rows[::100] = np.arange(shape[1])
        rows.flush()
    path = str(tmp_path if what == "folder" else tmp_path / "b.npy")
    arguments = [path, "auto" if what == "folder" else what]
    told = run_python(f"import sys; sys.argv = ['', *{arguments!r}]\n{CUT}")
    assert "b.npy: is shorter than when it was opened: it was cut while being read" in told


CUT_BEFORE = """
import os, sys
import numpy as np
import fastdr
from fastdr.missing import observed_rows
from fastdr.training import Recipe, train

tall, wide = sys.argv[1:]
X = np.random.default_rng(0).standard_normal((3000, 20))
y = np.arange(3000) % 3
np.save(tall, X)
np.save(wide, X.reshape(20, 3000))
source, few = fastdr.open_rows(tall), fastdr.open_rows(wide)
lda = fastdr.LinearDiscriminantAnalysis(shrinkage=0.1).fit(X, y)
ae = fastdr.AutoEncoder((3,), random_state=0, max_epochs=1).fit(X)
gaps = observed_rows(source, None, None, False)
for path in (tall, wide):
    os.truncate(path, 4096)
for work in (lambda: lda.fit(source, y), lambda: lda.fit(few, y[:20]),
             lambda: lda.model_.reconstruction_error(source.array),
             lambda: ae.model_.transform(source.array), lambda: ae.partial_fit(source),
             lambda: train(ae.model_, source, Recipe(max_epochs=1), 0),
             lambda: train(ae.model_, source, Recipe(max_epochs=1, held_out=0), 0),
             lambda: gaps.centred(2000, 2500), lambda: list(gaps.restored().blocks())):
    try:
        work()
        print("no error")
    except ValueError as error:
        print(error)
"""


def test_rows_at_any_place_of_a_file_that_shrank_are_an_error(tmp_path, run_python):
    arguments = [str(tmp_path / name) for name in ("tall.npy", "wide.npy")]
    told = run_python(f"import sys; sys.argv = ['', *{arguments!r}]\n{CUT_BEFORE}").splitlines()
    assert len(told) == 9
    for line in told:
        assert line.endswith("is shorter than when it was opened: it was cut while being read.")


LIMITED = """
import resource, sys
import numpy as np
import fastdr

def status(name):
    with open("/proc/self/status") as file:
        return int(next(line for line in file if line.startswith(name)).split()[1]) << 10

path = sys.argv[1]
rows = np.random.default_rng(0).standard_normal((5000, 100)).astype("f4")
for _ in range(3):  # threads, BLAS and their buffers
    fastdr.PCA(3).fit(iter([rows, rows]))
next(fastdr.open_rows(path, memory="1MB").blocks())
before = status("VmRSS")
resource.setrlimit(resource.RLIMIT_AS, (status("VmSize") + (150 << 20),) * 2)
try:
    np.empty(160 << 20, np.uint8)
    print("the limit limits nothing")
except MemoryError:
    pass
pca = fastdr.PCA(3, max_memory="60MB").fit(fastdr.open_rows(path, memory="20MB"))
print(pca.n_samples_, status("VmHWM") - before)
for call in (lambda: fastdr.PCA(3, max_memory="1kB").fit(fastdr.open_rows(path, memory="20MB")),
             lambda: fastdr.open_rows(path, memory="1kB")):
    try:
        call()
    except ValueError as error:
        print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_AS as Linux counts it")
def test_a_file_larger_than_the_address_space_left(tmp_path, run_python):
    rows = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", "f4", (1_000_000, 100))  # 400 MB
    rows[::1000] = np.arange(100)
    rows.flush()
    code = f"import sys; sys.argv = ['', {str(tmp_path / 'x.npy')!r}]\n{LIMITED}"
    # each thread of glibc's allocator reserves 64 MB of addresses otherwise
    told = run_python(code, env=os.environ | {"MALLOC_ARENA_MAX": "1"}).splitlines()
    count, risen = map(int, told[0].split())
    assert count == 1_000_000
    assert risen < 60e6
    assert "nothing fits in 1 kB beyond the data: 3 axes need" in told[1]
    assert "Allow more memory" in told[1]
    assert told[2] == "memory=1000 bytes are too few: 4 blocks of one row take 1600."


def test_a_fit_that_goes_on_reads_the_file(rng, tmp_path):
    X = rng.standard_normal((5000, 20))
    source = open_rows(saved(tmp_path, X))
    stream = fastdr.IncrementalPCA(3).partial_fit(source).partial_fit(X)
    np.testing.assert_allclose(stream.explained_variance_, PCA(3).fit(
        np.concatenate([X, X])).explained_variance_, rtol=1e-12)
