"""Implicit equations ``F(t, y, y') = 0``, differential-algebraic ones among them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from probode.base.errors import check_choice
from probode.model import consistent, gaussian
from probode.model.equation import Equation
from probode.model.linearize import Blocks, LocalNoise, Residual, VectorField
from probode.model.prior import Prior
from probode.model.start import Start
from probode.model.structure import Structure

SINGULAR = 1e-13
"""A matrix with a smaller reciprocal condition, in units of its rows and columns, is singular."""
_INCONSISTENT = 1e-8
"""What a start may be off, in parts of its largest component, and is put right without a word."""
_ROUNDINGS = 4.0
"""Roundings of its terms that a residual may consist of."""
_HIDDEN = 1e-8
"""Directions of an observation that are left, after others, with less than this part: rounding."""


@dataclass(frozen=True)
class Implicit(Equation):
    """``F(t, y, y', *args) = 0``: equations that are not solved for ``y'``, for EK1.

    ``∂F/∂y'`` may be singular: then the equation is a differential-algebraic one, of index 1 (see
    ``docs/models.md`` for those of higher index). The value at the start is ``y0``, or a *tuple*
    ``(y0, yp0)`` with a guess of ``y'``, which is zero by default.

    Parameters
    ----------
    function
        ``F(t, y, yp, *args)``, traceable by JAX; returns an array of the shape of ``y``.
    inconsistent
        What to do with a ``y0`` for which no ``y'`` fulfils the equation. ``"fix"``: change it in
        its algebraic components only (those whose derivative does not appear; in general along the
        kernel of ``∂F/∂y'``), and say so in the posterior's ``message``. ``"refuse"``: an error.

    Examples
    --------
    >>> import probode
    >>> cubic = probode.Implicit(lambda t, y, yp: yp**3 + yp + y)
    >>> posterior = probode.solve(cubic, (0.0, 1.0), 1.0)
    >>> bool(posterior.success)
    True
    """

    inconsistent: str = field(default="fix", kw_only=True)

    order: ClassVar[int] = 1
    transport: ClassVar[str] = "implicit"
    linearizations: ClassVar[int] = 2
    iterations: ClassVar[int] = 1
    """``linearizations`` are along a step from an exactly known state. The update knows that ``y``
    is not, and leads elsewhere, where the next step begins with the ``∂F/∂y`` of that place. If the
    two differ, what was pinned contradicts the algebraic equations however short that step is, and
    none is short enough: the transistor amplifier at loose tolerances."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("inconsistent", self.inconsistent, ("fix", "refuse"))

    def _arguments(self) -> str:
        return "y, y'"

    @property
    def reads(self) -> int:
        return 2

    @property
    def exact(self) -> None:
        """No derivative follows from all others where ``∂F/∂y'`` is singular."""
        return None

    def suited(self, kind: str, start: str) -> Equation:
        """Only EK1 can: without Jacobians nothing is known of the algebraic components."""
        if kind != "full":
            self._refuse("is solved by EK1")
        if start != "taylor":
            raise ValueError(
                f"{type(self).__name__} starts from exact derivatives, initialization='taylor', "
                f"got {start!r}."
            )
        return self

    def _refuse(self, why: str) -> NoReturn:
        raise ValueError(
            f"{type(self).__name__} {why}: EK0 and DiagonalEK1 do not see how the equation depends "
            'on y and y\'. Use EK1 (solver=EK1(...), in solve_ivp method="EK1").'
        )

    def residual(self, value: Float[Array, " d"], mean: Float[Array, "n d"]) -> Float[Array, " d"]:
        """``F`` itself."""
        return value

    def blocks(self, jacobians: list[Array] | None) -> Blocks:
        """``∂F/∂y`` and ``∂F/∂y'``."""
        assert jacobians is not None
        return dict(enumerate(jacobians))

    def linearize(
        self, field: VectorField, t: Array, mean: Float[Array, "n d"], kind: str
    ) -> Residual:
        """At a predicted mean. Rounding is that of the products ``B y`` and ``A y'``."""
        value, jacobian = field.jacobian(t, self.read(mean))
        by_value, by_slope = consistent.split(jacobian)
        size = jnp.abs(by_value) @ jnp.abs(mean[0]) + jnp.abs(by_slope) @ jnp.abs(mean[1])
        rounding = jax.lax.stop_gradient(jnp.finfo(mean.dtype).eps * size)
        return Residual(value, self.blocks([by_value, by_slope]), rounding)

    def local_noise(self, prior: Prior, h: Array, residual: Residual) -> LocalNoise:
        """The error of a step is what its update moves ``y`` by, from an exactly known state.

        ``δ = E_0 Q̃ Hᵀ (H Q̃ Hᵀ)⁻¹ z``, in units such that it is ``h z`` for ``y' = f(t)``, as for an
        explicit equation. Unlike a standard deviation of ``z`` it has a meaning for algebraic
        components, and for each component in its own units.
        """
        z, d = residual.z, residual.z.shape[0]
        factor, coords = prior.noise_factor(jnp.abs(h)), prior.coordinates(h)
        if factor.shape != (prior.size, prior.size):
            raise ValueError(
                f"{type(self).__name__} takes priors that are the same for all components, got "
                f"{prior!r}: use a number as its rate, or IWP."
            )
        by_value, by_slope = residual.blocks[0].T * coords[0], residual.blocks[1].T * coords[1]
        rows = [factor[0, 0] * by_value + factor[0, 1] * by_slope, factor[1, 1] * by_slope]
        known = jnp.kron(jnp.asarray(factor)[:2, :2], jnp.eye(d))
        update = gaussian.condition(known, jnp.concatenate(rows), z[:, None])
        whitened = update.whitened[:, 0]
        unit = (factor[0, 1] ** 2 + factor[1, 1] ** 2) / (factor[0, 0] * factor[0, 1])
        # What rounding leaves of algebraic equations no step makes smaller.
        beyond = jnp.sign(z) * jnp.maximum(jnp.abs(z) - _ROUNDINGS * residual.rounding, 0.0)
        moved = unit * jnp.abs(update.correct(beyond[:, None])[:d, 0])
        size = gaussian.norm(whitened) / np.sqrt(d)
        size = jnp.where(size == 0.0, 1.0, size)
        return LocalNoise(whitened, moved / size, update)

    def outset(self, field: VectorField, t0: Array, y0: Float[Array, " m"]) -> tuple[Array, Array]:
        """Return a consistent ``y`` with the guess of ``y'``, and the slope of ``y``."""
        given, guess = jnp.split(y0, 2)
        known = consistent.consistent(field, t0, given, guess)
        slope = consistent.derivatives(field, t0, known, 1)[1]
        return jnp.concatenate([known.y, guess]), jnp.concatenate([slope, jnp.zeros_like(guess)])

    def start(
        self,
        initialization: Callable[..., Any],
        field: VectorField,
        t0: Array,
        t1: Array,
        y0: Float[Array, " m"],
        h: Array,
        order: int,
    ) -> Start:
        """A consistent state, from ``y0`` and the guess of ``y'``."""
        given, slope = jnp.split(y0, 2)
        known = consistent.consistent(field, t0, given, slope)
        mean = consistent.derivatives(field, t0, known, order)
        usable = (consistent.reciprocal_condition(known) > SINGULAR) & _fulfilled(known)
        if self.inconsistent == "refuse":
            usable = usable & ~was_changed(given, known.y)
        return Start(jnp.where(usable, mean, jnp.nan), None)

    def first_order(self, field: VectorField) -> Callable[[Array, Array], Array]:
        """There is no explicit form: ``F`` itself, of ``y`` and ``y'``."""
        return field

    def check_start(
        self, field: VectorField, t0: Any, y0: Any
    ) -> tuple[str | None, np.ndarray, np.ndarray]:
        """Refuse a start that cannot be made, before any step.

        ``y0`` holds the value and the guess of the slope. What was changed in it, in words; and a
        value and a slope that fulfil the equation.
        """
        given, guess = np.split(np.asarray(y0), 2)
        known, slope, condition = jax.tree.map(np.asarray, _found(field, t0, given, guess))
        name = type(self).__name__
        jacobians = {"y'": known.by_slope, "y": known.by_value}
        for what, matrix in jacobians.items():
            if not np.all(np.isfinite(matrix)):
                raise ValueError(
                    f"{name}: the derivative of the equation by {what} is NaN or Inf at the start, "
                    f"t = {float(t0):.6g}, y = {_short(given)}."
                )
        if not condition > SINGULAR:
            rank = int(np.round(len(given) - np.trace(known.kernel)))
            raise ValueError(
                f"{name}: the algebraic equations do not determine the algebraic components at the "
                f"start, t = {float(t0):.6g} (the derivative by y' has rank {rank} of "
                f"{len(given)}). Most likely the index of the equation is above 1: differentiate "
                "the constraints by time until they do, as in docs/models.md, 'Index above 1'. If "
                "the derivative by y' is singular at the start only, begin elsewhere, or give a "
                "guess of y': (y0, yp0)."
            )
        if not _fulfilled(known):
            raise ValueError(
                f"{name}: no start that fulfils the equation was found near y0 = {_short(given)} "
                f"(the residual stays at {_short(known.residual)}): give values nearer to one, and "
                "a guess of y' with it, (y0, yp0)."
            )
        if not was_changed(given, known.y):
            return None, known.y, slope
        change = (
            f"y0 = {_short(given)} does not fulfil the algebraic equations: changed by "
            f"{_short(known.y - given)} in its algebraic components it does"
        )
        if self.inconsistent == "refuse":
            raise ValueError(
                f"{name}: {change}. Pass y0 = {np.array2string(known.y, separator=', ')}, or "
                "inconsistent='fix' to have it changed."
            )
        return change, known.y, slope

    def pin(self, structure: Structure, factor: Array, coords: Array, blocks: Blocks) -> Array:
        """Make ``R Hᵀ`` zero by the smallest change of ``y`` and ``y'`` in units of their spread.

        With ``W`` the standard deviations of the columns ``C`` of ``y`` and ``y'``, and
        ``W Hᵀ = O U`` (orthogonal, triangular): ``C <- C - (C Hᵀ) U⁻¹ Oᵀ W``.
        """
        columns = jnp.concatenate([structure.select(factor, i) for i in (0, 1)], axis=-1)
        observation = jnp.concatenate([coords[i] * blocks[i].T for i in (0, 1)])
        spread = gaussian.std_of(columns)
        weighed = spread[:, None] * observation
        orthogonal, upper = jnp.linalg.qr(jax.lax.stop_gradient(weighed))
        pivots, size = jnp.abs(jnp.diagonal(upper)), gaussian.std_of(weighed)
        rest = gaussian.solve_transposed(upper, (columns @ observation).T)
        rest = jnp.where((pivots > _HIDDEN * size)[:, None], rest, 0.0)
        change = (orthogonal @ rest).T * spread
        pinned = columns - jax.lax.stop_gradient(jnp.where(jnp.isfinite(change), change, 0.0))
        return factor.at[..., : pinned.shape[-1]].set(pinned)


def was_changed(given: Any, found: Any) -> Any:
    """Whether starts ``(*B, d)`` were inconsistent by more than their rounding."""
    return abs(found - given).max(axis=-1) > _INCONSISTENT * abs(given).max(axis=-1)


def _fulfilled(known: consistent.Consistent) -> Any:
    """Whether little is left of the equation, in parts of its terms ``B y`` and ``A y'``."""
    size = abs(known.by_value) @ abs(known.y) + abs(known.by_slope) @ abs(known.slope)
    allowed = _INCONSISTENT * size.max() + np.finfo(float).tiny
    return abs(known.residual).max() <= allowed


def _short(values: np.ndarray) -> str:
    return np.array2string(np.asarray(values), precision=4, threshold=6, edgeitems=2)


@jax.jit
def _found(
    field: Any, t0: Array, y0: Array, guess: Array
) -> tuple[consistent.Consistent, Array, Array]:
    known = consistent.consistent(field, t0, y0, guess)
    slope = consistent.derivatives(field, t0, known, 1)[1]
    return known, slope, consistent.reciprocal_condition(known)
