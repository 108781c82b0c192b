"""Members side by side in the lanes of vectors, on all cores: ``src/abreast.cc``."""

import ctypes
from collections.abc import Callable
from threading import Event
from typing import Any

import numpy as np

from probode.base.turns import in_turns
from probode.engines.abreast.problem import Problem
from probode.engines.native.library import address, load
from probode.engines.native.members import Results, TapeData

MOST_COLUMNS = 36
"""Of the factor of a block: those of wider ones fill the lanes by themselves."""

_MOST_BYTES = 2**30
"""Memory that the steps of the members of a vector may take, of each thread."""


class Given(ctypes.Structure):
    """``struct Given`` of ``src/abreast/given.hpp``."""

    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in ("t0", "t1", "y0", "rtol", "atol", "numbers", "save_at")
        ),
        *(
            (f"{name}_stride", ctypes.c_long)
            for name in ("t0", "t1", "y0", "rtol", "atol", "numbers", "save")
        ),
        ("rtol_component", ctypes.c_long),
        ("atol_component", ctypes.c_long),
        ("times", ctypes.c_long),
        ("count", ctypes.c_long),
        *((name, ctypes.c_void_p) for name in ("mean", "std", "cov", "notes")),
    )

    @staticmethod
    def of(problem: Problem, pointers: dict[str, Any], results: tuple[Any, ...]) -> "Given":
        """The arrays of a problem, at these addresses."""
        rows = problem.arrays()
        strides = [row.shape[1] if len(row) > 1 else 0 for row in rows.values()]
        return Given(
            *(pointers[name] for name in rows),
            *strides,
            *(int(rows[name].shape[1] > 1) for name in ("rtol", "atol")),
            *(problem.save_at.shape[1], problem.members),
            *results,
        )


class _Abreast(ctypes.Structure):
    """``struct AbreastData`` of ``src/kernels.hpp``."""

    _fields_ = (
        ("sizes", ctypes.c_void_p),
        ("options", ctypes.c_void_p),
        ("prior", ctypes.c_void_p),
        ("scheme", ctypes.c_void_p),
        *((name, TapeData) for name in ("start", "value", "slopes")),
        ("own", ctypes.c_long),
        ("places", ctypes.c_void_p),
        ("of_field", ctypes.c_long),
        ("most_bytes", ctypes.c_long),
        ("given", Given),
    )


def solve(
    problem: Problem,
    results: Results,
    *,
    stop: Event | None = None,
    on_progress: Callable[[int], Any] | None = None,
) -> None:
    """Solve all members; what is not begun when ``stop`` is set is left as it is."""
    sizes = np.asarray(problem.sizes, np.int32)
    places = np.asarray(problem.own.places, np.int32)
    lists = list(map(TapeData.of, problem.lists, problem.numbers))
    pointers = {name: address(array) for name, array in problem.arrays().items()}
    where = [None if x is None else address(x) for x in results]
    packed = _Abreast(
        *(address(sizes), address(problem.options), address(problem.prior)),
        address(problem.scheme) if len(problem.scheme) else None,
        *lists,
        *(len(places), address(places), problem.own.of_field, _MOST_BYTES),
        Given.of(problem, pointers, tuple(where)),
    )
    library: Any = load()

    def some(first: int, last: int) -> None:
        library.probode_solve_abreast(
            ctypes.byref(packed), ctypes.c_long(first), ctypes.c_long(last)
        )

    in_turns(some, problem.members, least=32, stop=stop, on_progress=on_progress)
