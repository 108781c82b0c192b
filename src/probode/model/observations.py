"""Observations: data as one more piece of information about the state.

A datum says ``u_k = h(t_k, y(t_k)) + e_k`` with ``e_k ~ N(0, R_k)``: a residual of the state with a
noise of its own. Data with another density, ``log p(u_k | h(y(t_k)))``, are taken as Gaussian
around where they are looked at: with ``η = h(y)``, slope ``g`` and curvature ``-w`` of the log
density there, a datum ``η + g/w`` with variance ``1/w`` has the same two derivatives.
"""

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from probode.base.precision import double_precision, is_traced
from probode.base.record import record, static
from probode.programs.field import Field, bind_values
from probode.programs.program import NEEDS_VALUES, Program, trace

_LEAST_CURVATURE = 1e-6
"""Of a log density, in units of the square of its slope."""
_SYMMETRIC = 1e-10


@jax.tree_util.register_pytree_node_class
class Observations:
    """Measurements of a solution: times, values, noise, and what was measured.

    Parameters
    ----------
    t
        Times ``(K,)`` in any order; the same time may come several times.
    u
        Values: ``(K,)`` for one number at a time, or ``(K, m)``. ``nan``: not measured.
    noise
        Standard deviation of the noise: a number, ``(m,)`` for one per component, ``(K, 1)`` or
        ``(K, m)`` for one per time (of ``(K,)`` values also ``(K,)``); or a covariance, ``(m, m)``
        or ``(K, m, m)``. May be traced, or depend on parameters.
    observe
        What is measured: ``observe(y)`` or ``observe(t, y)``, traceable by JAX, returns a number or
        ``m`` of them; for ``SecondOrder`` ``observe(y, v)`` or ``observe(t, y, v)``. By default all
        of ``y``.
    log_density
        For data that are not Gaussian, instead of ``noise``: ``log_density(u, y)`` is the logarithm
        of the probability of the measured ``u`` (of length ``m``), given what ``observe`` returns
        (by default ``y``): one number, or one for each of ``u`` (then single ones may be missing).

    Examples
    --------
    >>> import numpy as np, probode
    >>> data = probode.Observations([1.0, 2.0], [0.4, 0.1], noise=0.05)
    >>> data
    Observations(2 times from 1 to 2, 1 value each)
    """

    t: Any
    """Times in ascending order."""
    u: Any
    """Values ``(K, m)`` in that order."""
    noise: Any
    """Standard deviations ``(K, m)``, covariances ``(K, m, m)``, or ``None``."""

    def __init__(
        self,
        t: Any,
        u: Any,
        noise: Any = None,
        observe: Callable[..., Any] | None = None,
        log_density: Callable[..., Any] | None = None,
    ) -> None:
        for name, function in (("observe", observe), ("log_density", log_density)):
            if function is not None and not callable(function):
                raise TypeError(f"{name} must be a function, got {function!r}.")
        if noise is None and log_density is None:
            raise ValueError(
                "noise is missing: pass the standard deviation of the measurements, or a "
                "log_density(u, y) for data that are not Gaussian."
            )
        if noise is not None and log_density is not None:
            raise ValueError("pass noise (Gaussian data) or log_density (any other), not both.")
        with double_precision():
            times, values = _numbers(t, "t"), _numbers(u, "u")
            _check_times(times, values)
            spread = None if noise is None else _read_noise(noise, values)
            values = values.reshape(values.shape[0], -1)
            xp: Any = jnp if is_traced(times) else np
            order = xp.argsort(times, stable=True)
            self.t, self.u = times[order], values[order]
            self.noise = None if spread is None else _in_order(spread, order)
        self.observe, self.log_density = observe, log_density

    def __len__(self) -> int:
        """How many times."""
        return int(self.u.shape[0])

    def __repr__(self) -> str:
        """In words."""
        m = self.u.shape[1]
        each = "1 value each" if m == 1 else f"{m} values each"
        if is_traced(self.t, self.u):
            return f"Observations({len(self)} times, {each})"
        missing = int(np.isnan(np.asarray(self.u)).sum())
        lost = f", {missing} missing" if missing else ""
        return f"Observations({len(self)} times from {self.t[0]:g} to {self.t[-1]:g}, {each}{lost})"

    def outside(self, low: float, high: float) -> str:
        """Times that are not in an interval, in words; nothing if all of them are."""
        found = [f"{t:g}" for t in self.t if not low <= float(t) <= high]
        return ", ".join([*found[:5], *["..."] * (len(found) > 5)])

    def replace(self, **changes: Any) -> "Observations":
        """The same with other ``t``, ``u``, ``noise``, ``observe``, ``log_density``."""
        names = ("t", "u", "noise", "observe", "log_density")
        given = {name: getattr(self, name) for name in names}
        unknown = set(changes) - set(given)
        if unknown:
            raise TypeError(f"observations have {', '.join(given)}, got {', '.join(unknown)}.")
        made = {**given, **changes}
        if "log_density" in changes and "noise" not in changes:
            made["noise"] = None
        if "noise" in changes and "log_density" not in changes:
            made["log_density"] = None
        if made["noise"] is not None and "noise" not in changes:
            made["noise"] = _Read(self.noise)
        return Observations(**made)

    def tree_flatten(self) -> tuple[tuple[Any, Any, Any], Any]:
        """Data, and what is part of the program: for JAX."""
        return (self.t, self.u, self.noise), (self.observe, self.log_density)

    @classmethod
    def tree_unflatten(cls, functions: Any, leaves: tuple[Any, Any, Any]) -> "Observations":
        """Inverse of :meth:`tree_flatten`; nothing is checked."""
        made = object.__new__(cls)
        made.t, made.u, made.noise = leaves
        made.observe, made.log_density = functions
        return made

    def bound(self, t0: Any, y0: Any, backwards: bool = False) -> "Data":
        """The observations of a solution that begins with ``y0``, their functions traced.

        ``y0`` is an array of the shape of ``y``, or of an equation of higher order ``k`` of them
        stacked. In the order of integration.
        """
        values = y0 if isinstance(y0, tuple | list) else (y0,)
        count, shape = len(values), jnp.shape(values[0])
        stacked = jnp.stack([jnp.asarray(v) for v in values]) if count > 1 else jnp.asarray(y0)
        function = self.observe or (lambda y, *rest: y)
        flip = slice(None, None, -1 if backwards else 1)
        field = bind_values(
            [function],
            lambda one: as_function_of_time(one, count),
            jnp.asarray(t0, float),
            stacked,
            (),
            name="observe",
            reads=count,
        )
        m = self.u.shape[1]
        density, constants = None, ()
        if self.log_density is None and field.d != m:
            what = "observe returns" if self.observe is not None else f"y has the shape {shape},"
            raise ValueError(
                f"u has {m} values at each time, and {what} {field.d}: they must be as many. Pass "
                "observe=, a function of y that returns what was measured."
            )
        if self.log_density is not None:
            density, constants = _trace_density(self.log_density, m, field.d)
        xp: Any = jnp if is_traced(self.t, self.u, self.noise) else np  # which compiles nothing
        u = xp.asarray(self.u)[flip]
        known = ~xp.isnan(u)
        return Data(
            jnp.asarray(xp.asarray(self.t)[flip]),
            jnp.asarray(xp.where(known, u, 1.0)),
            jnp.asarray(known, float),
            None if self.noise is None else jnp.asarray(xp.asarray(self.noise)[flip]),
            field,
            constants,
            density,
        )


