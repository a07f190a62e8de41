"""examples/unmixing.py: it runs, and what it prints is true (seed S22)."""

import re

import pytest


def test_s22_known_sources_are_unmixed(run_example, tmp_path):
    image = pytest.importorskip("matplotlib.image")
    printed = run_example("unmixing")
    lines = printed.splitlines()
    numbers = [[float(text) for text in re.findall(r"\d+\.\d+(?:e-\d+)?", line)]
               for line in lines[:-1]]
    assert all(correlation > 0.995 for correlation, in numbers[:4])
    assert numbers[4][0] < 0.9
    assert numbers[5][0] < 0.01 < 0.1 < numbers[5][1]
    error, noise = numbers[6]
    assert error < noise  # four of six dimensions keep their share of it
    assert numbers[7][0] <= 1e-7
    pixels = image.imread(tmp_path / "unmixing.png")
    assert pixels.shape[:2] == (600, 1200)
    assert pixels[..., :3].std() > 0.05
