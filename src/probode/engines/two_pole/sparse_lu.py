"""LU of sparse matrices ``M - c J`` that are no bands: by the kernels, or by SuperLU.

Both find once in which order unknowns are eliminated, from the pattern alone. The kernels
(``native/src/fronts.hpp``) do nearly all of the arithmetic in small full matrices, two to six
times as fast as SuperLU, but exchange no rows: where that is needed SuperLU takes their place.
"""

import ctypes
import hashlib
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from probode.base.later import sparse
from probode.base.limits import free_memory
from probode.engines.native.library import address, available, load
from probode.programs.colouring import columns_of, filled
from probode.programs.memory import Memory

Solve = Callable[[np.ndarray], np.ndarray]


class Singular(ArithmeticError):
    """A matrix that cannot be factorised, with the reason in words."""


class Sparse:
    """Sparse LU of ``M - c J``, for Jacobians of one pattern."""

    name = "sparse LU"

    def __init__(self, d: int, mass: Any = None) -> None:
        self._mass = sparse.csc_array(sparse.identity(d) if mass is None else mass)
        self._fronts: tuple[Fronts, Pattern] | None = None
        self._superlu: tuple[np.ndarray, Pattern] | None = None

    def factorised(self, jacobian: Any, c: float) -> Solve:
        """By fronts, or by SuperLU."""
        found = self.by_fronts(jacobian, c)
        if found is not None:
            solve = found[0].factorised(found[1])
            if solve is not None:
                return solve
        made = self.decomposed(jacobian, c)

        def solve_in_order(b: np.ndarray) -> np.ndarray:
            x = np.empty_like(b)
            x[made.order] = made.lu.solve(b[made.order])
            return x

        return solve_in_order

    def by_fronts(self, jacobian: Any, c: float) -> "tuple[Fronts, np.ndarray] | None":
        """What factorises by fronts, and the entries of the matrix; ``None`` without kernels."""
        if not available():
            return None
        if self._fronts is None:
            matrix = self._pattern(jacobian)
            key = matrix.shape[0], _digest(matrix.indptr), _digest(matrix.indices)
            plan = _PLANS.get(key, lambda: Fronts.of(matrix), keep=lambda one: one.is_small)
            plan.check_memory()
            self._fronts = plan, Pattern.of(matrix, self._mass, jacobian)
        fronts, pattern = self._fronts
        return fronts, pattern.entries(jacobian, c)

    def decomposed(self, jacobian: Any, c: float) -> "Decomposed":
        """By SuperLU: the factors of the matrix itself, which is not scaled.

        Matrices of discretised equations have a symmetric pattern and a heavy diagonal, for which
        a minimum degree ordering of ``A + Aᵀ`` is some 2.5 times as fast as SciPy's default one;
        rows are exchanged only where a diagonal entry is a hundred times smaller than others.
        """
        if self._superlu is None:
            matrix = self._pattern(jacobian)
            order = _minimum_degree(matrix)
            ordered = sparse.csc_array(matrix[order][:, order])
            ordered.sort_indices()
            self._superlu = order, Pattern.of(ordered, self._mass, jacobian, order)
        order, pattern = self._superlu
        matrix = filled(pattern.matrix, pattern.entries(jacobian, c))
        return Decomposed(_superlu(matrix, "NATURAL"), order)

    def _pattern(self, jacobian: Any) -> Any:
        """Where ``M - c J`` may have entries, as ones and twos."""
        ones = (filled(one, np.ones(one.nnz)) for one in (self._mass, sparse.csc_array(jacobian)))
        both = sparse.csc_array(sum(ones))
        both.sort_indices()
        return both


class Pattern(NamedTuple):
    """Where entries of ``M`` and ``J`` are among those of ``M - c J``."""

    matrix: Any
    fixed: np.ndarray
    """Entries of ``M``."""
    places: np.ndarray
    """Of those of ``J``."""

    @staticmethod
    def of(matrix: Any, mass: Any, jacobian: Any, order: np.ndarray | None = None) -> "Pattern":
        """``matrix`` has the rows and columns of the others in an order."""
        d = matrix.shape[0]
        place = np.arange(d)
        if order is not None:
            place[order] = np.arange(d)
        # Entries by one number each: those of a matrix in compressed columns are sorted by it.
        known = columns_of(matrix) * np.int64(d) + matrix.indices
        own, places = (
            np.searchsorted(known, place[columns_of(one)] * d + place[one.indices])
            for one in (mass, sparse.csc_array(jacobian))
        )
        fixed = np.zeros(matrix.nnz)
        fixed[own] = mass.data
        return Pattern(matrix, fixed, places)

    def entries(self, jacobian: Any, c: float) -> np.ndarray:
        """Of ``M - c J``."""
        found = self.fixed.copy()
        found[self.places] -= c * jacobian.data
        return found