class Site(NamedTuple):
    """A datum as seen from a state: ``H y`` was found to be ``H y - z``, with noise."""

    z: Float[Array, " m"]
    matrix: Float[Array, "m d"]
    """``H``; rows of what was not measured are zero."""
    noise: Float[Array, "r m"]
    """Rows of a right factor of the noise covariance."""
    offset: Array
    """What the log density has besides that of the noise."""

    def log_density(self) -> Array:
        """That of the datum if ``y`` is exactly where it was looked at from."""
        return self.offset + log_normal(self.z, self.noise)


@record
class Data:
    """Observations as programs and arrays."""

    t: Float[Array, " K"]
    u: Float[Array, "K m"]
    known: Float[Array, "K m"]
    """One where there is a value, zero where it is missing."""
    noise: Array | None
    observe: Field
    constants: tuple[Any, ...]
    density: Program | None = static()

    @property
    def width(self) -> int:
        """How many numbers :attr:`observe` returns."""
        return self.observe.d

    def seen(self, k: Any, y: Float[Array, " d"]) -> Float[Array, " m"]:
        """``h(t_k, y)``."""
        return self.observe(self.t[k], y)

    def plain(self, k: Any, y: Float[Array, " d"]) -> Array:
        """``log p(u_k | y)``: that of a solution without any uncertainty."""
        eta = self.seen(k, y)
        if self.density is not None:
            return self._density(k, eta)
        return self._gaussian(k, eta, None).log_density()

    def site(self, k: Any, y: Float[Array, " d"], std: Float[Array, " d"]) -> Site:
        """Datum ``k`` around a value whose components have these standard deviations."""
        eta = self.seen(k, y)
        matrix = jax.jacfwd(lambda y: self.seen(k, y))(y)
        if self.density is None:
            return self._gaussian(k, eta, matrix)
        value, slope = jax.value_and_grad(lambda eta: self._density(k, eta))(eta)
        curvature = -jnp.diagonal(jax.hessian(lambda eta: self._density(k, eta))(eta))
        # A line is a parabola that is flat enough, and not so flat that its vertex is out of sight.
        size = eta**2 + jnp.sum((matrix * std) ** 2, axis=-1)
        least = _LEAST_CURVATURE * (slope**2 + _LEAST_CURVATURE / jnp.where(size > 0.0, size, 1.0))
        curvature = jnp.maximum(curvature, jax.lax.stop_gradient(least))
        z, noise = -slope / curvature, jnp.diag(curvature**-0.5)
        return Site(z, matrix, noise, value - log_normal(z, noise))

    def information(
        self, k: Any, y: Float[Array, " d"], std: Float[Array, " d"]
    ) -> Float[Array, " r"]:
        """Numbers whose derivatives ``J`` give the information ``J Jᵀ`` of a log density.

        ``η / s`` with ``s² = 1/w`` and the variance of ``η``, held still: it says what ``η`` is
        known to, and its own slope would be none of the information. And the log density with ``η``
        held still: the score of its own parameters.
        """
        site, eta = self.site(k, y, std), self.seen(k, y)
        variance = jnp.diagonal(site.noise) ** 2 + jnp.sum((site.matrix * std) ** 2, axis=-1)
        own = self._density(k, jax.lax.stop_gradient(eta))
        return jnp.append(eta / jnp.sqrt(jax.lax.stop_gradient(variance)), own)

    def _density(self, k: Any, eta: Array) -> Array:
        assert self.density is not None
        found = self.density(self.constants, self.u[k], eta)
        known = self.known[k]
        if found.size == known.shape[0]:
            found = found.reshape(known.shape)
        else:
            known = jnp.min(known)
        return jnp.sum(jnp.where(known > 0.0, found, 0.0))

    def _gaussian(self, k: Any, eta: Array, matrix: Array | None) -> Site:
        """What is missing has no residual, is not seen, has a noise of one: it counts nothing."""
        known, noise = self.known[k], self.noise
        assert noise is not None
        if noise.ndim == 2:
            factor = jnp.diag(jnp.where(known > 0.0, noise[k], 1.0))
        else:
            among = known[:, None] * known
            one = jnp.diag(1.0 - known)
            factor = jnp.linalg.cholesky(noise[k] * among + one).T
        offset = 0.5 * jnp.log(2.0 * jnp.pi) * jnp.sum(1.0 - known)
        seen = jnp.zeros((len(known), 1)) if matrix is None else matrix
        z = jnp.where(known > 0.0, eta - self.u[k], 0.0)
        return Site(z, known[:, None] * seen, factor, offset)


