"""examples/curved_surface.py: it runs, and what it prints is true (seed S23)."""

import re

import pytest


def test_s23_two_scores_follow_a_sheet_that_two_axes_cut(run_example, tmp_path):
    image = pytest.importorskip("matplotlib.image")
    printed = run_example("curved_surface")
    numbers = [float(text) for text in re.findall(r"\d+\.\d+", printed)]
    pca, ours, noise, start, reached = numbers
    assert noise < ours < pca / 30
    assert int(re.search(r"(\d+) times less", printed)[1]) == pytest.approx(pca / ours, abs=1)
    assert reached < start / 30
    pixels = image.imread(tmp_path / "curved_surface.png")
    assert pixels.shape[:2] == (400, 1200)
    assert pixels[..., :3].std() > 0.1
