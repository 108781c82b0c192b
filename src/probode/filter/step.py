"""One step of the filter: predict, calibrate, estimate the error, update."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from probode.base.jax_inside import is_tracer
from probode.base.record import record, unchecked
from probode.filter.frozen import differentiated_at
from probode.model import gaussian
from probode.model.diffusion import (
    Diffusion,
    DynamicDiffusion,
    Evidence,
    FixedDiffusion,
    Innovation,
)
from probode.model.equation import FIRST_ORDER, Equation, FirstOrder
from probode.model.gaussian import norm
from probode.model.linearize import (
    LocalNoise,
    Residual,
    VectorField,
    correction_noise,
    quotient,
    times,
    with_linear_part,
)
from probode.model.parts import Part
from probode.model.prior import IWP, Prior
from probode.model.second_order import SecondOrder
from probode.model.structure import BlockDiagonal, Dense, Isotropic, Structure

UNRESOLVED = 1e-10
"""A step's noise below this part of what it is added to gives its observation no weight."""
_CONVERGENT = 0.5
"""Part of the residual that an update may leave: iterations then converge quickly."""
_MOVED_AGAIN = 10.0
"""How many times what a second linearisation moves ``y`` by counts as an error."""
_FAR = 1000.0
"""A step is linearised again if its residual alone would count so many times what is tolerated."""


@dataclass(frozen=True)
class Method(Part):
    """A solver on a problem of dimension ``d``: all of it but the problem's own numbers."""

    prior: Prior
    structure: Structure
    jacobian: str
    """What the linearisation uses: "none", "diagonal" or "full"."""
    diffusion: Diffusion
    evaluations: int = 1
    """Evaluations of ``f`` in an accepted step: with two, the mean is corrected with the second."""

    equation: Equation = FIRST_ORDER
    """The form of what is solved, without its function."""

    error: str = "residual"
    """What a step is judged by: the ``"residual"``, or also the ``"correction"`` of ``y``.

    With the second it is linearised again where these two say very different things.
    """

    frozen: bool = False
    """Whether only means have derivatives, with steps, gains and covariances held fixed.

    These are derivatives of the solution: the same filter applied to the sensitivities
    ``S' = J S + ∂f/∂θ``, see :mod:`probode.filter.frozen`. Derivatives of the gains are left out:
    they may grow by many orders of magnitude along stiff solutions.
    """

    def with_frozen_gains(self) -> "Method":
        """Return the method with derivatives of means only, by numbers of the equation only."""
        held = jax.tree.map(lambda x: jax.lax.stop_gradient(x) if is_tracer(x) else x, self)
        return unchecked(Method, {**vars(held), "equation": self.equation, "frozen": True})

    def constant(self, tree: Any) -> Any:
        """Return the values without derivatives if gains are frozen."""
        return jax.lax.stop_gradient(tree) if self.frozen else tree

    @property
    def looks_back(self) -> bool:
        """Whether residuals are differentiated at the corrected mean: gains contain Jacobians.

        Without Jacobians (EK0) residuals are differentiated where they were evaluated.
        """
        return self.frozen and (self.jacobian != "none" or self.equation.linearizations > 1)

    @property
    def is_ours(self) -> bool:
        """Whether every part is of a class of this library, whose formulas are known.

        Engines that have these formulas written out ask for it: a class that inherits from one of
        ours may have changed any of them, and is run by its own, in JAX.
        """
        return (
            type(self) is Method
            and type(self.prior) is IWP
            and type(self.equation) in (FirstOrder, SecondOrder)
            and type(self.structure) in (Isotropic, BlockDiagonal, Dense)
            and type(self.diffusion) in (DynamicDiffusion, FixedDiffusion)
        )

    def local_noise(self, h: Array, residual: Residual) -> LocalNoise:
        """What one step of unit noise says of the residual, and of the error."""
        if self.error == "correction":
            return correction_noise(self.prior, h, residual)
        return self.equation.local_noise(self.prior, h, residual)

    @property
    def follows(self) -> str:
        """What of the Jacobian its steps follow, however stiff: of EK0 what the prior knows."""
        if self.jacobian != "none" or not self.prior.knows_linear_part:
            return self.jacobian
        return "full" if self.structure.widest_block == 2 else "diagonal"

    @property
    def drift_shape(self) -> tuple[int, ...] | None:
        """Shape of what the prior takes from the equation in each step, if it does."""
        if not self.prior.per_step:
            return None
        whole = self.structure.widest_block == 2 and self.jacobian != "diagonal"
        return (self.structure.d,) * (2 if whole else 1)

    def jacobian_evaluations(self, attempted: Any, accepted: Any, again: Any = 0) -> Any:
        """Evaluations of the Jacobian in so many steps, some of them linearised ``again``."""
        linearised = attempted * self.equation.linearizations + again
        linearised = linearised + accepted * self.equation.iterations
        linearised = 0 if self.jacobian == "none" else linearised
        return linearised + (accepted + 1 if self.prior.per_step else 0)

    def f_evaluations(self, attempted: Any, accepted: Any, again: Any = 0) -> Any:
        """Evaluations of ``f`` in so many steps, some of them linearised ``again``."""
        more = self.equation.iterations + self.evaluations - 1
        return attempted * self.equation.linearizations + again + accepted * more


