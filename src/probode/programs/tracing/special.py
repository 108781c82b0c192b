"""Functions of ``scipy.special`` in JAX, to double precision and with derivatives of all orders.

Some are JAX's own (``FROM_JAX``: those that were compared with SciPy's). The others are computed
here by series, means and integrals that converge to rounding for all arguments::

    K_v(x) = ∫ exp(-x cosh t) cosh(v t) dt           from 0 to infinity, by the trapezoidal rule
    I_v(x) = (x/2)^v Σ (x²/4)^k / (k! Γ(k + v + 1))  and Hankel's expansion for large x
    K(m)   = π / (2 agm(1, sqrt(1 - m)))             by the arithmetic-geometric mean
    W(x)   solves w e^w = x                          by Halley's iteration
"""

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as of_jax
import numpy as np

from probode.programs.tracing.watching import watch

FROM_JAX = frozenset(
    (
        *("digamma", "gammaln", "gamma", "gammasgn", "erf", "erfc", "erfcx", "erfinv", "expit"),
        *("logit", "i0", "i1", "i0e", "i1e", "xlogy", "xlog1py", "ndtr", "ndtri", "log_ndtr"),
        *("entr", "rel_entr", "kl_div", "beta", "betaln", "betainc", "gammainc", "gammaincc"),
        *(
            "polygamma",
            "zeta",
            "poch",
            "expi",
            "sici",
            "fresnel",
            "logsumexp",
            "softmax",
            "log_softmax",
        ),
        *("multigammaln", "loggamma"),
    )
)
"""Functions of JAX that give SciPy's values; others (``hyp2f1``, ``exp1``) differ, or never end."""

_LARGEST_ORDER = 20.0


def _order(name: str, v: Any) -> float:
    """Return the order of a Bessel function; raise if it is not known, or too large."""
    if isinstance(v, jax.Array) or np.size(v) != 1 or abs(float(v)) > _LARGEST_ORDER:
        raise watch.refuse(
            f"scipy.special.{name} of an order that is not known while tracing, "
            f"or above {_LARGEST_ORDER:.0f}",
            v,
            "give the order as a constant",
        )
    return float(np.reshape(v, ()))


def _kve(v: Any, x: Any) -> Any:
    """``exp(x) K_v(x)``: the terms beyond ``end`` are less than ``e^-40`` of the largest.

    For small ``x`` the error of the trapezoidal rule is ``|Γ(v + iω)| / Γ(v)`` at
    ``ω = 2π / step``, which is below ``e^-38``; for larger ones it is less.
    """
    v, x = abs(_order("kv", v)), jnp.asarray(x, float)
    safe = jnp.where(x > 0, x, 1.0)
    step = 2.0 * math.pi / (25.0 + 1.5 * v)
    n = math.ceil((math.asinh(v / _SMALLEST) + math.acosh(1.0 + 40.0 / _SMALLEST)) / step)
    low = jnp.maximum(safe, _SMALLEST)
    end = jax.lax.stop_gradient(jnp.arcsinh(v / low) + jnp.arccosh(1.0 + 40.0 / low))
    t = end[..., None] * (np.arange(n + 1) / n)
    weights = np.where(np.arange(n + 1) == 0, 0.5, 1.0)
    decay = -2.0 * safe[..., None] * jnp.sinh(0.5 * t) ** 2
    terms = 0.5 * (jnp.exp(decay + v * t) + jnp.exp(decay - v * t))
    value = end / n * (weights * terms).sum(-1)
    return jnp.where(x >= _SMALLEST, value, jnp.where(x == 0, jnp.inf, jnp.nan))


_SMALLEST = 1e-12
"""Smallest argument of ``K_v`` for which there are enough nodes; NaN for smaller ones."""


def _kv(v: Any, x: Any) -> Any:
    """``K_v(x)``."""
    x = jnp.asarray(x, float)
    return jnp.exp(-jnp.where(x > 0, x, 0.0)) * _kve(v, x)


def _polynomial(coefficients: np.ndarray, x: Any) -> Any:
    """Return ``Σ c_k x^k`` with powers by doubling: a program of few operations."""
    powers, factor = jnp.ones_like(x)[..., None], x[..., None]
    while powers.shape[-1] < len(coefficients):
        powers = jnp.concatenate([powers, factor * powers], -1)
        factor = factor * factor
    return (powers[..., : len(coefficients)] * coefficients).sum(-1)


