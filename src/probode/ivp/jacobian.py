"""The Jacobian that came with the user's function: its form, and whether it fits the function."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probode.base.later import sparse
from probode.engines.two_pole.system import Asked
from probode.ivp.options import Options
from probode.ivp.result import Embedding
from probode.programs.colouring import read_pattern
from probode.programs.jacobian_check import function_of, mismatch, points_near


def in_real_form(asked: Asked, embedding: Embedding) -> Asked:
    """What is said of a large system of complex states ``y``, for ``(Re y, Im y)``.

    Real and imaginary parts meet wherever components do.
    """
    jac, pattern = asked.jac, read_pattern(asked.sparsity, asked.lband, asked.uband, embedding.n)
    if jac is not None and asked.sparsity is None and pattern is not None:
        raise TypeError(
            "SparseEK1 takes no bands with the `jac` of a complex state: return a sparse matrix."
        )
    found = jac if jac is None or callable(jac) else _blocks(jac)
    if callable(jac):

        def found(t: float, y: np.ndarray) -> Any:
            return _blocks(jac(t, embedding.values(y)))

    if pattern is not None:
        pattern = sparse.csc_array(sparse.kron(np.ones((2, 2)), pattern))
    mass = None if asked.mass is None else _blocks(asked.mass)
    return asked._replace(jac=found, sparsity=pattern, lband=None, uband=None, mass=mass)


def _blocks(matrix: Any) -> Any:
    """``[[Re, -Im], [Im, Re]]``, sparse; of a vector that of the diagonal matrix."""
    if not sparse.issparse(matrix):
        array = np.asarray(matrix)
        matrix = sparse.diags_array(array) if array.ndim == 1 else sparse.csc_array(array)
    one, other = sparse.csc_array(matrix.real), sparse.csc_array(matrix.imag)
    return sparse.csc_array(sparse.block_array([[one, -other], [other, one]]))


class UserJacobian(NamedTuple):
    """``jac``, a function or a matrix: dense, sparse, or packed in bands (then with their widths).

    With ``lband`` or ``uband`` it has SciPy's packed form ``packed[uband + i - j, j] = J[i, j]``,
    or the full one. Where the solver wants a ``diagonal`` that alone will do.
    """

    jac: Any
    options: Options
    embedding: Embedding
    diagonal: bool

    def __call__(self, t: Any, y: Any, *args: Any) -> Any:
        """The matrix (or its diagonal) for a state as the user writes it; NumPy, or traced."""
        value, k = self.jac, self.embedding.order
        if callable(self.jac):
            n = self.embedding.n
            value = self.jac(t, *(y[i * n : (i + 1) * n] for i in range(k)), *args)
        if k > 1 and isinstance(value, tuple | list) and len(value) == k:
            parts = [_dense(part) for part in value]
            traced = any(isinstance(part, jax.Array) for part in parts)
            value = (jnp if traced else np).concatenate([_matrix(part) for part in parts], axis=1)
        return self._full(_dense(value))

    def on_real_form(self, t: float, y: np.ndarray, args: tuple[Any, ...]) -> np.ndarray:
        """The matrix for the real form of a state, in NumPy."""
        value = self(t, self.embedding.values(y), *args)
        if np.iscomplexobj(value) and not self.embedding.is_complex:
            raise ValueError("`jac` must return real numbers, as `y0` is real; got complex ones.")
        return self.embedding.jacobian(value).astype(float)

    def _full(self, value: Any) -> Any:
        if value is None:
            raise TypeError("`jac` returned None: does it end with a return statement?")
        n = self.embedding.n
        traced = any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(value))
        xp: Any = jnp if traced else np
        try:
            matrix = xp.asarray(value)
            matrix = matrix if matrix.dtype.kind == "c" else matrix.astype(float)
        except (TypeError, ValueError):
            raise TypeError(f"`jac` must be a matrix of numbers, got {value!r}.") from None
        below, above = self.options.lband, self.options.uband
        banded = below is not None or above is not None
        below, above = below or 0, above or 0
        packed = (below + above + 1, n)
        if banded and matrix.shape == packed:
            i, j = np.indices((n, n))
            row = above + i - j
            inside = (row >= 0) & (row < packed[0])
            return xp.where(inside, matrix[np.clip(row, 0, packed[0] - 1), j], 0.0)
        m = self.embedding.size
        if matrix.shape == (n, m) or (self.diagonal and matrix.shape == (m,)):
            return matrix
        if n == 1 and matrix.size == m:
            return matrix.reshape(1, m)
        expected = f"{(n, m)}, got {matrix.shape}."
        if m > n:
            expected = f"{(n, m)}, or to be a tuple of {m // n} matrices {(n, n)}: the derivatives "
            expected += f"by y, y', ..., side by side; got {matrix.shape}."
        if banded:
            expected = f"{packed} (packed: lband={below}, uband={above}) or {expected}"
        raise ValueError(f"`jac` is expected to have shape {expected}")

    def check(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        t_span: tuple[float, float],
        y0: np.ndarray,
    ) -> str | None:
        """Raise if ``jac`` cannot be called or has the wrong shape; describe a wrong entry.

        It is compared with differences of ``function`` (both on the real form of a state) at the
        start and at points near it: terms that vanish at the start are seen there.
        """
        if callable(self.jac):
            _check_signature(self.jac, args, self.embedding.order)
        at_start = self.on_real_form(t_span[0], y0, args)
        if at_start.ndim != 2:
            return None
        found = mismatch(function_of(function, args), at_start, t_span[0], y0)
        for t, y in () if found else points_near(*t_span, y0):
            with np.errstate(all="ignore"):
                try:
                    matrix = self.on_real_form(t, y, args)
                except Exception:  # not defined there
                    continue
            found = found or mismatch(function_of(function, args), matrix, t, y)
        return found


def _dense(matrix: Any) -> Any:
    return matrix.toarray() if hasattr(matrix, "toarray") else matrix


def _matrix(value: Any) -> Any:
    """A number as a matrix of one entry."""
    array = value if isinstance(value, jax.Array) else np.asarray(value)
    return array.reshape(1, 1) if array.size == 1 else array


def _check_signature(jac: Callable[..., Any], args: tuple[Any, ...], order: int) -> None:
    try:
        signature = inspect.signature(jac)
    except (TypeError, ValueError):  # written in C
        return
    try:
        signature.bind(0.0, *[None] * order, *args)
    except TypeError as error:
        named = ", ".join("y" + "'" * i for i in range(order))
        extra = "".join(f", arg{i + 1}" for i in range(len(args)))
        raise TypeError(
            f"`jac` is called as jac(t, {named}{extra}), which {signature} does not take: {error}."
        ) from None