@record
class State:
    """A Gaussian over the state at time ``t``.

    The mean is in plain units, the right factor of the covariance in the coordinates ``T(h)`` of
    the step that led here: ``Cov(x) = T(h) RᵀR T(h)``.
    """

    t: Array
    h: Array
    mean: Float[Array, "n d"]
    factor: Array
    drift: Array | None = None
    """Of the prior in the step from here, where each has its own (see :func:`drift_at`)."""


class Attempt(NamedTuple):
    """A step up to the point where it is accepted or rejected: no covariance moved yet."""

    t: Array
    h: Array
    mean: Float[Array, "n d"]
    """Predicted mean."""
    residual: Residual
    scale: Array
    """``s`` of the step: standard deviation of its process noise, in units of y'."""
    error: Float[Array, "k d"]
    """Estimates of the local errors of ``y`` and of the derivatives that a start gives with it."""
    prior: Prior
    """That of this step."""
    again: Array | bool = False
    """Whether it was linearised again, where that depends on the step."""


def of_step(method: Method, state: State, h: Array) -> Method:
    """The method with the prior of the step of length ``h`` from ``state``."""
    prior = method.prior.over(h, state.drift)
    return method if prior is method.prior else replace(method, prior=prior)


def drift_at(
    method: Method, field: VectorField, t: Array, mean: Float[Array, "n d"]
) -> Array | None:
    """What the prior of the step from here takes from the equation, where it asks for that.

    ``-B_k⁻¹ B_(k-1)``, the linear part of how the highest derivative goes on: of ``y' = f`` the
    Jacobian, or its diagonal. It belongs to the prior only: what is not finite counts as zero.
    """
    shape = method.drift_shape
    if shape is None:
        return None
    kind = "full" if len(shape) == 2 else "diagonal"
    equation = method.equation
    blocks = equation.linearize(field, t, mean, kind).blocks
    rate = -quotient(blocks[equation.order], blocks.get(equation.order - 1, jnp.zeros(shape)))
    return jnp.where(jnp.isfinite(rate), rate, 0.0)


def moved_factor(method: Method, state: State, h: Array) -> Array:
    """``R Ãᵀ`` in the coordinates of the step of length ``h``: prediction without its noise."""
    structure, transition = method.structure, method.prior.transition(jnp.abs(h))
    change = method.prior.powers(state.h / h)
    if transition.shape[-1] != structure.n:
        change = structure.spread(change)
    return structure.transit(state.factor, transition * change)


def predicted_factor(method: Method, state: State, h: Array, scale: Array) -> Array:
    """Rows of a factor of the predicted covariance: ``R Ãᵀ`` over ``s R_Q``."""
    moved = moved_factor(method, state, h)
    noise = method.structure.noise(method.prior.noise_factor(jnp.abs(h)), scale)
    return jnp.concatenate([moved, noise], axis=-2)


class Measure(Protocol):
    """How large the error of a step is, in units of what is tolerated."""

    def __call__(self, error: Float[Array, "k d"], mean: Float[Array, "n d"]) -> Array:
        """Measure an error where the mean is predicted."""
        ...


class Slope(Protocol):
    """``f(t, y)``."""

    def __call__(self, t: Array, y: Float[Array, " d"]) -> Float[Array, " d"]:
        """Evaluate."""
        ...


