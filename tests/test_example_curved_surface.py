"""examples/curved_surface.py: it runs, and what it prints is true (seed S23)."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "examples" / "curved_surface.py"


@pytest.mark.skipif(not SCRIPT.exists(), reason="examples are not beside the tests")
def test_s23_two_scores_follow_a_sheet_that_two_axes_cut(tmp_path):
    image = pytest.importorskip("matplotlib.image")
    done = subprocess.run([sys.executable, "-P", "-W", "error", SCRIPT, tmp_path], text=True,
                          capture_output=True, env=os.environ | {"MPLCONFIGDIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    numbers = [float(text) for text in re.findall(r"\d+\.\d+", done.stdout)]
    pca, ours, noise, start, reached = numbers
    assert noise < ours < pca / 30
    assert int(re.search(r"(\d+) times less", done.stdout)[1]) == pytest.approx(pca / ours, abs=1)
    assert reached < start / 30
    pixels = image.imread(tmp_path / "curved_surface.png")
    assert pixels.shape[:2] == (400, 1200)
    assert pixels[..., :3].std() > 0.1
