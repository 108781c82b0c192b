"""Inverses of many small shifted matrices at once."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

_UNROLLED = 3
"""Up to this size elimination is written out in single numbers: vectorised over all steps."""


class Complex(NamedTuple):
    """A complex array as two real ones, which compilers vectorise better."""

    re: Array
    im: Array

    def __mul__(self, other: "Complex") -> "Complex":  # type: ignore[override]
        return Complex(
            self.re * other.re - self.im * other.im, self.re * other.im + self.im * other.re
        )

    def __sub__(self, other: "Complex") -> "Complex":
        return Complex(self.re - other.re, self.im - other.im)

    @property
    def square(self) -> Array:
        """``|z|²``."""
        return self.re**2 + self.im**2

    @property
    def reciprocal(self) -> "Complex":
        """``1/z``, without overflow of ``|z|²``."""
        size = jnp.maximum(jnp.abs(self.re), jnp.abs(self.im))
        re, im = self.re / size, self.im / size
        norm = 1.0 / (size * (re**2 + im**2))
        return Complex(re * norm, -im * norm)


def shifted_inverse(
    xp: Any,
    shifts: np.ndarray,
    h: Float[Array, "*steps"],
    j: Float[Array, "*steps d d"],
    mass: Float[Array, "*steps d d"] | None = None,
) -> Complex | np.ndarray:  # (*steps, pairs, d, d)
    """``(λ/h M - J)⁻¹`` for all shifts ``λ``; in JAX for one step, in NumPy as complex numbers.

    Compiled programs call a library for one matrix at a time, which for matrices of order two or
    three costs ten times the arithmetic.
    """
    d = j.shape[-1]
    if d > _UNROLLED or xp is np:
        weights = xp.eye(d) if mass is None else mass[..., None, :, :]
        shifted = (shifts / h[..., None])[..., None, None] * weights - j[..., None, :, :]
        found = xp.linalg.inv(shifted)
        return found if xp is np else Complex(found.real, found.imag)
    inverses = [_eliminate(complex(shift), h, j, mass) for shift in shifts]
    re = jnp.stack([jnp.stack(found[0]) for found in inverses])
    im = jnp.stack([jnp.stack(found[1]) for found in inverses])
    return Complex(re.reshape(-1, d, d), im.reshape(-1, d, d))


def combined(weights: np.ndarray, inverses: Complex | np.ndarray) -> Any:
    """``Re sum_k w_ik A_k``."""
    if isinstance(inverses, np.ndarray):
        return np.einsum("sk,...kab->...sab", weights, inverses).real
    re, im = inverses
    return jnp.tensordot(weights.real, re, 1) - jnp.tensordot(weights.imag, im, 1)


def applied(
    columns: np.ndarray, inverses: Complex | np.ndarray, rows: np.ndarray, right: Any
) -> Any:
    """``Re T diag(A_k) T⁻¹`` applied to stages ``(*steps, s, d)``."""
    if isinstance(inverses, np.ndarray):
        return (columns @ (inverses @ (rows @ right)[..., None])[..., 0]).real
    turned = Complex((rows.real @ right)[:, None], (rows.imag @ right)[:, None])
    re, im = inverses * turned
    return columns.real @ re.sum(axis=-1) - columns.imag @ im.sum(axis=-1)


def _eliminate(
    shift: complex, h: Array, j: Array, mass: Array | None
) -> tuple[list[Array], list[Array]]:
    """Entries of ``(λ/h M - J)⁻¹`` by elimination with partial pivoting: real parts, imaginary."""
    d, zero, one = j.shape[-1], jnp.zeros_like(h), jnp.ones_like(h)

    def entry(i: int, k: int) -> Complex:
        if mass is not None:
            weight = mass[i, k] / h
            return Complex(shift.real * weight - j[i, k], shift.imag * weight)
        if i == k:
            return Complex(shift.real / h - j[i, k], shift.imag / h)
        return Complex(-j[i, k], zero)

    eye = [[Complex(one if i == k else zero, zero) for k in range(d)] for i in range(d)]
    rows = [[*(entry(i, k) for k in range(d)), *eye[i]] for i in range(d)]
    for i in range(d):
        for r in range(i + 1, d):
            # Sorting by the pivot: the largest ends up in row i.
            larger = rows[r][i].square > rows[i][i].square
            pairs = list(zip(rows[i], rows[r], strict=True))
            rows[i] = [_choose(larger, b, a) for a, b in pairs]
            rows[r] = [_choose(larger, a, b) for a, b in pairs]
        pivot = rows[i][i].reciprocal
        rows[i] = [pivot * x for x in rows[i]]
        for r in range(d):
            if r != i:
                factor = rows[r][i]
                rows[r] = [x - factor * y for x, y in zip(rows[r], rows[i], strict=True)]
    entries = [x for row in rows for x in row[d:]]
    return [x.re for x in entries], [x.im for x in entries]


def _choose(which: Array, a: Complex, b: Complex) -> Complex:
    return Complex(jnp.where(which, a.re, b.re), jnp.where(which, a.im, b.im))