def attempt(
    method: Method,
    field: VectorField,
    state: State,
    t_next: Array,
    reference: Array,
    evidence: Evidence,
    before: Array,
    measure: Measure | None = None,
) -> Attempt:
    """Predict the mean, evaluate, calibrate and estimate the local error of a step.

    1. ``m⁻ = A m``,  ``z`` and ``H`` of the equation at ``m⁻`` (and again nearer to the solution,
       where the equation or the method asks for it)
    2. ``s`` from the diffusion model, in units where ``T_1 = 1``
    3. ``error = |h| s sqrt(diag(H Q̃ Hᵀ))``, for higher orders as the equation says; bounded by the
       correction of ``y`` if the method asks for it (:func:`.linearize.correction_noise`)

    ``reference`` is the step length whose unit a fixed diffusion is measured in, ``before`` the
    ``s`` of the step that led to ``state``; ``measure`` is asked where corrections count.
    """
    h = t_next - state.t
    known = method.prior.linear_part(state.drift) if method.jacobian == "none" else None
    method = of_step(method, state, h)
    mean = predicted = method.prior.predict_mean(state.mean, h)
    if method.looks_back:  # the update has all derivatives
        field, mean, method = jax.lax.stop_gradient((field, mean, method))
    observation = method.equation.linearize(field, t_next, mean, method.jacobian)
    observation = with_linear_part(observation, method.equation.order, known)

    local = method.local_noise(h, method.constant(observation))
    again: Array | bool = False
    beyond, left = jnp.ones(()), None
    if method.error == "correction":
        assert measure is not None
        again = _looks_again(method, h, mean, local, measure)
        observation, local, left = _looked_again(
            method, field, t_next, mean, h, observation, local, again
        )
    for _ in range(method.equation.linearizations - 1):
        observation, local, beyond = _nearer(method, field, t_next, mean, h, local)
    local_scale = method.diffusion.local_scale(local)
    unit = method.prior.noise_scale(h / reference) if method.diffusion.fixed else jnp.ones(())
    if method.diffusion.remembers:
        before = before * method.prior.noise_scale(h / state.h)
    scale = method.diffusion.step_scale(local_scale, unit, before)

    proposal = Attempt(
        t_next, h, predicted, observation, scale, mean[: method.equation.order], method.prior, again
    )
    innovation = None
    if method.diffusion.needs_innovation:
        innovation = update(method, state, proposal, None)[1]
    error_scale = method.diffusion.error_scale(local_scale, unit, evidence, innovation)
    std = beyond * error_scale * local.std
    error = method.equation.local_error(h, std)
    return proposal._replace(error=error if left is None else jnp.hypot(error, left))


def leads_to(
    method: Method, field: VectorField, state: State, t_next: Array, measure: Measure
) -> tuple[Array, Array]:
    """Whether a step is linearised again, and the mean there: where the first time leads."""
    h = t_next - state.t
    method = of_step(method, state, h)
    mean = method.prior.predict_mean(state.mean, h)
    observation = method.equation.linearize(field, t_next, mean, method.jacobian)
    local = method.local_noise(h, observation)
    change = _change(method, h, local)
    return _looks_again(method, h, mean, local, measure), mean.at[: len(change)].add(-change)


def _looks_again(
    method: Method, h: Array, mean: Array, local: LocalNoise, measure: Measure
) -> Array:
    """Whether an error is tolerated only because its bound is much smaller than the residual.

    Steps may then be so long that the linearisation holds no longer, which the residual does not
    tell: in Robertson's problem where a component is far below its tolerance.
    """
    assert local.unbounded is not None
    scale = method.diffusion.local_scale(local)
    bounded, alone = (
        measure(method.equation.local_error(h, scale * std), mean)
        for std in (local.std, local.unbounded)
    )
    return jax.lax.stop_gradient((bounded <= 1.0) & (alone > _FAR))


def _change(method: Method, h: Array, local: LocalNoise) -> Array:
    """What an update from an exactly known state takes from ``y, ..., y^(k)``."""
    assert local.update is not None
    rows = method.equation.order + 1
    coords = method.prior.coordinates(h)[:rows, None]
    return coords * local.update.correction[:, 0].reshape(rows, -1)


