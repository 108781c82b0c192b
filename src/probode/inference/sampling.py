"""Posteriors of parameters by NUTS, with BlackJAX; results for ArviZ.

Sampled is ``w`` with ``z = ẑ + L w``, ``L Lᵀ`` the covariance of the fit on the scale without
bounds: near the estimates a standard normal. During the warm-up the step size is adapted in every
draw (dual averaging), and at the end of windows that double the metric is set to the covariance of
what all chains have drawn in it. Draws are made in chunks: Ctrl-C ends the sampling after the
current one, with all draws that were made. Chains take turns on a CPU, where side by side each
would wait for the longest trajectory of all; elsewhere they run side by side.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from probode.base.blas import one_blas_thread
from probode.base.compile import compiled
from probode.base.precision import double_precision
from probode.engines.monitor import interruptible
from probode.inference.objective import Shape, log_density

if TYPE_CHECKING:
    from probode.inference.result import Fit

_CHUNK = 25
_TARGET = 0.8
"""Acceptance rate that the step size is adapted to."""
_FIRST_WINDOW = 50
_SHRINKAGE = 10.0
"""Draws that the metric before a window counts as."""
_TRIES = 100
_MOST_TERMS = 20_000_000
"""Of the log likelihood, datum by datum and draw by draw, that are kept."""


def _libraries() -> tuple[Any, Any]:
    try:
        import arviz
        import blackjax
    except ImportError as error:
        raise ImportError(
            "sampling needs BlackJAX and ArviZ: pip install probode[infer]"
        ) from error
    return blackjax, arviz


def sample(
    fit: "Fit", draws: int, warmup: int, chains: int, seed: int, progress: bool | str
) -> Any:
    """See :meth:`probode.Fit.sample`."""
    _, arviz = _libraries()
    for name, value, least in (("draws", draws, 1), ("warmup", warmup, 0), ("chains", chains, 1)):
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not whole or value < least:
            raise ValueError(f"{name} must be a whole number, at least {least}, got {value!r}.")
    with double_precision(), one_blas_thread(), interruptible() as pressed:
        chain = _Chains(fit, int(chains), seed)
        with _bar(progress, warmup + draws) as done:
            chain.warm_up(int(warmup), done, pressed.is_set)
            kept = chain.draw(int(draws), done, pressed.is_set)
    return _inference_data(fit, arviz, kept, chain.step_size)


def _kernels(shape: Shape, numbers: Any, centre: Array, axes: Array) -> tuple[Any, Any, Any]:
    """NUTS for ``w``: its start, its step, and a function that applies these to all chains."""
    blackjax, _ = _libraries()

    def white(w: Array) -> Array:
        return log_density(shape, numbers, centre + axes @ w)

    def move(key: Array, state: Any, step_size: Array, metric: Array) -> Any:
        return blackjax.nuts.build_kernel()(key, state, white, step_size, metric)

    every = jax.lax.map if jax.default_backend() == "cpu" else _side_by_side
    return (lambda w: blackjax.nuts.init(w, white)), move, every


def _side_by_side(function: Callable[[Any], Any], given: Any) -> Any:
    """As :func:`jax.lax.map`, all at once."""
    return jax.vmap(function)(given)


@compiled(0)
def _start(shape: Shape, numbers: Any, centre: Array, axes: Array, w: Array) -> Any:
    """States of chains that begin at ``w``, one row for each."""
    init, _, every = _kernels(shape, numbers, centre, axes)
    return every(init, w)


@compiled(0)
def _chunk(
    shape: Shape,
    numbers: Any,
    centre: Array,
    axes: Array,
    states: Any,
    averaging: Any,
    adapting: Array,
    metric: Array,
    keys: Array,
) -> Any:
    """A few draws of all chains; while ``adapting``, the step size follows their acceptance."""
    _, move, every = _kernels(shape, numbers, centre, axes)
    update = _averaging()[1]
    count = states.logdensity.shape[0]

    def draw(carry: Any, key: Array) -> Any:
        states, averaging = carry
        log_step = jnp.where(adapting, averaging.log_step_size, averaging.log_step_size_avg)
        states, info = every(
            lambda one: move(*one, jnp.exp(log_step), metric),
            (jax.random.split(key, count), states),
        )
        after = update(averaging, jnp.mean(info.acceptance_rate))
        averaging = jax.tree.map(
            lambda new, old: jnp.where(adapting, new, old).astype(jnp.asarray(old).dtype),
            after,
            averaging,
        )
        kept = {
            "w": states.position,
            "lp": states.logdensity,
            "diverging": info.is_divergent,
            "acceptance_rate": info.acceptance_rate,
            "n_steps": info.num_integration_steps,
            "tree_depth": info.num_trajectory_expansions,
            "energy": info.energy,
        }
        return (states, averaging), kept

    return jax.lax.scan(draw, (states, averaging), keys)


def _averaging() -> Any:
    """Nesterov's dual averaging of the step size: begin, update, end."""
    _libraries()
    from blackjax.adaptation.step_size import dual_averaging_adaptation

    return dual_averaging_adaptation(_TARGET)


