"""Posterior paths: the states a solve has kept, and how to look at them at other times.

:class:`NodePath` has every step and can be evaluated and sampled anywhere; :class:`SavedPath` has
chosen times only. Outside a trace their arrays are NumPy arrays, inside they are JAX arrays.
"""

from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from probode.base.blas import one_blas_thread
from probode.base.compile import compiled
from probode.base.jax_inside import is_tracer
from probode.base.precision import double_precision, on_host
from probode.base.record import record
from probode.engines.choice import interpolator_for
from probode.engines.dense_output import (
    around,
    block_size,
    evaluate_rows,
    for_each,
    in_blocks,
    in_plain_units,
    select,
)
from probode.engines.kept import padded, state_bytes
from probode.engines.two_pole.dense import unsure
from probode.filter import saving
from probode.filter.frozen import moved
from probode.filter.loop import Rows
from probode.filter.saving import Saving
from probode.filter.smooth import Marginals, sample_rows, spread_noise
from probode.filter.step import Method, State, extrapolate
from probode.model.gaussian import pack, unpack
from probode.model.invariant import Constraint
from probode.posterior.held import Held, held_to, hold

_TRACED_NOISE = jnp.float32
"""Inside a trace random bits are lowered outside our scope of double precision."""


class Path:
    """What the posterior needs of the states that were kept."""

    @property
    def t(self) -> Array:
        """Times of the states, shape ``(N,)``."""
        raise NotImplementedError

    @property
    def is_smoothed(self) -> bool:
        """Whether the states are conditioned on the whole solve."""
        raise NotImplementedError

    def select(self, method: Method, k: int) -> tuple[Array, Array]:
        """Means ``(N, d)`` and factor columns of the ``k``-th derivative at the times ``t``."""
        raise NotImplementedError

    def evaluate(self, method: Method, t: Any, k: int) -> tuple[Array, Array]:
        """The same at any times."""
        raise NotImplementedError

    def held_to(self, method: Method, constraint: Constraint | None) -> "Path":
        """The same with ``y`` moved to where it fulfils invariants and bounds."""
        raise NotImplementedError

    def sample(self, method: Method, n: int, key: Array, t: Any, spread: Array) -> Any:
        """Joint samples of ``y, ..., y^(k-1)``, shape ``(n, N, k, d)``."""
        raise NotImplementedError

    def onto(self, method: Method, t: Any, drawn: Any) -> Any:
        """Such samples, moved one by one to where they fulfil invariants and bounds."""
        return drawn

    def noise(self) -> tuple[Array, Array]:
        """Process noise ``s`` of the steps, and their lengths."""
        raise NotImplementedError

    def step_sizes(self) -> Array:
        """Lengths of the accepted steps."""
        raise NotImplementedError


