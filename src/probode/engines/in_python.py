"""Solving with a vector field that only Python can evaluate.

Compiled pieces do everything but the evaluation: one compiled call per step judges and finishes the
step whose evaluation it is given, proposes the next, and says where to evaluate. No callback from
inside compiled code, which would cost many times as much.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from probode.base.compile import compiled
from probode.base.limits import Limits
from probode.base.record import record
from probode.base.status import Status
from probode.engines.fallback import revived
from probode.engines.kept import compact, pack_rows
from probode.engines.protocol import Carry, Engine, Given, Inputs, Steps
from probode.filter import loop
from probode.filter.control import ConstantStep, Control, ControlState, GridSteps, PControl
from probode.filter.first_step import Outset
from probode.filter.loop import Counts, Rows, Solve
from probode.filter.restart import NO_RESTARTS, Restarts
from probode.filter.start import (
    MOST_SHORTER,
    Initialization,
    RungeKuttaStart,
    Start,
    TaylorStart,
    explodes,
    fit_derivatives,
    runge_kutta_4,
)
from probode.filter.step import Method, State, leads_to
from probode.model.diffusion import Evidence
from probode.model.equation import Equation, FirstOrder
from probode.model.linearize import diagonals


class HostField(NamedTuple):
    """A vector field evaluated in Python: NumPy in, NumPy out.

    ``y`` holds all derivatives that the equation reads, one after the other.
    """

    function: Callable[[float, np.ndarray], np.ndarray]
    jacobian: Callable[[float, np.ndarray, np.ndarray], np.ndarray] | None
    """``(t, y, f(t, y)) -> J``; ``None`` for a solver that needs none."""


@record
class _Given:
    """A vector field known at the one point where it is asked for."""

    f: Array
    j: Array | None

    def __call__(self, t: Array, y: Array) -> Array:
        return self.f

    def jacobian(self, t: Array, y: Array) -> tuple[Array, Array]:
        assert self.j is not None
        return self.f, self.j

    def jacobian_diagonal(self, t: Array, y: Array) -> tuple[Array, Array]:
        assert self.j is not None
        return self.f, diagonals(self.j)


class _InTurn:
    """The evaluations of a step that may be linearised again, in the order of its trace."""

    def __init__(self, first: _Given, again: _Given) -> None:
        self._given, self._again = first, again

    def jacobian(self, t: Array, y: Array) -> tuple[Array, Array]:
        given, self._given = self._given, self._again
        return given.jacobian(t, y)


def _blank(method: Method) -> Solve:
    """A solve of the right shapes, to know how to take a packed one apart."""
    d, n = method.structure.d, method.structure.n
    zero, count = jnp.zeros(()), jnp.zeros((), int)
    return Solve(
        state=State(zero, zero, jnp.zeros((n, d)), jnp.zeros(method.structure.factor_shape)),
        scale=jnp.zeros((d,) if method.diffusion.varies_by_component else ()),
        control=ControlState(zero, zero, count, jnp.zeros((), bool)),
        evidence=Evidence.empty(d, method.diffusion.multivariate),
        counts=Counts(count, count, again=count if method.error == "correction" else None),
        status=count,
        reference=zero,
    )


def _unpack(method: Method, packed: Array) -> Solve:
    return ravel_pytree(_blank(method))[1](packed)


class _WithFirstStep(Control):
    """A control before its first step, whose length is known already."""

    def __init__(self, control: Control, h: Array) -> None:
        self.begin, self.next_stop = control.begin, control.next_stop  # type: ignore[method-assign]
        self._h = h

    def initial_step(self, outset: Outset) -> Array:
        return self._h


class Request(NamedTuple):
    """Where the next evaluation is wanted, and how the solve stands."""

    packed: Array
    """The whole solve as one vector: one array crosses the border per step, not twenty."""
    numbers: Array
    """``(accepted, status, t, y...)``."""


class Pieces(NamedTuple):
    """The compiled pieces of a solve from Python, on packed arguments."""

    begin: Callable[..., Request]
    """``(settings, t0, start, h)``."""
    advance: Callable[..., Request]
    """``(settings, packed, evaluation)``: ``f`` followed by ``J``, flat, or by ``f`` again."""
    corrected: Callable[..., Array] | None
    """``(settings, packed, f)`` to ``(accepted, y...)``: where a second evaluation is wanted."""
    leads: Callable[..., Array] | None
    """``(settings, packed, evaluation)`` to ``(again, y...)``: whether to linearise there, too."""
    ask: Callable[[Array, Solve], Request]
    """``(settings, solve)``: where a solve that was changed goes on."""
    unpack_rows: Callable[[np.ndarray], Rows]
    unpack_solve: Callable[[Array], Solve]


@lru_cache(maxsize=256)
def _pieces(tree: Any, shapes: tuple[tuple[int, ...], ...]) -> Pieces:
    """Compiled functions for a kind of ``(method, control)``.

    Everything static is bound here, so that a call in the loop passes three arrays and nothing
    else: what a call costs is the number of its arguments.
    """
    blank = [np.zeros(shape) for shape in shapes]
    known: Method = jax.tree.unflatten(tree, blank)[0]  # with any numbers
    d, m = known.structure.d, known.structure.d * known.equation.order

    def settings_of(settings: Array) -> tuple[Method, Control, Array]:
        *leaves, t1 = ravel_pytree([*blank, np.zeros(())])[1](settings)
        return *jax.tree.unflatten(tree, leaves), t1

    def request(
        method: Method, control: Control, solve: Solve, t1: Array, accepted: Any
    ) -> Request:
        t = control.next_time(solve.control, solve.state.t, t1)
        h = t - solve.state.t
        prior = method.prior.over(h, solve.state.drift)
        y = method.equation.read(prior.predict_mean(solve.state.mean, h))
        numbers = jnp.concatenate([jnp.stack([accepted, solve.status, t]).astype(float), y])
        return Request(ravel_pytree(solve)[0], numbers)

    @compiled()
    def begin(settings: Array, t0: Array, start: Start, h: Array) -> Request:
        method, control, t1 = settings_of(settings)
        given: Any = lambda *_: start  # noqa: E731
        no_field: Any = None
        first = _WithFirstStep(control, h)
        solve = loop.begin(method, given, no_field, first, t0, t1, start.mean[0])
        return request(method, control, solve, t1, False)

    @compiled()
    def advance(settings: Array, packed: Array, evaluation: Array) -> Request:
        method, control, t1 = settings_of(settings)
        if method.error == "correction":
            twice = [_Given(one[:d], one[d:].reshape(d, d)) for one in jnp.split(evaluation, 2)]
            found: Any = _InTurn(*twice)
            given = loop.advance(method, found, control, _unpack(method, packed), t1)
            return request(method, control, given[0], t1, given[1])
        j = evaluation[d:] if method.jacobian != "none" else None
        if j is not None and ((j.size == d * m and d > 1) or method.jacobian == "full"):
            j = j.reshape(d, m)
        field: Any = _Given(evaluation[:d], j)
        solve, accepted = loop.advance(
            method, field, control, _unpack(method, packed), t1, lambda t, y: evaluation[d:]
        )
        return request(method, control, solve, t1, accepted)

    @compiled()
    def corrected(settings: Array, packed: Array, f: Array) -> Array:
        method, control, t1 = settings_of(settings)
        once, field = replace(method, evaluations=1), _Given(f, None)
        given: Any = field
        solve, accepted = loop.advance(once, given, control, _unpack(method, packed), t1)
        found = method.equation.read(solve.state.mean)
        return jnp.concatenate([accepted[None].astype(float), found])

    @compiled()
    def leads(settings: Array, packed: Array, evaluation: Array) -> Array:
        method, control, t1 = settings_of(settings)
        solve = _unpack(method, packed)
        t = control.next_time(solve.control, solve.state.t, t1)
        given = _Given(evaluation[:d], evaluation[d:].reshape(d, d))
        measure = loop.measure_of(method, control, solve.state, t)
        again, mean = leads_to(method, given, solve.state, t, measure)
        return jnp.concatenate([again[None].astype(float), method.equation.read(mean)])

    @compiled()
    def ask(settings: Array, solve: Solve) -> Request:
        method, control, t1 = settings_of(settings)
        return request(method, control, solve, t1, False)

    @compiled()
    def unpack_rows(packed: Array) -> Rows:
        return jax.vmap(lambda one: Rows.of(_unpack(known, one)))(packed)

    @compiled()
    def unpack_solve(packed: Array) -> Solve:
        return _unpack(known, packed)

    return Pieces(
        begin,
        advance,
        corrected if known.evaluations == 2 else None,
        leads if known.error == "correction" else None,
        ask,
        unpack_rows,
        unpack_solve,
    )


def pieces_for(method: Method, control: Control, t1: float) -> tuple[Pieces, Array]:
    """Compiled pieces, and the settings they need."""
    leaves, tree = jax.tree.flatten((method, control))
    arrays = [np.asarray(leaf, float) for leaf in leaves]
    settings = np.concatenate([a.reshape(-1) for a in [*arrays, np.asarray(t1, float)]])
    return _pieces(tree, tuple(a.shape for a in arrays)), jnp.asarray(settings)


@compiled(0)
def _initial_step(order: int, control: Control, t0: Array, t1: Array, y0: Array) -> Array:
    """One program: JAX would compile each of its operations for itself, which takes longer."""
    no_field: Any = None
    return control.initial_step(Outset(no_field, t0, t1, y0, order))


class Begun(NamedTuple):
    """What is known before the first step."""

    start: Start
    """Of an equation of higher order: that of the system of first order."""
    h: Array
    """Length of the first step."""
    initialization: Initialization
    """What the start was made by."""
    evaluations: int
    note: str | None
    """If that is not what was asked for: why, in words."""


_OUR_FIRST_STEPS = tuple(one.initial_step for one in (PControl, ConstantStep, GridSteps))


def begin_on_host(inputs: Inputs) -> Begun:
    """First step and start, with evaluations from Python.

    Derivatives of ``f`` cannot be had there: an exact start is made by Runge-Kutta, and noted.
    """
    method, initialization, field, control, t0, t1, y0 = inputs
    equation = method.equation
    q, function = equation.lowered(method.prior.order), _Counted(on_host(equation, field.function))
    f0 = function(t0, y0)

    def concrete(t: Any, y: Any) -> Array:
        y = np.asarray(y)
        again = float(t) == t0 and np.array_equal(y, y0)
        return jnp.asarray(f0 if again else function(float(t), y))

    at: tuple[Any, Any, Any, Any] = concrete, jnp.asarray(t0), jnp.asarray(t1), jnp.asarray(y0)
    own = type(control).initial_step not in _OUR_FIRST_STEPS
    if isinstance(control, PControl) and control.first_step is None and not own:
        size = _first_step(function, control, t0, t1, y0, f0, q)
        control = replace(control, first_step=np.asarray(size))
    with jax.disable_jit(own):  # f has to be given numbers
        h = control.initial_step(Outset(*at, q)) if own else _initial_step(q, control, t0, t1, y0)

    note = None
    if type(initialization) not in (TaylorStart, RungeKuttaStart):
        try:
            with jax.disable_jit():
                start = initialization(*at, h, q)
            return Begun(start, h, initialization, function.count, None)
        except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError):
            pass  # it differentiates
    if type(initialization) is not RungeKuttaStart:
        note = (
            f"a start by {initialization.name!r} differentiates f, which is not possible where f "
            "is evaluated by Python: it was begun by Runge-Kutta steps instead"
        )
    start = _start(function, t0, t1 - t0, y0, f0, float(h), q)
    return Begun(start, h, RungeKuttaStart(), function.count, note)


def on_host(
    equation: Equation, function: Callable[[float, np.ndarray], np.ndarray]
) -> Callable[[float, np.ndarray], np.ndarray]:
    """The equation as a system of first order: :class:`probode.model.system.System`, in NumPy."""
    if type(equation) is FirstOrder:
        return function

    def system(t: float, u: np.ndarray) -> np.ndarray:
        highest = np.asarray(equation.explicit(function(t, u)))  # type: ignore[arg-type]
        return np.concatenate([u[len(highest) :], highest])

    return system


class _Counted:
    """A function that counts its evaluations."""

    def __init__(self, function: Callable[[float, np.ndarray], np.ndarray]) -> None:
        self._function, self.count = function, 0

    def __call__(self, t: float, y: np.ndarray) -> np.ndarray:
        self.count += 1
        return self._function(t, y)


def _first_step(
    function: Callable[..., np.ndarray],
    control: PControl,
    t0: float,
    t1: float,
    y0: np.ndarray,
    f0: np.ndarray,
    q: int,
) -> float:
    """Hairer, Nørsett & Wanner, Section II.4."""
    scale = np.asarray(control.atol) + np.asarray(control.rtol) * np.abs(y0)

    @np.errstate(all="ignore")  # an infinite norm is judged below
    def norm(x: np.ndarray) -> float:
        return float(np.sqrt(np.mean((x / scale) ** 2)))

    d0, d1 = norm(y0), norm(f0)
    h0 = 1e-6 if d0 < 1e-5 or d1 < 1e-5 else 0.01 * d0 / d1
    h0 = min(h0, abs(t1 - t0)) or 1e-6
    sign = -1.0 if t1 < t0 else 1.0
    near = t1 if h0 == abs(t1 - t0) else t0 + sign * h0
    d2 = norm(function(near, y0 + sign * h0 * f0) - f0) / h0
    largest = max(d1, d2)
    h1 = max(1e-6, h0 * 1e-3) if largest <= 1e-15 else (0.01 / largest) ** (1.0 / (q + 1))
    size = min(100 * h0, h1)
    return size if np.isfinite(size) and size > 0 else 1e-6


_WITHOUT_LENGTH = 1e-3


def _start(
    function: Callable[..., np.ndarray],
    t0: float,
    span: float,
    y0: np.ndarray,
    f0: np.ndarray,
    h: float,
    q: int,
) -> Start:
    """:class:`RungeKuttaStart` evaluated in Python."""
    nodes, substeps = RungeKuttaStart.steps(q), RungeKuttaStart.substeps
    # An interval of length zero has derivatives, too: those of f(t0, y).
    h = h * min(1.0, abs(span / (h * nodes))) if span else _WITHOUT_LENGTH
    low, high = sorted((t0, t0 + span))

    def inside(t: float, y: np.ndarray) -> np.ndarray:
        return function(min(max(t, low), high), y)

    def walk(h: float) -> tuple[np.ndarray, np.ndarray]:
        values, slopes, step = [y0], [f0], h / substeps
        for k in range(nodes):
            y = values[-1]
            for j in range(k * substeps, (k + 1) * substeps):
                y = runge_kutta_4(inside, t0 + j * step, y, step)
            values.append(y)
            slopes.append(inside(t0 + (k + 1) * h, y))
        return np.asarray(values), np.asarray(slopes)

    for attempt in range(MOST_SHORTER + 1):
        values, slopes = walk(h / 10.0**attempt)
        if not explodes(np, slopes):
            break
    return fit_derivatives(values, slopes, np.asarray(h / 10.0**attempt), q)


class Driven(Given):
    """A solve whose vector field (a :class:`HostField`) only Python can evaluate: begun."""

    def __init__(self, inputs: Inputs, restarts: Restarts = NO_RESTARTS) -> None:
        super().__init__(inputs, restarts)
        if inputs.method.prior.per_step:
            raise ValueError(
                f"{inputs.method.prior!r} needs the Jacobian in places where f, evaluated by "
                "Python, is not: write f with jax.numpy, or give the rate as numbers, such as the "
                "matrix of the linear part of f."
            )
        self.begun = begin_on_host(inputs._replace(t1=self._end(inputs.t0)))

    def steps_by(self, engine: Engine, rows: int, limits: Limits) -> Steps:
        """Evaluated by Python between two calls of the engine."""
        return engine.driven(self, rows, limits)

    def _end(self, t: float) -> float:
        """Where what begins at ``t`` ends, for all that a start may know."""
        return float(self.inputs.control.next_stop(jnp.asarray(t), jnp.asarray(self.until(t))))

    def first(self, t: float, end: float, start: Start, h: Array) -> Solve:
        """The solve that begins at ``t``, before its first step."""
        method, control = self.inputs.method, self.inputs.control.without_stops()
        pieces, settings = pieces_for(method, control, end)
        return pieces.unpack_solve(pieces.begin(settings, t, start, h).packed)

    def anew(self, t: float, y: np.ndarray) -> Solve:
        """The same for a solve that starts anew there, after a switch."""
        inputs, end = self.inputs, self._end(t)
        if t == end:  # nothing follows, and f need not exist beyond
            method = inputs.method
            unknown = np.zeros((method.equation.lowered(method.prior.order) - 1, y.size))
            slope = on_host(method.equation, inputs.field.function)(t, y)
            known: Any = np.concatenate([y[None], slope[None], unknown])
            return self.first(t, end, Start(known, None), jnp.zeros(()))
        begun = begin_on_host(
            inputs._replace(initialization=self.begun.initialization, t0=t, t1=end, y0=y)
        )
        return self.first(t, end, begun.start, begun.h)

    def linearised(self, t: float, y: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """``f`` and what the method uses of its Jacobian."""
        (function, jacobian), kind = self.inputs.field, self.inputs.method.jacobian
        f = function(t, y)
        if jacobian is None or kind == "none":
            return f, None
        matrix = jacobian(t, y, f)
        return f, diagonals(matrix) if kind == "diagonal" else matrix


def steps_in_jax(given: Driven, rows: int) -> Steps:
    """Steps by compiled pieces; a carry's own form is the evaluation that its solve waits for."""
    method, _, field, control, t0, t1, _ = given.inputs
    pieces, settings = pieces_for(method, control, float(given.until(t0)))
    request = pieces.begin(settings, t0, given.begun.start, given.begun.h)

    def fill(carry: Carry, attempts: int, wanted: int) -> tuple[Carry, Rows]:
        crossed = given.across(jax.tree.map(np.asarray, carry.solve), given.anew)
        if crossed is not None:
            made, following = crossed
            settings = pieces_for(method, control, float(given.until(made.t[-1])))[1]
            return Carry(following, pieces.ask(settings, following)), pack_rows(made)
        until = float(given.until(carry.solve.state.t))
        settings = pieces_for(method, control, until)[1]
        request, kept = steps(pieces, settings, field, carry.form, attempts, min(wanted, rows))
        packed = np.repeat(kept[-1][None], rows + 1, axis=0)  # one shape: one program
        packed[: len(kept)] = kept
        made = pieces.unpack_rows(packed)
        following = pieces.unpack_solve(request.packed)
        if until != t1 and int(following.status) == Status.SUCCESS:
            following = revived(following)
        return Carry(following, request), compact(made, len(kept) - 1)

    return Steps(Carry(pieces.unpack_solve(request.packed), request), fill)