def _there(
    method: Method, field: VectorField, t: Array, mean: Array, h: Array, local: LocalNoise
) -> tuple[Residual, Residual]:
    """The residual where an update from an exactly known state leads, at ``x``, and at ``m⁻``.

    The second is ``r(x) + H (m⁻ - x)`` with ``H = r'(x)``.
    """
    change = _change(method, h, local)
    there = mean.at[: len(change)].add(-change)
    found = method.equation.linearize(field, t, there, method.jacobian)
    z = found.z + sum(times(block, change[i]) for i, block in found.blocks.items())
    return found, found._replace(z=z)


def _nearer(
    method: Method, field: VectorField, t: Array, mean: Array, h: Array, local: LocalNoise
) -> tuple[Residual, LocalNoise, Array]:
    """The residual linearised nearer to the solution, and how many times its error counts.

    Iterations would not converge on long steps: of the residual a part ``ρ`` was left at ``x``, and
    errors count ``1 + (ρ / 0.5)²`` times. (Equations that ask for this judge by corrections.)
    """
    found, observation = _there(method, field, t, mean, h, local)
    again = method.local_noise(h, method.constant(observation))
    assert local.update is not None
    size, rest = (
        norm(gaussian.solve_transposed(local.update.innovation, one[:, None])[:, 0])
        for one in (observation.z, found.z)
    )
    ratio = jnp.where(size == 0.0, 0.0, rest / jnp.where(size == 0.0, 1.0, size))
    return observation, again, jax.lax.stop_gradient(1.0 + (ratio / _CONVERGENT) ** 2)


def _looked_again(
    method: Method,
    field: VectorField,
    t: Array,
    mean: Array,
    h: Array,
    observation: Residual,
    local: LocalNoise,
    again: Any,
) -> tuple[Residual, LocalNoise, Array]:
    """The residual linearised nearer to the solution if ``again``, and what that adds to errors.

    Ten times what ``r(x)`` moves ``y`` by is an error of its own, in units of the tolerance. (A
    part of the residual is not: on Robertson's problem it was near one on steps whose second
    linearisation moved nothing that was tolerated.)
    """

    def look() -> tuple[Array, ...]:
        found, nearer = _there(method, field, t, mean, h, local)
        noise = method.local_noise(h, method.constant(nearer))
        assert noise.update is not None
        moved = noise.update.correct(found.z[:, None])[: found.z.shape[0], 0]
        left = jax.lax.stop_gradient(_MOVED_AGAIN * method.prior.coordinates(h)[0] * moved)
        return nearer.z, nearer.blocks[0], nearer.rounding, noise.whitened, noise.std, left

    def stay() -> tuple[Array, ...]:
        z, blocks, rounding = observation
        return z, blocks[0], rounding, local.whitened, local.std, jnp.zeros_like(z)

    z, block, rounding, whitened, std, left = jax.lax.cond(again, look, stay)
    chosen = Residual(z, {**observation.blocks, 0: block}, rounding)
    return chosen, LocalNoise(whitened, std), left[None]


