"""docs/model-format.md: what it says is so, and both readers refuse what is not a model."""

import json
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fastdr
from fastdr import LinearModel
from fastdr.persistence import FORMAT

HERE = Path(__file__).parent
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g"]


def compiled(source, target, *flags):
    """Compile a C file against the installed header; return whether that worked."""
    done = subprocess.run([os.environ.get("CC", "cc"), "-std=c11", "-D_POSIX_C_SOURCE=200809L",
                           "-O1", "-Wall", "-Wextra", "-Werror", *flags, source,
                           f"-I{fastdr.get_include()}", "-lm", "-o", target],
                          capture_output=True, text=True, check=False)
    assert flags or done.returncode == 0, done.stderr
    return done.returncode == 0 and subprocess.run([target], input=b"", check=False).returncode == 0


@pytest.fixture(scope="module")
def show(tmp_path_factory):
    """Function (paths) -> one line a file from the C reader, with sanitizers if there are any."""
    program = tmp_path_factory.mktemp("reader") / "show"
    assert compiled(HERE / "show_models.c", program, *SANITIZE) or compiled(
        HERE / "show_models.c", program)

    def run(paths):
        done = subprocess.run([program], input="".join(f"{path}\n" for path in paths), text=True,
                              capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert len(lines) == len(paths)
        return lines
    return run


def models():
    rng = np.random.default_rng(5)
    for dtype in ("f8", "f4"):
        axes = np.linalg.qr(rng.standard_normal((5, 3)))[0].T.astype(dtype)
        parts = {"mean": rng.standard_normal(5), "components": axes, "variances": [2.0, 0.5, 0.1],
                 "report": {"solver": 'back\\slash "quoted"', "nested": [{"rank": 9}]}}
        yield LinearModel(**parts)
        yield LinearModel(**parts, whiten="pca", rank=2, exponent=-3)
        yield LinearModel(**parts, whiten="zca", scale=np.arange(1.0, 6),
                          feature_names=("a", 'b"', "ç", "\\", "rank"))
    yield LinearModel(np.zeros(4), np.zeros((0, 4)), [], whiten="pca")


def shown(model):
    """What the C reader prints for a model."""
    def numbers(values):
        return [float(value) for value in np.ravel(values)]

    found = ["yes", *model.components.shape[::-1], model.n_outputs,
             int(model.dtype == np.float32), int(model.whiten == "zca"),
             "mean", *numbers(model.mean), "components", *numbers(model.components)]
    if model.scale is not None:
        found += ["scale", *numbers(model.scale)]
    if model.whiten:
        found += ["divisors", *numbers(model.divisors)]
    return found


def parsed(line):
    words = line.split()
    return [int(word) if re.fullmatch(r"\d+", word) else float.fromhex(word)
            if re.match(r"-?(0x|inf)", word) else word for word in words]


def test_the_c_reader_finds_what_was_saved(show, tmp_path):
    kept = list(models())
    for index, model in enumerate(kept):
        model.save(tmp_path / f"{index}.fdr")
    lines = show([tmp_path / f"{index}.fdr" for index in range(len(kept))])
    for model, line in zip(kept, lines, strict=True):
        assert parsed(line) == shown(model)
    (line,) = show([HERE / "data" / "linear_model_1.fdr"])
    assert parsed(line) == shown(fastdr.load(HERE / "data" / "linear_model_1.fdr"))


def both(show, contents, folder):
    """Read files with both readers. What Python takes C takes too, with the same numbers."""
    paths = [folder / f"{index}.bin" for index in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    accepted = []
    for path, line in zip(paths, show(paths), strict=True):
        try:
            model = fastdr.load(path)
        except ValueError as error:
            assert path.name in str(error)  # noqa: PT017 - either outcome is right
        else:
            assert parsed(line) == shown(model), path.read_bytes()
        accepted.append(line.startswith("yes"))
    return accepted


def damaged(content, rng, count):
    """Copies of a file with some bytes changed, most of them in its header."""
    for _ in range(count):
        copy = bytearray(content)
        length = len(copy) if rng.random() < 0.3 else struct.unpack("<Q", copy[:8])[0] + 8
        for _ in range(rng.integers(1, 4)):
            at = rng.integers(8 if rng.random() < 0.9 else 0, length)
            copy[at] = copy[at] ^ (1 << rng.integers(8)) if rng.random() < 0.5 else rng.choice(
                list(b'{}[]",:\\0123456789-eE. \x00\xff'))
        yield bytes(copy)


def test_changed_bytes(show, tmp_path):
    rng = np.random.default_rng(11)
    contents = []
    for index, model in enumerate(models()):
        model.save(tmp_path / f"{index}.fdr")
        contents += damaged((tmp_path / f"{index}.fdr").read_bytes(), rng, 120)
    accepted = both(show, contents, tmp_path)
    assert 0 < sum(accepted) < len(accepted)


def test_truncated_files(show, tmp_path):
    content = (HERE / "data" / "linear_model_1.fdr").read_bytes()
    accepted = both(show, [content[:length] for length in range(0, len(content), 5)], tmp_path)
    assert not any(accepted)


def file_of(tables=None, header=None, content=None):
    """A file whose table, header or length says something else than its data."""
    content = content or (HERE / "data" / "linear_model_1.fdr").read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    table = json.loads(content[8:8 + length])
    inner = json.loads(table["__metadata__"]["fastdr"]) | (header or {})
    for name, entry in (tables or {}).items():
        table[name] = table.get(name, {}) | entry
    table["__metadata__"]["fastdr"] = json.dumps(inner)
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + content[8 + length:]


LIES = {
    "huge shape": {"tables": {"components": {"shape": [1 << 40, 1 << 40]}}},
    "overflowing shape": {"tables": {"components": {"shape": [1 << 33, 1 << 31]}}},
    "shape of 70 bits": {"tables": {"components": {"shape": [1 << 70, 0]}}},
    "negative shape": {"tables": {"components": {"shape": [-2, -3]}}},
    "wrong shape": {"tables": {"components": {"shape": [3, 2]}}},
    "one size": {"tables": {"components": {"shape": [6]}}},
    "three sizes": {"tables": {"components": {"shape": [1, 2, 3]}}},
    "offsets beyond the end": {"tables": {"mean": {"data_offsets": [1 << 40, (1 << 40) + 24]}}},
    "offsets of 70 bits": {"tables": {"mean": {"data_offsets": [1 << 70, (1 << 70) + 24]}}},
    "offsets turned round": {"tables": {"mean": {"data_offsets": [24, 0]}}},
    "offsets of another": {"tables": {"mean": {"data_offsets": [0, 16]}}},
    "other dtype": {"tables": {"mean": {"dtype": "I64"}}},
    "single mean": {"tables": {"mean": {"dtype": "F32", "shape": [6]}}},
    "future format": {"header": {"format": FORMAT + 1}},
    "format zero": {"header": {"format": 0}},
    "fractional format": {"header": {"format": 1.5}},
    "other kind": {"header": {"kind": "Pickle"}},
    "large rank": {"header": {"rank": 4}},
    "negative rank": {"header": {"rank": -1}},
    "fractional rank": {"header": {"rank": 0.5}},
    "rank of 70 bits": {"header": {"rank": 1 << 70}},
    "unknown whitening": {"header": {"whiten": "none"}},
    **{f"exponent {value}": {"header": {"exponent": value}}
       for value in (4097, -4097, 1 << 31, -(1 << 40), 1 << 62, 0.5)},
    **{f"deviations of {kind} {whiten}": {"header": {"whiten": whiten, "exponent": value}}
       for whiten in ("pca", "zca") for kind, value in (("zero", 4000), ("infinity", -4000))},
}


def test_both_readers_refuse_lies(show, tmp_path):
    assert both(show, [file_of()], tmp_path) == [True]
    for name, lie in LIES.items():
        path = tmp_path / "lie.fdr"
        path.write_bytes(file_of(**lie))
        with pytest.raises(ValueError, match="lie.fdr"):
            fastdr.load(path)
        (line,) = show([path])
        assert line.startswith("no "), name
    assert "later version" in show([_written(tmp_path, **LIES["future format"])])[0]
    with pytest.raises(ValueError, match="Upgrade"):
        fastdr.load(_written(tmp_path, **LIES["future format"]))


def _written(folder, **lie):
    path = folder / "future.fdr"
    path.write_bytes(file_of(**lie))
    return path


@pytest.mark.parametrize("text", [
    b"", b"{", b'{"__metadata__"', b'{"__metadata__":{"fastdr":"\\', b"[" * 5000, b'{"a":' * 5000,
    b'{"__metadata__":{"fastdr":"{\\"format\\":1,\\"kind\\":\\"LinearModel\\"}"}}', b'"\\u00',
    b'{"__metadata__":{"fastdr":"\\u"}}', b'{"__metadata__":{"fastdr":"\\u12"}}', b"\x00\x00",
    b'{"__metadata__":{"fastdr":3}}', b'{"__metadata__":[]}', b"]", b'{"a" 1}', b'{"a":}'])
def test_headers_that_end_early(show, tmp_path, text):
    lengths = [len(text), len(text) + 1, 0, 1, 1 << 62, (1 << 64) - 1]
    contents = [struct.pack("<Q", length) + text for length in lengths]
    assert not any(both(show, contents, tmp_path))


def test_a_header_longer_than_the_file(show, tmp_path):
    content = file_of()
    length = struct.unpack("<Q", content[:8])[0]
    contents = [struct.pack("<Q", length + more) + content[8:8 + length + data]
                for more, data in [(8, 0), (4096, 0), (10**6, 0), (4096, 4000)]]
    assert not any(both(show, contents, tmp_path))


def test_what_is_no_file(show, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    lines = show([tmp_path, tmp_path / "absent", tmp_path / "pipe"])
    assert lines == ["no it is not a regular file", "no cannot open the file",
                     "no it is not a regular file"]


def test_the_example_program(tmp_path, rng):
    source = HERE.parent / "examples" / "project.c"
    if not source.exists():
        pytest.skip("not beside the sources")
    subprocess.run([os.environ.get("CC", "cc"), source, f"-I{fastdr.get_include()}", "-lm", "-o",
                    tmp_path / "project"], check=True)
    X = rng.standard_normal((50, 6)) + 1e6
    model = fastdr.PCA(2, whiten=True).fit(X).model_
    model.save(tmp_path / "model.fdr")
    text = "\n".join(" ".join(map(repr, row)) for row in X.tolist())
    done = subprocess.run([tmp_path / "project", tmp_path / "model.fdr"], input=text, check=True,
                          capture_output=True, text=True)
    found = np.array([line.split() for line in done.stdout.splitlines()], float)
    p = model.projector()
    ours = np.array([[*p(row), p.error(row)] for row in X])
    eps = np.finfo(float).eps
    np.testing.assert_allclose(found, ours, rtol=50 * eps, atol=50 * eps * np.abs(ours).max())
    done = subprocess.run([tmp_path / "project", source], capture_output=True, text=True,
                          check=False)
    assert (done.returncode, done.stderr.count(str(source))) == (1, 1)


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel through /proc/self/smaps")
def test_processes_share_the_pages_of_a_model(tmp_path, run_python):
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.standard_normal((20_000, 20)))[0].T
    LinearModel(np.zeros(20_000), axes, np.ones(20)).save(tmp_path / "big.fdr")
    memory = run_python(f"""
import numpy as np, fastdr
p = fastdr.load({str(tmp_path / "big.fdr")!r}).projector()
p(np.ones(20_000)), p.error(np.ones(20_000))
inside = False
for line in open("/proc/self/smaps"):
    if "-" in line.split()[0]:
        inside = "big.fdr" in line
    elif inside and line.startswith(("Rss:", "Private_Dirty:", "Anonymous:")):
        print(*line.split()[:2])
""")
    sizes = {}
    for line in memory.splitlines():
        name, kilobytes = line.split()
        sizes[name] = sizes.get(name, 0) + int(kilobytes)
    assert sizes["Rss:"] * 1024 >= axes.nbytes
    assert sizes["Private_Dirty:"] == sizes["Anonymous:"] == 0


def test_the_header_is_shipped():
    folder = Path(fastdr.get_include())
    assert {"fastdr.h", "fastdr_typed.h", "fastdr_file.h"} <= {path.name for path in
                                                               folder.iterdir()}
    assert (folder.parent / "_serve.pxd").is_file()
    assert shutil.which(os.environ.get("CC", "cc")), "these tests need a C compiler"
