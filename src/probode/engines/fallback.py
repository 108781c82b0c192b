"""Where a vector field has no derivative: what is done instead, and how it is said.

``-sqrt(max(y, 0))`` is finite wherever a draining tank goes; its derivative is not, and a solver
that linearises, or starts from exact derivatives, would stop there. So a
solve whose *derivatives* were not finite goes on

- from the start by Runge-Kutta instead of the exact one,
- with zeros for the entries of the Jacobian that are not finite (there EK1 is an EK0).

Both are approximations that the step control and the error estimate judge like any other. Where
``f`` itself is not finite the step is rejected, as always.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from probode.base.compile import compiled
from probode.base.jax_inside import Unreadable, those
from probode.base.limits import Limits
from probode.base.said import first_time, logger
from probode.base.status import Status
from probode.engines.kept import padded
from probode.engines.protocol import Engine, Given, Inputs, Steps
from probode.filter.loop import Solve
from probode.filter.restart import NO_RESTARTS, Restarts
from probode.filter.start import RungeKuttaStart, TaylorStart
from probode.programs.field import Field


class Fallback(Given):
    """The inputs of a solve, changed on the way where derivatives turn out not to be finite."""

    def __init__(self, inputs: Inputs, restarts: Restarts = NO_RESTARTS) -> None:
        super().__init__(inputs, restarts)

    def learned(self) -> dict[str, Any]:
        """With how it began, and whether derivatives are missing."""
        begun = isinstance(self.inputs.initialization, RungeKuttaStart)
        return {
            **super().learned(),
            "runge_kutta": begun,
            "guarded": self.inputs.field.guarded,
        }

    def learn(self, learned: dict[str, Any]) -> None:
        """What was known when a solve stopped, before it goes on."""
        super().learn(learned)
        if learned["runge_kutta"]:
            self.inputs = self.inputs._replace(initialization=RungeKuttaStart())
        if learned["guarded"]:
            self.inputs = self.inputs._replace(field=self.inputs.field.guard())

    def steps_by(self, engine: Engine, rows: int, limits: Limits) -> Steps:
        """Its vector field is a program."""
        return engine.traced(self, rows, limits)

    def note(self, text: str | None) -> None:
        """Something that was done otherwise than asked for, if anything was."""
        if text is not None:
            self._say(text)

    def starts_again(self, solve: Any) -> bool:
        """Whether a solve that could not begin should, with what the inputs are now."""
        inputs = self.inputs
        exact = isinstance(inputs.initialization, TaylorStart)
        if inputs.method.equation.reads != inputs.method.equation.order:
            return False  # an implicit equation, of which there are no Runge-Kutta steps
        if int(solve.status) != Status.START_NOT_FINITE or not exact:
            return False
        t, y = float(inputs.t0), np.asarray(inputs.y0)
        if not np.all(np.isfinite(_value(inputs.field, t, y))):
            return False
        self.inputs = inputs._replace(initialization=RungeKuttaStart())
        self._say(
            f"higher derivatives of the solution are not finite at the start, {_at(t, y)}: it was "
            "begun by Runge-Kutta steps instead"
        )
        return True

    @property
    def outset(self) -> Inputs:
        """What a solve begins with: it knows the interval until the first step across."""
        return self.inputs._replace(t1=self.until(self.inputs.t0))

    def linearised(self, t: float, y: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """``f`` and what the method uses of its Jacobian."""
        kind, field = self.inputs.method.jacobian, self.inputs.field
        if kind == "none":
            return np.asarray(_value(field, t, y)), None
        f, jacobian = _linearised(kind, field, t, y)
        return np.asarray(f), np.asarray(jacobian)

    def value(self, t: float, y: np.ndarray) -> np.ndarray:
        """``f``."""
        return np.asarray(_value(self.inputs.field, t, y))

    def full_jacobians(self, t: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``f`` and all of its Jacobian at many points, whatever the method uses."""
        field, found = self.inputs.field, []
        for begin in range(0, len(t), _TOGETHER):
            some = slice(begin, begin + _TOGETHER)
            given = (padded(x[some], _TOGETHER) for x in (t, y))  # one shape: one program
            count = len(t[some])
            found.append([np.asarray(x)[:count] for x in _full_jacobians(field, *given)])
        f, jacobians = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return f, jacobians

    def after(self, t: float, y0: np.ndarray) -> "Fallback":
        """The same inputs for a solve that starts anew at ``t``; what it says is said here."""
        end = self.until(t)
        anew = Fallback(self.inputs._replace(t0=np.asarray(t), t1=end, y0=y0))
        anew.notes = self.notes
        return anew

    def goes_on(self, solve: Solve) -> bool:
        """Whether a solve that has stopped should go on, with what the inputs are now."""
        method, _, field, *_ = self.inputs
        stopped = int(solve.status) == Status.NOT_FINITE
        if not stopped or field.guarded or method.jacobian in ("none", "sparse"):
            return False
        t, y = float(solve.state.t), np.asarray(solve.state.mean)
        h = float(solve.control.h)
        prior = method.prior.over(jnp.asarray(h), solve.state.drift)
        predicted = method.equation.read(prior.predict_mean(jnp.asarray(y), jnp.asarray(h)))
        now = np.asarray(method.equation.read(jnp.asarray(y)))
        for time, state in ((t, now), (t + h, np.asarray(predicted))):
            f, jacobian = map(np.asarray, _linearised(method.jacobian, field, time, state))
            if np.all(np.isfinite(f)) and not np.all(np.isfinite(jacobian)):
                self.inputs = self.inputs._replace(field=field.guard())
                self._say(_no_derivative(time, state))
                return True
        return False

    def _say(self, text: str) -> None:
        self.notes.append(text)
        if first_time(self.inputs.field.program, text.split(",")[0].split(" at ")[0]):
            logger.warning("%s.", text)


