"""Members side by side in the lanes of vectors, on all cores: ``src/abreast.cc``."""

import ctypes
from collections.abc import Callable
from threading import Event
from typing import Any

import numpy as np

from probode.base.turns import in_turns
from probode.engines.abreast.problem import Problem
from probode.engines.native.library import address, load
from probode.engines.native.members import NOTES, Results, TapeData

MOST_COLUMNS = 36
"""Of the factor of a block: those of wider ones fill the lanes by themselves."""

_TRIED, _WORTH = 64, 8
"""Members that are solved first, where there are so many times more of them."""

_LANES = 8
"""Members of a vector."""

_START, _FEWER, _LOOSEST = 50, 4, 1e-3
"""What counting the steps of the others costs: so many steps for the start, and so many times fewer
steps than it counts; the largest relative tolerance for that."""

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
        *((name, ctypes.c_void_p) for name in ("mean", "std", "cov", "notes", "order")),
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
            None,
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
    """Solve all members; what is not begun when ``stop`` is set is left as it is.

    Those of a vector are solved until the last of them is done. Where the first ones take very
    different numbers of steps, the others are put into an order in which neighbours are alike.
    """
    how: dict[str, Any] = {"stop": stop, "on_progress": on_progress}
    count, first = problem.members, _TRIED
    if count < _WORTH * first:
        return _solve(problem, results, 0, count, None, **how)
    _solve(problem, results, 0, first, None, **how)
    steps = results.notes[1, :first]
    idle = (steps.reshape(-1, _LANES).max(axis=1).mean() - steps.mean()) * _heavy(problem)
    order = _alike(problem, first, stop) if idle > _START + steps.mean() / _FEWER else None
    return _solve(problem, results, first, count, order, **how)


def _heavy(problem: Problem) -> int:
    """How many times the work of a plain step there is in one."""
    return 1 + problem.sizes.smoothed + problem.sizes.calibrated


def _alike(problem: Problem, first: int, stop: Event | None) -> np.ndarray:
    """The members from ``first`` on by the steps that they take with a loose tolerance."""
    count, factor = problem.members, float(_FEWER) ** problem.sizes.n
    sizes = problem.sizes._replace(
        smoothed=False, only_end=True, calibrated=False, covariance=False
    )
    loose = problem._replace(
        sizes=sizes,
        rtol=np.clip(factor * problem.rtol, problem.rtol, np.maximum(problem.rtol, _LOOSEST)),
        atol=factor * problem.atol,
        save_at=problem.t1,
    )
    ends = [np.empty((count, 1, sizes.d)) for _ in range(2)]
    found = Results(ends[0], ends[1], None, np.zeros((NOTES, count)))
    _solve(loose, found, first, count, None, stop=stop)
    order = np.arange(count, dtype=np.int32)
    order[first:] = first + np.argsort(found.notes[1, first:], kind="stable")
    return order


def _solve(
    problem: Problem,
    results: Results,
    first: int,
    last: int,
    order: np.ndarray | None,
    **how: Any,
) -> None:
    """Those from one place of the order to another one."""
    sizes = np.asarray(problem.sizes, np.int32)
    places = np.asarray(problem.own.places, np.int32)
    lists = list(map(TapeData.of, problem.lists, problem.numbers))
    pointers = {name: address(array) for name, array in problem.arrays().items()}
    where = [None if x is None else address(x) for x in results]
    given = Given.of(problem, pointers, tuple(where))
    if order is not None:
        given.order = address(order)
    packed = _Abreast(
        *(address(sizes), address(problem.options), address(problem.prior)),
        address(problem.scheme) if problem.sizes.calibrated else None,
        *lists,
        *(len(places), address(places), problem.own.of_field, _MOST_BYTES),
        given,
    )
    library: Any = load()

    def some(begin: int, end: int) -> None:
        library.probode_solve_abreast(
            ctypes.byref(packed), ctypes.c_long(first + begin), ctypes.c_long(first + end)
        )

    in_turns(some, last - first, least=32, **how)
