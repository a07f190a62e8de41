"""examples/rulers.py: it runs, and what it prints is true (seed S15)."""

import re

import numpy as np
import pytest


def test_s15_two_rulers_share_one_axis(run_example, tmp_path):
    image = pytest.importorskip("matplotlib.image")
    printed = run_example("rulers")
    axis, share, variance, errors, point, back, _ = printed.splitlines()
    found, exact = (np.array(text.split(), float) for text in re.findall(r"\[(.*?)\]", axis))
    assert found @ exact > np.cos(np.radians(1))
    assert float(share.split()[-1]) > 0.99
    along, most = re.findall(r"\d\.\d+", variance)
    assert along == most
    first, second, both = map(float, re.findall(r"\d\.\d+", errors))
    assert both < first < second
    assert point.endswith("[-0.5061 -0.0586]")
    whole, part = map(float, re.findall(r"to (\S+?),? ?(?=the|$)", back))
    assert whole < 1e-14 < 0.01 < part
    pixels = image.imread(tmp_path / "rulers.png")
    assert pixels.shape[:2] == (400, 1200)
    assert pixels[..., :3].std() > 0.1