def revived(solve: Solve) -> Solve:
    """A solve that has stopped, set to go on with steps as long as the last one."""
    status = jnp.full_like(solve.status, Status.RUNNING.value)
    return replace(solve, control=solve.control._replace(h=solve.state.h), status=status)


_HUGE = 1e200
"""Values whose higher derivatives may overflow."""


def where_not_finite(status: Status, field: Any, t: float, y: np.ndarray) -> str:
    """The end of a solve in words: what was not finite, and where."""
    finite = bool(np.all(np.isfinite(np.asarray(_value(field, t, y)))))
    what = "f(t, y) is NaN or Inf"
    if status == Status.START_NOT_FINITE:
        if not finite:
            return f"{what} at the initial value, {_at(t, y)}: the solve cannot begin."
        return (
            f"f(t, y) is finite at the initial value, {_at(t, y)}, but it (or a derivative) is NaN "
            "or Inf right beside it: the solve cannot begin."
        )
    where = "at" if not finite else "right after"
    if finite and np.max(np.abs(y), initial=0.0) > _HUGE:
        return (
            f"Right after {_at(t, y)} derivatives of the solution are too large for floating-point "
            "numbers; the solution up to there is returned. Choose other units for y."
        )
    return (
        f"{what} {where} {_at(t, y)}, also for the smallest steps; the solution up to there is "
        "returned."
    )


_MISSING = "the derivative of f by y is not finite"


def _no_derivative(t: float, y: np.ndarray) -> str:
    return f"{_MISSING} at {_at(t, y)}, though f is: entries that are not finite were taken as zero"


def _at(t: float, y: np.ndarray) -> str:
    with np.printoptions(precision=3, threshold=6, edgeitems=2):
        return f"t = {t:.6g}, y = {np.asarray(y)}"


HostJacobian = Callable[[float, np.ndarray, np.ndarray], np.ndarray]
"""``(t, y, f(t, y)) -> J``."""


def guarded_on_host(jacobian: HostJacobian | None, notes: list[str]) -> HostJacobian | None:
    """A Jacobian evaluated in Python, with zeros for NaN and Inf; that it had any is noted once."""
    if jacobian is None:
        return None
    known = jacobian

    def guarded(t: float, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        matrix = known(t, y, f)
        finite = np.isfinite(matrix)
        if finite.all():
            return matrix
        noted = any(note.startswith(_MISSING) for note in notes)
        if not noted and np.all(np.isfinite(f)):
            notes.append(_no_derivative(t, y))
            logger.warning("%s.", notes[-1])
        return np.where(finite, matrix, 0.0)

    return guarded


def may_lack_derivatives(field: Field) -> bool:
    """Whether a program has operations that are finite where their derivatives are not."""
    try:
        return not those("singular").isdisjoint(field.program.operations())
    except Unreadable:
        return True


def guarded_jacobian(vector_field: Callable[..., Any], jac: Any, order: int = 1) -> Any:
    """A function for ``jac=`` that gives ``jac``, or else the derivative, with zeros for NaN, Inf.

    What :meth:`Field.guard` does, for functions that are not traced yet; of an equation of this
    ``order``, which take so many derivatives.
    """
    if jac is not None and not callable(jac):
        return jac

    def derivative(t: Any, *given: Any) -> Array:
        def value(*parts: Any) -> Array:
            return jnp.ravel(jnp.asarray(vector_field(t, *parts, *given[order:])))

        found = jax.jacfwd(value, tuple(range(order)))(*given[:order])
        d = given[0].size
        return jnp.concatenate([matrix.reshape(d, d) for matrix in found], axis=1)

    def guarded(t: Any, *given: Any) -> Array:
        matrix = jnp.asarray((jac or derivative)(t, *given))
        return jnp.where(jnp.isfinite(matrix), matrix, 0.0)

    return guarded


def value_at(field: Any, y: np.ndarray, t: float) -> np.ndarray:
    """``f(t, y)``, however it is evaluated."""
    return np.asarray(_value(field, t, y))


def _value(field: Any, t: float, y: np.ndarray) -> Any:
    if isinstance(field, Field):
        return _compiled_value(field, t, y)
    return field.function(t, y)  # one that only Python can evaluate


@compiled()
def _compiled_value(field: Field, t: Array, y: Array) -> Array:
    return field(t, y)


_TOGETHER = 64


@compiled()
def _full_jacobians(field: Field, t: Array, y: Array) -> tuple[Array, Array]:
    return jax.vmap(field.jacobian)(t, y)


@compiled(0)
def _linearised(kind: str, field: Field, t: Array, y: Array) -> tuple[Array, Array]:
    return field.jacobian(t, y) if kind == "full" else field.jacobian_diagonal(t, y)
