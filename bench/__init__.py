"""Benchmarks of fastdr: speed, share of the machine's limits, reached accuracy, peak memory.

Run them from the folder that holds ``bench/``, for example ``python -m bench.report --quick``.
"""

import sys
from pathlib import Path

# An installed fastdr must win over the sources beside this folder, which may not be compiled.
_ROOT = str(Path(__file__).resolve().parent.parent)
sys.path[:] = [entry for entry in sys.path if entry not in ("", _ROOT)] + [_ROOT]