@record
class NodePath(Path):
    """Every accepted step: filtering states and, if smoothed, the smoothed marginals.

    Of a factor only the triangle is kept (:func:`probode.model.gaussian.pack`).
    """

    rows: Rows
    smoothed: Marginals | None
    held: Held | None = None
    """What is handed out instead of ``y``, where there are invariants or bounds."""

    @staticmethod
    def of(rows: Rows, smoothed: Marginals | None) -> "NodePath":
        """From rows with square factors."""
        if smoothed is not None:
            smoothed = replace(smoothed, factor=pack(smoothed.factor))
        return NodePath(replace(rows, factor=pack(rows.factor)), smoothed)

    def moving_with(self, times: Array) -> "NodePath":
        """The same with derivatives by its times: see :meth:`probode.filter.loop.Rows`."""
        rows, smoothed = self.rows.moving_with(times), self.smoothed
        if smoothed is not None:
            smoothed = replace(smoothed, mean=moved(smoothed.mean, rows.t))
        return replace(self, rows=rows, smoothed=smoothed)

    def _standing(self) -> "NodePath":
        smoothed = self.smoothed
        if smoothed is not None:
            smoothed = replace(smoothed, mean=moved(smoothed.mean, -self.rows.t))
        return replace(self, rows=self.rows.standing(), smoothed=smoothed)

    @property
    def t(self) -> Array:
        return self.rows.t

    @property
    def is_smoothed(self) -> bool:
        return self.smoothed is not None

    @property
    def _marginals(self) -> Marginals:
        rows = self.rows
        return self.smoothed if self.smoothed is not None else Marginals(rows.mean, rows.factor)

    @property
    def means(self) -> Array:
        """Means of the whole states, ``(N, q+1, d)``."""
        mean = self._marginals.mean
        return mean if self.held is None else self.held.put_into(mean)

    def held_to(self, method: Method, constraint: Constraint | None) -> "NodePath":
        if constraint is None:
            return self
        held = hold(constraint, method, self.rows.t, partial(self._select, method))
        return replace(self, held=held)

    def select(self, method: Method, k: int) -> tuple[Array, Array]:
        with double_precision():
            return held_to(method, self.held, k, partial(self._select, method))

    def _select(self, method: Method, k: int) -> tuple[Array, Array]:
        marginals = self._marginals
        columns = method.structure.select_packed(marginals.factor, k)
        return marginals.mean[..., k, :], in_plain_units(method, self.rows.h, columns, k)

    def evaluate(self, method: Method, t: Any, k: int) -> tuple[Array, Array]:
        if self.held is None or k >= method.equation.order:
            return self._evaluate(method, t, k)
        host = on_host(self.rows.t) and not is_tracer(t)
        times: Any = np.asarray(t, float) if host else jnp.asarray(t, float)
        each = times.reshape(-1)
        one = lru_cache(partial(self._evaluate, method, each))
        with double_precision():
            held = self.held.elsewhere(method, each, one)
            mean, columns = held_to(method, held, k, one)
        shape = times.shape
        mean = mean.reshape((*shape, *mean.shape[1:]))
        return mean, columns.reshape((*shape, *columns.shape[1:]))

    def _evaluate(self, method: Method, t: Any, k: int) -> tuple[Array, Array]:
        host = on_host(self.rows.t) and not is_tracer(t)
        with double_precision():
            times: Any = np.asarray(t, float) if host else jnp.asarray(t, float)
            each = times.reshape(-1)
            if host:
                _check_times(times)
            right = self._right(np if host else jnp, each)
            if method.frozen:
                mean, columns = self._moving(method, right, each, k)
            else:
                by: Any = interpolator_for(method).interpolate if host else evaluate_rows
                mean, columns = by(method, self.rows, self.smoothed, right, each, k)
        return (
            mean.reshape((*times.shape, *mean.shape[1:])),
            columns.reshape((*times.shape, *columns.shape[1:])),
        )

    def _moving(self, method: Method, right: Any, t: Any, k: int) -> tuple[Array, Array]:
        """The same with frozen gains: derivatives by ``t`` are the next derivative."""
        still = self._standing()
        known = still.rows, still.smoothed, right, jax.lax.stop_gradient(t)
        mean, columns = evaluate_rows(method, *known, k)
        if k == method.prior.order or not is_tracer(t):
            return mean, columns
        pair = jnp.stack([mean, evaluate_rows(method, *known, k + 1)[0]], axis=-2)
        return moved(pair, t)[..., 0, :], columns

    def unsure(self, method: Method, t: Any) -> np.ndarray:
        """How far the curve may be off between two steps of a filter that has no smoother."""
        times = np.asarray(t, float)
        each = times.reshape(-1)
        found = unsure(method, self.rows, self._right(np, each), each)
        return found.reshape((*times.shape, *found.shape[1:]))

    def _right(self, xp: Any, t: Any) -> Any:
        """For each time: the node at which the step ends that it falls into, or is next to."""
        nodes = self.rows.t
        if nodes.shape[0] == 1:
            return xp.zeros(t.shape, int)
        sign = xp.where(nodes[-1] < nodes[0], -1.0, 1.0)
        right = xp.searchsorted(sign * nodes, sign * t, side="left")
        return xp.clip(right, 1, nodes.shape[0] - 1)

    def sample(
        self, method: Method, n: int, key: Array, t: Any, spread: Array, end: Any = None
    ) -> Any:
        if self.smoothed is None:
            raise ValueError(
                "joint samples need the smoother: this posterior was computed with smooth=False."
            )
        with double_precision(), one_blas_thread():
            if not on_host(self.rows.t):
                if t is not None:
                    raise ValueError("inside a trace, sample at chosen times through save_at.")
                return self.onto(method, t, _sample_traced(method, self.rows, n, key, spread))
            if t is None:
                return self.onto(method, t, _sample_all(method, self.rows, n, key, spread, end))
            times = np.asarray(t, float)
            rows, where = self.with_times(method, times.reshape(-1))
            drawn = _sample_all(method, rows, n, key, spread, end)[:, where]
            return self.onto(method, times, drawn.reshape(n, *times.shape, *drawn.shape[-2:]))

    def onto(self, method: Method, t: Any, drawn: Any) -> Any:
        if self.held is None or t is None:
            return drawn if self.held is None else self.held.samples(self.rows.t, drawn)
        each = np.asarray(t, float).reshape(-1)
        held = self.held.elsewhere(method, each, partial(self._evaluate, method, each))
        if held is None:
            return drawn
        flat = drawn.reshape(len(drawn), len(each), *drawn.shape[-2:])
        return held.samples(each, flat).reshape(drawn.shape)

    def with_times(self, method: Method, times: np.ndarray) -> tuple[Rows, np.ndarray]:
        """The nodes with further times put between them (as predictions), and where these are."""
        rows = self.rows
        low, high = sorted((rows.t[0], rows.t[-1]))
        _check_times(times)
        if np.any((times < low) | (times > high)):
            raise ValueError(
                f"samples are drawn within the solved interval [{low:g}, {high:g}], got times from "
                f"{times.min():g} to {times.max():g}."
            )
        sign = -1.0 if rows.t[-1] < rows.t[0] else 1.0
        # The noise of a step belongs to its whole length: keep that length with it.
        if rows.whole is None:
            lengths: Any = np.append(1.0, np.diff(rows.t))
            lengths[lengths == 0.0] = 1.0
            rows = replace(rows, whole=lengths)
        new = np.setdiff1d(times, rows.t)
        new = new[np.argsort(sign * new)]
        if new.size:
            ends = self._right(np, new)
            filtered, _, right, scale = around(rows, self.smoothed, ends)
            at: Any = new
            inputs = filtered, right, scale, at
            inside = in_blocks(partial(_predict_block, method), inputs, state_bytes(method))
            state = inside.mean, pack(inside.factor), inside.drift
            inserted = Rows(at, inside.h, scale, *state, rows.whole_at(ends))
            joined = jax.tree.map(lambda a, b: np.concatenate([a, b]), rows, inserted)
            whole = np.concatenate([np.r_[1.0, np.diff(rows.t)], right.t - filtered.t])
            order = np.argsort(sign * joined.t, kind="stable")
            joined = jax.tree.map(lambda x: x[order], joined)
            part = np.r_[1.0, np.diff(joined.t)] / whole[order]
            part = np.abs(part) ** (method.prior.order - 0.5)
            weight = part.reshape(-1, *[1] * (joined.scale.ndim - 1))
            rows = replace(joined, scale=joined.scale * weight)
        return rows, np.searchsorted(sign * rows.t, sign * times)

    def noise(self) -> tuple[Array, Array]:
        return self._steps(self.rows.scale), self.step_sizes()

    def step_sizes(self) -> Array:
        return self._steps(self.rows.h)

    def _steps(self, x: Array) -> Array:
        """Without the first row, where no step ended; leading axes are a batch."""
        return x[(slice(None),) * (self.rows.t.ndim - 1) + (slice(1, None),)]


