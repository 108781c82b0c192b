"""What a solve returns: a Gaussian process posterior over the solution."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from probode.calibration.diagnosis import Diagnosis, judge
from probode.calibration.result import Calibration
from probode.calibration.scales import Scales
from probode.diffusion import Evidence
from probode.engine import one_blas_thread
from probode.gaussian import safe_sqrt
from probode.paths import NodePath, Path, SavedPath
from probode.precision import double_precision, is_traced, on_host
from probode.record import record, static
from probode.solvers import Solver
from probode.status import Status
from probode.step import Method
from probode.structure import Structure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame
    from xarray import Dataset


@record
class Stats:
    """What a solve cost."""

    steps: Array | int
    """Steps attempted."""
    accepted: Array | int
    rejected: Array | int
    f_evaluations: Array | int
    """Evaluations of the vector field, those of the start included (Taylor mode: one per order)."""
    jacobian_evaluations: Array | int
    calibration_f_evaluations: Array | int = 0
    """Evaluations of the vector field by the calibration, not counted above."""
    calibration_jacobian_evaluations: Array | int = 0
    path: str = static(default="jax")
    """How the vector field was evaluated: "jax" (as it is), "numpy" or "scalars" (a NumPy function,
    traced), "python" (called from Python)."""


@record
class Gaussian:
    """A Gaussian over ``y`` (or one of its derivatives), at one time or at several."""

    mean: Array
    """Shape ``(*times, *shape)``."""
    columns: Array
    """Columns of the covariance's right factor, in the form of the solver's structure."""
    spread: Array
    """Calibration: a factor for all standard deviations, or one per component."""
    structure: Structure = static()
    multivariate: bool = static()
    ratio: Array | None = None
    """Factors of the model's standard deviations, ``(*times, d)``, of a calibrated posterior."""
    own: Array | None = None
    """Standard deviations of components for which the model has none, ``(*times, d)``."""

    @property
    def std(self) -> Array:
        """Marginal standard deviations, in the shape of the mean."""
        xp: Any = np if on_host(self.columns) else jnp
        with double_precision():
            variance = self.structure.variance(self.columns)
            # Zero variance: a derivative of zero. NaN (never reached) stays NaN.
            zero = variance == 0.0
            root = xp.where(zero, 0.0, xp.sqrt(xp.where(zero, 1.0, variance)))
            std = root * self._spread_over(variance.ndim)
            if self.ratio is not None:
                std = xp.hypot(std * self.ratio, self.own)
            return std.reshape(self.mean.shape)

    @property
    def cov(self) -> Array:
        """Covariance of ``y`` flattened in C order: shape ``(*times, d, d)``."""
        with double_precision():
            covariance = self.structure.covariance(self.columns)
            spread = self._spread_over(covariance.ndim - 1)
            if self.ratio is not None:
                spread = spread * self.ratio
            covariance = covariance * spread[..., None] * spread[..., None, :]
            if self.own is not None:
                covariance = covariance + self.own[..., None] ** 2 * np.eye(self.own.shape[-1])
            return covariance

    def project(self, direction: np.ndarray) -> float:
        """Standard deviation of ``direction · y`` (flattened in C order), at one time."""
        spread = np.broadcast_to(self._spread_over(1), direction.shape)
        weights = direction * spread
        if self.ratio is None:
            return float(self.structure.project(self.columns, weights))
        across = self.structure.project(self.columns, weights * self.ratio)
        assert self.own is not None
        return float(np.hypot(across, np.linalg.norm(direction * self.own)))

    def _spread_over(self, ndim: int) -> Array:
        """The calibration with axes for the times, between those of a batch and the components."""
        spread = self.spread if self.multivariate else self.spread[..., None]
        times = ndim - spread.ndim
        return spread.reshape((*spread.shape[:-1], *[1] * times, spread.shape[-1]))


@jax.tree_util.register_pytree_node_class
class Problem:
    """The vector field of a finished solve, for a later calibration.

    No part of the values: functions on pytrees (``jit``, ``vmap``, ``tree.map``) leave it behind.
    """

    def __init__(self, field: Any = None) -> None:
        self.field = field

    def tree_flatten(self) -> tuple[tuple[()], None]:
        """Nothing inside."""
        return (), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[()]) -> "Problem":
        """An empty one."""
        return cls()


