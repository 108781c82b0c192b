"""``solve_ivp`` where something acts on the solution: jumps, doses, events with a reset.

Between two actions it is a solve like any other. What is known of its end (the state, the model's
covariance, the estimated error) goes through the action (:mod:`probode.ivp.actions`), and the next
piece begins with that.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from probode.base.limits import Limits
from probode.base.status import Status
from probode.filter.control import PControl, PIControl
from probode.filter.given import break_times
from probode.ivp.accumulation import Accumulation
from probode.ivp.actions import Linear, Mode, Place, Surface, jumped, reset
from probode.ivp.evaluation import Evaluation
from probode.ivp.joined import EVENTS, joined
from probode.ivp.jumps import check_compartments, infused_by, read_jumps
from probode.ivp.method import is_large, large_kind, read_method
from probode.ivp.options import Options, read_tolerances
from probode.ivp.result import Embedding, OdeResult, state_at
from probode.ivp.run import Carried
from probode.ivp.target import Integrated, Target, reach
from probode.model.doses import Doses
from probode.model.equation import Equation, as_equation
from probode.model.implicit import Implicit
from probode.model.second_order import SecondOrder
from probode.posterior import events as event_functions
from probode.posterior.again import MODE, tightened
from probode.posterior.events import Event
from probode.posterior.pieces import PiecewisePosterior, columns_at_end, holds, through
from probode.posterior.posterior import Posterior, Problem

_LARGEST = 3000
"""Components, but for SparseEK1: the derivative of a jump is a matrix."""
_NOT_WRITTEN_DOWN = np.zeros((0, 0))
"""In the place of that matrix, where nothing but its product with the error is needed."""
_AT_ONCE = 8
"""Units in the last place of a time within which two times are one."""
_AT_ITS_ROOT, _ROUNDING = 10.0, 1e-12
"""Standard deviations from zero within which a reset leaves its event function at zero; and parts
of what it is made of."""
_EXACT = 1e-10
"""Part of the solution that an error may be for the end of a piece to be exact for the model."""


def acts(chosen: Options, events: Any) -> bool:
    """Whether anything acts on the solution."""
    given = chosen.jumps is not None or chosen.doses is not None
    return given or any(hasattr(event, "reset") for event in _listed(events))


def _listed(events: Any) -> list[Any]:
    if events is None:
        return []
    return list(events) if isinstance(events, list | tuple) else [events]


class Watched(NamedTuple):
    """An event function of the user's, and how often it may still occur."""

    function: Any
    reset: Callable[..., Any] | None
    left: float
    """Occurrences up to the one that ends the solve."""

    @staticmethod
    def read(function: Any) -> "Watched":
        """As SciPy reads it, and what it does."""
        (event,) = event_functions.prepare([function], ())
        action = getattr(function, "reset", None)
        if action is not None and not callable(action):
            raise TypeError(
                f"the reset of an event must be a function (t, y) -> y, got {action!r}."
            )
        return Watched(function, action, event.terminal)

    def prepared(self, args: tuple[Any, ...], leaves: float) -> Event:
        """For one piece: what acts ends it."""
        (event,) = event_functions.prepare([self.function], args)
        most = self.left if self.reset is None else 1.0
        return event._replace(terminal=most, leaves=leaves)


class State(NamedTuple):
    """Where a piece ended, or what has become of that; at first, the start."""

    t: float
    y: Any
    """In the form of the user's."""
    mode: Mode
    matrix: np.ndarray | Linear | None = None
    """Of all that has acted since the last piece ended, in real form; ``None``: nothing."""
    leaves: tuple[tuple[int, float], ...] = ()
    """Events that have acted and are at their root, and the signs with which they leave it."""