@record
class SavedPath(Path):
    """States at chosen times, linked by composed backward kernels."""

    saved: Rows
    marginals: Marginals
    saving: Saving
    held: Held | None = None
    """What is handed out instead of ``y``, where there are invariants or bounds."""

    @property
    def t(self) -> Array:
        return self.saved.t

    @property
    def is_smoothed(self) -> bool:
        return self.saving.kernels is not None

    def select(self, method: Method, k: int) -> tuple[Array, Array]:
        with double_precision():
            return held_to(method, self.held, k, partial(self._select, method))

    def _select(self, method: Method, k: int) -> tuple[Array, Array]:
        return select(method, self.saved.h, self.marginals.mean, self.marginals.factor, k)

    def held_to(self, method: Method, constraint: Constraint | None) -> "SavedPath":
        if constraint is None:
            return self
        held = hold(constraint, method, self.t, partial(self._select, method))
        marginals = replace(self.marginals, mean=held.put_into(self.marginals.mean))
        return replace(self, marginals=marginals, held=held)

    def reached(self, count: int) -> "SavedPath":
        """The first so many of the times."""
        saved, marginals = jax.tree.map(lambda x: x[:count], (self.saved, self.marginals))
        return SavedPath(saved, marginals, self.saving, self.held and self.held.first(count))

    def evaluate(self, method: Method, t: Any, k: int) -> tuple[Array, Array]:
        raise ValueError(
            "this posterior was computed with save_at and is known at posterior.t only. Solve "
            "without save_at for dense output, or put the times you need into save_at."
        )

    def sample(self, method: Method, n: int, key: Array, t: Any, spread: Array) -> Any:
        if t is not None:
            raise ValueError(
                "a posterior computed with save_at can be sampled at its own times only: leave t "
                "out, or put the times you need into save_at."
            )
        if self.saving.kernels is None:
            raise ValueError(
                "joint samples need the smoother: this posterior was computed with smooth=False."
            )
        with double_precision(), one_blas_thread():
            if on_host(self.t):
                drawn: Any = np.asarray(_sample_saved(method, n, self.saving, key, spread))
                drawn = drawn[:, : len(self.t)]
            else:
                drawn = _draw_saved(method, n, self.saving, key, spread, _TRACED_NOISE)
            return self.onto(method, t, drawn)

    def onto(self, method: Method, t: Any, drawn: Any) -> Any:
        return drawn if self.held is None else self.held.samples(self.t, drawn)

    def noise(self) -> tuple[Array, Array]:
        lengths = self.saving.lengths
        if lengths is None:
            raise ValueError(
                "per-step diffusions are not in this posterior: it was stored by an older version, "
                "which did not keep them with save_at. Solve again to see them."
            )
        return self.saved.scale, lengths[..., : self.t.shape[-1]]

    def step_sizes(self) -> Array:
        raise ValueError("step sizes are not kept with save_at: solve without it to see them.")


