"""Sparse Jacobians: functions ``(t, y)`` to a matrix in compressed columns, all of one pattern.

==========================  ======================================================================
:func:`traced_jacobian`     of a traced vector field: exact, one product ``J s`` for each colour
:func:`differenced`         of a function that only Python can evaluate: one difference for each
:class:`GivenJacobian`      the user's own: sparse, full, or packed in bands
:func:`jacobian_product`    ``J v`` of a traced vector field, without the matrix
==========================  ======================================================================

Results are in float64. They share the arrays of their pattern: only ``data`` is new.
"""

from collections.abc import Callable
from copy import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from probode.base.compile import compiled, turn
from probode.base.errors import whole_number
from probode.base.later import sparse
from probode.base.precision import double_precision
from probode.programs.colouring import (
    Colouring,
    as_pattern,
    bands,
    colouring,
    columns_of,
    filled,
    read_pattern,
)
from probode.programs.field import Field
from probode.programs.finite_differences import Function, sparse_differences
from probode.programs.sparsity import sparsity

_AT_ONCE = 2**16
"""Numbers of all directions that are pushed through a program at once: more do not fit the cache,
and of a million unknowns every direction takes megabytes in every intermediate result."""


class TracedJacobian:
    """``(t, y)`` to ``∂f/∂y`` of a traced vector field, exact.

    Parameters
    ----------
    field
        The vector field; one with other parameters goes with :meth:`of`.
    coloured
        The pattern, in colours.
    """

    def __init__(self, field: Field, coloured: Colouring) -> None:
        self._field, self.coloured = field, coloured
        with double_precision():
            self._colours = jnp.asarray(coloured.colours)

    @property
    def pattern(self) -> Any:
        """Where entries are."""
        return self.coloured.pattern

    def of(self, field: Field) -> "TracedJacobian":
        """That of a field with the same pattern: one with other parameters."""
        other = copy(self)
        other._field = field
        return other

    def __call__(self, t: Any, y: Any) -> Any:
        """The matrix at ``(t, y)``."""
        return self.coloured.matrix(self.coloured.data(self.products(t, y)))

    def diagonal(self, t: Any, y: Any) -> np.ndarray:
        """Its diagonal alone."""
        colours, there = self.coloured.colours, self.pattern.diagonal().astype(bool)
        found = self.products(t, y)[colours, np.arange(len(colours))]
        return np.where(there, found, 0.0)

    def products(self, t: Any, y: Any) -> np.ndarray:
        """``J s`` for the sum ``s`` of the columns of each colour, ``(count, d)``."""
        field, count = self._field, self.coloured.count
        with double_precision(), turn(field.calls_libraries):
            at = jnp.asarray(t, jnp.float64), jnp.asarray(y, jnp.float64)
            return np.asarray(_products(field, self._colours, *at, count))


def traced_jacobian(field: Field, pattern: Any = None) -> TracedJacobian | None:
    """The Jacobian of a traced vector field, by default with the pattern that its program has.

    ``None``: that pattern is as good as full, or not to be had (:func:`sparsity`).
    """
    found = sparsity(field) if pattern is None else pattern
    return None if found is None else TracedJacobian(field, colouring(found))


