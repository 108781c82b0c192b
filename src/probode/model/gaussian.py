"""Square-root Gaussian algebra: marginalise, condition, revert. No ODE in it.

A covariance is carried as a *right factor* ``R`` with ``Σ = RᵀR``: rows can be stacked, and the QR
decomposition of a stack is the right factor of the sum of its parts. Every routine accepts leading
batch axes, so a block-diagonal covariance is one call on an array of shape ``(d, n, n)``.
"""

from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from probode.base.precision import on_host

_UNROLLED = 3
"""Triangular systems up to this size are solved entry by entry instead of by LAPACK."""


def _transpose(matrix: Float[Array, "*b m n"]) -> Float[Array, "*b n m"]:
    return jnp.swapaxes(matrix, -1, -2)


@lru_cache(maxsize=64)
def _triangle(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the entries of a square are in its upper triangle, and which of them are inside."""
    row, column = np.indices((size, size))
    inside = row <= column
    return np.where(inside, row * size - row * (row + 1) // 2 + column, 0), inside


_triangle_indices = lru_cache(maxsize=64)(np.triu_indices)


def pack(factor: Array | np.ndarray) -> Any:
    """The upper triangle of a triangular factor, row by row: ``m = n (n + 1) / 2`` numbers."""
    return factor[(..., *_triangle_indices(factor.shape[-1]))]


def unpack(packed: Float[Array, "*b m"], columns: slice = slice(None)) -> Array:
    """The factor, or some of its ``columns`` (down to the last row that is not zero there)."""
    size = int(np.sqrt(2 * packed.shape[-1]))
    index, inside = _triangle(size)
    rows = columns.stop
    xp: Any = np if on_host(packed) else jnp
    return xp.where(inside[:rows, columns], packed[..., index[:rows, columns]], 0.0)


@jax.custom_jvp
def _reduced_qr(stack: Float[Array, "*b m n"]) -> tuple[Array, Array]:
    q, r = jnp.linalg.qr(stack, mode="reduced")
    return q, r


@_reduced_qr.defjvp
def _no_second_derivative(primals: Any, tangents: Any) -> Any:
    raise NotImplementedError(
        "second derivatives through a probode covariance are not defined: the decomposition has a "
        "first-order rule only. Differentiate once, or use finite differences of the gradient."
    )


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def triangularize(stack: Float[Array, "*b m n"], pivots: int = 0) -> Float[Array, "*b k n"]:
    """Return ``R`` with ``RᵀR = stackᵀ stack``, upper triangular (``k = min(m, n)`` rows).

    ``pivots`` says how many leading columns must stay triangular *to first order*: those that a
    caller solves with. The derivative divides by that leading block only. (The derivative rule of a
    plain QR divides by all of ``R``, which is singular for the stacks met here.)
    """
    return jnp.linalg.qr(stack, mode="r")


@triangularize.defjvp
def _triangularize_jvp(pivots: int, primals: Any, tangents: Any) -> tuple[Array, Array]:
    """``dR = Qᵀ dM + Ω R``, ``Ω`` skew such that the first ``pivots`` columns stay triangular."""
    (stack,), (dstack,) = primals, tangents
    q, r = _reduced_qr(stack)
    dr = _transpose(q) @ dstack
    if pivots > 0:
        head = r[..., :pivots, :pivots]
        x = _transpose(solve_transposed(head, _transpose(dr[..., :, :pivots])))
        lower = -jnp.tril(x, -1)
        rows = r.shape[-2]
        omega = jnp.concatenate([lower, jnp.zeros((*lower.shape[:-1], rows - pivots))], axis=-1)
        dr = dr + (omega - _transpose(omega)) @ r
    return r, dr


def _without_zero_pivots(upper: Float[Array, "*b k k"]) -> Float[Array, "*b k k"]:
    """Replace zero pivots by infinity, so that a solve returns zero in that component."""
    k = upper.shape[-1]
    return jnp.where(jnp.eye(k, dtype=bool) & (upper == 0.0), jnp.inf, upper)


def solve_transposed(upper: Float[Array, "*b k k"], rhs: Float[Array, "*b k p"]) -> Array:
    """Solve ``upperᵀ x = rhs``; a zero pivot gives a zero component."""
    k = upper.shape[-1]
    if k <= _UNROLLED:
        solution: list[Array] = []
        for i in range(k):
            rest = rhs[..., i, :]
            for j, known in enumerate(solution):
                rest = rest - upper[..., j, i, None] * known
            pivot = upper[..., i, i, None]
            solution.append(
                jnp.where(pivot == 0.0, 0.0, rest / jnp.where(pivot == 0.0, 1.0, pivot))
            )
        return jnp.stack(solution, axis=-2)
    return jax.lax.linalg.triangular_solve(
        _without_zero_pivots(upper), rhs, left_side=True, lower=False, transpose_a=True
    )


def solve_upper(upper: Float[Array, "*b k k"], rhs: Float[Array, "*b k p"]) -> Array:
    """Solve ``upper x = rhs``; a zero pivot gives a zero component."""
    return jax.lax.linalg.triangular_solve(
        _without_zero_pivots(upper), rhs, left_side=True, lower=False
    )


def whiten(factor: Float[Array, "m k"], z: Float[Array, " k"]) -> Float[Array, " k"]:
    """``w`` with ``wᵀw = zᵀ (FᵀF)⁻¹ z``, for a factor ``F`` of full column rank.

    With one or two columns ``R`` is written out (Gram-Schmidt): a call of LAPACK costs more.
    """
    k = z.shape[0]
    if k > 2:
        return solve_transposed(triangularize(factor, k), z[:, None])[:, 0]
    first = jnp.sqrt(jnp.sum(factor[:, 0] ** 2))
    if k == 1:
        return z / first
    unit = factor[:, 0] / first
    overlap = jnp.sum(unit * factor[:, 1])
    second = jnp.sqrt(jnp.sum((factor[:, 1] - overlap * unit) ** 2))
    w = z[0] / first
    return jnp.stack([w, (z[1] - overlap * w) / second])


def safe_sqrt(x: Any) -> Any:
    """Square root whose derivative at zero is zero instead of infinite."""
    xp: Any = np if isinstance(x, np.ndarray | np.generic) else jnp
    # Not "x > 0": NaN must stay NaN, or a step that failed would look like one without error.
    zero = x == 0.0
    return xp.where(zero, 0.0, xp.sqrt(xp.where(zero, 1.0, x)))


def norm(x: Any, axis: int = -1) -> Any:
    """``sqrt(Σ x²)`` along the last axis or the one before.

    In units of the largest number: no square overflows, and none vanishes.
    """
    xp: Any = np if on_host(x) else jnp
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if xp is np:  # most often squares hold; NumPy sums over a middle axis four times as slowly
            squares = np.einsum("...ij,...ij->...j" if axis == -2 else "...i,...i->...", x, x)
            if np.all((squares > 1e-280) & (squares < 1e280)):
                return np.sqrt(squares)
        size = xp.abs(x if xp is np else jax.lax.stop_gradient(x))
        largest = xp.max(size, axis=axis, keepdims=True, initial=0.0)
        unit = xp.where((largest > 0.0) & xp.isfinite(largest), largest, 1.0)
        return xp.squeeze(unit, axis) * safe_sqrt(xp.sum(xp.square(x / unit), axis=axis))


def std_of(factor: Float[Array, "*b m n"]) -> Float[Array, "*b n"]:
    """Marginal standard deviations ``sqrt(diag(RᵀR))``: the norms of the columns."""
    return norm(factor, -2)


class Update(NamedTuple):
    """A Gaussian conditioned on a linear observation that came out ``residual`` too large."""

    factor: Float[Array, "*b n n"]
    """Right factor of the conditional covariance."""
    whitened: Float[Array, "*b k p"]
    """``w`` with ``wᵀw = zᵀ S⁻¹ z``."""
    innovation: Float[Array, "*b k k"]
    """Right factor of ``S``, triangular."""
    cross: Float[Array, "*b k n"]
    """``R12``: with the innovation's factor, ``P Hᵀ = R12ᵀ R11``."""

    @property
    def correction(self) -> Float[Array, "*b n p"]:
        """To be subtracted from the mean: ``P Hᵀ S⁻¹ z``."""
        return _transpose(self.cross) @ self.whitened

    def correct(self, residual: Float[Array, "*b k p"]) -> Float[Array, "*b n p"]:
        """The same for another residual."""
        return _transpose(self.cross) @ solve_transposed(self.innovation, residual)

    @property
    def pivots(self) -> Float[Array, "*b k"]:
        """Diagonal of the innovation's factor: ``log det S = 2 Σ log|pivots|``."""
        return jnp.diagonal(self.innovation, axis1=-2, axis2=-1)


def condition(
    factor: Float[Array, "*b m n"],
    observed: Float[Array, "*b m k"],
    residual: Float[Array, "*b k p"],
    noise: Array | None = None,
) -> Update:
    """Condition ``x ~ N(m, RᵀR)`` on ``H x = H m - z``, given ``R`` (any rows) and ``R Hᵀ``.

    One QR does it all::

        [ R Hᵀ      R ]      [ R11  R12 ]      S = R11ᵀ R11        w = R11⁻ᵀ z
        [ diag(r)   0 ]  =  Q[  0   R22 ]      m ← m - R12ᵀ w      P ← R22ᵀ R22

    ``noise`` holds the ``r`` of the second row, ``(*b k)``: the standard deviation of a
    (rounding-level) observation noise. It also keeps a column that is exactly zero from swallowing
    a row. Or rows of a right factor of the noise's covariance, ``(*b r k)``.
    """
    stack = jnp.concatenate([observed, factor], axis=-1)
    k, n = observed.shape[-1], factor.shape[-1]
    if noise is not None and noise.ndim == observed.ndim:
        rows = jnp.concatenate([noise, jnp.zeros((*noise.shape[:-1], n))], axis=-1)
        stack = jnp.concatenate([stack, rows], axis=-2)
    elif noise is not None:
        rows = noise[..., None] * jnp.eye(k, k + n)
        stack = jnp.concatenate([stack, rows], axis=-2)
    r = triangularize(stack, k)
    r11, r12, r22 = r[..., :k, :k], r[..., :k, k:], r[..., k:, k:]
    return Update(r22, solve_transposed(r11, residual), r11, r12)


class Reversal(NamedTuple):
    """``x | x⁺ ~ N(m + G (x⁺ - m⁺), RᵀR)``, the backward kernel of a linear transition."""

    gain_transposed: Float[Array, "*b n n"]
    factor: Float[Array, "*b n n"]


def revert(
    after: Float[Array, "*b m n"],
    before: Float[Array, "*b m0 n"],
) -> Reversal:
    """Backward kernel of ``x⁺ = A x + noise``, from the factor of ``x⁺`` and that of ``x``.

    ``after`` stacks ``R Aᵀ`` over the factor of the noise, ``before`` is ``R`` (zero in the rows of
    the noise)::

        [ R Aᵀ   R ]      [ R11  R12 ]
        [ noise  0 ]  =  Q[  0   R22 ]      Gᵀ = R11⁻¹ R12      Cov(x | x⁺) = R22ᵀ R22

    No predicted covariance is ever inverted.
    """
    n = before.shape[-1]
    missing = after.shape[-2] - before.shape[-2]
    padding = jnp.zeros((*before.shape[:-2], missing, n))
    stack = jnp.concatenate([after, jnp.concatenate([before, padding], axis=-2)], axis=-1)
    r = triangularize(stack, n)
    gain_transposed = solve_upper(r[..., :n, :n], r[..., :n, n:])
    return Reversal(gain_transposed, r[..., n:, n:])


def marginalize(
    kernel: Reversal,
    factor_after: Float[Array, "*b m n"],
) -> Float[Array, "*b n n"]:
    """Right factor of ``G P⁺ Gᵀ + Cov(x | x⁺)``."""
    return triangularize(
        jnp.concatenate([factor_after @ kernel.gain_transposed, kernel.factor], axis=-2)
    )
