"""Posteriors given data: what the equation and measurements say together.

A posterior is a Gaussian process ``y = m + D (x - m)``: ``x`` is the Markov chain back in time that
the filtering states leave behind, ``m`` its mean, and ``D`` the factors of a calibration (or of one
diffusion per component), if there are any. A datum ``u = h(y) + e`` is linearised around the mean
``p`` that is handed out, and says of the chain::

    H D (x - m) = u - h(p) + H (p - m) + e,      H = h'(p),      e ~ N(0, R)

All data go forward along the chain (:mod:`probode.filter.messages`): at each node, and at each time
with data, that gives the filtering state which has seen the data so far. These are rows like those
of any solve, with covariances that are dense. The usual smoother goes back along them, so dense
output, samples and marginals agree. Where ``h`` is linear nothing is approximated: it is Gaussian
regression with the posterior in the place of a prior. The equation is not evaluated again.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from probode.base.blas import one_blas_thread
from probode.base.compile import compiled
from probode.base.limits import Limits, in_words
from probode.base.precision import double_precision
from probode.base.record import record
from probode.engines.in_jax import JAX
from probode.engines.kept import capacity, needed_bytes, padded
from probode.filter import messages
from probode.filter.dense import dense
from probode.filter.loop import Rows
from probode.filter.messages import Message
from probode.filter.smooth import Marginals
from probode.filter.step import Method
from probode.model.gaussian import pack, solve_transposed, triangularize, unpack
from probode.model.observations import Data, Observations
from probode.posterior.outcome import Gaussian
from probode.posterior.paths import NodePath

if TYPE_CHECKING:
    from probode.posterior.posterior import Posterior

LARGEST = 1000
"""Numbers in a state, beyond which dense covariances of it are refused."""
_SAME = 8
"""Units of the last digit by which the time of a datum may be off a node and still be there."""
_FEWEST = 8
"""Data that are linearised at once: powers of two from here on, so that few programs are made."""

NOT_AGAIN = (
    "this posterior was conditioned on data, of which an error estimate knows nothing: calibrate "
    "the posterior before condition(data), and ask that one for its global_error()."
)

hear = compiled()(messages.hear)


@record
class Given:
    """The data that a posterior was conditioned on."""

    t: Float[Array, " K"]
    """Times, in ascending order."""
    u: Float[Array, "K m"] | None
    """Values, if they are of ``y`` itself; ``None``: of functions of it."""
    log_likelihood: Array
    before: "Posterior | None"
    """The posterior without data, where deviations from its mean are rescaled."""


class Conditional:
    """What a posterior does with data."""

    def condition(self: Any, data: Observations, *, iterations: int = 1) -> "Posterior":
        """The posterior given the equation *and* data: smoothed, with dense output and samples.

        The solution as known from the solve is the prior, the data are put on top: the steps are
        not taken again, and ``f`` is not evaluated. Where ``data`` are a linear function of ``y``
        with Gaussian noise, this is Gaussian regression, exactly. The size of the uncertainty
        before the data is that of this posterior: the model's, or that of the error if it is
        calibrated. ``condition`` once more adds further data.

        An initial value is known exactly, so data move the solution by no more than it is
        uncertain: parameters are fitted with :func:`log_likelihood`.

        Parameters
        ----------
        data
            :class:`Observations` within the solved interval, at any times. Of complex states
            ``observe`` sees the real form ``(Re y, Im y)``.
        iterations
            How often ``observe`` and ``log_density`` are linearised: first at the mean of this
            posterior, then at the mean given the data. Linear functions need no second time.

        Returns
        -------
        Posterior
            With the times of the data among its nodes ``t``; ``log_likelihood`` is the log density
            of the data. It is not calibrated again, and has no :meth:`global_error`.

        Examples
        --------
        >>> import probode
        >>> posterior = probode.solve(lambda t, y: -y, (0.0, 2.0), 1.0, step=0.5)
        >>> given = posterior.condition(probode.Observations([1.7], [0.18], noise=1e-3))
        >>> bool(given(1.7).std < posterior(1.7).std), bool(given(1.7).std < 1e-3)
        (True, True)
        """
        from probode.posterior.posterior import one_solve

        return conditioned(one_solve(self, "condition"), data, iterations)

    @property
    def log_likelihood(self: Any) -> Any:
        """Log density of the data that the posterior was conditioned on: see :meth:`condition`.

        That of :func:`probode.log_likelihood` with ``method="fenrir"`` on the same steps.
        """
        if self.given is None:
            raise ValueError("there are no data yet: log_likelihood is for condition(data).")
        return self.given.log_likelihood

    @property
    def _before(self: Any) -> Any:
        """The posterior without data, where deviations from its mean are rescaled."""
        return None if self.given is None else self.given.before

    @property
    def _spread_of_chain(self: Any) -> Any:
        """Factor of the standard deviations of the chain, which is sampled."""
        return self.spread if self._before is None else _one_spread(self._before)

    def _around(self: Any, t: Any, k: int) -> tuple[Any, Any, Any]:
        """``m``, ``D`` and standard deviations besides, by which draws of the chain are moved."""
        before = self._before
        if before is None:
            at = self.derivative(t, k)
            return at.mean, at.ratio, at.own
        at = before.derivative(self.t if t is None else t, k)
        return at.mean, _factors(before, at), 0.0 if at.own is None else at.own

    def _with_deviations(self: Any, found: Gaussian, t: Any, k: int) -> Gaussian:
        """What is handed out: ``m + D (x - m)``, where ``m`` is the mean without data."""
        before = self._before
        if before is None:
            return found
        at = before.derivative(self.t if t is None else t, k)
        times = found.mean.shape[: found.mean.ndim - len(self.shape)]
        mean, chain = (x.reshape(*times, -1) for x in (at.mean, found.mean))
        mean = (mean + _factors(before, at) * (chain - mean)).reshape(found.mean.shape)
        return replace(found, mean=mean, ratio=at.ratio, own=at.own)


def _one_spread(posterior: "Posterior") -> Any:
    """One factor of all standard deviations of the chain; those per component count as ``D``."""
    spread = np.asarray(posterior.spread)
    return spread if spread.ndim == 0 else np.ones(())


def _factors(posterior: "Posterior", at: Gaussian) -> Any:
    """``D`` at some times, ``(*times, d)`` or fewer axes."""
    ratio = np.ones(()) if at.ratio is None else np.asarray(at.ratio)
    spread = np.asarray(posterior.spread)
    return ratio if spread.ndim == 0 else ratio * spread


def conditioned(posterior: "Posterior", data: Observations, iterations: int) -> "Posterior":
    """See :meth:`Conditional.condition`."""
    path = _check(posterior, data, iterations)
    method, thick = posterior.method, dense(posterior.method)
    with double_precision(), one_blas_thread():
        order = method.equation.order
        start = posterior.state().mean[0]
        backwards = bool(path.t[-1] < path.t[0])
        bound = data.bound(path.t[0], tuple(start) if order > 1 else start, backwards)
        times = _at_nodes(np.asarray(bound.t), np.asarray(path.t))
        rows, where = path.with_times(method, times)
        rows = _in_own_coordinates(method, rows)
        _check_memory(thick, len(rows.t))
        spread = _one_spread(posterior)
        view = _View.of(posterior, times)
        filtered = np.asarray(rows.mean)[where][:, :order].reshape(len(times), -1)
        point = view.mean
        for left in range(iterations, 0, -1):
            sites, constants = _sites(bound, view, point)
            # Of the chain: B (x - m_n) = b with the filter's mean, in units of the noise.
            seen = sites[..., :-1] * view.ratio[:, None]
            off = sites[..., :-1] @ (view.center - point)[..., None]
            off = off + seen @ (filtered - view.center)[..., None]
            rows_of_data = np.concatenate([seen, -sites[..., -1:] - off], axis=-1)
            known, total = _heard(method, rows, where, rows_of_data, constants, spread)
            last = Marginals(known.mean[-1], unpack(known.factor[-1]))
            smoothed = JAX.smooth(thick, known, last, Limits())
            made = replace(
                posterior,
                path=NodePath(known, smoothed),
                method=thick,
                calibration=None,
                given=_given(posterior, data, total),
            )
            if left > 1:
                point = _flat(made.state(times).mean, len(times))
        return made


def _check(posterior: "Posterior", data: Any, iterations: Any) -> NodePath:
    if not isinstance(data, Observations):
        raise TypeError(f"data must be Observations(t, u, noise), got {type(data).__name__}.")
    if isinstance(iterations, bool) or not isinstance(iterations, int) or iterations < 1:
        raise ValueError(f"iterations must be a positive integer, got {iterations!r}.")
    path, structure = posterior.path, posterior.method.structure
    if not isinstance(path, NodePath):
        raise ValueError(
            "this posterior has not kept its steps (save_at, or t_eval of a large problem), which "
            "condition needs: solve again without save_at."
        )
    if path.smoothed is None:
        raise ValueError(
            "condition needs a smoothed posterior, this one has its filter only: solve again with "
            "smooth=True, and without a time limit that is too short for it."
        )
    if path.held is not None:
        raise ValueError(
            "this posterior is held to invariants or bounds, which it would leave again when data "
            "move it: solve without invariants= and bounds= for condition."
        )
    size = structure.n * structure.d
    if size > LARGEST:
        raise ValueError(
            f"condition couples all components: its covariances have {size} rows ({structure.n} "
            f"derivatives of {structure.d} components), and more than {LARGEST} are refused. Use a "
            "solver of lower order, or fewer components."
        )
    low, high = sorted((float(path.t[0]), float(path.t[-1])))
    shown = data.outside(low, high)
    if shown:
        raise ValueError(
            f"data lie outside of the solved interval [{low:g}, {high:g}]: at {shown}. Solve over "
            "a longer interval, or leave these data out."
        )
    return path


def _check_memory(thick: Method, nodes: int) -> None:
    limits, needed = Limits.read(None, None), 2 * needed_bytes(thick, nodes, True, False)
    if not limits.allows(needed):
        raise ValueError(
            f"dense covariances at {nodes} nodes take {in_words(needed)}, more than half of the "
            "memory that is free: solve with a larger tolerance, a lower order, or up to the last "
            "datum only."
        )


def _at_nodes(times: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """Times of data, those that are off a node by rounding only moved to it."""
    ordered = np.sort(nodes)
    right = np.clip(np.searchsorted(ordered, times), 1, max(len(nodes) - 1, 1))
    around = ordered[np.minimum([right - 1, right], len(nodes) - 1)]
    nearest = np.where(np.abs(around[0] - times) <= np.abs(around[1] - times), *around)
    close = np.abs(nearest - times) <= _SAME * np.spacing(
        np.maximum(np.abs(nearest), np.abs(times))
    )
    return np.where(close, nearest, times)


def _in_own_coordinates(method: Method, rows: Rows) -> Rows:
    """Rows with factors in the coordinates of the steps that end there: those between nodes too."""
    h = np.append(rows.h[0], np.diff(rows.t))
    h = np.where(h == 0.0, rows.h, h)
    if np.array_equal(h, rows.h):
        return rows
    powers = 1.0 - np.arange(method.structure.n)
    change = (np.asarray(rows.h) / h)[:, None] ** powers
    change = np.asarray(method.structure.spread(change))
    if change.ndim < unpack(rows.factor).ndim - 1:  # one factor per component
        change = change[:, None, :]
    factor: Any = pack(unpack(rows.factor) * change[..., None, :])
    return replace(rows, h=cast(Any, h), factor=factor)


class _View(NamedTuple):
    """A posterior at the times of data, as ``(y, ..., y^(k-1))`` one after the other."""

    mean: np.ndarray
    """What is handed out."""
    center: np.ndarray
    """``m``"""
    std: np.ndarray
    ratio: np.ndarray
    """``D``"""
    own: np.ndarray
    """Standard deviations besides those of the chain: as noise, one datum apart from the other."""

    @staticmethod
    def of(posterior: "Posterior", times: np.ndarray) -> "_View":
        given = posterior.given
        before = posterior if given is None or given.before is None else given.before
        now, parts = posterior.state(times), []
        for k in range(posterior.method.equation.order):
            at = before.derivative(times, k)
            center = _flat(at.mean, len(times))
            own = np.zeros_like(center) if at.own is None else np.asarray(at.own)
            parts.append((center, np.broadcast_to(_factors(before, at), center.shape), own))
        center, ratio, own = (np.concatenate(each, axis=-1) for each in zip(*parts, strict=True))
        mean, std = _flat(now.mean, len(times)), _flat(now.std, len(times))
        return _View(mean, center, std, ratio, own)


def _flat(values: Any, count: int) -> np.ndarray:
    return np.asarray(values).reshape(count, -1)


def _sites(data: Data, view: _View, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Data at ``point`` as rows ``[H z]`` in units of their noise, and constants of the density."""
    count = len(point)
    size = _FEWEST
    while size < count:
        size *= 2
    arrays = ("t", "u", "known", "noise")
    given = {name: getattr(data, name) for name in arrays if getattr(data, name) is not None}
    longer: dict[str, Any] = {name: padded(np.asarray(x), size) for name, x in given.items()}
    rows = (padded(x, size) for x in (point, view.std, view.own))
    found = _whitened(replace(data, **longer), *rows)
    sites, constants = (np.asarray(x)[:count] for x in found)
    if not (np.all(np.isfinite(sites)) and np.all(np.isfinite(constants))):
        bad = ~(np.isfinite(constants) & np.all(np.isfinite(sites), axis=(1, 2)))
        raise ValueError(
            "observe or log_density is not finite at the mean of the posterior, first at t = "
            f"{float(np.asarray(data.t)[np.argmax(bad)]):g}: leave out data where it is not "
            "defined, or write it such that it is."
        )
    return sites, constants


