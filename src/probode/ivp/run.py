"""Running what ``solve_ivp`` was asked for: compiled where it can be traced, else from Python.

Again where a look shows that the function has changed, or that the steps have missed something.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from probode.base.blas import one_blas_thread
from probode.base.limits import Limits
from probode.base.precision import double_precision
from probode.base.spacious import large_arrays_in
from probode.base.status import Status
from probode.engines.choice import engine_for
from probode.engines.monitor import Monitor
from probode.engines.progress import with_progress
from probode.engines.protocol import Engine
from probode.engines.two_pole.engine import KIND
from probode.engines.two_pole.system import Asked
from probode.filter import loop
from probode.filter.control import Control, PControl
from probode.filter.solvers import Solver
from probode.filter.step import Method
from probode.global_error.schemes import scheme_for
from probode.ivp.checkpoint import identity
from probode.ivp.choice import Candidate
from probode.ivp.constraint import constraint_of
from probode.ivp.function import UserFunction
from probode.ivp.jacobian import in_real_form
from probode.ivp.method import say_if_costly
from probode.ivp.options import Options
from probode.ivp.result import Embedding
from probode.ivp.target import Integrated
from probode.ivp.until import Along
from probode.ivp.ways import Compiled, DrivenFromPython, Way
from probode.model.equation import Equation, FirstOrder, check_equation
from probode.model.implicit import Implicit
from probode.model.invariant import Constraint
from probode.model.mass_matrix import MassMatrix
from probode.posterior import events
from probode.posterior import large as large_system
from probode.posterior.chosen import ChosenPath
from probode.posterior.cut import cut
from probode.posterior.finish import calibrated, run_and_finish
from probode.posterior.paths import NodePath, Path, SavedPath
from probode.posterior.posterior import Posterior
from probode.programs.jacobian_check import WrongJacobianError
from probode.programs.kinks import kinked
from probode.programs.switches import NONE, Switches
from probode.solve import build_posterior

_FEW_COMPONENTS = 2000
"""Largest size of a large system with kinks whose steps are all kept to judge its error bars."""
_MOST_REPEATS = 3
"""Solves again where the steps missed something that a look between them saw."""


class Carried(NamedTuple):
    """How uncertain a start is, in real form."""

    columns: list[np.ndarray] | None
    """Columns of a factor of its covariance, for each derivative that is given; ``None``: for the
    model it is exact, only its error is known."""
    error: Any = None
    """An estimate of its error; ``None``: there is none."""


@dataclass(frozen=True)
class Task:
    """What is to be solved, as the user said it.

    Parameters
    ----------
    times
        Where nothing else is needed of the solution than its values at these times. Then a large
        one is kept there only.
    output
        What is made of a posterior in the end, to see how long it takes.
    """

    fun: Callable[..., Any]
    t0: float
    tf: float
    start: np.ndarray
    arguments: tuple[Any, ...]
    vectorized: bool
    options: Options
    embedding: Embedding
    watched: list[events.Event] | None
    equation: Equation
    times: np.ndarray | None
    output: Callable[[Posterior, Limits], None]
    limits: Limits
    slope: np.ndarray | None = None
    """A guess of ``y'`` at the start, of an implicit equation."""
    breakpoints: np.ndarray = field(default_factory=lambda: NONE)
    """Times at which the function switches, as far as the user knows of them."""
    carried: Carried | None = None
    """What is known of the start, if it is not exact."""
    cuts: bool = False
    """Whether a solve that an event ends is to end there, and not with the step that it is in."""

    def given(self, y0: np.ndarray) -> np.ndarray:
        """All that a start holds, from the value: of an implicit equation, with the slope."""
        if not isinstance(self.equation, Implicit):
            return y0
        return np.concatenate([y0, np.zeros_like(y0) if self.slope is None else self.slope])

    def switching(self, found: Switches | None) -> Switches | None:
        """The switches that were found, and those that the user knows of."""
        if found is None and len(self.breakpoints) == 0:
            return None
        known = Switches(True, NONE, NONE) if found is None else found
        return known.joined(self.breakpoints, self.t0, self.tf)

    def integrate(self, candidates: list[Candidate], control: Control) -> Integrated:
        """The result of the first candidate that is done within its budget of steps."""
        given_up: str | None = None
        for solver, budget in candidates:
            began = self.limits.elapsed
            done = self._solve(solver, control, budget)
            if done is None:
                given_up = f"{solver.name} was given up after {budget} steps"
                continue
            if self.limits.left > self.limits.elapsed - began:  # another takes as long again
                done = self._again_where_something_was_missed(done, solver, control, budget)
            if given_up is None:
                return done
            words = f"{given_up}, as stiff problems take them, and {solver.name} took its place"
            problem = done[0].problem.noted(words)
            return replace(done[0], problem=problem), *done[1:]
        raise AssertionError("the last candidate has no budget")

    def _again_where_something_was_missed(
        self, done: Integrated, solver: Solver, control: Control, budget: int | None
    ) -> Integrated:
        """Solve again with steps that end where a look between the steps saw more than they did."""
        suspects, cost = NONE, dict.fromkeys(done[2], 0)
        for _ in range(_MOST_REPEATS):
            look, known = done[0].problem.look, done[0].problem.switches
            if look is None or not look.seen or done[0].status != Status.SUCCESS:
                break
            if known is not None and known.unresolved:  # there is more than can be looked for
                break
            suspects = np.union1d(suspects, look.suspects)
            again = self._solve(solver, control, budget, suspects)
            if again is None:
                break
            cost = {name: cost[name] + done[2][name] for name in cost}
            done = again
        posterior, path, counts = done
        return posterior, path, {name: cost[name] + counts[name] for name in counts}

    def _solve(
        self, solver: Solver, control: Control, budget: int | None, suspects: np.ndarray = NONE
    ) -> Integrated | None:
        """Run the solve; from the start without the user's ``jac`` if that turns out wrong."""
        try:
            return self._solve_with_jac(solver, control, budget, suspects)
        except WrongJacobianError as error:
            words = _without_jac(error, "finite differences of `fun` are used instead")
            task = replace(self, options=self.options._replace(jac=None))
            done = task._solve_with_jac(solver, control, budget, suspects)
        if done is None:
            return None
        return replace(done[0], problem=done[0].problem.noted(words)), *done[1:]

    def _solve_with_jac(
        self, solver: Solver, control: Control, budget: int | None, suspects: np.ndarray
    ) -> Integrated | None:
        """Run the solve on the real form of the state; ``None``: not done in ``budget`` steps.

        Steps end where the function switches, and at the times ``suspects``.
        """
        options, embedding = self.options, self.embedding
        if options.initialization is not None:
            solver = replace(solver, initialization=options.initialization)
        mass = self.equation.mass if isinstance(self.equation, MassMatrix) else None
        implicit = isinstance(self.equation, Implicit)
        y0 = embedding.flatten(self.start)
        # A residual is traced as a function of two derivatives, as one of second order is.
        residual = implicit and mass is None
        user = UserFunction(
            *(self.fun, self.arguments, self.vectorized, options, solver),
            *(embedding._replace(order=2) if residual else embedding, mass, implicit),
        )
        with (
            with_progress(options.progress, self.t0, self.tf, options.callback) as callback,
            double_precision(),
            one_blas_thread(),
        ):
            if isinstance(control, PControl):
                control = control.flat(y0.shape).within(solver.prior.longest_step)
            # A solver of a user's own may know of equations of first order only.
            other = () if type(self.equation) is FirstOrder else (self.equation,)
            method = solver.method(embedding.d, *other)
            engine = engine_for(method, control)
            say_if_costly(solver, method)
            traced = user.traced(self.t0, self.tf, self.given(y0) if residual else y0)
            if traced is not None:
                check_equation(self.equation, traced.field, method.structure, method.jacobian)
            elif implicit:
                raise TypeError(
                    f"{_words(mass)} `fun` must be traceable: it cannot be solved step by step "
                    "from Python. Branches (if, max, min, float) can be written as numpy.where, "
                    "numpy.maximum and the like."
                )
            held = constraint_of(
                *(options, options.bounds, control, (self.t0, self.tf), y0, self.arguments),
                *(embedding, partial(user.slope, self.t0, y0)),
            )
            ways: list[Way] = [] if traced is None else [Compiled(self, solver, traced, user)]
            posterior = None
            for way in (*ways, DrivenFromPython(self, solver, user)):
                way.prepare(method, control, y0, suspects)
                posterior = self._run(engine, way, method, callback, budget, held)
                if posterior is None:
                    return None
                if traced is None or user.still_holds(traced, *_steps_of(posterior.path)):
                    break
                if implicit:
                    raise TypeError(
                        f"`fun` gives other values now than when it was traced: {_words(mass)} "
                        "that cannot be solved. It reads something that has changed since."
                    )
                traced = None
            assert posterior is not None
        if traced is not None and traced.wrong_jac is not None:
            words = _without_jac(traced.wrong_jac, "the exact derivative of `fun` is used instead")
            posterior = replace(posterior, problem=posterior.problem.noted(words))
        stats = posterior.stats
        counts = {
            "nfev": int(stats.f_evaluations)
            + int(stats.calibration_f_evaluations)
            + way.other_evaluations,
            "njev": int(stats.jacobian_evaluations) + int(stats.calibration_jacobian_evaluations),
            "nlu": int(stats.factorisations),
        }
        return posterior, str(stats.path), counts

    def asked(self, way: "Way") -> Asked:
        """What the user says of a large system."""
        options, jac = self.options, self.options.jac
        if callable(jac):
            given = options.jac

            def jac(t: float, y: np.ndarray) -> Any:
                return given(t, y, *self.arguments)

        where = (options.jac_sparsity, options.lband, options.uband)
        asked = Asked(jac, *where, options.mass_matrix, way.directly)
        return in_real_form(asked, self.embedding) if self.embedding.is_complex else asked

    def _run(
        self,
        engine: Engine,
        way: "Way",
        method: Method,
        callback: Any,
        budget: int | None,
        held: Constraint | None,
    ) -> Posterior | None:
        options, embedding, watch = self.options, self.embedding, None
        shape = (embedding.d,)
        if self.watched is not None and any(np.isfinite(e.terminal) for e in self.watched):
            watch = events.Watch(self.watched, method.equation, embedding.values)
        if options.until is not None:
            along = Along.of(way.given, embedding, options, self.t0, self.tf, self.limits)
            watch = options.until.watch(along, method.equation, watch)
        bounds = [bound for bound in (options.max_num_steps, budget) if bound is not None]
        monitor = Monitor(self.limits, min(bounds, default=None), callback, shape, watch)
        large, journal = method.jacobian == KIND, options.checkpoint
        if large and options.until is not None:
            raise ValueError(_UNTIL_LARGE)
        if journal is not None:
            matrices = (options.jac_sparsity, options.lband, options.uband, options.mass_matrix)
            besides = matrices if large else ()
            same = (self.fun, self.arguments, self.watched, options.until, besides)
            monitor = monitor._replace(
                journal=lambda by, given: journal.begin(identity(by, given, *same), by, given)
            )
        smoothing = options.smooth and not large
        sparse = self.times is not None and isinstance(way, Compiled)
        sparse = sparse and not large and journal is None
        calibrating = options.calibration != "model"
        only = None  # the times at which alone a large solve is kept
        if large and journal is None and self.times is not None and len(self.times):
            # Steps that cross kinks are all kept: the error bars need a closer look at them.
            kept = method.structure.d <= _FEW_COMPONENTS and kinked(way.problem.field)
            only = None if kept else self.times
        if only is None:
            on_disk = journal is not None and journal.store.folder is not None
            monitor = monitor.bounded(method, smoothing, calibrating, sparse, on_disk)

        def finish(nodes: Path, final: loop.Solve, status: Any, limits: Limits) -> Posterior:
            extra, how = way.start_evaluations(final.state.t), (engine.name, way.path)
            solved = (nodes, final, status, extra, *how)
            made = build_posterior(way.solver, method, shape, way.control, *solved)
            made = replace(made, problem=way.problem, is_complex=embedding.is_complex)
            if self.carried is not None:
                made = replace(made, begins=self.carried.error)
            if self.cuts and not large and made.status != Status.RUNNING:
                made = self._cut(made, held, limits)
            if large:
                return large_system.calibrated(made, way.given, options.calibration)
            return calibrated(made, made.problem.field, options.calibration, limits)

        if large:
            asked = self.asked(way)
            begins = None if self.carried is None else self.carried.error
            mode = options.calibration
            stored = journal is not None
            large_system.equip(
                way.given, way.solver, mode, asked, only, begins=begins, stored=stored
            )
            if only is not None:
                nodes, final, status = large_system.saved_path(way.given, only, monitor)
                return finish(nodes.held_to(method, held), final, status, self.limits)
        needed = 0
        if calibrating and sparse:
            needed = scheme_for(method, smoothing, options.calibration).k + embedding.order
        with large_arrays_in(None if journal is None else journal.store.folder):
            run = partial(way.run, engine)
            out, times = self.output, self.times
            return run_and_finish(run, smoothing, monitor, finish, out, times, budget, held, needed)

    def _cut(self, made: Posterior, held: Constraint | None, limits: Limits) -> Posterior:
        """The posterior up to the event that ends it, with its events.

        The events are located once: a second search, of the part that is kept, could find others,
        and the next piece would then start from a state that belongs to another time.
        """
        if self.watched is None:
            return made
        located = events.crossings_of(self.watched, made, self.embedding.values, limits)
        if located.ended:
            code: Any = np.asarray(Status.EVENT.value)
            made = replace(made, status_code=code)
            end = located.crossings[-1].t
            if end != made.t[0]:
                made = cut(made, end, held)
                located = located.cut_at(np.asarray(made.t))
        return replace(made, problem=made.problem.with_events(located))


_UNTIL_LARGE = "until is not for SparseEK1, which has no dense Jacobian: use EK0 or EK1."


def _without_jac(found: Any, instead: str) -> str:
    """Warn of a wrong ``jac`` that is not used; return the text of the warning."""
    words = f"{str(found).removesuffix('.')}; {instead}"
    warnings.warn(f"{words}.", stacklevel=2)
    return words


def _words(mass: Any) -> str:
    return "for an implicit equation" if mass is None else "with a mass matrix"


def _steps_of(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Times and means (with their derivatives) of the steps that a solve took."""
    if isinstance(path, SavedPath):
        return np.asarray(path.saved.t), np.asarray(path.saved.mean)
    rows: Any = path.trail if isinstance(path, ChosenPath) else cast(NodePath, path).rows
    t = np.asarray(rows.t)
    known = rows.nodes if isinstance(path, ChosenPath) else None
    return t if known is None else t[known], np.asarray(rows.mean)
