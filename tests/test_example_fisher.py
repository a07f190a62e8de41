"""examples/fisher.py: it runs, and what it prints is true (seed S20)."""

import re

import numpy as np
import pytest


def test_s20_fishers_direction_beats_the_means(run_example, tmp_path):
    image = pytest.importorskip("matplotlib.image")
    printed = run_example("fisher")
    lines = printed.splitlines()
    vectors = [np.array(re.search(r"\[(.*)\]", line)[1].split(), float) for line in lines[:3]]
    np.testing.assert_array_equal(vectors[0], vectors[1])
    assert abs(vectors[0] @ vectors[2]) < 0.7
    (fisher, right), (means, wrong), (best, most) = (
        map(float, re.findall(r"-?\d+\.\d+", line)) for line in lines[3:6])
    assert fisher > 6 * means
    assert right > 0.95 > 0.8 > wrong
    assert fisher == pytest.approx(best, rel=0.1)
    assert right == pytest.approx(most, abs=0.02)
    pixels = image.imread(tmp_path / "fisher.png")
    assert pixels.shape[:2] == (400, 1200)
    assert pixels[..., :3].std() > 0.1