class _Chains:
    """All chains: where they are, and how they move."""

    def __init__(self, fit: "Fit", count: int, seed: int) -> None:
        self.fit, self.count = fit, count
        self.axes = _axes(fit)
        self.shape, numbers = fit.objective.program
        self.given = (numbers, jnp.asarray(fit.z), jnp.asarray(self.axes))
        self.key = jax.random.key(seed)
        self.metric = np.eye(fit.space.size)
        self._restart(0.5)
        self.states = self._begin(np.random.default_rng(seed))

    def _restart(self, step_size: float) -> None:
        """Adapt the step size from here."""
        begun = _averaging()[0](step_size)
        self.averaging = jax.tree.map(lambda x: jnp.asarray(x, _type_of(x)), begun)

    def _begin(self, rng: np.random.Generator) -> Any:
        """Around the estimates, as far as the fit says they may be off."""
        n, look = self.fit.space.size, self.fit.objective.look
        found: list[np.ndarray] = []
        for _ in range(_TRIES * self.count):
            w = rng.standard_normal(n)
            if look(self.fit.z + self.axes @ w).value > -np.inf:
                found.append(w)
            if len(found) == self.count:
                return _start(self.shape, *self.given, jnp.asarray(np.stack(found)))
        raise ValueError(
            "around the estimates there is hardly a place with a solution to start a chain from: "
            "see fit.warnings, narrow the bounds or the priors."
        )

    def _run(self, adapting: bool) -> dict[str, np.ndarray]:
        """A chunk of draws: arrays ``(chains, _CHUNK, ...)``."""
        self.key, use = jax.random.split(self.key)
        (self.states, self.averaging), kept = _chunk(
            self.shape,
            *self.given,
            self.states,
            self.averaging,
            jnp.asarray(adapting),
            jnp.asarray(self.metric),
            jax.random.split(use, _CHUNK),
        )
        return {name: np.swapaxes(np.asarray(x), 0, 1) for name, x in kept.items()}

    def warm_up(self, total: int, done: Callable[[int], None], pressed: Callable[[], bool]) -> None:
        """Windows that double, in whole chunks; the last one is for the step size alone."""
        ends = _windows(total)
        drawn: list[np.ndarray] = []
        for end in range(_CHUNK, total + _CHUNK, _CHUNK):
            if pressed():
                return
            drawn.append(self._run(True)["w"])
            done(min(_CHUNK, total - end + _CHUNK))
            if end in ends:
                self._learn(np.concatenate(drawn, axis=1))
                drawn = []

    def _learn(self, drawn: np.ndarray) -> None:
        """The covariance of a window's draws, drawn towards the last one."""
        flat = drawn.reshape(-1, drawn.shape[-1])
        count = len(flat)
        found = np.atleast_2d(np.cov(flat, rowvar=False))
        self.metric = (count * found + _SHRINKAGE * self.metric) / (count + _SHRINKAGE)
        self._restart(float(_averaging()[2](self.averaging)))

    @property
    def step_size(self) -> float:
        """What the warm-up has arrived at."""
        return float(np.exp(self.averaging.log_step_size_avg))

    def draw(
        self, total: int, done: Callable[[int], None], pressed: Callable[[], bool]
    ) -> dict[str, np.ndarray]:
        """The draws that are kept, with parameters as they were named."""
        parts: list[dict[str, np.ndarray]] = []
        made = 0
        while made < total and not (pressed() and parts):
            parts.append(self._run(False))
            done(min(_CHUNK, total - made))
            made += _CHUNK
        joined = {name: np.concatenate([one[name] for one in parts], axis=1) for name in parts[0]}
        kept = {name: x[:, :total] for name, x in joined.items()}
        kept["z"] = self.fit.z + kept.pop("w") @ self.axes.T
        return kept


