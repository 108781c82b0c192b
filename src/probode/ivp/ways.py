"""The ways to evaluate a user's function in a solve: compiled from its trace, or by Python."""

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from probode.base.status import Status
from probode.engines.fallback import Fallback, guarded_on_host, logger, value_at
from probode.engines.in_python import Driven
from probode.engines.kept import Kept
from probode.engines.monitor import Monitor
from probode.engines.protocol import Engine, Given, Inputs
from probode.engines.unsteady import stops_where_unsteady
from probode.filter import loop
from probode.filter.control import Control, PControl
from probode.filter.restart import NO_RESTARTS, Restarts
from probode.filter.solvers import Solver, with_start
from probode.filter.step import Method
from probode.global_error.in_python import HostProblem
from probode.ivp.function import Traced, UserFunction, host_problem
from probode.model.implicit import Implicit
from probode.posterior.outcome import Problem
from probode.programs.arithmetic import Guard
from probode.programs.jacobian_check import WatchedJacobian
from probode.programs.switches import NONE, Switches, stops_before, switches

if TYPE_CHECKING:
    from probode.ivp.run import Task


class Way(Protocol):
    """A way to evaluate the function."""

    solver: Solver
    control: Control
    path: str
    """How the function is evaluated."""

    @property
    def given(self) -> Given:
        """What an engine takes."""

    @property
    def other_evaluations(self) -> int:
        """Evaluations of the function outside of starts, steps and error estimates."""

    @property
    def directly(self) -> Any:
        """The function itself, where calling it takes next to no time; else ``None``."""

    def prepare(
        self, method: Method, control: Control, y0: np.ndarray, suspects: np.ndarray
    ) -> None:
        """Before the first step."""

    def run(self, engine: Engine, monitor: Monitor) -> tuple[loop.Solve, Status, Kept]:
        """Take all steps, and keep them."""

    def start_evaluations(self, t: Any) -> int:
        """Evaluations of the function in all starts on the way to ``t``."""

    @property
    def problem(self) -> Problem:
        """The function, for a calibration and what is said of it."""


class Compiled:
    """A function that was traced."""

    def __init__(self, task: "Task", solver: Solver, traced: Traced, user: UserFunction) -> None:
        self.solver, self.path = solver, traced.path
        self._task, self._traced, self._user = task, traced, user

    def prepare(
        self, method: Method, control: Control, y0: np.ndarray, suspects: np.ndarray
    ) -> None:
        """Steps end where the function switches, too."""
        task, field = self._task, self._traced.field
        self._found = task.switching(switches(field, task.t0, task.tf))
        implicit, y0 = isinstance(task.equation, Implicit), task.given(y0)
        value = partial(value_at, field, y0)
        found = self._found
        if implicit and found is not None:  # there are no steps across: steps only end there
            suspects, found = np.union1d(suspects, found.times), None
        self.control, restarts = _with_stops(task, control, suspects, found, value)
        start, (t0, t1) = self.solver.initialization, map(np.asarray, (task.t0, task.tf))
        inputs = Inputs(method, start, field, self.control, t0, t1, y0)
        self._given = Fallback(inputs, restarts)
        self._given.carried = None if task.carried is None else task.carried.columns
        if isinstance(task.equation, Implicit):
            self._given.note(task.equation.check_start(field, t0, y0)[0])

    def run(self, engine: Engine, monitor: Monitor) -> tuple[loop.Solve, Status, Kept]:
        done = engine.run(self._given, monitor)
        self.solver = with_start(self.solver, self._given.inputs.initialization)
        return done

    @property
    def given(self) -> Given:
        return self._given

    other_evaluations = 0

    @property
    def directly(self) -> Any:
        task, traced = self._task, self._traced
        if traced.path != "numpy" or traced.checks != 1:
            return None
        guard = Guard(self._user.fun, task.t0, self._given.inputs.y0)
        return self._user.on_host(guard, task.embedding.d).function

    def start_evaluations(self, t: Any) -> int:
        given = self._given
        start = given.inputs.initialization
        each = loop.start_evaluations(start, self.control, self.solver.order)
        return each * (1 + given.restarts.passed(t))

    @property
    def problem(self) -> Problem:
        return Problem(self._given.inputs.field, tuple(self._given.notes), self._found)


class DrivenFromPython:
    """A function that only Python can evaluate."""

    path = "python"

    def __init__(self, task: "Task", solver: Solver, user: UserFunction) -> None:
        self.solver, self._task, self._user = solver, task, user
        self._asked = solver.initialization
        self._watched: WatchedJacobian | None = None

    def prepare(
        self, method: Method, control: Control, y0: np.ndarray, suspects: np.ndarray
    ) -> None:
        """What is not finite in its Jacobian counts as zero, which is noted."""
        task, guard = self._task, Guard(self._user.fun, self._task.t0, y0)
        hosted = self._user.on_host(guard, task.embedding.d)
        self._y0, self._said, self._begun = y0, guard.notes, list[str]()
        jacobian, self._watched = hosted.jacobian, None
        if jacobian is not None and task.options.jac is not None:
            jacobian = self._watched = WatchedJacobian(hosted.function, jacobian)
        self._hosted = hosted._replace(jacobian=guarded_on_host(jacobian, self._said))
        self._found = task.switching(self._user.switches)
        value = partial(value_at, self._hosted, y0)
        self.control, self._restarts = _with_stops(task, control, suspects, self._found, value)
        inputs = Inputs(method, self._asked, self._hosted, self.control, task.t0, task.tf, y0)
        self._given = Driven(inputs, self._restarts)
        self._given.notes = self._said
        self._given.carried = None if task.carried is None else task.carried.columns
        begun = self._given.begun
        self._evaluations = begun.evaluations
        self.solver = with_start(self.solver, begun.initialization)
        if begun.note is not None:
            self._begun.append(begun.note)
            if task.options.initialization is not None:
                logger.warning("%s.", begun.note)

    def run(self, engine: Engine, monitor: Monitor) -> tuple[loop.Solve, Status, Kept]:
        if isinstance(self.control, PControl):  # other steps are as short as the user has them
            judge = stops_where_unsteady(
                self._hosted.function, self._task.tf, self._said, self._task.equation
            )
            monitor = monitor._replace(judge=judge)
        return engine.run(self._given, monitor)

    def start_evaluations(self, t: Any) -> int:
        return self._evaluations * (1 + self._restarts.passed(t))

    @property
    def given(self) -> Given:
        return self._given

    directly = None

    @property
    def other_evaluations(self) -> int:
        return 0 if self._watched is None else self._watched.evaluations

    @property
    def problem(self) -> Problem:
        again = partial(host_problem, self._user, self._task.t0, self._y0)
        notes = (*self._begun, *self._said)
        return Problem(HostProblem(*self._hosted), notes, self._found, again=again)


def _with_stops(
    task: "Task", control: Control, suspects: np.ndarray, found: Switches | None, value: Any
) -> tuple[Control, Restarts]:
    """Steps that end at suspicious times; and steps across the switches."""
    if not isinstance(control, PControl):
        return control, NO_RESTARTS
    stops = stops_before(np.ravel(suspects), task.t0, task.tf)
    restarts = NO_RESTARTS
    begins = task.carried is not None and task.carried.columns is not None
    if begins and found is None:
        found = Switches(True, NONE, NONE)
    if found is not None:
        restarts = Restarts.around(found, task.t0, task.tf, value, begins)
    return control.with_stops(stops, task.tf), restarts
