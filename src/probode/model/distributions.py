"""Distributions of single numbers and arrays: uncertain inputs, priors of parameters.

Each has ``log_prob(x)`` (one number for each of ``x``, traceable by JAX; ``-inf`` outside of its
support), ``support`` (the interval where it is positive, ``None`` for no bound) and
``sample(rng, shape)`` with a generator of NumPy's.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

_LOG_2PI = float(np.log(2.0 * np.pi))


class Distribution:
    """What they have in common."""

    support: ClassVar[tuple[Any, Any]] = (None, None)

    def log_prob(self, x: Any) -> Any:
        """Logarithm of the density at ``x``."""
        raise NotImplementedError

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Independent draws."""
        raise NotImplementedError


@dataclass(frozen=True)
class Normal(Distribution):
    """A Gaussian: initial value or parameter of an ensemble, prior of a parameter that is fitted.

    Parameters
    ----------
    mean
        A number or an array of any shape.
    cov
        Covariance of the mean flattened in C order, ``(d, d)``; or variances, in the shape of the
        mean or as one number. As a prior: variances.
    std
        Standard deviation, instead of ``cov``: in the shape of the mean or as one number.

    Examples
    --------
    >>> import probode
    >>> probode.Normal(1.0, std=0.5)
    Normal(mean=1.0, cov=0.25)
    """

    mean: Any
    cov: Any = None
    std: Any = field(default=None, kw_only=True, repr=False, compare=False)

    def __post_init__(self) -> None:
        if (self.cov is None) == (self.std is None):
            raise TypeError(
                "Normal needs a mean and either cov (variances, or a covariance matrix) or std "
                f"(standard deviations), got cov={self.cov!r}, std={self.std!r}."
            )
        if self.std is not None:
            std = np.asarray(self.std, float) if isinstance(self.std, list | tuple) else self.std
            known = isinstance(std, int | float | np.ndarray | np.generic)
            if known and not np.all(np.asarray(std) >= 0.0):
                raise ValueError(f"Normal: std must not be negative or NaN, got {self.std!r}.")
            object.__setattr__(self, "cov", std**2)
            object.__setattr__(self, "std", None)

    def log_prob(self, x: Any) -> Any:
        if np.ndim(self.cov) > max(np.ndim(self.mean), 0):
            raise TypeError(
                "as a prior, Normal takes variances of independent numbers, got a covariance "
                f"matrix of shape {np.shape(self.cov)}: pass a function that returns the joint "
                "log density."
            )
        return -0.5 * ((x - self.mean) ** 2 / self.cov + jnp.log(self.cov) + _LOG_2PI)

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return self.mean + np.sqrt(self.cov) * rng.standard_normal(shape)


@dataclass(frozen=True)
class LogNormal(Distribution):
    """``log x ~ N(mean, std²)``: a positive number known up to a factor.

    Parameters
    ----------
    mean, std
        Of ``log x``: the median of ``x`` is ``exp(mean)``.

    Examples
    --------
    >>> import numpy as np
    >>> import probode
    >>> prior = probode.LogNormal(np.log(2.0), 0.5)  # about two, known up to a factor of 1.6
    >>> rate = probode.Parameter(1.0, prior=prior)
    """

    mean: Any
    std: Any
    support: ClassVar[tuple[Any, Any]] = (0.0, None)

    def log_prob(self, x: Any) -> Any:
        inside = x > 0.0
        log = jnp.log(jnp.where(inside, x, 1.0))
        z = (log - self.mean) / self.std
        return jnp.where(inside, -0.5 * (z**2 + _LOG_2PI) - jnp.log(self.std) - log, -jnp.inf)

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return np.exp(self.mean + self.std * rng.standard_normal(shape))


@dataclass(frozen=True)
class HalfNormal(Distribution):
    """``|x|`` of ``x ~ N(0, scale²)``: a positive number not much larger than ``scale``.

    Examples
    --------
    >>> import probode
    >>> noise = probode.Parameter(0.1, prior=probode.HalfNormal(1.0))
    """

    scale: Any
    support: ClassVar[tuple[Any, Any]] = (0.0, None)

    def log_prob(self, x: Any) -> Any:
        found = 0.5 * jnp.log(2.0 / jnp.pi) - jnp.log(self.scale) - 0.5 * (x / self.scale) ** 2
        return jnp.where(x >= 0.0, found, -jnp.inf)

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return np.abs(self.scale * rng.standard_normal(shape))


@dataclass(frozen=True)
class HalfCauchy(Distribution):
    """``|x|`` of a Cauchy variable: a positive number of which hardly anything is known.

    Examples
    --------
    >>> import probode
    >>> noise = probode.Parameter(0.1, prior=probode.HalfCauchy(1.0))
    """

    scale: Any
    support: ClassVar[tuple[Any, Any]] = (0.0, None)

    def log_prob(self, x: Any) -> Any:
        found = jnp.log(2.0 / jnp.pi) - jnp.log(self.scale) - jnp.log1p((x / self.scale) ** 2)
        return jnp.where(x >= 0.0, found, -jnp.inf)

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return np.abs(self.scale * rng.standard_cauchy(shape))


@dataclass(frozen=True)
class Uniform(Distribution):
    """Anything from ``low`` to ``high``.

    Examples
    --------
    >>> import probode
    >>> share = probode.Parameter(0.5, prior=probode.Uniform(0.0, 1.0))
    """

    low: Any
    high: Any

    def __post_init__(self) -> None:
        if not np.all(np.asarray(self.low) < np.asarray(self.high)):
            raise ValueError(f"Uniform needs low < high, got {self.low!r} and {self.high!r}.")

    @property
    def support(self) -> tuple[Any, Any]:  # type: ignore[override]
        return self.low, self.high

    def log_prob(self, x: Any) -> Any:
        inside = (x >= self.low) & (x <= self.high)
        return jnp.where(inside, -jnp.log(self.high - self.low), -jnp.inf)

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return rng.uniform(self.low, self.high, shape)