@compiled(4, alone=False)
def _products(field: Field, colours: Any, t: Any, y: Any, count: int) -> Any:
    """``∂f/∂y`` times the columns of each colour."""
    _, push = jax.linearize(lambda y: field(t, y), y)

    def product(colour: Any) -> Any:
        return push((colours == colour).astype(y.dtype))

    blocks = -(-count // max(1, _AT_ONCE // y.size))
    at_once = -(-count // max(1, blocks))
    every = jnp.arange(count, dtype=colours.dtype)
    products = jax.lax.map(product, every, batch_size=at_once if at_once > 1 else None)
    return jnp.where(jnp.isfinite(products), products, 0.0) if field.guarded else products


def jacobian_product(field: Field, t: Any, y: Any, v: Any) -> np.ndarray:
    """``∂f/∂y v`` at ``(t, y)``: one pass through the program, no matrix."""
    with double_precision(), turn(field.calls_libraries):
        return np.array(_product(field, *(jnp.asarray(x, jnp.float64) for x in (t, y, v))))


@compiled(alone=False)
def _product(field: Field, t: Any, y: Any, v: Any) -> Any:
    return jax.jvp(lambda y: field(t, y), (y,), (v,))[1]


class DifferencedJacobian:
    """``(t, y)`` to ``∂f/∂y`` by forward differences, one evaluation of ``f`` for each colour."""

    def __init__(
        self, function: Function, coloured: Colouring, columns: Function | None = None
    ) -> None:
        self._function, self.coloured = function, coloured
        self._differences = sparse_differences(function, coloured, columns)

    @property
    def pattern(self) -> Any:
        """Where entries are."""
        return self.coloured.pattern

    def __call__(self, t: float, y: np.ndarray, f: np.ndarray | None = None) -> Any:
        """The matrix at ``(t, y)``; ``f`` there, if it is known already, saves an evaluation."""
        return self._differences(t, y, self._function(t, y) if f is None else f)


def differenced(
    function: Function,
    n: int,
    sparsity: Any = None,
    below: int | None = None,
    above: int | None = None,
    columns: Function | None = None,
) -> DifferencedJacobian:
    """The Jacobian of a function of ``n`` components, with a pattern or bands as SciPy has them.

    ``columns``, if given, evaluates several states at once, one in each column.
    """
    pattern = read_pattern(sparsity, below, above, n)
    if pattern is None:
        raise ValueError(
            "Differences of sparse Jacobians need to know where entries are: give `jac_sparsity`, "
            "or `lband` and `uband`."
        )
    return DifferencedJacobian(function, colouring(pattern), columns)


class GivenJacobian:
    """``(t, y)`` to the user's own ``jac``, sparse; the pattern is that of all calls so far.

    Parameters
    ----------
    jac
        A function ``(t, y)``, or a matrix: sparse, full, or with bands packed as in
        ``packed[above + i - j, j] = J[i, j]``.
    n
        Components of ``f``.
    m
        Entries of ``y``, if it has more of them.
    below, above
        The bands, if there are any.
    sparsity
        Where entries may be. One elsewhere is an error.
    """

    def __init__(
        self,
        jac: Callable[[float, np.ndarray], Any] | Any,
        n: int,
        m: int | None = None,
        below: int | None = None,
        above: int | None = None,
        sparsity: Any = None,
    ) -> None:
        self._jac, self._shape = jac, (n, n if m is None else m)
        self._banded = below is not None or above is not None
        self._below = whole_number("lband", below or 0)
        self._above = whole_number("uband", above or 0)
        self._fixed = sparsity is not None
        self._last: Any = None
        self._places: Any = slice(None)
        self.pattern: Any = as_pattern(sparsity) if self._fixed else None
        """Where entries are; ``None`` before the first call."""
        if self.pattern is not None and self.pattern.shape != self._shape:
            raise ValueError(
                f"`jac_sparsity` must have the shape {self._shape}, got {self.pattern.shape}."
            )
        self._constant = None if callable(jac) else self._in_pattern(self._sparse(jac))

    def __call__(self, t: float, y: np.ndarray) -> Any:
        """The matrix at ``(t, y)``."""
        if self._constant is not None:
            return self._constant
        return self._in_pattern(self._sparse(self._jac(t, y)))

    def _sparse(self, value: Any) -> Any:
        """The matrix in compressed columns, as it came."""
        if value is None:
            raise TypeError("`jac` returned None: does it end with a return statement?")
        if not sparse.issparse(value):
            try:
                value = np.asarray(value)
                value = value if value.dtype.kind == "c" else value.astype(float)
            except (TypeError, ValueError):
                raise TypeError(f"`jac` must be a matrix of numbers, got {value!r}.") from None
        if value.dtype.kind == "c":
            raise ValueError("`jac` must return real numbers, got complex ones.")
        n = self._shape[0]
        packed = (self._below + self._above + 1, n)
        if self._banded and value.shape == packed and packed != self._shape:
            return self._unpacked(value.toarray() if sparse.issparse(value) else value)
        if value.shape != self._shape:
            expected = f"{self._shape}, got {value.shape}."
            if self._banded:
                bands = f"packed: lband={self._below}, uband={self._above}"
                expected = f"{packed} ({bands}) or {expected}"
            raise ValueError(f"`jac` is expected to have shape {expected}")
        matrix = sparse.csc_array(value).astype(float)
        matrix.sum_duplicates()
        return matrix

    def _unpacked(self, packed: np.ndarray) -> Any:
        pattern = bands(self._shape[0], self._below, self._above)
        column = columns_of(pattern)
        return filled(pattern, packed[self._above + pattern.indices - column, column].astype(float))

    def _in_pattern(self, matrix: Any) -> Any:
        """The same matrix with zeros wherever an earlier one has had entries."""
        if self.pattern is None:
            self.pattern = as_pattern(matrix)
            self._last = matrix
            return filled(self.pattern, matrix.data)
        if not _alike(matrix, self._last):
            self._widen(matrix)
        data = np.zeros(self.pattern.nnz)
        data[self._places] = matrix.data
        return filled(self.pattern, data)

    def _widen(self, matrix: Any) -> None:
        """Find the places of a matrix in the pattern, which is extended where they are not in it.

        Patterns are exchanged, not changed: matrices handed out before share them.
        """
        own = as_pattern(matrix)
        both = sparse.csc_array(self.pattern + own)
        if both.nnz > self.pattern.nnz:
            if self._fixed:
                known = _numbers(self.pattern)
                k = int(np.argmin(np.isin(_numbers(own), known)))
                raise ValueError(
                    f"`jac` has an entry at ({own.indices[k]}, {columns_of(own)[k]}), outside of "
                    "`jac_sparsity`: add it there, or leave `jac_sparsity` out, as `jac` itself "
                    "says where entries are."
                )
            self.pattern = as_pattern(both)
        self._places = np.searchsorted(_numbers(self.pattern), _numbers(own))
        self._last = matrix


def _alike(a: Any, b: Any) -> bool:
    """Whether two matrices have entries at the same places, in the same order."""
    if b is None or a.nnz != b.nnz:
        return False
    return np.array_equal(a.indptr, b.indptr) and np.array_equal(a.indices, b.indices)


def _numbers(pattern: Any) -> np.ndarray:
    """The places of all entries as numbers, in increasing order."""
    return columns_of(pattern) * np.int64(pattern.shape[0]) + pattern.indices
