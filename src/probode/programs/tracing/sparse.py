"""Sparse matrices of SciPy as traced functions see them: products with traced arrays."""

import sys
from typing import Any

import jax.numpy as jnp
import numpy as np

from probode.programs.tracing.arrays import TracedArray, is_traced, unwrap, wrap
from probode.programs.tracing.watching import watch

_PADDING = 4
"""Rows are padded to equal length as long as that stores at most so many times the entries."""


def is_sparse(value: Any) -> bool:
    """Whether ``value`` is a sparse matrix of SciPy, with two axes and real entries."""
    module = sys.modules.get("scipy.sparse")
    if module is None or not module.issparse(value):
        return False
    return bool(value.ndim == 2 and value.dtype.kind in "biuf")


class SparseMatrix:
    """Entries row by row, padded with zeros: ``(A x)_i = Σ_k a_ik x[c_ik]``."""

    __array_ufunc__ = None  # NumPy arrays leave the product to us
    __array_priority__ = 2000

    def __init__(self, matrix: Any) -> None:
        self._matrix = matrix
        self.shape: tuple[int, int] = matrix.shape
        rows = matrix.tocsr()
        rows.sum_duplicates()
        lengths = np.diff(rows.indptr)
        width = max(int(lengths.max(initial=0)), 1)
        self._padded = width * self.shape[0] <= _PADDING * max(rows.nnz, 1) + 64
        i = np.repeat(np.arange(self.shape[0]), lengths)
        if not self._padded:
            self._rows, self._columns, self._entries = i, rows.indices, rows.data
            return
        k = np.arange(rows.nnz) - np.repeat(rows.indptr[:-1], lengths)
        self._columns = np.zeros((self.shape[0], width), int)
        self._entries = np.zeros((self.shape[0], width))
        self._columns[i, k], self._entries[i, k] = rows.indices, rows.data

    def __matmul__(self, other: Any) -> Any:
        if not is_traced(other):
            return wrap(self._matrix @ unwrap(other, as_array=True))
        watch.count()
        x = jnp.asarray(unwrap(other, as_array=True))
        if x.ndim not in (1, 2) or x.shape[0] != self.shape[1]:
            raise ValueError(f"dimension mismatch: {self.shape} and {x.shape}")
        entries = self._entries.reshape(self._entries.shape + (1,) * (x.ndim - 1))
        products = entries * x[self._columns]
        if self._padded:
            return TracedArray(products.sum(axis=1))
        zero = jnp.zeros((self.shape[0], *x.shape[1:]))
        return TracedArray(zero.at[self._rows].add(products))

    def dot(self, other: Any) -> Any:
        """The product."""
        return self @ other

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, TracedArray) and other.ndim and self._multiplies_as_matrix():
            return self @ other
        if isinstance(other, int | float):
            return SparseMatrix(self._matrix * other)
        raise watch.refuse("this product of a sparse matrix", None, "write matrix @ vector")

    def __rmul__(self, other: Any) -> Any:
        if isinstance(other, int | float):
            return SparseMatrix(self._matrix * other)
        if is_traced(other) and jnp.ndim(unwrap(other)) == 0:
            return _Scaled(self, other)
        raise watch.refuse("this product of a sparse matrix", None, "write matrix @ vector")

    def _multiplies_as_matrix(self) -> bool:
        return isinstance(self._matrix, sys.modules["scipy.sparse"].spmatrix)

    def __neg__(self) -> "SparseMatrix":
        return SparseMatrix(-self._matrix)

    @property
    def T(self) -> "SparseMatrix":
        """The transpose."""
        return SparseMatrix(self._matrix.T)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._matrix, name)


class _Scaled:
    """A traced number times a sparse matrix."""

    __array_ufunc__ = None

    def __init__(self, matrix: SparseMatrix, factor: Any) -> None:
        self._matrix, self._factor = matrix, factor

    def __matmul__(self, other: Any) -> Any:
        return self._factor * (self._matrix @ other)

    dot = __matmul__

    def __mul__(self, other: Any) -> Any:
        return self._factor * (self._matrix * other)