def log_normal(z: Float[Array, " m"], factor: Float[Array, "m m"]) -> Array:
    """``log N(z; 0, FᵀF)`` for a triangular ``F``."""
    white = jax.scipy.linalg.solve_triangular(factor, z, trans=1)
    return log_whitened(white, jnp.diagonal(factor))


def log_whitened(white: Float[Array, " m"], pivots: Float[Array, " m"]) -> Array:
    """``log N(z; 0, FᵀF)`` from ``w = F⁻ᵀ z`` and the pivots of ``F``."""
    log_det = 2.0 * jnp.sum(jnp.log(jnp.abs(pivots)))
    return -0.5 * (jnp.sum(white**2) + log_det + white.shape[-1] * jnp.log(2.0 * jnp.pi))


def as_function_of_time(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """``observe(y)``, of ``count`` derivatives, as one of ``(t, y)``."""
    try:
        parameters = signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C
        return lambda t, *y: function(*y)
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    places = [p for p in parameters if p.kind in kinds and p.default is Parameter.empty]
    if len(places) > count:
        return function
    if len(places) < count and not any(p.kind is Parameter.VAR_POSITIONAL for p in parameters):
        return lambda t, *y: function(*y[: max(len(places), 1)])
    return lambda t, *y: function(*y)


def _trace_density(function: Callable[..., Any], m: int, width: int) -> Any:
    def checked(u: Array, eta: Array) -> Array:
        try:
            found = jnp.asarray(function(u, eta))
        except NEEDS_VALUES as error:
            error.add_note("log_density is traced by JAX: write it with jax.numpy.")
            raise
        if found.size not in (1, m):
            raise ValueError(
                f"log_density must return one number, or one for each of the {m} values of a "
                f"datum, got shape {found.shape}."
            )
        return found.astype(float)

    number = jnp.ones(m), jnp.ones(width)
    return trace(checked, *number)


def _numbers(value: Any, what: str) -> Any:
    try:
        array = jnp.asarray(value) if is_traced(value) else np.asarray(value)
        return array.astype(float)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} must be made of numbers, got {value!r}: {error}") from None