@compiled()
def _whitened(data: Data, point: Array, std: Array, own: Array) -> tuple[Array, Array]:
    def one(k: Array) -> tuple[Array, Array]:
        site = data.site(k, point[k], std[k])
        rows = jnp.concatenate([site.noise, own[k][:, None] * site.matrix.T])
        noise = triangularize(rows)
        every = jnp.concatenate([site.matrix, site.z[:, None]], axis=-1)
        pivots = jnp.log(jnp.abs(jnp.diagonal(noise)))
        constant = site.offset - jnp.sum(pivots) - 0.5 * len(pivots) * jnp.log(2.0 * jnp.pi)
        return solve_transposed(noise, every), constant

    return jax.vmap(one)(jnp.arange(point.shape[0]))


def _heard(
    method: Method,
    rows: Rows,
    where: np.ndarray,
    data: np.ndarray,
    constants: np.ndarray,
    spread: Any,
) -> tuple[Rows, Array]:
    """All rows given the data so far, with dense packed factors, and the log likelihood."""
    thick, total = dense(method), len(rows.t)
    width = data.shape[-1]
    at_rows, besides = np.zeros((total, width, width)), np.zeros(total)
    for i in np.unique(where):
        mine = data[where == i].reshape(-1, width)
        packed = np.linalg.qr(mine, mode="r")
        at_rows[i, : len(packed)] = packed
        besides[i] = np.sum(constants[where == i])
    most = capacity(thick)
    size = method.structure.n * method.structure.d
    mean = np.empty((total, method.structure.n, method.structure.d))
    factor = np.empty((total, size * (size + 1) // 2))
    message = jax.tree.map(np.asarray, Message.empty(method))
    log_likelihood: Any = np.zeros(())
    for begin in range(0, total, most):
        count = min(most, total - begin)
        part = jax.tree.map(lambda x: padded(x[begin : begin + most + 1], most + 1), rows)  # noqa: B023
        part = replace(part, factor=unpack(part.factor))
        new, here = (padded(x[begin : begin + most], most) for x in (at_rows, besides))
        found, message, total_density = hear(method, part, new, here, count, message, spread)
        log_likelihood = np.asarray(total_density)
        mean[begin : begin + count] = np.asarray(found.mean)[:count]
        factor[begin : begin + count] = pack(np.asarray(found.factor)[:count])
    made = replace(rows, mean=cast(Any, mean), factor=cast(Any, factor))
    return made, log_likelihood


def _given(posterior: "Posterior", data: Observations, log_likelihood: Any) -> Given:
    """What is known of all data, those of earlier conditions too."""
    before, times = posterior.given, np.asarray(data.t)
    plain = data.observe is None and data.log_density is None
    values: Any = np.asarray(data.u) if plain else None
    rescales = posterior.calibration is not None or np.ndim(posterior.spread) > 0
    if before is None:
        return Given(cast(Any, times), values, log_likelihood, posterior if rescales else None)
    both = before.u is not None and values is not None
    every: Any = np.concatenate([np.asarray(before.t), times])
    order = np.argsort(every, kind="stable")
    values = np.concatenate([np.asarray(before.u), values])[order] if both else None
    return Given(every[order], values, before.log_likelihood + log_likelihood, before.before)
