"""Dense output by the kernels: one derivative of the posterior at any times, nothing compiled."""

import ctypes
from typing import Any

import numpy as np

from probode.engines.native.layout import layout_of
from probode.engines.native.library import address, load
from probode.filter.loop import Rows
from probode.filter.smooth import Marginals
from probode.filter.step import Method
from probode.model.structure import Dense

_WORK = 2e8
"""Operations of a call, about: it takes less than a tenth of a second, and then Ctrl-C is heard."""


def interpolate_all(
    method: Method, rows: Rows, smoothed: Marginals | None, right: np.ndarray, t: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Means ``(N, d)`` and factor columns of the ``k``-th derivative at the times ``t``.

    ``right`` says at which node the step ends that a time is in. Rows of the columns that are zero
    are left out, as in :meth:`probode.model.structure.Structure.select_packed`.
    """
    library, layout, structure = load(), layout_of(method), method.structure
    assert library is not None
    marginals = Marginals(rows.mean, rows.factor) if smoothed is None else smoothed
    steps, states = (rows.t, rows.h, rows.scale), (marginals.mean, marginals.factor)
    nodes = [_with_whole_rows(x) for x in (*steps, *states, rows.mean, rows.factor)]
    places = np.array([x.ctypes.data for x in nodes], np.uintp)
    strides = np.array([x.strides[0] // x.itemsize for x in nodes], ctypes.c_long)
    right, t = np.ascontiguousarray(right, ctypes.c_long), np.ascontiguousarray(t, float)

    *blocks, size, _ = structure.factor_shape
    width = structure.d if isinstance(structure, Dense) else 1
    mean = np.empty((len(t), structure.d))
    columns = np.empty((len(t), *blocks, (k + 1) * width, width))
    piece = max(1, int(_WORK / (10 * np.prod(blocks) * size**3)))
    for begin in range(0, len(t), piece):
        here = slice(begin, begin + piece)
        library.probode_interpolate(
            *(address(layout.without_control), address(places), address(strides)),
            *(ctypes.c_int(smoothed is not None), ctypes.c_int(k), ctypes.c_long(len(t[here]))),
            *(address(right[here]), address(t[here]), ctypes.c_long(columns[0].size)),
            *(address(mean[here]), address(columns[here])),
        )
    return mean, columns if isinstance(structure, Dense) else columns[..., 0]


def _with_whole_rows(x: Any) -> np.ndarray:
    """An array whose rows are contiguous; how far they are apart does not matter."""
    x = np.asarray(x, float)
    return x if x[0].flags.c_contiguous and x.flags.aligned else np.ascontiguousarray(x)
