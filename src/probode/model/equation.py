"""Equations: what is solved, as residuals of the state that have to vanish.

An equation names the derivatives that it reads, gives the residual ``z`` of a state and the blocks
``B_i`` of its linearisation ``H = Σ_i B_i E_i``, and says what an update makes exact, how large an
error it leaves, and how a solve starts. An equation of your own is a frozen dataclass with what
differs from the explicit equation here; see ``docs/models.md``.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import factorial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from probode.base.record import unchecked
from probode.model.linearize import Blocks, LocalNoise, Residual, VectorField, local_noise
from probode.model.parts import Part, check_fields
from probode.model.prior import Prior
from probode.model.structure import Structure
from probode.model.system import System


@dataclass(frozen=True)
class Equation(Part):
    """``y^(k) = f(t, y, ..., y^(k-1))``: base of all equations, ``k`` is their ``order``.

    Parameters
    ----------
    function
        ``f(t, y, *args)``, for higher orders ``f(t, y, y', ..., *args)``: traceable by JAX, returns
        an array of the shape of ``y``.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from typing import ClassVar
    >>> import probode
    >>> @dataclass(frozen=True)
    ... class ThirdOrder(probode.Equation):
    ...     order: ClassVar[int] = 3
    >>> ThirdOrder(lambda t, y, v, a: -a).order  # y''' = -y'', ready for probode.solve
    3
    """

    function: Callable[..., Any] | None = None

    order: ClassVar[int]
    """The derivative that the equation determines; that many values are given at the start."""

    transport: ClassVar[str] = "explicit"
    """How its global errors are estimated: a name in :data:`probode.global_error.schemes.KINDS`.

    ``"explicit"``: along :meth:`first_order`, through the means :meth:`stacked`.
    """

    linearizations: ClassVar[int] = 1
    """How often the residual is linearised in a step: at the prediction, then where that leads."""

    iterations: ClassVar[int] = 0
    """How often the update of an accepted step is done again, linearised where it led."""

    def __post_init__(self) -> None:
        if self.function is not None and not callable(self.function):
            raise TypeError(
                f"{type(self).__name__} takes a function f(t, {self._arguments()}, *args), got "
                f"{type(self.function).__name__}."
            )

    def _arguments(self) -> str:
        return ", ".join("y" + "'" * i for i in range(self.order))

    def check_arguments(self, args: tuple[Any, ...]) -> None:
        """Refuse a function that cannot be called with ``t``, the derivatives and ``args``."""
        given: Any = self.function
        try:
            signature = inspect.signature(given)
        except (TypeError, ValueError):  # written in C
            return
        try:
            signature.bind(0.0, *[None] * self.order, *args)
        except TypeError as error:
            extra = "".join(f", arg{i + 1}" for i in range(len(args)))
            raise TypeError(
                f"the function of {type(self).__name__} is called as f(t, {self._arguments()}"
                f"{extra}), which {signature} does not take: {error}."
            ) from None

    @property
    def form(self) -> "Equation":
        """The equation without its function: what a compiled program depends on."""
        return self if self.function is None else replace(self, function=None)

    @property
    def exact(self) -> int | None:
        """The derivative that follows from all others, exactly, once ``z = 0`` is known."""
        return self.order

    @property
    def reads(self) -> int:
        """How many derivatives the function takes: ``y, ..., y^(reads-1)``."""
        return self.order

    def traced(self, jac: Any) -> tuple[Callable[..., Any] | None, Any]:
        """The function that is evaluated, and its Jacobian, from what users give."""
        return self.function, jac

    def suited(self, kind: str, start: str) -> "Equation":
        """The equation for a solver that uses this ``kind`` of Jacobian, this start: as it is."""
        return self

    def read(self, mean: Float[Array, "n d"]) -> Float[Array, " m"]:
        """The derivatives which the function takes, one after the other.

        Leading axes are a batch.
        """
        return _row_by_row(mean, self.reads)

    def controlled(self, mean: Float[Array, "n d"]) -> Float[Array, " m"]:
        """The derivatives ``0..order-1``, which have tolerances and error bars, in the same way."""
        return _row_by_row(mean, self.order)

    def residual(self, value: Float[Array, " d"], mean: Float[Array, "n d"]) -> Float[Array, " d"]:
        """``z`` of a state, from the value of the function there: ``E_k x - f``."""
        return mean[self.order] - value

    def blocks(self, jacobians: list[Array] | None) -> Blocks:
        """``B_i``, from the Jacobians of the function by what it takes (``None``: not used, EK0).

        Each Jacobian is a matrix ``(d, d)``, or its diagonal ``(d,)``.
        """
        found: Blocks = {i: -jacobian for i, jacobian in enumerate(jacobians or [])}
        return {**found, self.order: 1.0}

    def explicit(self, value: Float[Array, " d"]) -> Float[Array, " d"]:
        """``y^(k)`` from the value of the function: what makes the residual vanish."""
        return value

    def linearize(
        self, field: VectorField, t: Array, mean: Float[Array, "n d"], kind: str
    ) -> Residual:
        """Evaluate at a predicted mean; ``kind`` of Jacobian is "none", "diagonal" or "full"."""
        known = self.read(mean)
        jacobians = None
        if kind == "none":
            value = field(t, known)
        else:
            full = kind == "full"
            value, jacobian = (field.jacobian if full else field.jacobian_diagonal)(t, known)
            jacobians = jnp.split(jacobian, self.reads, axis=-1) if self.reads > 1 else [jacobian]
        z = self.residual(value, mean)
        rounding = jnp.finfo(mean.dtype).eps * (jnp.abs(z + value) + jnp.abs(value))
        return Residual(z, self.blocks(jacobians), jax.lax.stop_gradient(rounding))

    def local_noise(self, prior: Prior, h: Array, residual: Residual) -> LocalNoise:
        """What one step of unit noise says of the residual, and of the derivative it determines."""
        return local_noise(prior, h, residual, self.exact)

    def pin(self, structure: Structure, factor: Array, coords: Array, blocks: Blocks) -> Array:
        """Make ``R Hᵀ`` exactly zero after an update, where :attr:`exact` says how."""
        if self.exact is None:
            return factor
        return structure.pin(factor, coords, blocks, self.exact)

    def local_error(self, h: Array, std: Float[Array, " d"]) -> Float[Array, "k d"]:
        """Errors of ``y, ..., y^(k-1)`` after a step with an error ``std`` in the equation.

        ``|h|^(k-j) / (k-j)! std`` for derivative ``j``: the error integrated ``k - j`` times.
        """
        powers = [self.order - j for j in range(self.order)]
        return jnp.stack([jnp.abs(h) ** p / factorial(p) * std for p in powers])

    def lowered(self, order: int) -> int:
        """The order of the errors that are controlled, for a prior of this order."""
        return order - self.order + 1

    def first_order(self, field: Any) -> Any:
        """The same equation as ``u' = g(t, u)`` for ``u = (y, ..., y^(k-1))``: a vector field."""
        return field if type(self) is FirstOrder else System(self, field)

    def outset(self, field: VectorField, t0: Array, y0: Float[Array, " m"]) -> tuple[Array, Array]:
        """Return ``u = (y, ..., y^(k-1))`` at the start as it fulfils the equation, and ``u'``."""
        return y0, self.first_order(field)(t0, y0)

    def start(
        self,
        initialization: Callable[..., Any],
        field: VectorField,
        t0: Array,
        t1: Array,
        y0: Float[Array, " m"],
        h: Array,
        order: int,
    ) -> Any:
        """The state at ``t0`` up to derivative ``order``, from ``y0 = (y, ..., y^(k-1))``.

        A :class:`probode.filter.start.Start`: means and standard deviations. ``initialization``
        finds the derivatives of a system of first order.
        """
        system = self.first_order(field)
        found = initialization(system, t0, t1, y0, h, self.lowered(order))
        if self.order == 1:
            return found
        std = None if found.std is None else self.unstacked(found.std)
        return found._replace(mean=self.unstacked(found.mean), std=std)

    def stacked(self, mean: Any) -> Any:
        """Derivatives of ``u = (y, ..., y^(k-1))``, ``(*N, n-k+1, k d)``, from those of ``y``."""
        if self.order == 1:
            return mean
        rows = mean.shape[-2] - self.order + 1
        shifted = [mean[..., j : j + rows, :] for j in range(self.order)]
        xp: Any = np if isinstance(mean, np.ndarray) else jnp
        return xp.concatenate(shifted, axis=-1)

    def unstacked(self, stacked: Float[Array, "l m"]) -> Float[Array, "n d"]:
        """Inverse of :meth:`stacked`: all of the first part, and the last row of the others."""
        parts = jnp.split(stacked, self.order, axis=-1)
        return jnp.concatenate([parts[0], *(part[-1:] for part in parts[1:])])


def _row_by_row(mean: Any, rows: int) -> Any:
    if rows == 1:
        return mean[..., 0, :]
    return mean[..., :rows, :].reshape(*mean.shape[:-2], -1)


@dataclass(frozen=True)
class FirstOrder(Equation):
    """``y' = f(t, y, *args)``: what :func:`probode.solve` makes of a plain function.

    Examples
    --------
    >>> import probode
    >>> probode.FirstOrder(lambda t, y: -y).order
    1
    """

    order: ClassVar[int] = 1

    @classmethod
    def of(cls, function: Any) -> "FirstOrder":
        """With a function that is checked where it is traced, which says more."""
        return unchecked(cls, {"function": function})


FIRST_ORDER = FirstOrder()
"""The form of ``y' = f(t, y)``."""


def as_equation(function: Any) -> Equation:
    """An equation as it is; a function as that of ``y' = f(t, y)``."""
    if isinstance(function, type) and issubclass(function, Equation):
        raise TypeError(f"pass an equation, {function.__name__}(f), not its class.")
    if not isinstance(function, Equation):
        return FirstOrder.of(function)
    check_fields(function)
    order = getattr(function, "order", None)
    if isinstance(order, bool) or not isinstance(order, int) or order < 1:
        raise TypeError(
            f"{type(function).__name__}.order must be a positive integer, the derivative that the "
            f"equation determines, got {order!r}."
        )
    if function.function is None:
        raise TypeError(
            f"{type(function).__name__}() has no function: pass one, {type(function).__name__}(f)."
        )
    return function


def check_equation(equation: Equation, field: VectorField, structure: Structure, kind: str) -> None:
    """Refuse an equation of a user's own whose parts do not fit, before any step.

    ``kind`` is that of the Jacobian that the solver uses.
    """
    own: Any = type(equation)
    if _is_explicit(own):
        return
    n, d = structure.n, structure.d
    name = type(equation).__name__
    number = jax.ShapeDtypeStruct((), float)
    mean = jax.ShapeDtypeStruct((n, d), float)
    found = jax.eval_shape(lambda t, m: equation.linearize(field, t, m, kind), number, mean)
    if found.z.shape != (d,):
        raise ValueError(
            f"{name}.residual must return an array of shape ({d},), the residual of each "
            f"component, got {found.z.shape}."
        )
    if not found.blocks or not all(isinstance(i, int) and 0 <= i < n for i in found.blocks):
        raise ValueError(
            f"{name}.blocks must name derivatives from 0 to {n - 1} (the order of the prior), got "
            f"{sorted(found.blocks)}."
        )
    for i, block in found.blocks.items():
        if jnp.shape(block) not in ((), (d,), (d, d)):
            raise ValueError(
                f"{name}.blocks: block {i} must be a number, a diagonal ({d},) or a matrix "
                f"({d}, {d}), got shape {jnp.shape(block)}."
            )
        if jnp.ndim(block) > structure.widest_block:
            raise ValueError(
                f"{name}.blocks: block {i} has shape {jnp.shape(block)}, which does not fit the "
                f"structure {structure.name!r} of the solver's covariances: use a solver with a "
                "larger structure=, or EK1."
            )
    if equation.exact is not None and equation.exact not in found.blocks:
        raise ValueError(
            f"{name}.exact is {equation.exact}, but its blocks are those of "
            f"{sorted(found.blocks)}: it names the derivative that the others determine, or is "
            "None."
        )


@lru_cache(maxsize=64)
def _is_explicit(own: Any) -> bool:
    """Whether all that is computed of such an equation is as in the base class."""
    return all(getattr(own, name) is getattr(Equation, name) for name in _COMPUTED)


_COMPUTED = ("residual", "blocks", "linearize", "exact", "explicit", "read", "local_error")