def solve_hybrid(
    solve: Callable[..., OdeResult],
    chosen: Options,
    fun: Any,
    t_span: Any,
    y0: Any,
    method: Any,
    times: np.ndarray | None,
    dense_output: bool,
    events: Any,
    vectorized: bool,
    args: Any,
) -> OdeResult:
    """Solve piece by piece with ``solve``.

    It takes options, what is ``carried``, and the arguments of ``solve_ivp`` by name.
    """
    t0, tf = (float(t) for t in t_span)
    _refuse(chosen, fun, method, events, y0)
    start = State(t0, copy.deepcopy(y0), Mode(fun, () if args is None else tuple(args)))
    limits = Limits.read(chosen.time_limit, chosen.max_memory)
    course: Any = None

    def integrate(control: Any) -> Integrated:
        nonlocal course
        local = {} if control is None else {"rtol": control.rtol, "atol": control.atol}
        options = chosen._replace(**local, global_rtol=None, global_atol=None)
        course = Course(solve, options, start, tf, method, events, vectorized, limits)
        posterior: Any = course.run()
        again = partial(_again, solve, options, start, tf, method, events, vectorized)
        posterior = replace(posterior, whole=Problem(repeat=again))
        return posterior, course.results[-1].path, course.counts

    embedding = course_embedding(chosen, start)
    control = PIControl(*read_tolerances(chosen.rtol, chosen.atol, embedding))
    target = Target.read(chosen, embedding, control)
    if target is None:
        posterior: Any = integrate(None)[0]
        return joined(posterior, course.results, course.found, times, dense_output)
    if embedding.is_complex:
        raise ValueError("global_rtol and global_atol with jumps and resets are for real states.")
    runs: dict[int, Course] = {}

    def remembered(control: Any) -> Integrated:
        done = integrate(control)
        runs[id(done[0])] = course
        return done

    (posterior, _, _), report = reach(target, control, remembered)
    best = runs[id(posterior)]
    return report.onto(joined(posterior, best.results, best.found, times, dense_output))


def _again(
    solve: Callable[..., OdeResult],
    chosen: Options,
    start: "State",
    tf: float,
    method: Any,
    events: Any,
    vectorized: bool,
    first: PiecewisePosterior,
    part: float,
) -> PiecewisePosterior:
    """The same solve with ``part`` of the tolerances, and nothing else that could end it."""
    given, names = chosen.control, ("rtol", "atol", "first_step", "min_step", "max_step")
    control = (
        given
        if isinstance(given, PControl)
        else PIControl(**{name: getattr(chosen, name) for name in names})
    )
    control = tightened(control, first.solver.order, part)
    if isinstance(given, PControl):
        chosen = chosen._replace(control=control)
    else:
        chosen = chosen._replace(**{name: getattr(control, name) for name in names})
    chosen = chosen._replace(checkpoint=None, callback=None, max_num_steps=None)
    chosen = chosen._replace(calibration=MODE)
    limits = Limits.read(chosen.time_limit, chosen.max_memory)
    return Course(solve, chosen, start, tf, method, events, vectorized, limits).run()


