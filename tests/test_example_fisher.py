"""examples/fisher.py: it runs, and what it prints is true (seed S20)."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parent.parent / "examples" / "fisher.py"


@pytest.mark.skipif(not SCRIPT.exists(), reason="examples are not beside the tests")
def test_s20_fishers_direction_beats_the_means(tmp_path):
    image = pytest.importorskip("matplotlib.image")
    done = subprocess.run([sys.executable, "-P", "-W", "error", SCRIPT, tmp_path], text=True,
                          capture_output=True, env=os.environ | {"MPLCONFIGDIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
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
