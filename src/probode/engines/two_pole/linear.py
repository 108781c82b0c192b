"""Solving ``(M - c J) u = b`` for large and sparse ``J``: factorised once, used for many ``b``.

Each class takes a Jacobian as its source hands it out and returns a function that solves. What it
costs decides which one is used (:class:`Direct`): bands, anything else that is sparse
(:mod:`probode.engines.two_pole.sparse_lu`), small or full matrices as they are, and Jacobians that
are never formed by iterations.
"""

import ctypes
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from probode.base.later import sparse
from probode.engines.native.library import address, available, load
from probode.engines.two_pole.sparse_lu import Singular, Solve, Sparse
from probode.programs.colouring import columns_of, filled
from probode.programs.layout import layout, widths


class Linear(Protocol):
    """How systems with ``M - c J`` are solved."""

    name: str
    """In a word or two, for messages."""

    def factorised(self, jacobian: Any, c: float) -> Solve:
        """What solves with this matrix; :class:`Singular` if nothing does."""


class Full:
    """LU of the whole matrix: for few components, or where every component meets all others."""

    name = "dense LU"

    def __init__(self, d: int, mass: Any = None) -> None:
        self._mass = np.eye(d) if mass is None else as_dense(mass, d)

    def factorised(self, jacobian: Any, c: float) -> Solve:
        """By LAPACK."""
        lapack, (lu, pivots) = _lapack(), self.decomposed(jacobian, c)
        return lambda b: lapack.dgetrs(lu, pivots, b)[0]

    def decomposed(self, jacobian: Any, c: float) -> tuple[np.ndarray, np.ndarray]:
        """LAPACK's factors, and the rows that were exchanged."""
        matrix = self._mass - c * as_dense(jacobian, len(self._mass))
        lu, pivots, info = _lapack().dgetrf(matrix, overwrite_a=True)
        _check(info, lu)
        return lu, pivots


class Banded:
    """LU within a band, after a renumbering that makes it narrow if there is a better one.

    By the kernels (``engines/native/src/band.hpp``), whose time for a row is that of its
    arithmetic; without them by LAPACK.

    Parameters
    ----------
    pattern
        A matrix with entries where all Jacobians will have them, in compressed columns.
    order
        The components in the order in which the band is narrow; ``None``: as they are.
    """

    name = "band LU"

    def __init__(self, pattern: Any, mass: Any = None, order: np.ndarray | None = None):
        self._pattern, self._mass, self.order = pattern, mass, order
        self._band: Any = _NativeBand if available() else _LapackBand
        given = [pattern] if mass is None else [pattern, sparse.csc_array(mass)]
        if order is None:
            found = [widths(one) for one in given]
        else:
            apart = [row - column for row, column in map(self._ordered, given)]
            found = [(int(x.max(initial=0)), -int(x.min(initial=0))) for x in apart]
        self.lower, self.upper = (max(each) for each in zip(*found, strict=True))

    def factorised(self, jacobian: Any, c: float) -> Solve:
        """By the kernels, or by LAPACK."""
        places, fixed = self._places
        band, order = fixed.copy(), self.order
        band[places] -= c * jacobian.data
        solve: Solve = self._band.factorised(band, self.lower, self.upper)
        if order is None:
            return solve

        def reordered(b: np.ndarray) -> np.ndarray:
            x = np.empty_like(b)
            x[order] = solve(b[order])
            return x

        return reordered

    @cached_property
    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        """Where entries are in the band, and what is always there."""
        d, sizes = self._pattern.shape[0], (self.lower, self.upper)
        given = sparse.csc_array(sparse.identity(d) if self._mass is None else self._mass)
        places, own = (
            self._band.places(*sizes, *self._ordered(one)) for one in (self._pattern, given)
        )
        fixed = np.zeros(d * self._band.height(*sizes))
        fixed[own] = given.data
        return places, fixed

    def _ordered(self, matrix: Any) -> tuple[np.ndarray, np.ndarray]:
        """Rows and columns of all entries, in their order."""
        rows, columns = matrix.indices.astype(np.int64), columns_of(matrix).astype(np.int64)
        if self.order is None:
            return rows, columns
        place = np.empty(len(self.order), np.int64)
        place[self.order] = np.arange(len(place))
        return place[rows], place[columns]