@lru_cache(maxsize=64)
def _first_kind(v: float) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the ``split`` between the series of ``I_v`` and Hankel's expansion, and both.

    The arrays are the coefficients of powers of ``(x / split)²`` and of ``split / x``.
    """
    split = max(30.0, 0.5 * v * v)
    k = np.arange(1, math.ceil(1.6 * split + 40))
    series = np.cumprod(np.append(1.0, 0.25 * split * split / (k * (v + k)))) / math.gamma(v + 1.0)
    k = np.arange(1, 31)
    ratios = -(4.0 * v * v - (2.0 * k - 1.0) ** 2) / (8.0 * k * split)
    return split, series, np.cumprod(np.append(1.0, ratios))


def _of_first_kind(v: Any, x: Any, *, scaled: bool) -> Any:
    """``I_v(x)``, or ``exp(-|x|) I_v(x)``; of ``x < 0`` for whole orders only."""
    v, x = _order("iv", v), jnp.asarray(x, float)
    whole = v == int(v)
    v = abs(v) if whole else v
    (split, near_terms, far_terms), size = _first_kind(v), jnp.abs(x)
    near, far = jnp.where(size <= split, x, 1.0), jnp.where(size > split, size, split)
    power = (0.5 * near) ** int(v) if whole else (0.5 * jnp.where(near > 0, near, 1.0)) ** v
    series = power * _polynomial(near_terms, jnp.square(near / split))
    large = _polynomial(far_terms, split / far) / jnp.sqrt(2.0 * math.pi * far)
    if scaled:
        series = series * jnp.exp(-jnp.abs(near))
    else:
        large = large * jnp.exp(far)
    value = jnp.where(size <= split, series, large)
    if whole:
        return value if v % 2 == 0 else jnp.where(x < -split, -value, value)
    at_zero = 0.0 if v > 0 else jnp.inf * math.gamma(v + 1.0)
    return jnp.where(x > 0, value, jnp.where(x == 0, at_zero, jnp.nan))


def _mean_of(m1: Any) -> tuple[Any, Any]:
    """``agm(1, sqrt(m1))`` and ``Σ 2^(n-1) c_n²`` from ``n = 1`` on, with ``c_0² = 1 - m1``."""
    a, b, total, power = jnp.ones_like(m1), jnp.sqrt(m1), jnp.zeros_like(m1), 1.0
    for _ in range(_MEANS):
        c = 0.5 * (a - b)
        a, b = 0.5 * (a + b), jnp.sqrt(a * b)
        total, power = total + power * c * c, 2.0 * power
    return a, total


_MEANS = 10
"""Number of iterations: each doubles the digits, once the two means are close."""


def _ellipkm1(m1: Any) -> Any:
    """``K(1 - m1)``."""
    m1 = jnp.asarray(m1, float)
    mean, _ = _mean_of(jnp.where(m1 > 0, m1, 1.0))
    return jnp.where(m1 > 0, 0.5 * math.pi / mean, jnp.where(m1 == 0, jnp.inf, jnp.nan))


def _ellipe(m: Any) -> Any:
    """``E(m) = K(m) (1 - Σ 2^(n-1) c_n²)``, ``c_0² = m``."""
    m = jnp.asarray(m, float)
    mean, total = _mean_of(jnp.where(m < 1, 1.0 - m, 1.0))
    value = 0.5 * math.pi / mean * (1.0 - 0.5 * m - total)
    return jnp.where(m < 1, value, jnp.where(m == 1, 1.0, jnp.nan))


def _lambertw(x: Any, k: Any = 0, tol: Any = 1e-8) -> Any:
    """Return the branches 0 and -1 where they are real, as complex numbers like SciPy's."""
    if isinstance(k, jax.Array) or jnp.iscomplexobj(x) or int(k) not in (0, -1):
        raise watch.refuse("scipy.special.lambertw of another branch than 0 and -1", x)
    x = jnp.asarray(x, float)
    upper = int(k) == 0
    known = (x > -1.0 / math.e) & (upper | (x < 0))
    safe = jnp.where(known, x, 1.0 if upper else -0.1)
    # Near the branch point a series in p = ± sqrt(2 (e x + 1)), elsewhere logarithms.
    near = safe < (-0.2 if upper else -0.3)
    root = jnp.sqrt(2.0 * jnp.where(near, math.e * safe + 1.0, 1.0))
    p = root if upper else -root
    w = -1.0 + p * (1.0 + p * (-1.0 / 3.0 + p * (11.0 / 72.0 - p * 43.0 / 540.0)))
    other = jnp.where(near, 1.0 if upper else -0.1, safe)
    if upper:
        one = jnp.log1p(other)
        start = one * (1.0 - jnp.log1p(one) / (2.0 + one))
    else:
        one = jnp.log(-other)
        two = jnp.log(-one)
        start = one - two + two / one
    w = jnp.where(near, w, start)
    for _ in range(5):
        e = jnp.exp(w)
        f, one_more = w * e - safe, jnp.where(w == -1.0, 1e-300, w + 1.0)
        w = w - f / (e * one_more - 0.5 * (w + 2.0) * f / one_more)
    return jnp.where(known, w, jnp.nan) + 0j


FORMULAS: dict[str, Callable[..., Any]] = {
    "psi": of_jax.digamma,
    "rgamma": lambda x: 1.0 / of_jax.gamma(x),
    "log_expit": jax.nn.log_sigmoid,
    "erfcinv": lambda x: -of_jax.ndtri(0.5 * jnp.asarray(x)) / math.sqrt(2.0),
    "exp10": lambda x: 10.0 ** jnp.asarray(x, float),
    "cosm1": lambda x: -2.0 * jnp.sin(0.5 * x) ** 2,
    **{name: getattr(jnp, name) for name in ("log1p", "expm1", "exp2", "cbrt", "sinc")},
    "kv": _kv,
    "kn": _kv,
    "kve": _kve,
    "k0": lambda x: _kv(0, x),
    "k1": lambda x: _kv(1, x),
    "k0e": lambda x: _kve(0, x),
    "k1e": lambda x: _kve(1, x),
    "iv": partial(_of_first_kind, scaled=False),
    "ive": partial(_of_first_kind, scaled=True),
    "ellipk": lambda m: _ellipkm1(1.0 - jnp.asarray(m, float)),
    "ellipkm1": _ellipkm1,
    "ellipe": _ellipe,
    "lambertw": _lambertw,
}
"""Functions that are written here, by name."""


def special(name: str) -> Callable[..., Any] | None:
    """The function of ``scipy.special`` of this name in JAX; ``None`` where there is none."""
    if name in FORMULAS:
        return FORMULAS[name]
    return getattr(of_jax, name, None) if name in FROM_JAX else None
