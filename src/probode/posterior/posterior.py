"""What a solve returns: a Gaussian process posterior over the solution."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from probode.base.compile import compiled
from probode.base.errors import whole_number
from probode.base.in_double import as_one
from probode.base.precision import double_precision, is_traced, on_host
from probode.base.record import record, static
from probode.base.status import Status
from probode.engines.fallback import where_not_finite
from probode.filter.solvers import Solver
from probode.filter.step import Method
from probode.global_error.result import Calibration
from probode.global_error.scales import Scales
from probode.model.diffusion import Evidence
from probode.model.gaussian import safe_sqrt
from probode.model.implicit import Implicit
from probode.posterior.conditioned import Conditional, Given
from probode.posterior.error_bars import NOT_DONE, ErrorBars, one_solve
from probode.posterior.outcome import Gaussian, Joint, Problem, Stats
from probode.posterior.paths import NodePath, Path
from probode.posterior.views import Views

__all__ = ["Gaussian", "Posterior", "Problem", "Stats", "component_names", "one_solve"]


@record
class Posterior(ErrorBars, Conditional, Views):
    """The solution of an initial value problem, and how certain it is.

    ``posterior.t`` are the times at which it was computed: the steps taken, or ``save_at``. There,
    ``mean`` and ``std`` have shape ``(N, *shape)`` (``shape`` that of ``y0``) and ``cov`` has shape
    ``(N, d, d)`` for ``y`` flattened in C order. At any other time, call it: ``posterior(t)`` has a
    ``mean``, a ``std`` and a ``cov``, too.

    Examples
    --------
    >>> import probode
    >>> posterior = probode.solve_ivp(lambda t, y: -y, (0, 5), [1.0]).posterior
    >>> at = posterior(2.0)
    >>> bool(abs(at.mean[0] - 0.1353352832) < 4 * at.std[0])  # exp(-2)
    True
    >>> posterior.sample(10).shape == (10, *posterior.mean.shape)
    True
    """

    path: Path
    solver: Solver
    method: Method
    shape: tuple[int, ...] = static()
    evidence: Evidence
    reference: Array
    stats: Stats
    status_code: Array
    tolerances: tuple[Array, Array] | None = None
    """``(rtol, atol)`` of the control, each a number or ``(d,)``; ``None`` without a control."""
    calibration: Calibration | None = None
    """The estimated global error and the scales made of it; ``None``: the model's scale."""
    problem: Problem = Problem()
    is_complex: bool = static(default=False)
    """Whether ``y`` is the real form ``(Re y, Im y)`` of a complex state."""
    missing: tuple[str, ...] = static(default=())
    """What was asked for, and not done in time: "smoothing", "output", "events", "calibration"."""
    engine: str = static(default="unknown")
    """Who took the steps: the "native" kernels or "jax" (``stats.path`` says how ``f`` was
    evaluated). Made inside a trace it may be "native or jax": the transformation decides."""
    given: Given | None = None
    """The data that it was conditioned on."""
    begins: Array | None = None
    """The estimated error of the state that it begins with, if that is not exact."""

    __repr__ = Views.__repr__  # a dataclass would write its own

    @property
    def t(self) -> Array:
        """Times of the steps (or ``save_at``), shape ``(N,)``."""
        return self.path.t

    @property
    @as_one
    def spread(self) -> Array:
        """Factor of all standard deviations from the estimate of a fixed diffusion; else one."""
        with double_precision():
            scale = safe_sqrt(self.method.diffusion.calibration(self.evidence))
            return self._hand_out(scale)

    @property
    def marginals(self) -> Gaussian:
        """Gaussians at the times ``t``."""
        return self.derivative(k=0)

    @property
    def mean(self) -> Array:
        """Posterior means at the times ``t``, shape ``(N, *shape)``."""
        return self.marginals.mean

    @property
    def std(self) -> Array:
        """Posterior standard deviations at the times ``t``, shape ``(N, *shape)``.

        Those of the model (default of ``solve``) where ``calibration`` is ``None``; else of the
        size of the global error (default of ``solve_ivp``, and after :meth:`calibrate`).
        """
        return self.marginals.std

    @property
    def cov(self) -> Array:
        """Posterior covariances at the times ``t``, shape ``(N, d, d)``; computed on demand."""
        return self.marginals.cov

    def __call__(self, t: Any) -> Gaussian:
        """The posterior at any time or times: dense output.

        Outside the interval it is the prediction of the prior, with a growing standard deviation.
        Without smoothing it is the prediction from the step before, which jumps at the steps.
        """
        return self.derivative(t, 0)

    @as_one
    def derivative(self, t: Any = None, k: int = 1) -> Gaussian:
        """The ``k``-th derivative of the solution, ``0 <= k <= order``.

        At any time or times; by default at the times ``posterior.t``.
        """
        if not 0 <= k <= self.solver.order:
            raise ValueError(
                f"k must be between 0 and the order {self.solver.order} of the solver, got {k}."
            )
        if k > 0 and not self.solver.smooths:
            raise ValueError(
                f"{self.solver.name} knows how large errors of y are, not those of derivatives: "
                "for the slope evaluate f at the mean."
            )
        made, scales = self._estimates(k), None
        if t is None:
            scales = None if made is None else made.scales
            found = self._gaussian(*self.path.select(self.method, k), scales)
            return self._with_deviations(found, t, k)
        if made is not None:
            with double_precision():
                scales = made.scales_at(self.t, t)
        found = self._gaussian(*self.path.evaluate(self.method, t, k), scales)
        if k >= self.method.equation.order or made is None or not isinstance(self.path, NodePath):
            return self._with_deviations(found, t, k)
        if made.stages is None:
            known: Any = found.own
            between: Any = np.hypot(known, self.path.unsure(self.method, t))
            return replace(found, own=between)
        with double_precision():
            flat = found.mean.reshape((*np.shape(t), self.method.structure.d))
            known = (found.own, found.std.reshape(flat.shape))
            own = made.own_between(self.t, self.path.means[..., k:, :], t, flat, *known)
        return replace(found, own=own)

    def state(self, t: Any = None) -> Gaussian | Joint:
        """What a start needs, in the form of ``y0``; at any times, by default ``posterior.t``.

        For an equation of order ``k`` that is ``y, ..., y^(k-1)`` together, along an axis before
        those of ``shape``: for :class:`SecondOrder` ``value, velocity = state(t).mean``, and
        ``state(t).cov`` is their joint covariance, ``(k d, k d)``. Of ``y' = f(t, y)`` it is ``y``.
        """
        parts = [self.derivative(t, j) for j in range(self.method.equation.order)]
        return parts[0] if len(parts) == 1 else Joint(tuple(parts), len(self.shape))

    @as_one
    def sample(self, n: int = 1, *, seed: Any = 0, t: Any = None, k: int = 0) -> Array:
        """Joint samples of the whole trajectory, shape ``(n, N, *shape)``.

        Parameters
        ----------
        n
            Number of samples.
        seed
            An integer, or a JAX random key.
        t
            Times within the solved interval, by default ``posterior.t``. For a single number the
            axis of times is left out: ``(n, *shape)``.
        k
            Which derivative of the trajectories, below the order of the equation: of
            :class:`SecondOrder`, 1 are the velocities of those that the same seed gives with 0.
        """
        if not self.solver.smooths:
            raise ValueError(
                f"{self.solver.name} has no samples: how errors of different components and times "
                "go together is not known, only how large they are. For samples use EK1, or EK0."
            )
        n, k = whole_number("n", n), whole_number("k", k)
        key = jax.random.key(seed) if isinstance(seed, int | np.integer) else seed
        if not 0 <= k < self.method.equation.order:
            raise ValueError(
                f"samples are of derivatives 0 to {self.method.equation.order - 1}, which a start "
                f"gives, got k = {k}."
            )
        drawn = self.path.sample(self.method, n, key, t, self._spread_of_chain)
        return self._sampled(drawn, key, t, k)

    def sample_given_end(
        self, n: int, key: Array, t: Any, k: int, end: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        """Samples whose last states differ from the mean by ``end``, ``(n, k d)``, if it is given.

        Also by how much the first state differs: that of the first time, or of the last in ``t``.
        """
        assert isinstance(self.path, NodePath)
        if self.path.smoothed is None or not self.solver.smooths:
            self.sample(1, seed=key)  # says why not
        drawn = self.path.sample(self.method, int(n), key, t, self._spread_of_chain, end)
        order = self.method.equation.order
        mean = np.stack([self.path.select(self.method, j)[0][0] for j in range(order)])
        begun = np.asarray(drawn[:, 0 if t is None else -1]) - mean
        return np.asarray(self._sampled(drawn, key, t, k)), begun.reshape(n, -1)

    def _sampled(self, drawn: Any, key: Array, t: Any, k: int) -> Array:
        """What is handed out of draws of the chain."""
        if self.calibration is None and self._before is None:
            drawn = drawn[..., k, :]
        elif getattr(self.path, "held", None) is None:
            drawn = self._rescaled(drawn[..., k, :], key, t, k)
        else:  # what another spread has moved away from invariants and bounds goes back
            every = range(self.method.equation.order)
            parts = [self._rescaled(drawn[..., j, :], key, t, j) for j in every]
            xp: Any = np if on_host(parts[0]) else jnp
            with double_precision():
                drawn = self.path.onto(self.method, t, xp.stack(parts, axis=-2))[..., k, :]
        return drawn.reshape((*drawn.shape[:-1], *self.shape))

    def _rescaled(self, drawn: Array, key: Array, t: Any, k: int) -> Array:
        """``m + D (x - m)``, and one number per component and draw where the model has no scale."""
        mean, ratio, scale = self._around(t, k)
        mean = mean.reshape(drawn.shape[1:])
        with double_precision():
            own = self._hand_out(_noise(key, 1 + k, (drawn.shape[0], drawn.shape[-1])))[
                (slice(None), *[None] * (drawn.ndim - 2))
            ]
            return mean + ratio * (drawn - mean) + scale * own

    @property
    @as_one
    def log_evidence(self) -> Array:
        """Logarithm of the evidence: of all residuals under the calibrated model."""
        if not self.solver.smooths:
            raise ValueError(f"{self.solver.name} has no evidence: its gain is not a model's own.")
        with double_precision():
            return self._hand_out(self.method.diffusion.log_evidence(self.evidence))

    @property
    @as_one
    def diffusion(self) -> Array:
        """The estimated diffusion ``σ²``.

        Fixed models: a number (or one per component). Dynamic models: one row per step, shape
        ``(N-1,)`` or ``(N-1, d)``; with ``save_at`` one row per time, ``(N,)`` or ``(N, d)``, that
        of the step into which it falls (NaN at ``t0``, where no step has ended).
        """
        prior = self.method.prior
        with double_precision():
            if self.method.diffusion.fixed:
                unit = prior.unit_noise(jnp.asarray(self.reference))
                sigma2 = self.method.diffusion.calibration(self.evidence) / unit**2
            else:
                scale, h = self.path.noise()
                unit = prior.unit_noise(jnp.asarray(h))
                unit = unit[..., None] if self.method.diffusion.multivariate else unit
                sigma2 = (scale / unit) ** 2
            return self._hand_out(sigma2)

    @property
    @as_one
    def step_sizes(self) -> Array:
        """Lengths of the accepted steps, shape ``(N-1,)``; negative when integrating backwards."""
        return self.path.step_sizes()

    @property
    def status(self) -> Any:
        """How the solve ended: a :class:`Status` (inside a trace, its code)."""
        if is_traced(self.status_code) or np.ndim(self.status_code) > 0:
            return self.status_code
        return Status(int(self.status_code))

    @property
    def success(self) -> Any:
        """Whether the end of the interval, or an event that ends the solve, was reached."""
        code = self.status_code
        return (code == Status.SUCCESS.value) | (code == Status.EVENT.value)

    @property
    def message(self) -> str:
        """How the solve ended, in words."""
        status, field = self.status, self.problem.field
        if isinstance(status, Status):
            message = status.message
            failed = status in (Status.NOT_FINITE, Status.START_NOT_FINITE)
            if failed and field is not None and isinstance(self.path, NodePath):
                y = np.asarray(self.method.equation.read(self.path.means[-1]))
                with double_precision():
                    message = where_not_finite(status, field, float(self.t[-1]), y)
            changed = isinstance(self.method.equation, Implicit)  # perhaps, at the start
            if (failed or changed or status == Status.NOT_A_FUNCTION) and self.problem.notes:
                message += f" On the way {'; '.join(self.problem.notes)}."
            return " ".join([message, *(NOT_DONE[what] for what in self.missing)])
        raise TypeError(
            "message is for one finished solve: inside a trace or for a batch, use status."
        )

    def _gaussian(self, mean: Array, columns: Array, scales: Scales | None) -> Gaussian:
        mean = mean.reshape((*mean.shape[:-1], *self.shape))
        return Gaussian(
            mean,
            columns,
            self.spread,
            self.method.structure,
            self.method.diffusion.multivariate,
            *(scales or (None, None)),
        )

    def _hand_out(self, value: Any) -> Any:
        """NumPy arrays outside a trace, so that no precision is lost with JAX's switch off."""
        if on_host(self.path.t):
            value = np.asarray(value)
            return value[()] if value.ndim == 0 else value
        return value


@compiled(2, alone=False)
def _noise(key: Array, part: Any, shape: tuple[int, ...]) -> Array:
    """Standard normal numbers of their own for each part."""
    return jax.random.normal(jax.random.fold_in(key, part), shape, jnp.float32)


def component_names(posterior: Posterior, name: Callable[[list[str]], str], part: str) -> list[str]:
    """A name for each component of ``y``, flattened in C order: ``name`` of its indices from 1.

    Those of a complex state are put into ``part``, such as ``"{part} {name}"`` (Re, then Im).
    """
    if not posterior.is_complex:
        return [name([str(i + 1) for i in index]) for index in np.ndindex(posterior.shape)]
    n = posterior.shape[0] // 2
    states = [name([str(i + 1)] if n > 1 else []) for i in range(n)]
    return [part.format(part=half, name=state) for half in ("Re", "Im") for state in states]
