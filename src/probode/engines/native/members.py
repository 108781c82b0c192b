"""Members of an ensemble one after the other, in one call of the kernels (``src/members.hpp``).

Nothing is compiled, and nothing is done by Python for one member: threads hand the kernels some
members at a time.
"""

import ctypes
from collections.abc import Callable
from threading import Event
from typing import Any, NamedTuple

import numpy as np

from probode.base.turns import in_turns
from probode.engines.native.library import address, load
from probode.engines.native.tape import Tape

NOTES = 9
"""Numbers noted of each member: status, attempted and accepted steps, corrections and repeats
of the transport, three signs to judge it by, whether it was lost. As in ``src/kernels.hpp``."""


class Listed(NamedTuple):
    """Operations, and the numbers that they read."""

    tape: Tape
    numbers: np.ndarray


class Bars(NamedTuple):
    """How errors are transported: ``table`` as ``struct Scheme`` of ``src/transport.hpp`` reads it.

    With the lengths of the windows after it; the lists that it evaluates.
    """

    table: np.ndarray
    harmless: float
    doubt: float
    value: Listed
    jacobian: Listed


class Given(NamedTuple):
    """What is to be solved: rows of arrays are those of the members."""

    settings: np.ndarray
    """As :func:`probode.engines.native.layout.settings` makes them, for any of them."""
    start: Listed
    field: Listed
    bars: Bars | None
    places: np.ndarray
    """Where the ``numbers`` of the members' own are among those of the start."""
    of_field: int
    """How many of the start's numbers, the first, are the vector field's."""
    only_end: bool
    at: np.ndarray
    """``(B, 1 + d)``: ``t0`` and ``y0``."""
    t1: np.ndarray
    rtol: np.ndarray
    atol: np.ndarray
    numbers: np.ndarray
    save_at: np.ndarray
    """``(B, T)``, or ``(1, T)`` for all members."""


class Results(NamedTuple):
    """Where results go."""

    mean: np.ndarray
    std: np.ndarray
    cov: np.ndarray | None
    notes: np.ndarray
    """``(NOTES, B)``."""

    def some(self, which: np.ndarray) -> "Results":
        """Copies of the rows of some members."""
        cov = None if self.cov is None else self.cov[which]
        notes = np.ascontiguousarray(self.notes[:, which])
        return Results(self.mean[which], self.std[which], cov, notes)

    def put(self, which: np.ndarray, some: "Results") -> None:
        """Take over what was found of some members."""
        for whole, found in zip(self[:3], some[:3], strict=True):
            if whole is not None:
                whole[which] = found
        self.notes[:, which] = some.notes


class TapeData(ctypes.Structure):
    """``struct TapeData`` of ``src/kernels.hpp``."""

    _fields_ = (
        ("code", ctypes.c_void_p),
        ("numbers", ctypes.c_void_p),
        ("given", ctypes.c_long),
    )

    @staticmethod
    def of(tape: Tape | None, numbers: np.ndarray) -> "TapeData":
        """A list and what it reads; without one, nothing."""
        if tape is None:
            return TapeData(None, None, 0)
        return TapeData(address(tape.code), address(numbers), len(numbers))


class _Members(ctypes.Structure):
    """``struct MembersData`` of ``src/kernels.hpp``."""

    _fields_ = (
        ("settings", ctypes.c_void_p),
        ("settings_size", ctypes.c_long),
        *((name, TapeData) for name in ("start", "field", "value", "jacobian")),
        ("own", ctypes.c_long),
        ("places", ctypes.c_void_p),
        ("of_field", ctypes.c_long),
        ("d", ctypes.c_int),
        ("only_end", ctypes.c_int),
        ("times", ctypes.c_long),
        ("save_stride", ctypes.c_long),
        *((name, ctypes.c_void_p) for name in ("at", "t1", "rtol", "atol", "numbers", "save_at")),
        ("scheme", ctypes.c_void_p),
        ("scheme_size", ctypes.c_long),
        ("harmless", ctypes.c_double),
        ("doubt", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("mean", "std", "cov", "notes")),
        ("count", ctypes.c_long),
    )


def solve_members(
    given: Given,
    results: Results,
    *,
    stop: Event | None = None,
    on_progress: Callable[[int], Any] | None = None,
) -> int:
    """Solve all members on all cores; how many, the first ones, were solved before ``stop``."""
    count, times, d = results.mean.shape
    bars = given.bars
    listed = [
        given.start,
        given.field,
        *((bars.value, bars.jacobian) if bars else [given.field] * 2),
    ]
    packed = _Members(
        *(address(given.settings), len(given.settings), *(TapeData.of(*one) for one in listed)),
        *(len(given.places), address(given.places), given.of_field, d, given.only_end),
        *(times, times if len(given.save_at) > 1 else 0),
        *map(address, (given.at, given.t1, given.rtol, given.atol, given.numbers, given.save_at)),
        *((address(bars.table), len(bars.table)) if bars else (None, 0)),
        *((bars.harmless, bars.doubt) if bars else (1.0, 0.0)),
        *(address(results.mean), address(results.std)),
        *(None if results.cov is None else address(results.cov), address(results.notes), count),
    )
    library: Any = load()

    def some(first: int, last: int) -> None:
        library.probode_solve_members(
            ctypes.byref(packed), ctypes.c_long(first), ctypes.c_long(last)
        )

    return in_turns(some, count, stop=stop, on_progress=on_progress)
