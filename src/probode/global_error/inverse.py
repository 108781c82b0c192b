"""Inverses of many small shifted matrices at once."""

from typing import NamedTuple

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
    shifts: np.ndarray, h: Float[Array, ""], j: Float[Array, "d d"]
) -> Complex:  # (pairs, d, d)
    """``(λ/h - J)⁻¹`` for all shifts ``λ``.

    Libraries treat one matrix per call, which for matrices of order two or three costs ten times
    the arithmetic.
    """
    d = j.shape[-1]
    if d > _UNROLLED:
        found = jnp.linalg.inv((shifts / h)[:, None, None] * jnp.eye(d) - j)
        return Complex(found.real, found.imag)
    inverses = [_eliminate(complex(shift), h, j) for shift in shifts]
    re = jnp.stack([jnp.stack(found[0]) for found in inverses])
    im = jnp.stack([jnp.stack(found[1]) for found in inverses])
    return Complex(re.reshape(-1, d, d), im.reshape(-1, d, d))


def _eliminate(shift: complex, h: Array, j: Array) -> tuple[list[Array], list[Array]]:
    """Entries of ``(λ/h - J)⁻¹`` by elimination with partial pivoting: real parts, imaginary."""
    d, zero, one = j.shape[-1], jnp.zeros_like(h), jnp.ones_like(h)

    def entry(i: int, k: int) -> Complex:
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
