"""The transport by the native kernels, where the vector field is a list of operations."""

import ctypes
from functools import lru_cache
from math import isfinite
from typing import Any

import numpy as np

from probode.base.limits import GRACE, Limits
from probode.base.spacious import spacious
from probode.engines.native import library
from probode.engines.native.library import address
from probode.engines.native.tape import tape_of
from probode.global_error import transport as limit
from probode.global_error.implicit import ImplicitNewton
from probode.global_error.interpolant import rows_at
from probode.global_error.newton import Newton
from probode.global_error.schemes import Scheme
from probode.global_error.sweeps import Sweeps
from probode.global_error.transport import COUNTS, Transported, from_rows

_SAMPLE_STEPS = 1000
"""Steps to learn the pace of the kernels from, which do not look at the clock themselves."""


def transport(
    scheme: Scheme, field: Any, t: np.ndarray, means: np.ndarray, limits: Limits
) -> Transported | None:
    """Carry the error along all nodes, one step after the other; ``None``: not by these kernels.

    With a time limit, along as many as by a sample of them there is time for.
    """
    steps = t.shape[0] - 1
    if steps > _SAMPLE_STEPS and isfinite(limits.left):
        before = limits.elapsed
        if _carry_over(scheme, field, t[: _SAMPLE_STEPS + 1], means) is None:
            return None
        pace = max(limits.elapsed - before, 1e-6) / _SAMPLE_STEPS
        steps = min(steps, max(_SAMPLE_STEPS, int((limits.left + GRACE / 2) / pace)))
    return _carry_over(scheme, field, t[: steps + 1], means)


def _carry_over(scheme: Scheme, field: Any, t: np.ndarray, means: np.ndarray) -> Transported | None:
    if not library.available() or (isinstance(scheme, Sweeps) and scheme.order > 1):
        return None  # the kernels sweep all components at once
    if isinstance(scheme, ImplicitNewton):
        return None
    kind = jacobian_kind(scheme)
    values, derivatives = tape_of("none", field, within=kind), tape_of(kind, field)
    if values is None or derivatives is None:
        return None
    d, s, steps = means.shape[-1], scheme.collocation.s, t.shape[0] - 1
    means = means if means[0].flags.c_contiguous and means.dtype == float else means.astype(float)
    t = np.ascontiguousarray(t, dtype=float)
    numbers = [np.asarray(tape.numbers(field)) for tape in (values, derivatives)]
    rows = spacious(steps, s + 3 + COUNTS, d)
    loaded: Any = library.load()
    loaded.probode_transport(
        address(table(scheme, d)),
        *values.given(numbers[0]),
        *derivatives.given(numbers[1]),
        address(t),
        address(means),
        ctypes.c_long(means.strides[0] // means.itemsize),
        ctypes.c_long(steps),
        address(rows),
    )
    return from_rows(rows)


def jacobian_kind(scheme: Scheme) -> str:
    """The kind of Jacobian that a scheme needs."""
    if isinstance(scheme, Newton):
        return "full"
    return "diagonal" if scheme.diagonal else "none"


@lru_cache(maxsize=64)
def table(scheme: Scheme, d: int) -> np.ndarray:
    """A scheme as ``struct Scheme`` of ``src/transport.hpp`` reads it."""
    c = scheme.collocation
    shifts, columns, rows = c.spectrum
    kind, rounds = (0, scheme.corrections) if isinstance(scheme, Newton) else (1, scheme.sweeps)
    kind += getattr(scheme, "diagonal", False)
    head = [kind, d, c.s, scheme.k, rounds, c.middle, len(shifts)]
    limits = [
        limit.LEFT_OVER,
        limit.MOST_ITERATIONS,
        limit.FIRST_CREDIT,
        limit.CREDIT,
        limit.ROUNDING,
        limit.EARLY,
        limit.SHRINKS if isinstance(scheme, Newton) else limit.SWEEPS_SHRINK,
        limit.LOOK,
        limit.MOST_SWEEPS,
        limit.REACH,
        limit.PATIENCE,
    ]
    tables = [c.nodes, *rows_at(scheme.k, tuple(c.nodes.tolist())), c.matrix, c.weights]
    tables += [np.linalg.inv(c.matrix), *(f(x) for x in (shifts, columns, rows) for f in _PARTS)]
    return np.concatenate([head, limits, *(np.ravel(x) for x in tables)]).astype(float)


_PARTS = (np.real, np.imag)
