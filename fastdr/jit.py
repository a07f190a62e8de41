"""Fitted models inside functions that Numba compiles.

``m = model.jit()`` is a tuple of arrays that can be passed to any ``@njit`` function, there to be
handed to `project`, `inverse` and `error` for a row or a block of rows of any real dtype. They
compute in float64, release the GIL in ``nogil=True`` functions, and may be shared by threads. The
first call compiles them, which takes a second or two.

Examples
--------
>>> import numpy as np
>>> from numba import njit
>>> from fastdr import LinearModel, jit
>>> @njit(nogil=True)
... def farthest(m, rows):
...     best = 0
...     for i in range(len(rows)):
...         if jit.error(m, rows[i]) > jit.error(m, rows[best]):
...             best = i
...     return best
>>> m = LinearModel(mean=[0.0, 0.0], components=[[0.6, 0.8]], variances=[1.0]).jit()
>>> farthest(m, np.array([[6.0, 8.0], [8.0, -6.0], [1.0, 0.0]]))
1
"""

from fastdr._jit import LinearArrays, error, inverse, project

__all__ = ["LinearArrays", "error", "inverse", "project"]