@record
class Posterior:
    """Posterior over the solution of an initial value problem.

    ``posterior.t`` are the times at which it was computed: the steps taken, or ``save_at``. There,
    ``mean`` and ``std`` have shape ``(N, *shape)`` (``shape`` that of ``y0``) and ``cov`` has shape
    ``(N, d, d)`` for ``y`` flattened in C order. At any other time, ``posterior(t)`` is a Gaussian.
    """

    path: Path
    solver: Solver = static()
    method: Method = static()
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

    @property
    def t(self) -> Array:
        """Times of the steps (or ``save_at``), shape ``(N,)``."""
        return self.path.t

    @property
    def spread(self) -> Array:
        """Factor that calibrates all standard deviations (one, unless the diffusion is fixed)."""
        with double_precision():
            scale = safe_sqrt(self.method.diffusion.calibration(self.evidence))
            return self._hand_out(scale)

    @property
    def marginals(self) -> Gaussian:
        """Gaussians at the times ``t``."""
        scales = None if self.calibration is None else self.calibration.scales
        return self._gaussian(*self.path.select(self.method, 0), scales)

    @property
    def mean(self) -> Array:
        """Posterior means at the times ``t``, shape ``(N, *shape)``."""
        return self.marginals.mean

    @property
    def std(self) -> Array:
        """Posterior standard deviations at the times ``t``, shape ``(N, *shape)``."""
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

    def derivative(self, t: Any, k: int = 1) -> Gaussian:
        """The ``k``-th derivative of the solution at any time or times, ``0 <= k <= order``."""
        if not 0 <= k <= self.solver.order:
            raise ValueError(
                f"k must be between 0 and the order {self.solver.order} of the solver, got {k}."
            )
        scales = None
        if self.calibration is not None:
            with double_precision():
                scales = self.calibration.scales_at(self.t, t)
        return self._gaussian(*self.path.evaluate(self.method, t, k), scales)

    def sample(self, n: int = 1, *, seed: Any = 0, t: Any = None) -> Array:
        """Joint samples of the whole trajectory, shape ``(n, N, *shape)``.

        Parameters
        ----------
        n
            Number of samples.
        seed
            An integer, or a JAX random key.
        t
            Times within the solved interval; by default the times ``posterior.t``.
        """
        key = jax.random.key(seed) if isinstance(seed, int | np.integer) else seed
        drawn = self.path.sample(self.method, int(n), key, t, self.spread)
        if self.calibration is not None:
            drawn = self._rescaled(drawn, key, t)
        return drawn.reshape((*drawn.shape[:-1], *self.shape))

    def _rescaled(self, drawn: Array, key: Array, t: Any) -> Array:
        """``m + D (x - m)``, and one number per component and draw where the model has no scale."""
        at = self.marginals if t is None else self(t)
        assert at.ratio is not None
        mean = at.mean.reshape(drawn.shape[1:])
        with double_precision():
            own = jax.random.normal(
                jax.random.fold_in(key, 1), (drawn.shape[0], drawn.shape[-1]), jnp.float32
            )
            own = self._hand_out(own)[(slice(None), *[None] * (drawn.ndim - 2))]
            return mean + at.ratio * (drawn - mean) + at.own * own

    @property
    def log_evidence(self) -> Array:
        """Logarithm of the evidence: of all residuals under the calibrated model."""
        with double_precision():
            return self._hand_out(self.method.diffusion.log_evidence(self.evidence))

    @property
    def diffusion(self) -> Array:
        """The estimated diffusion ``σ²``.

        Fixed models: a number (or one per component). Dynamic models: one row per step, shape
        ``(N-1,)`` or ``(N-1, d)``; with ``save_at``, that of the step into which each time falls.
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
        status = self.status
        if isinstance(status, Status):
            return status.message
        raise TypeError(
            "message is for one finished solve: inside a trace or for a batch, use status."
        )

    def calibrate(self, mode: str = "defect") -> "Posterior":
        """The same posterior with standard deviations that speak of the global error.

        The posterior mean is a function whose residual between the nodes is known, so its error
        obeys an ODE that is solved on the solver's own steps (see :mod:`probode.calibration`). The
        result is a signed estimate, :meth:`global_error`; covariances and samples are rescaled by
        it: ``Σ -> D Σ D``, ``x -> m + D (x - m)``. Means do not change.

        It is an a-posteriori estimate used as a scale: that its size is right is no proof that
        errors are Gaussian. :meth:`diagnose` says where it fails.

        Parameters
        ----------
        mode
            ``"defect"`` (8 evaluations of ``f`` and a Jacobian a step for EK1, 6 of ``f`` for EK0)
            or ``"defect-fast"`` (3 of ``f``), which follows the error less closely.
        """
        from probode.calibration.calibrate import calibrate_nodes

        if not isinstance(self.path, NodePath):
            raise ValueError(
                "a posterior computed with save_at has not kept its steps: pass "
                "calibration='defect' to solve, which then calibrates on the way."
            )
        if is_traced(self) or not on_host(self.t):
            raise ValueError(
                "calibrate() is for a finished solve: inside jit or vmap, pass "
                "calibration='defect' to solve."
            )
        if self.problem.field is None:
            raise ValueError(
                "this posterior does not know its vector field any more (it was loaded from a "
                "file, or went through jit, vmap or tree.map): calibrate before that, or pass "
                "calibration='defect' to solve."
            )
        plain = self if self.calibration is None else dataclasses.replace(self, calibration=None)
        variance = np.square(plain.std).reshape(len(self.t), -1)
        with double_precision(), one_blas_thread():
            made = calibrate_nodes(
                self.method,
                self.problem.field,
                self.t,
                self.path.means,
                variance,
                smoothed=self.path.smoothed is not None,
                mode=mode,
            )
        return plain.with_calibration(made)

    def with_calibration(self, made: Calibration) -> "Posterior":
        """The posterior with a calibration, whose cost is noted."""
        stats = dataclasses.replace(
            self.stats,
            calibration_f_evaluations=made.f_evaluations,
            calibration_jacobian_evaluations=made.jacobian_evaluations,
        )
        return dataclasses.replace(self, calibration=made, stats=stats)

    def global_error(self, t: Any = None) -> Array:
        """Signed estimate of ``mean - solution``, at the times ``posterior.t`` or at any other."""
        made = self._calibrated("global_error")
        if t is None:
            return made.error.reshape((*made.error.shape[:-1], *self.shape))
        mean = self(t).mean
        return mean - self.corrected(t).reshape(mean.shape)

    def corrected(self, t: Any = None) -> Array:
        """The mean with the estimated error taken off: a companion solution of higher order.

        Usually far more accurate than the mean, but without an error estimate of its own: where
        :meth:`diagnose` warns, it may be worse.
        """
        made = self._calibrated("corrected")
        if t is None:
            return self.mean - self.global_error()
        if not isinstance(self.path, NodePath):
            raise ValueError("with save_at the error is known at posterior.t only: leave t out.")
        with double_precision():
            values = made.corrected_at(self.t, self.path.means, t)
        return values.reshape((*values.shape[:-1], *self.shape))

    def diagnose(self) -> Diagnosis:
        """A verdict on the error estimate: what speaks against it, if anything."""
        if self.calibration is None:
            return Diagnosis((), {}, float("nan"), "model")
        made = one_solve(self, "diagnose").calibration
        assert made is not None
        lost = not bool(np.all(np.isfinite(made.error)))
        return judge(np.asarray(made.signs), lost, made.mode)

    def _calibrated(self, what: str) -> Calibration:
        if self.calibration is None:
            raise ValueError(f"{what} needs a calibrated posterior: call calibrate() first.")
        return self.calibration

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

    def plot(
        self,
        *,
        ax: "Axes | None" = None,
        names: Sequence[str] | None = None,
        reference: Callable[[float], Any] | None = None,
        title: str | None = None,
    ) -> "Figure | Axes":
        """Draw the solution with its band, and below it standard deviations and step sizes.

        On the scale of the solution a good band is invisible: the second panel shows it.

        Parameters
        ----------
        ax
            Draw the solution only, into these axes.
        names
            One name per component of ``y`` (flattened in C order).
        reference
            The true solution ``t -> y``: its distance is drawn beside the standard deviations.
        title
            Title of the figure.

        Returns
        -------
        Figure or Axes
            The figure, or ``ax`` if that was given.
        """
        from probode import plotting

        if ax is None:
            return plotting.figure(self, names=names, reference=reference, title=title)
        if reference is not None:
            raise ValueError(
                "reference is drawn beside the standard deviations, ax takes the solution only: "
                "leave ax out, or draw the error with plot_error(reference, ax=...)."
            )
        return plotting.plot_solution(self, ax, names=names, title=title)

    def plot_error(
        self,
        reference: Callable[[float], Any] | None = None,
        *,
        ax: "Axes | None" = None,
        names: Sequence[str] | None = None,
    ) -> "Axes":
        """Draw standard deviations and, with a ``reference`` ``t -> y``, true errors; log scale."""
        from probode import plotting

        return plotting.plot_std(self, ax, names=names, reference=reference)

    def plot_samples(
        self,
        n: int = 20,
        *,
        seed: Any = 0,
        ax: "Axes | None" = None,
        deviations: bool = True,
        components: Sequence[int] | None = None,
        names: Sequence[str] | None = None,
    ) -> "Axes":
        """Draw sampled trajectories: what they differ from the mean by, with a band of 95 %.

        ``deviations=False`` draws the trajectories themselves, which at good tolerances coincide.
        ``components`` are indices into ``y`` (flattened in C order).
        """
        from probode import plotting

        return plotting.plot_samples(
            self, ax, n=n, seed=seed, deviations=deviations, components=components, names=names
        )

    def plot_steps(self, *, ax: "Axes | None" = None) -> "Axes":
        """Draw the lengths of the accepted steps on a logarithmic scale."""
        from probode import plotting

        return plotting.plot_steps(self, ax)

    def plot_phase(
        self,
        i: int = 0,
        j: int = 1,
        *,
        ax: "Axes | None" = None,
        enlarge: float | None = None,
        names: Sequence[str] | None = None,
    ) -> "Axes":
        """Draw component ``j`` over component ``i``, with ellipses that hold 95 %.

        Ellipses too small to be seen are enlarged by a round number, which the legend states;
        ``enlarge=1`` draws them as they are.
        """
        from probode import plotting

        return plotting.plot_phase(self, i, j, ax, enlarge=enlarge, names=names)

    def to_xarray(self, samples: int = 0, *, seed: Any = 0, t: Any = None) -> "Dataset":
        """An xarray Dataset of ``mean`` and ``std`` over ``time`` and ``state``.

        Parameters
        ----------
        samples
            Number of joint samples to draw: the variable ``samples``.
        seed
            An integer, or a JAX random key.
        t
            Times; by default ``posterior.t``.

        Returns
        -------
        Dataset
            ``state`` counts the components of ``y`` flattened in C order. The attributes say how
            the solution was computed, at what cost, and how the solve ended.
        """
        from probode import export

        return export.to_xarray(self, samples, seed=seed, t=t)

    def to_netcdf(
        self, path: str | os.PathLike[str], samples: int = 0, *, seed: Any = 0, t: Any = None
    ) -> None:
        """Write what :meth:`to_xarray` returns into a netCDF file."""
        from probode import export

        export.to_netcdf(self, path, samples, seed=seed, t=t)

    def to_dataframe(self, *, t: Any = None, names: Sequence[str] | None = None) -> "DataFrame":
        """A pandas DataFrame over ``time`` with columns ``y1``, ``y1_std``, ``y2``, ..."""
        from probode import export

        return export.to_dataframe(self, t=t, names=names)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything into a file (NumPy's ``.npz``), for :meth:`load`."""
        from probode import export

        export.save(self, path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Posterior":
        """Read a posterior that :meth:`save` has written: the same, bit for bit.

        Reading executes nothing that the file contains.
        """
        from probode import export

        return export.load(path)

    def __repr__(self) -> str:
        from probode import display

        return display.text(self)

    def _repr_html_(self) -> str | None:
        from probode import display

        return display.html(self)


def one_solve(posterior: Posterior, what: str) -> Posterior:
    """The posterior with NumPy arrays; raise if it is not that of one finished solve."""
    if is_traced(posterior):
        raise TypeError(
            f"{what} needs a finished solve, got one inside a trace (jit, vmap, grad): return the "
            "posterior from the traced function, and use what comes back."
        )
    batch = np.shape(posterior.status_code)
    if batch:
        raise TypeError(
            f"{what} is for one solve, got a batch of shape {batch}: take one member with "
            "jax.tree.map(lambda x: x[i], posterior)."
        )
    posterior = jax.tree.map(np.asarray, posterior)
    path = posterior.path
    if isinstance(path, SavedPath):
        # A trace has room for all of save_at, reached or not.
        count = int(path.saving.count)
        saved, marginals = jax.tree.map(lambda x: x[:count], (path.saved, path.marginals))
        path = SavedPath(saved, marginals, path.saving)
        posterior = replace(posterior, path=path)
    return posterior