def _windows(total: int) -> list[int]:
    """Ends of the windows after which the metric is learned: at most four fifths of the way."""
    ends, size, last = [], _FIRST_WINDOW, 0
    while last + size <= 0.8 * total:
        last += size
        ends.append(last)
        size *= 2
    return ends


def _type_of(x: Any) -> Any:
    """As it comes out of an update, so that the first chunk is compiled for all."""
    return jnp.result_type(float) if jnp.issubdtype(jnp.result_type(x), np.floating) else int


def _axes(fit: "Fit") -> np.ndarray:
    """A factor of the covariance; directions that the data do not hold get the widest of others."""
    spread = fit._spread.covariance
    n = fit.space.size
    if not np.all(np.isfinite(spread)):
        return np.eye(n)
    values, vectors = np.linalg.eigh(spread)
    floor = 1e-12 * max(values.max(initial=0.0), 1e-12)
    size = np.sqrt(np.where(values > floor, values, min(values.max(initial=1.0), 1.0)))
    return vectors * np.minimum(size, 3.0)


def _inference_data(fit: "Fit", arviz: Any, kept: dict[str, np.ndarray], step_size: float) -> Any:
    z = kept.pop("z")
    chains, draws, _ = z.shape
    values = [fit.space.values(one, np) for one in z.reshape(-1, z.shape[-1])]
    posterior = {
        piece.name: np.stack([one[piece.name] for one in values]).reshape(
            chains, draws, *piece.start.shape
        )
        for piece, _ in fit.space
    }
    log_prior, log_slope = fit.objective.priors(z.reshape(-1, z.shape[-1])).T
    log_prior, log_slope = (x.reshape(chains, draws) for x in (log_prior, log_slope))
    stats = {
        **kept,
        "log_prior": log_prior,
        "total_log_likelihood": kept["lp"] - log_prior - log_slope,
        "step_size": np.full((chains, draws), step_size),
    }
    several, sets = fit.objective.statement.several, fit.objective.statement.data
    names = [f"u{i}" if several else "u" for i in range(len(sets))]
    groups = {"observed_data": {name: one.u for name, one in zip(names, sets, strict=True)}}
    terms = None
    if chains * draws * sum(len(one.t) for one in sets) <= _MOST_TERMS:
        terms = fit.objective.terms(z.reshape(-1, z.shape[-1]))
    if terms is not None:
        terms = terms.reshape(chains, draws, *terms.shape[1:])
        groups["log_likelihood"] = {name: terms[:, :, i] for i, name in enumerate(names)}
    return arviz.from_dict(posterior=posterior, sample_stats=stats, **groups)


@contextmanager
def _bar(show: bool | str, total: int) -> Iterator[Callable[[int], None]]:
    """A function to be told of draws; ``show=True`` shows a bar on a terminal only."""
    if not show or (show is True and not sys.stderr.isatty()):
        yield lambda count: None
        return
    try:
        from tqdm.auto import tqdm
    except ImportError:
        if show is True:
            yield lambda count: None
            return
        raise ImportError("a progress bar needs tqdm: pip install probode[progress].") from None
    with tqdm(total=total, unit=" draws") as bar:
        yield lambda count: bar.update(count) and None