@compiled()
def _predict_block(method: Method, *inputs: Any) -> State:
    def predict(left: State, right: State, scale: Array, t: Array) -> State:
        h = t - left.t
        noise = scale * method.prior.noise_scale(h / (right.t - left.t))
        return extrapolate(method, left, h, noise)

    return for_each(method, predict, inputs)


def _check_times(times: np.ndarray) -> None:
    if not np.all(np.isfinite(times)):
        raise ValueError("times must be finite, got NaN or Inf.")


def _draw_rows(
    method: Method,
    rows: Rows,
    count: Any,
    last: Array,
    key: Array,
    spread: Array,
    dtype: Any = jnp.float64,
) -> tuple[Array, Array]:
    """Draw the rows before the last, given draws of the last."""
    n, d = method.structure.n, method.structure.d
    noise = jax.random.normal(key, (last.shape[0], rows.t.shape[0], n, d), dtype)
    rows = replace(rows, factor=unpack(rows.factor))
    draw = partial(sample_rows, method, rows, count, spread=spread)
    return jax.vmap(lambda last, noise: draw(last, noise))(last, noise)


@compiled()
def _sample_block(
    method: Method, rows: Rows, count: Any, last: Array, key: Array, spread: Array
) -> tuple[Array, Array, Array]:
    """A block of draws, and the key of the next one."""
    key, subkey = jax.random.split(key)
    return *_draw_rows(method, rows, count, last, subkey, spread), key


