"""The transport by the native kernels, where the vector field is a list of operations."""

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np

from probode.engines.native import library
from probode.engines.native.library import address
from probode.engines.native.tape import tape_of
from probode.global_error import transport
from probode.global_error.carry import COUNTS, from_rows
from probode.global_error.interpolant import rows_at
from probode.global_error.newton import Newton
from probode.global_error.schemes import Scheme
from probode.global_error.transport import Transported
from probode.programs.field import Field


def transport_natively(
    scheme: Scheme, field: Field, t: np.ndarray, means: np.ndarray
) -> Transported | None:
    """Carry the error along all nodes, one step after the other; ``None``: not by these kernels."""
    if not library.available():
        return None
    kind = _jacobian(scheme)
    values, derivatives = tape_of("none", field, within=kind), tape_of(kind, field)
    if values is None or derivatives is None:
        return None
    d, s, steps = means.shape[-1], scheme.collocation.s, t.shape[0] - 1
    means = means if means[0].flags.c_contiguous and means.dtype == float else means.astype(float)
    t = np.ascontiguousarray(t, dtype=float)
    numbers = [np.asarray(tape.numbers(field)) for tape in (values, derivatives)]
    rows = np.empty((steps, s + 3 + COUNTS, d))
    loaded: Any = library.load()
    loaded.probode_transport(
        address(_table(scheme, d)),
        *values.given(numbers[0]),
        *derivatives.given(numbers[1]),
        address(t),
        address(means),
        ctypes.c_long(means.strides[0] // means.itemsize),
        ctypes.c_long(steps),
        address(rows),
    )
    return from_rows(rows)


def _jacobian(scheme: Scheme) -> str:
    if isinstance(scheme, Newton):
        return "full"
    return "diagonal" if scheme.diagonal else "none"


@lru_cache(maxsize=64)
def _table(scheme: Scheme, d: int) -> np.ndarray:
    """A scheme as ``struct Scheme`` of ``src/transport.hpp`` reads it."""
    c = scheme.collocation
    shifts, columns, rows = c.spectrum
    kind, rounds = (0, scheme.corrections) if isinstance(scheme, Newton) else (1, scheme.sweeps)
    kind += getattr(scheme, "diagonal", False)
    head = [kind, d, c.s, scheme.k, rounds, c.middle, len(shifts)]
    limits = [
        transport.LEFT_OVER,
        transport.MOST_ITERATIONS,
        transport.FIRST_CREDIT,
        transport.CREDIT,
        transport.ROUNDING,
        transport.EARLY,
        transport.SHRINKS if isinstance(scheme, Newton) else transport.SWEEPS_SHRINK,
        transport.LOOK,
        transport.MOST_SWEEPS,
        transport.REACH,
    ]
    tables = [c.nodes, *rows_at(scheme.k, tuple(c.nodes.tolist())), c.matrix, c.weights]
    tables += [np.linalg.inv(c.matrix), *(f(x) for x in (shifts, columns, rows) for f in _PARTS)]
    return np.concatenate([head, limits, *(np.ravel(x) for x in tables)]).astype(float)


_PARTS = (np.real, np.imag)
