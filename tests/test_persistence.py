"""Saved models: exact, read-only, mapped, atomic; and no file, however broken, does harm."""

import json
import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import fastdr
from fastdr.models import LinearModel
from fastdr.persistence import FORMAT

KEPT = Path(__file__).parent / "data" / "linear_model_1.fdr"


def model_of(dtype="f8", **kwargs):
    rng = np.random.default_rng(3)
    axes = np.linalg.qr(rng.standard_normal((5, 2)))[0].T.astype(dtype)
    parts = {"mean": rng.standard_normal(5), "components": axes, "variances": [2.0, 0.1],
             "noise_variance": 1 / 3, "left_out": 1.0, "count": 12, "rank": 2,
             "report": {"solver": "lapack", "passes": np.int64(1)}}
    return LinearModel(**{**parts, **kwargs})


def same(first, second):
    for name in ("mean", "components", "variances", "scale"):
        a, b = getattr(first, name), getattr(second, name)
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
    for name in ("total_variance", "noise_variance", "left_out", "rank", "count", "whiten",
                 "exponent", "feature_names", "report"):
        assert getattr(first, name) == getattr(second, name), name
    return True


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("kwargs", [
    {}, {"whiten": "pca"}, {"whiten": "zca", "scale": np.arange(1.0, 6)}, {"exponent": -700},
    {"feature_names": ("a", "b", "ç", "d d", "")},
    {"components": np.zeros((0, 5)), "variances": [], "rank": 0}])
def test_everything_comes_back_to_the_bit(tmp_path, rng, dtype, kwargs):
    model = model_of(dtype, **kwargs)
    model.save(tmp_path / "m.fdr")
    loaded = fastdr.load(tmp_path / "m.fdr")
    assert same(loaded, model)
    X = rng.standard_normal((4, 5))
    np.testing.assert_array_equal(loaded.transform(X), model.transform(X))