def _check_times(t: Any, u: Any) -> None:
    if t.ndim != 1 or t.shape[0] == 0:
        raise ValueError(f"t must be a list of times, at least one, got the shape {t.shape}.")
    if u.ndim not in (1, 2) or u.shape[0] != t.shape[0]:
        raise ValueError(
            f"u must have one row for each of the {t.shape[0]} times, (K,) or (K, m), got the "
            f"shape {u.shape}."
        )
    if not is_traced(t) and not np.all(np.isfinite(t)):
        raise ValueError("t must be finite: there are times that are not.")
    if not is_traced(u) and np.any(np.isinf(u)):
        raise ValueError(
            "u must be finite, or nan where nothing was measured; got infinite values."
        )


def _in_order(spread: Any, order: Any) -> Any:
    """``spread[order]``; of a traced one without taking entries.

    The derivative of that is to put them somewhere, which reverse mode does later, outside of
    double precision.
    """
    if not is_traced(spread) or is_traced(order):
        return spread[order]
    if np.array_equal(order, np.arange(len(order))):
        return spread
    among = np.eye(len(order))[order].reshape(len(order), -1, *[1] * (spread.ndim - 1))
    return jnp.sum(among * spread, axis=1)


class _Read(NamedTuple):
    """A noise in the form that observations keep: ``(K, m)`` is no covariance there."""

    noise: Any


def _read_noise(noise: Any, u: Any) -> Any:
    """Standard deviations ``(K, m)`` or covariances ``(K, m, m)``."""
    if isinstance(noise, _Read):
        return noise.noise
    noise = _numbers(noise, "noise")
    count, single = u.shape[0], u.ndim == 1
    m = 1 if single else u.shape[1]
    xp: Any = jnp if is_traced(noise) else np
    if single and noise.shape == (count,):
        noise = noise[:, None]
    if noise.ndim == 2 and noise.shape == (m, m) and m > 1 and count == m:
        raise ValueError(
            f"noise of shape {(m, m)} may be standard deviations at {m} times, or a covariance: "
            f"write (1, {m}, {m}) for a covariance; standard deviations that change with time as "
            "covariances (K, m, m) with their squares on the diagonal."
        )
    if noise.ndim == 3 or (noise.ndim == 2 and noise.shape == (m, m) and count != m and m > 1):
        return _covariances(noise, count, m)
    if noise.shape not in ((), (1,), (m,), (count, 1), (1, m), (count, m)):
        raise ValueError(
            f"noise must be a number, ({m},) for one per component, ({count}, 1) or ({count}, {m}) "
            f"for one per time, or a covariance ({m}, {m}), ({count}, {m}, {m}), got the shape "
            f"{noise.shape}."
        )
    if not is_traced(noise) and not (np.all(noise > 0) and np.all(np.isfinite(noise))):
        raise ValueError(
            "noise must be positive and finite: it is a standard deviation (not a variance), got "
            f"{np.min(noise) if np.all(np.isfinite(noise)) else 'values that are not finite'}."
        )
    return xp.broadcast_to(noise, (count, m))


def _covariances(noise: Any, count: int, m: int) -> Any:
    if noise.shape not in ((m, m), (1, m, m), (count, m, m)):
        raise ValueError(
            f"a covariance of the noise must have the shape ({m}, {m}) or ({count}, {m}, {m}), got "
            f"{noise.shape}."
        )
    xp: Any = jnp if is_traced(noise) else np
    if not is_traced(noise):
        size = np.abs(noise).max()
        symmetric = np.allclose(noise, np.swapaxes(noise, -1, -2), rtol=0, atol=_SYMMETRIC * size)
        if not symmetric or not np.all(np.linalg.eigvalsh(noise) > 0):
            raise ValueError("a covariance of the noise must be symmetric and positive definite.")
    return xp.broadcast_to(noise, (count, m, m))