def _draw_end(
    method: Method,
    end: State,
    n: int,
    key: Array,
    spread: Array,
    dtype: Any = jnp.float64,
) -> Array:
    """Draws of the last state."""
    noise = jax.random.normal(key, (n, method.structure.n, method.structure.d), dtype)
    draw = partial(spread_noise, method, jnp.asarray(unpack(end.factor)), jnp.asarray(end.h))
    return end.mean + spread * jax.vmap(draw)(noise)


@compiled(2)
def _sample_end(
    method: Method, end: State, n: int, key: Array, spread: Array
) -> tuple[Array, Array]:
    """Draws of the last state, and the key of the next ones."""
    key, subkey = jax.random.split(key)
    return _draw_end(method, end, n, subkey, spread), key


def _sample_all(
    method: Method, rows: Rows, n: int, key: Array, spread: Array, end: Any = None
) -> np.ndarray:
    """Joint draws of ``y, ..., y^(k-1)`` in all rows, block by block from the end backwards.

    With ``end``, ``(n, k d)``, these of the last row differ from their mean by that.
    """
    total = rows.t.shape[0]
    row_bytes = state_bytes(method) + 8 * n * method.structure.n * method.structure.d
    size = block_size(max(total - 1, 1), row_bytes)
    last, key = _sample_end(method, rows.at(-1), n, key, spread)
    if end is not None:
        last = jnp.asarray(_given_values(method, rows.at(-1), np.asarray(last), end))
    parts = [np.asarray(last)[:, None, : method.equation.order]]
    stop = total - 1
    while stop > 0:
        begin = max(0, stop - size)
        count = stop - begin
        block = jax.tree.map(lambda x: padded(x[begin : begin + size + 1], size + 1), rows)  # noqa: B023
        values, last, key = _sample_block(method, block, count, last, key, spread)
        parts.append(np.asarray(values)[:, :count])
        stop = begin
    return np.concatenate(parts[::-1], axis=1)


def _given_values(method: Method, state: State, drawn: np.ndarray, values: Any) -> np.ndarray:
    """Draws ``x`` of a state given that ``u = (y, ..., y^(k-1))`` differs from its mean by values.

    ``x + Cov(x, u) Cov(u)⁻¹ (m_u + values - u)``, where ``u`` is the one that was drawn.
    """
    structure, prior, k = method.structure, method.prior, method.equation.order
    coords = prior.weights * np.asarray(state.h) ** (1.0 - np.arange(prior.size))
    factor: Any = np.asarray(unpack(state.factor))
    columns = [structure.select(factor, i) * coords[i] for i in range(prior.size)]
    known = columns[:k]
    with_u = [np.concatenate([structure.cross(c, u) for u in known], axis=1) for c in columns]
    covariance = np.concatenate(with_u[:k])
    std = np.sqrt(np.diag(covariance))
    std[std == 0.0] = 1.0
    inverse = np.linalg.pinv(covariance / std / std[:, None], rcond=1e-10) / std / std[:, None]
    off = (drawn - np.asarray(state.mean))[:, :k].reshape(len(drawn), -1)
    change = (np.asarray(values) - off) @ inverse
    return drawn + np.stack([change @ rows.T for rows in with_u], axis=1)


def _sample_traced(method: Method, rows: Rows, n: int, key: Array, spread: Array) -> Array:
    first, second = jax.random.split(key)
    last = _draw_end(method, rows.at(-1), n, first, spread, _TRACED_NOISE)
    return _draw_rows(method, rows, rows.t.shape[0] - 1, last, second, spread, _TRACED_NOISE)[0]


def _draw_saved(
    method: Method, n: int, kept: Saving, key: Array, spread: Array, dtype: Any = jnp.float64
) -> Array:
    """Joint draws at the save points."""
    shape = (n, kept.saved.t.shape[0] + 1, method.structure.n, method.structure.d)
    noise = jax.random.normal(key, shape, dtype)
    return jax.vmap(lambda noise: saving.sample_saved(method, kept, noise, spread))(noise)


_sample_saved = compiled(1)(_draw_saved)