def update(
    method: Method, state: State, step: Attempt, again: Slope | None
) -> tuple[State, Innovation]:
    """Condition the prediction on ``z = 0``: all the covariance work of a step, in one QR.

    A method with two evaluations has the second from ``again``, where the first has corrected y.
    With ``J = 0`` that is an iteration of the (iterated) filter: ``m = m⁻ - K z``, its own ``z``.
    Everything else follows from the first. If the second is not finite, the first stands.

    An equation may ask for iterations with an ``H`` of their own, each a whole update: around the
    mean ``m`` of the last one, ``z = r(m) + H (m⁻ - m)`` with ``H = r'(m)``.

    With frozen gains the derivatives of ``m`` are those of ``m⁻ - K z``, see :mod:`.frozen`.
    """
    method = replace(method, prior=step.prior)
    moving = step.mean, again, method.equation
    if method.looks_back:
        step, again, method = jax.lax.stop_gradient((step, again, method))
    structure, equation = method.structure, method.equation
    coords = method.prior.coordinates(step.h)
    factor = predicted_factor(method, state, step.h, step.scale)
    residual = step.residual
    result, blank = _conditioned(method, factor, coords, residual)

    def corrected(z: Array) -> Array:
        correction = structure.join(result.correct(structure.cut_residual(z)))
        return step.mean - coords[:, None] * correction

    mean = corrected(residual.z)
    for _ in range(equation.iterations if again is not None else 0):
        # Equations that iterate are evaluated in JAX, with Jacobians, and by nothing else.
        residual = _around(method, cast(VectorField, again), step, mean, residual)
        result, blank = _conditioned(method, factor, coords, residual)
        mean = corrected(residual.z)
    z, blocks, _ = residual
    final = z
    if method.evaluations == 2 and again is not None:
        second = equation.residual(again(step.t, equation.read(mean)), step.mean)
        for i, block in blocks.items():  # r(x) = r(m) + H (x - m), around the corrected m
            if i < equation.order:
                moved = step.mean[i] - mean[i]
                second = second + times(block, moved)
        final = jnp.where(jnp.all(jnp.isfinite(second)), second, z)
        mean = corrected(final)
    if method.looks_back:
        predicted, field, live = moving
        step = step._replace(mean=predicted)
        if field is not None:
            known = step.t, predicted, mean, final
            field = cast(VectorField, field)
            final = differentiated_at(live, method.jacobian, field, *known)
        mean = corrected(final)

    # The observation is exact: after the update R Hᵀ = 0. What rounding leaves there would be
    # taken for information by a later step whose own noise is as small.
    posterior = equation.pin(structure, result.factor, coords, method.constant(blocks))

    pivots = jnp.where(blank, 1.0, jnp.abs(result.pivots)).reshape(-1)
    innovation = Innovation(
        whitened=structure.join_residual(jnp.where(blank[..., None], 0.0, result.whitened)),
        log_det=jnp.broadcast_to(2.0 * jnp.log(pivots), z.shape),
        observed=jnp.broadcast_to(1.0 - blank.reshape(-1), z.shape),
    )
    return State(step.t, step.h, mean, posterior), method.constant(innovation)


def _conditioned(
    method: Method, factor: Array, coords: Array, residual: Residual
) -> tuple[gaussian.Update, Array]:
    """The prediction conditioned on a residual, and which observations have no variance at all."""
    structure = method.structure
    observed = structure.observe(factor, coords, residual.blocks)

    # Exact data make innovations singular: a constant f has no residual, hence no diffusion.
    blank = jnp.all(observed == 0.0, axis=-2)
    noise = None
    if not method.diffusion.fixed:
        noise = structure.cut_noise(residual.rounding)
        noise = jnp.where(blank & (noise == 0.0), 1.0, noise)
        noise = jnp.maximum(noise, _hidden_noise(observed, structure.factor_shape[-1]))
    factor, observed, noise = method.constant((factor, observed, noise))
    return gaussian.condition(factor, observed, structure.cut_residual(residual.z), noise), blank


def _around(
    method: Method, field: VectorField, step: Attempt, mean: Array, before: Residual
) -> Residual:
    """The residual at the prediction, linearised at ``mean``; if not finite, as it was before."""
    found = method.equation.linearize(field, step.t, mean, method.jacobian)
    moved = [block @ (step.mean[i] - mean[i]) for i, block in found.blocks.items()]
    found = found._replace(z=found.z + sum(moved))
    finite = jnp.array([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(found)])
    return jax.tree.map(lambda new, old: jnp.where(jnp.all(finite), new, old), found, before)


def _hidden_noise(observed: Array, n: int) -> Array:
    """An observation noise for steps whose own noise (the last ``n`` rows) is lost in rounding.

    Without noise an observation of what is known already says nothing new. But where it depends on
    y by rounding only, ``P Hᵀ S⁻¹`` would be a quotient of roundings, and wipe out the covariance.
    """
    known, own = gaussian.std_of(observed[..., :-n, :]), gaussian.std_of(observed[..., -n:, :])
    return jax.lax.stop_gradient(jnp.where(own < UNRESOLVED * known, UNRESOLVED * known, 0.0))


def extrapolate(method: Method, state: State, h: Array, scale: Array) -> State:
    """Predict over a time ``h`` with process noise ``scale``, without any observation."""
    method = of_step(method, state, h)
    mean = method.prior.predict_mean(state.mean, h)
    factor = gaussian.triangularize(predicted_factor(method, state, h, scale))
    return State(state.t + h, h, mean, factor, state.drift)