def test_a_file_of_format_1_can_be_read():
    loaded = fastdr.load(KEPT)
    np.testing.assert_array_equal(loaded.mean, [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(loaded.components, [[0.6, 0.8, 0.0], [0.0, 0.0, 1.0]])
    np.testing.assert_array_equal(loaded.scale, [1.0, 2.0, 4.0])
    np.testing.assert_array_equal(loaded.variances, [4.0, 1.0])
    assert (loaded.whiten, loaded.rank, loaded.count) == ("zca", 2, 10)
    assert (loaded.noise_variance, loaded.total_variance) == (0.1, 5.1)
    assert loaded.feature_names == ("x", "y", "z")
    assert FORMAT == 1, "keep a file of every format here"


def test_loaded_arrays_are_mapped_and_read_only(tmp_path):
    model_of().save(tmp_path / "m.fdr")
    loaded = fastdr.load(str(tmp_path / "m.fdr"))
    base = loaded.components
    while base.base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert not loaded.components.flags.owndata
    assert not loaded.components.flags.writeable
    assert loaded.components.flags.aligned
    assert "mmap" in type(base).__name__


def test_the_file_is_ordinary_safetensors(tmp_path):
    model_of().save(tmp_path / "m.fdr")
    assert set(load_file(tmp_path / "m.fdr")) == {"mean", "components", "variances"}


def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "m.fdr"
    model_of().save(path)
    before = path.read_bytes()

    def failing(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OSError, match="no space"):
        model_of(count=99).save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["m.fdr"]
    (tmp_path / "plain").touch()
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode
    monkeypatch.undo()
    with pytest.raises(OSError, match="nowhere"):
        model_of().save(tmp_path / "nowhere" / "m.fdr")


def test_save_follows_links_and_keeps_the_mode(tmp_path):
    (tmp_path / "real").mkdir()
    link, target = tmp_path / "m.fdr", tmp_path / "real" / "t.fdr"
    link.symlink_to(target)
    model_of().save(link)
    target.chmod(0o600)
    before = target.stat().st_mode
    model_of(count=99).save(link)
    assert link.is_symlink()
    assert fastdr.load(target).count == 99
    assert target.stat().st_mode == before
    assert os.listdir(tmp_path / "real") == ["t.fdr"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no pipes in folders")
def test_save_leaves_pipes_alone(tmp_path):
    os.mkfifo(tmp_path / "m.fdr")
    with pytest.raises(ValueError, match=r"m\.fdr: is a device, a pipe"):
        model_of().save(tmp_path / "m.fdr")
    assert (tmp_path / "m.fdr").is_fifo()


def test_save_names_what_it_was_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"^\.: is a directory; name a file"):
        model_of().save(".")
    with pytest.raises(FileNotFoundError, match=r"^nodir/m\.fdr: no such directory: "):
        model_of().save("nodir/m.fdr")


def test_missing_and_foreign_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent"):
        fastdr.load(tmp_path / "absent.fdr")
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        fastdr.load(tmp_path)
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "text").write_text("hello, world, this is no model")
    (tmp_path / "pickle").write_bytes(b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x05.")
    for name in ("empty", "text", "pickle"):
        with pytest.raises(ValueError, match=f"{name} is not a complete safetensors file"):
            fastdr.load(tmp_path / name)
    save_file({"mean": np.zeros(3)}, tmp_path / "other")
    with pytest.raises(ValueError, match="holds no fastdr model"):
        fastdr.load(tmp_path / "other")


@pytest.fixture
def written(tmp_path):
    """Function (arrays, header changes) -> path of a safetensors file with our header."""
    model_of().save(tmp_path / "good.fdr")
    size = struct.unpack("<Q", (tmp_path / "good.fdr").read_bytes()[:8])[0]
    table = json.loads((tmp_path / "good.fdr").read_bytes()[8:8 + size])
    header = json.loads(table["__metadata__"]["fastdr"])

    def write(arrays=(), text=None, **changes):
        good = load_file(tmp_path / "good.fdr")
        good.update(arrays)
        good = {name: array for name, array in good.items() if array is not None}
        text = json.dumps({**header, **changes}) if text is None else text
        save_file(good, tmp_path / "bad.fdr", {"fastdr": text})
        return tmp_path / "bad.fdr"
    return write


@pytest.mark.parametrize(("change", "words"), [
    ({"format": 2, "version": "9.1"}, r"format 2, written by fastdr 9\.1.*reads up to 1. Upgrade"),
    ({"format": "1"}, "no format number"),
    ({"format": 0}, "unknown format 0"),
    ({"kind": "os.system"}, "kind 'os.system'"),
    ({"text": "not json"}, "not a valid fastdr model"),
    ({"text": "[" * 100_000}, "not a valid fastdr model"),
    ({"rank": 3}, "rank 3"),
    ({"rank": True}, "rank=True"),
    ({"count": -1}, "count -1"),
    ({"exponent": 10**400}, "not a whole number"),
    ({"exponent": 4097}, "exponent=4097 is impossible"),
    ({"exponent": -(1 << 62)}, "is impossible"),
    ({"whiten": "pca", "exponent": 4096}, "one of them is 0 or infinite"),
    ({"whiten": "zca", "arrays": {"variances": np.array([1.0, 0.0])}}, "one of them is 0 or inf"),
    ({"noise_variance": float(-1).hex()}, "negative"),
    ({"noise_variance": "nan"}, "finite"),
    ({"noise_variance": 0.5}, "not a valid fastdr model"),
    ({"whiten": "yes"}, "whiten='yes'"),
    ({"feature_names": ["a"]}, "feature_names"),
    ({"report": 3}, "report"),
    ({"report": {"rows_read": "9"}}, "rows_read='9' is not a whole number"),
    ({"arrays": {"mean": np.zeros(4)}}, r"mean has shape \(4,\)"),
    ({"arrays": {"mean": None}}, "holds arrays"),
    ({"arrays": {"mean": np.full(5, np.nan)}}, "mean contains NaN"),
    ({"arrays": {"extra": np.zeros(4)}}, "extra"),
    ({"arrays": {"components": np.zeros((2, 5), np.int64)}}, "dtype I64"),
    ({"arrays": {"components": np.zeros(10)}}, "components has shape"),
    ({"arrays": {"variances": np.array([1.0, -1.0])}}, "variances must not be negative"),
    ({"arrays": {"scale": np.zeros(5)}}, "scale must be positive"),
])
def test_tampered_files_are_refused_in_words(written, change, words):
    with pytest.raises(ValueError, match=words) as caught:
        fastdr.load(written(**change))
    assert "bad.fdr" in str(caught.value)


@pytest.mark.parametrize(("parts", "words"), [
    ({"feature_names": ("a",)}, "one string for each"), ({"feature_names": (1, 2)}, "one string"),
    ({"report": [1]}, "cannot|must be")])
def test_models_that_could_not_be_loaded_are_not_saved(tmp_path, parts, words):
    path = tmp_path / "m.fdr"
    path.write_bytes(b"as it was")
    with pytest.raises((ValueError, TypeError), match=words):
        fastdr.LinearModel([0.0, 0.0], [[1.0, 0.0]], [1.0], **parts).save(path)
    assert [each.name for each in tmp_path.iterdir()] == ["m.fdr"]
    assert path.read_bytes() == b"as it was"


@pytest.mark.parametrize("missing", ["rank", "whiten", "noise_variance", "report"])
def test_a_header_without_an_entry_is_refused(written, missing):
    path = written()
    text = path.read_bytes().replace(f'\\"{missing}\\"'.encode(), f'\\"{missing[::-1]}\\"'.encode())
    path.write_bytes(text)
    with pytest.raises(ValueError, match=missing):
        fastdr.load(path)


def tables():
    """Safetensors tables that lie about shapes and offsets."""
    number = st.one_of(st.integers(-(2**70), 2**70), st.sampled_from([0, 1, -1, 16, 2**63, 2**64]))
    entry = st.fixed_dictionaries({
        "dtype": st.sampled_from(["F64", "F32", "I8", "F128", "", "BOOL"]),
        "shape": st.lists(number, max_size=3), "data_offsets": st.lists(number, max_size=3)})
    return st.dictionaries(st.sampled_from(["mean", "components", "variances", "scale", "x"]),
                           entry)


@given(table=tables(), payload=st.binary(max_size=64))
def test_lying_tables_never_load_or_crash(tmp_path_factory, table, payload):
    path = tmp_path_factory.mktemp("lies") / "lie.fdr"
    text = json.dumps({**table, "__metadata__": {"fastdr": '{"format": 1}'}}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + payload)
    with pytest.raises(ValueError, match="lie.fdr"):
        fastdr.load(path)


@given(data=st.data())
def test_any_cut_or_flipped_byte_gives_a_model_or_a_value_error(tmp_path_factory, data):
    content = bytearray(KEPT.read_bytes())
    content = content[:data.draw(st.integers(0, len(content)))]
    for _ in range(data.draw(st.integers(0, 3)) if content else 0):
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path = tmp_path_factory.mktemp("flips") / "flip.fdr"
    path.write_bytes(content)
    try:
        fastdr.load(path)
    except ValueError as error:
        assert "flip.fdr" in str(error)  # noqa: PT017 - either outcome is right


def test_every_truncation_is_a_value_error(tmp_path):
    content = KEPT.read_bytes()
    path = tmp_path / "cut.fdr"
    for length in range(0, len(content), 7):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match="cut.fdr is not a complete safetensors file"):
            fastdr.load(path)


def test_a_model_outlives_a_replaced_file(tmp_path):
    path = tmp_path / "m.fdr"
    shutil.copy(KEPT, path)
    loaded = fastdr.load(path)
    model_of().save(path)
    np.testing.assert_array_equal(loaded.mean, [1.0, 2.0, 3.0])
    assert fastdr.load(path).components.shape == (2, 5)