class _NativeBand:
    """Row by row, from the first diagonal below to the last above."""

    @staticmethod
    def height(lower: int, upper: int) -> int:
        return lower + upper + 1

    @staticmethod
    def places(lower: int, upper: int, row: np.ndarray, column: np.ndarray) -> np.ndarray:
        return row * (lower + upper + 1) + (column - row + lower)

    @staticmethod
    def factorised(band: np.ndarray, lower: int, upper: int) -> Solve:
        library = load()
        assert library is not None
        d = len(band) // (lower + upper + 1)
        factors, exchanged = np.empty(d * max(lower, 1)), np.empty(d, np.int32)
        sizes = ctypes.c_long(d), lower, upper
        known = *sizes, address(band), address(factors), address(exchanged)
        info = library.probode_factorise_band(*known)
        if info:
            raise Singular(f"M - γ h J is singular, or not finite, in row {info - 1}")

        def solve(b: np.ndarray) -> np.ndarray:
            x = b.copy()
            library.probode_solve_band(*known, ctypes.c_void_p(x.ctypes.data))
            return x

        return solve


class _LapackBand:
    """Column by column, with room for the rows that pivoting brings."""

    @staticmethod
    def height(lower: int, upper: int) -> int:
        return 2 * lower + upper + 1

    @staticmethod
    def places(lower: int, upper: int, row: np.ndarray, column: np.ndarray) -> np.ndarray:
        return (lower + upper + row - column) + column * (2 * lower + upper + 1)

    @staticmethod
    def factorised(band: np.ndarray, lower: int, upper: int) -> Solve:
        lapack = _lapack()
        matrix = band.reshape(-1, 2 * lower + upper + 1).T
        lu, pivots, info = lapack.dgbtrf(matrix, lower, upper, overwrite_ab=True)
        _check(info, lu)
        return lambda b: lapack.dgbtrs(lu, lower, upper, b, pivots)[0]


_FEW = 64
"""Components up to which the whole matrix is factorised."""
_FULL = 0.2
"""Part of the entries from which on it is, too."""
_WIDE = 40
"""Diagonals of the band from which on SuperLU is asked instead."""
_NARROW = 8
"""Diagonals up to which no better numbering is looked for."""
_NARROWER = 0.5
"""A renumbering that is to be used leaves less than this part of them."""


class Direct:
    """The factorisation that suits the pattern of the Jacobians, chosen when it is known.

    Those of a user may have entries in new places on the way: then it is chosen anew.
    """

    name = "LU"

    def __init__(self, d: int, mass: Any = None) -> None:
        self._d, self._mass = d, mass
        self._chosen: Linear | None = None
        self._indices: Any = None

    def factorised(self, jacobian: Any, c: float) -> Solve:
        """By the one that suits."""
        return self.chosen(jacobian).factorised(jacobian, c)

    def chosen(self, jacobian: Any) -> Linear:
        """The one that suits."""
        if self._chosen is None or not self._is_known(jacobian):
            self._chosen = direct_for(jacobian, self._d, self._mass)
            self.name = self._chosen.name
            if sparse.issparse(jacobian):
                self._indices = jacobian.indptr, jacobian.indices
        return self._chosen

    def _is_known(self, jacobian: Any) -> bool:
        if not sparse.issparse(jacobian) or self._indices is None:
            return not sparse.issparse(jacobian)
        pointers, indices = self._indices
        return len(indices) == len(jacobian.indices) and (
            (indices is jacobian.indices)
            or (
                np.array_equal(pointers, jacobian.indptr)
                and np.array_equal(indices, jacobian.indices)
            )
        )


def direct_for(jacobian: Any, d: int, mass: Any = None) -> Linear:
    """The factorisation for matrices with entries where this one has them."""
    if d <= _FEW or not sparse.issparse(jacobian) or jacobian.nnz > _FULL * d * d:
        return Full(d, mass)
    both = sparse.csc_array(jacobian)
    if mass is not None:
        first, second = (filled(one, np.ones(one.nnz)) for one in (both, mass))
        both = sparse.csc_array(first + second)
    if sum(widths(both)) <= _NARROW:
        return Banded(jacobian, mass)
    found = layout(both)
    width, ordered = found.below + found.above, found.ordered_below + found.ordered_above
    if min(width, ordered) > _WIDE:
        return Sparse(d, mass)
    return Banded(jacobian, mass, found.order if ordered < _NARROWER * width else None)


def as_dense(matrix: Any, d: int) -> np.ndarray:
    """A matrix, its diagonal or a sparse one, as it is."""
    if sparse.issparse(matrix):
        return np.asarray(matrix.toarray(), float)
    array = np.asarray(matrix, float)
    return np.diag(array) if array.shape == (d,) else array


def _lapack() -> Any:
    """Imported when it is used: it takes a good part of the time of importing this library."""
    from scipy.linalg import lapack

    return lapack


def _check(info: int, lu: np.ndarray) -> None:
    if info != 0 or not np.all(np.isfinite(lu)):
        raise Singular("M - γ h J is singular" if info else "the Jacobian is not finite")