_LITTLE = 2e8
"""Multiplications up to which two orders are compared,"""
_OF_GRIDS = 100
"""unless there are no more than this times ``d^(3/2)``, as in the plane."""
_SMALL = 10**7
"""Numbers in the factors up to which a plan is kept for other solves."""
_PLANS = Memory(8)
_LARGE = 2.0**30
"""Bytes from which on it is asked how much memory is free."""


class Fronts:
    """A plan of the kernels for matrices of one pattern: see ``native/src/front_plan.hpp``."""

    def __init__(self, pattern: Any, order: np.ndarray | None = None) -> None:
        self.size, info = pattern.shape[0], np.empty(3)
        indices = [np.ascontiguousarray(x, np.int32) for x in (pattern.indptr, pattern.indices)]
        given = None if order is None else address(np.ascontiguousarray(order, np.int32))
        size = ctypes.c_long(self.size)
        made = _library().probode_plan_fronts(size, *map(address, indices), given, address(info))
        self.handle = ctypes.c_void_p(made)
        self.operations, self.numbers, self.room = info.tolist()
        weakref.finalize(self, _library().probode_free_plan, self.handle)

    @staticmethod
    def of(pattern: Any) -> "Fronts":
        """By nested dissection, or (in networks) by minimum degree where that is less work."""
        found = Fronts(pattern)
        if not _OF_GRIDS * found.size**1.5 < found.operations < _LITTLE:
            return found
        other = Fronts(pattern, _minimum_degree(pattern))
        return min(found, other, key=lambda one: one.operations)

    @property
    def is_small(self) -> bool:
        """Whether it may be kept."""
        return self.numbers <= _SMALL

    def check_memory(self) -> None:
        """Refuses factors for which there is no room, before they are made."""
        need = 8.0 * (self.numbers + self.room)
        if need < _LARGE or need < (free := free_memory()):
            return
        raise MemoryError(
            f"the sparse LU of M - γ h J, of {self.size} unknowns, would take {need / 1e9:.3g} GB, "
            f"and {free / 1e9:.3g} GB are free. SparseEK1(linear='krylov') needs products with the "
            "Jacobian only; in more than two dimensions give it a preconditioner, too."
        )

    def factorised(self, entries: np.ndarray) -> Solve | None:
        """``None``: rows would have to be exchanged."""
        library = _library()
        made = library.probode_factorise_fronts(self.handle, address(entries))
        if not made:
            return None
        return _Factors(ctypes.c_void_p(made))


class _Factors:
    def __init__(self, handle: ctypes.c_void_p) -> None:
        self._handle = handle
        weakref.finalize(self, _library().probode_free_factors, handle)

    def __call__(self, b: np.ndarray) -> np.ndarray:
        x = np.array(b, float)
        _library().probode_solve_factors(self._handle, address(x), address(np.empty_like(x)))
        return x


def _digest(array: np.ndarray) -> bytes:
    return hashlib.blake2b(array.tobytes(), digest_size=16).digest()


def _library() -> Any:
    library = load()
    assert library is not None
    return library


class Decomposed(NamedTuple):
    """SuperLU's factors, of a matrix with rows and columns in an order."""

    lu: Any
    order: np.ndarray

    @staticmethod
    def of(matrix: Any) -> "Decomposed":
        """Of any matrix, as it is."""
        return Decomposed(_superlu(matrix, "MMD_AT_PLUS_A"), np.arange(matrix.shape[0]))


def _minimum_degree(pattern: Any) -> np.ndarray:
    """Which unknown comes when; with a heavy diagonal any pattern can be factorised."""
    ones = filled(pattern, np.ones(pattern.nnz))
    heavy = sparse.csc_array(ones + 2.0 * pattern.nnz * sparse.identity(pattern.shape[0]))
    return np.argsort(_superlu(heavy, "MMD_AT_PLUS_A").perm_c)


def _superlu(matrix: Any, ordering: str) -> Any:
    from scipy.sparse.linalg import splu

    try:
        symmetric = {"SymmetricMode": True, "Equil": False}
        return splu(matrix, ordering, diag_pivot_thresh=0.01, options=symmetric)
    except RuntimeError as error:
        raise Singular(str(error)) from None