def steps(
    pieces: Pieces,
    settings: Array,
    field: HostField,
    request: Request,
    attempts: int,
    wanted: int,
) -> tuple[Request, list[np.ndarray]]:
    """Steps from Python: evaluate where asked, hand the result over, until enough are accepted.

    Returns the packed solves at the start and after every accepted step.
    """
    function, jacobian = field
    advance = pieces.advance
    kept = [np.asarray(request.packed)]
    numbers = np.asarray(request.numbers)
    while numbers[1] == Status.RUNNING and len(kept) <= wanted and attempts > 0:
        t, y = float(numbers[2]), numbers[3:]
        evaluation = f = function(t, y)
        if jacobian is not None:
            evaluation = np.concatenate([f, jacobian(t, y, f).reshape(-1)])
        if pieces.corrected is not None:
            corrected = np.asarray(pieces.corrected(settings, request.packed, f))
            evaluation = np.concatenate([f, function(t, corrected[1:]) if corrected[0] else f])
        if pieces.leads is not None and jacobian is not None:
            leads = np.asarray(pieces.leads(settings, request.packed, evaluation))
            second = evaluation
            if leads[0]:
                f = function(t, leads[1:])
                second = np.concatenate([f, jacobian(t, leads[1:], f).reshape(-1)])
            evaluation = np.concatenate([evaluation, second])
        request = advance(settings, request.packed, evaluation)
        numbers = np.asarray(request.numbers)
        if numbers[0]:
            kept.append(np.asarray(request.packed))
        attempts -= 1
    return request, kept
