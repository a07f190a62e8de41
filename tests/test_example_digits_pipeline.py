"""examples/digits_pipeline.py: it runs, and what it prints is true (seed S16)."""

import re

import pytest


def test_s16_a_pipeline_keeps_its_accuracy_with_far_fewer_features(run_example, tmp_path):
    image = pytest.importorskip("matplotlib.image")
    printed = run_example("digits_pipeline")
    sizes, *curve, chosen, told, transformed, _ = printed.splitlines()
    assert sum(map(int, re.findall(r"\d+", sizes)[:2])) == 1797
    accuracy = {int(k): float(value) for k, value in
                (re.fullmatch(r"k = +(\d+): (\S+) cross-validated", line).groups()
                 for line in curve)}
    k = int(re.search(r"\d+", chosen)[0])
    assert k <= 64 / 4
    assert accuracy[k] >= max(accuracy.values()) - 0.005 > accuracy[4] > accuracy[1]
    reduced, plain = map(float, re.findall(r"0\.\d+", told))
    assert reduced > plain - 0.01 > 0.95
    assert float(transformed.split()[-1]) < 1e-12
    pixels = image.imread(tmp_path / "digits_pipeline.png")
    assert pixels.shape[:2] == (450, 1100)
    assert pixels[..., :3].std() > 0.1