def course_embedding(chosen: Options, start: "State") -> Embedding:
    """How a state is put together."""
    order = equation_of(chosen, start.mode.fun).order
    y = np.asarray(start.y)
    return Embedding(y.size // order, np.iscomplexobj(y), order)


def equation_of(chosen: Options, fun: Any) -> Equation:
    """What is solved, without a mass matrix."""
    second = chosen.second_order and not isinstance(fun, Equation)
    return SecondOrder(fun) if second else as_equation(fun)


class Course:
    """A solve in pieces, on its way."""

    def __init__(
        self,
        solve: Callable[..., OdeResult],
        chosen: Options,
        start: State,
        tf: float,
        method: Any,
        events: Any,
        vectorized: bool,
        limits: Limits,
    ) -> None:
        self.t0, self.tf, self.start, self.limits = start.t, tf, start, limits
        self.sign = 1.0 if tf >= start.t else -1.0
        self.solve, self.chosen, self.method, self.vectorized = solve, chosen, method, vectorized
        self.watched = [Watched.read(one) for one in _listed(events)]
        self.is_watching = events is not None
        self.jumps = read_jumps(chosen.jumps, chosen.doses, self.t0, self.tf)
        self.table, self.rate = chosen.doses, None
        if self.table is not None:
            check_compartments(self.table, np.size(start.y))
            self.rate = self.table.rate
        known = [] if self.rate is None else [self.rate]
        self.breaks = break_times(chosen.breakpoints, known, self.t0, self.tf, True)
        self.results: list[OdeResult] = []
        self.matrices: list[np.ndarray] = []
        """What is between the pieces."""
        self.found: list[dict[str, Any]] = []
        """The events of all pieces, also of those that have no length."""
        self.size: Any = 0.0
        """How large the components of the solution have been."""
        self.accumulation = Accumulation(abs(self.tf - self.t0))

    def run(self) -> PiecewisePosterior:
        """Solve all pieces."""
        ended, note = self._run()
        pieces = tuple(result.posterior for result in self.results)
        return PiecewisePosterior(pieces, tuple(self.matrices), ended, note)

    @property
    def counts(self) -> dict[str, int]:
        """What it has cost."""
        return {name: sum(r[name] for r in self.results) for name in ("nfev", "njev", "nlu")}

    def _run(self) -> tuple[Status | None, str]:
        """How it ended, if not as the last piece did, and why in words."""
        state = self.start
        while True:
            state = self._jumped(state)
            stopped = self._stopped()
            if stopped is not None:
                return stopped, ""
            fired, at, last = self._at_zero(state), state.t, False
            if not fired:
                end = self.jumps[0].t if self.jumps else self.tf
                result = self._piece(state, end)
                fired = self._fired(result)
                at = float(result.t[-1]) if fired else end
                last = result.status < 0 or (result.status == 1 and not fired) or at == self.tf
                last = last or any(self.watched[k].left <= 0 for k in fired)
                empty = bool(fired) and _at_once(at, state.t)
                if not empty or (last and not self.results):
                    state = self._keep(result, state, at)
            if last or any(self.watched[k].left <= 0 for k in fired):
                if fired and all(self.watched[k].left > 0 for k in fired):
                    self._reached_the_end()
                return None, ""
            if fired:
                self.accumulation.add(at)
                note = self.accumulation.verdict()
                if note is not None:
                    if not self.results:  # it has not got anywhere
                        self._keep(self._piece(state, state.t), state, state.t)
                    return Status.ACCUMULATING, note
                state = self._reset(state, fired)

    def _reached_the_end(self) -> None:
        """Report a success where the last event is at the end and is not terminal."""
        result = self.results[-1]
        result.status = 0
        result.message = result.message.replace(Status.EVENT.message, Status.SUCCESS.message)

    def _stopped(self) -> Status | None:
        """Whether limits of the whole solve leave no room for another piece."""
        if not self.results:
            return None
        if self.limits.expired():
            return Status.TIME_LIMIT
        most = self.chosen.max_num_steps
        return Status.MAX_STEPS if most is not None and self._steps() >= most else None

    def _steps(self) -> int:
        return sum(int(result.posterior.stats.steps) for result in self.results)

    # A piece --------------------------------------------------------------------------------------

    def _piece(self, state: State, end: float) -> OdeResult:
        leaves, args = dict(state.leaves), state.mode.args
        watched = enumerate(self.watched)
        return self.solve(
            self._options(state.t, end),
            carried=self._carried(state.matrix),
            fun=self._with_infusions(state.mode.fun),
            t_span=(state.t, end),
            y0=state.y,
            method=self.method,
            t_eval=None,
            dense_output=False,
            events=[one.prepared(args, leaves.get(k, 0.0)) for k, one in watched]
            if self.is_watching
            else None,
            vectorized=self.vectorized,
            args=args,
        )

    def _with_infusions(self, fun: Any) -> Any:
        if self.rate is None:
            return fun
        return infused_by(fun, self.table, self.rate, np.size(self.start.y))

    def _options(self, begin: float, end: float) -> Options:
        """Options of one piece: what is left of time and steps, and what lies within it."""
        chosen, (low, high) = self.chosen, sorted((begin, end))
        inside = self.breaks[(self.breaks >= low) & (self.breaks <= high)]
        made: dict[str, Any] = {"breakpoints": inside, "jumps": None, "doses": None}
        if chosen.first_step is not None:
            made["first_step"] = None if self.results else min(chosen.first_step, high - low)
        if chosen.time_limit is not None:
            made["time_limit"] = max(self.limits.left, 1e-3)
        if chosen.max_num_steps is not None:
            made["max_num_steps"] = max(chosen.max_num_steps - self._steps(), 1)
        return chosen._replace(**made)

    def _keep(self, result: OdeResult, state: State, t: float) -> State:
        """Add a piece that began with ``state``; return its end, at time ``t``."""
        if self.results and state.matrix is not None:
            large = isinstance(state.matrix, Linear)
            self.matrices.append(_NOT_WRITTEN_DOWN if large else np.asarray(state.matrix))
        self.results.append(result)
        mean = state_at(result.posterior)[0]
        self.size = np.maximum(self.size, np.max(np.abs(mean), axis=0))
        return State(t, Embedding.of(result.posterior).values(mean[-1]), state.mode)

    def _carried(self, matrix: np.ndarray | Linear | None) -> Carried | None:
        """What is known of a start: of the end of the last piece, by what has acted since."""
        if not self.results or matrix is None:
            return None
        posterior: Posterior = self.results[-1].posterior
        made, structure = posterior.calibration, posterior.method.structure
        error = None if made is None else matrix @ np.asarray(made.error[-1])
        alone = not posterior.solver.smooths or isinstance(posterior.method.equation, Implicit)
        if error is not None and (
            alone or self._is_rounding(posterior) or not holds(structure, np.asarray(matrix))
        ):
            return Carried(None, error)
        if alone:
            raise ValueError(
                f"with {posterior.solver.name} and implicit equations, jumps need the error "
                "estimate: leave out calibration='model'."
            )
        assert not isinstance(matrix, Linear)
        return Carried(through(structure, columns_at_end(posterior), matrix), error)

    def _is_rounding(self, posterior: Posterior) -> bool:
        """Whether the estimated error of the end is next to nothing.

        There the model knows less than is known, and smoothing would only spread rounding.
        """
        assert posterior.calibration is not None
        return bool(np.all(np.abs(posterior.calibration.error[-1]) <= _EXACT * self.size))

    # Events ---------------------------------------------------------------------------------------

    def _fired(self, result: OdeResult) -> list[int]:
        """The event that has ended a piece, if one has; all that were found are counted."""
        if result.t_events is not None:
            self._note({name: result[name] for name in EVENTS})
        if result.status != 1:
            return []
        last = [t[-1] if len(t) else np.nan for t in result.t_events]
        ends = [one.reset is not None or np.isfinite(one.left) for one in self.watched]
        return [k for k, t in enumerate(last) if ends[k] and t == result.t[-1]]

    def _note(self, found: dict[str, Any]) -> None:
        self.found.append(found)
        for k, t in enumerate(found["t_events"]):
            self.watched[k] = self.watched[k]._replace(left=self.watched[k].left - len(t))

    def _reset(self, state: State, fired: list[int]) -> State:
        """After the resets of events at one time, in the order in which they were given."""
        posterior: Any = self.results[-1].posterior if self.results else None
        if posterior is not None and not posterior.solver.smooths:
            raise ValueError(_NO_RESETS.format("SparseEK1, which was taken for a large system"))
        alone = posterior is not None and posterior.calibration is None
        if alone and posterior.method.structure.name != "dense":
            raise ValueError(
                f"the covariance of {posterior.solver.name} has no room for what an event mixes: "
                "leave out calibration='model', or use EK1."
            )
        place, matrix = self._place(state), state.matrix
        acting = [k for k in fired if self.watched[k].reset is not None]
        for k in acting:
            action = self.watched[k].reset
            assert action is not None
            place, change = reset(place, action, self._surface(k, place))
            matrix = change if matrix is None else change @ matrix
        made = self._acted(place, matrix)
        return made._replace(leaves=tuple((k, self._leaves(k, place, made)) for k in acting))

    def _surface(self, k: int, place: Place) -> Surface:
        return Surface.at(place, self.watched[k].prepared(place.mode.args, 0.0).function)

    def _at_zero(self, state: State) -> list[int]:
        """Events that act next, right after another has acted, without any time between them.

        With a zero that rounding does not tell from the other one's: the next piece would begin
        behind it. What is still before it is found there.
        """
        if not state.leaves or not self.results:
            return []
        place, just, found = self._place(state), dict(state.leaves), []
        for k, one in enumerate(self.watched):
            if one.reset is None or k in just:
                continue
            value, gradient, rate = self._surface(k, place)
            rate *= self.sign
            wanted = one.prepared(place.mode.args, 0.0).direction * rate >= 0.0
            behind = rate != 0.0 and 0.0 <= value / rate <= _AT_ONCE * np.spacing(abs(place.t))
            if wanted and behind:
                found.append(k)
                std = self._unsure(state.matrix, gradient) / abs(rate)
                self._note(self._only(k, place.t, place.embedding.values(place.u), std))
        return found

    def _only(self, k: int, *row: Any) -> dict[str, Any]:
        """One occurrence of an event, as a result has it."""
        none = [np.array([]) for _ in self.watched]
        return {
            name: [*none[:k], np.asarray(value)[None], *none[k + 1 :]]
            for name, value in zip(EVENTS, row, strict=True)
        }

    def _unsure(self, matrix: np.ndarray | Linear | None, gradient: np.ndarray) -> float:
        """How far a function with this gradient may be off, where a piece begins."""
        known, found = self._carried(matrix), 0.0
        if known is not None and known.columns is not None:
            structure = self.results[-1].posterior.method.structure
            std = np.concatenate([structure.std(column) for column in known.columns])
            found = float(np.abs(gradient) @ std)
        if known is not None and known.error is not None:
            found = max(found, float(abs(gradient @ known.error)))
        return found

    def _leaves(self, k: int, place: Place, state: State) -> float:
        """The sign with which an event function leaves zero, if that is where its reset left it."""
        value, gradient, rate = self._surface(k, place)
        near = _ROUNDING * float(np.abs(gradient) @ np.abs(place.u))
        near += _AT_ITS_ROOT * self._unsure(state.matrix, gradient)
        return float(self.sign * np.sign(rate)) if abs(value) <= near else 0.0

    # States ---------------------------------------------------------------------------------------

    def _jumped(self, state: State) -> State:
        """After all jumps at this time, if there are any."""
        while self.jumps and _at_once(self.jumps[0].t, state.t):
            place, matrix = self._place(state), state.matrix
            for function in self.jumps.pop(0).maps:
                place, change = jumped(place, function, self._large)
                matrix = change if matrix is None else change @ matrix
            state = self._acted(place, matrix)._replace(leaves=state.leaves)
        return state

    @property
    def _large(self) -> bool:
        """Whether nothing is needed of a jump but what becomes of the error."""
        return not (self.results and self.results[-1].posterior.solver.smooths)

    def _place(self, state: State) -> Place:
        y = np.asarray(state.y)
        y = y.astype(complex if np.iscomplexobj(y) else float).reshape(-1)
        order = equation_of(self.chosen, state.mode.fun).order
        embedding = Embedding(y.size // order, np.iscomplexobj(y), order)
        u, std = embedding.flatten(y), np.zeros(order * embedding.d)
        if self.results and state.matrix is None:
            std = state_at(self.results[-1].posterior)[1][-1]
        return Place(state.t, u, std, state.mode, embedding, self._slope)

    def _acted(self, place: Place, matrix: np.ndarray | Linear | None) -> State:
        if place.mode.fun is not self.start.mode.fun and self.chosen.jac is not None:
            raise ValueError(
                "a Restart with another fun has no use for jac, which is that of the first one: "
                "leave jac out (functions that can be traced need none)."
            )
        return State(place.t, place.embedding.values(place.u), place.mode, matrix)

    def _slope(self, t: float, y: np.ndarray, mode: Mode) -> np.ndarray:
        """``f`` in real form."""
        equation = equation_of(self.chosen, self._with_infusions(mode.fun))
        evaluation = Evaluation(equation, mode.args, self.vectorized)
        value = np.ravel(np.asarray(evaluation(t, y.copy())))
        order = equation.order
        return Embedding(y.size // order, np.iscomplexobj(y), order).flatten(value.astype(y.dtype))


def _at_once(t: float, other: float) -> bool:
    """Whether two times are the same, up to rounding."""
    return abs(t - other) <= _AT_ONCE * np.spacing(max(abs(t), abs(other)))


def _refuse(chosen: Options, fun: Any, method: Any, events: Any, y0: Any) -> None:
    if chosen.grid is not None:
        raise ValueError("jumps, doses and resets cannot be combined with grid: leave it out.")
    name = method if isinstance(method, str) else getattr(method, "name", "")
    large, mass = name.startswith("SparseEK1"), chosen.mass_matrix is not None
    if any(hasattr(event, "reset") for event in _listed(events)):
        for what, is_so in (
            ("SparseEK1", large),
            ("mass matrices", mass),
            (type(fun).__name__, isinstance(fun, Implicit)),
        ):
            if is_so:
                raise ValueError(_NO_RESETS.format(what))
    kind = read_method(method)
    if isinstance(method, str) and not isinstance(fun, Equation) and not chosen.second_order:
        kind = large_kind(kind, chosen, y0)
    if np.size(y0) > _LARGEST and not is_large(kind):
        raise ValueError(
            f"jumps and resets are for at most {_LARGEST} components (their derivatives are dense "
            f"matrices), got {np.size(y0)}: use SparseEK1, whose jumps may have more."
        )
    table = chosen.doses
    flows = isinstance(table, Doses) and table.rate is not None
    if flows and (isinstance(fun, Equation) or chosen.second_order or mass):
        raise ValueError("infusions are for y' = fun(t, y) of first order: write it as a system.")


_NO_RESETS = (
    "events with a reset are not for {}: use EK1 (or EK0) and fun(t, y). Jumps at given times are."
)
