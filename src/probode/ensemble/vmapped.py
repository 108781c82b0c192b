"""The reference engine: the library's own saving loop on a batch of members at a time.

A batch has ``W`` lanes, each with a member. All lanes attempt a step at once, until enough of them
have finished; those are harvested and their places filled with members that wait
(:mod:`probode.engines.lanes.refill`).
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from threading import Event
from typing import Any

import jax
import numpy as np

from probode.base.blas import one_blas_thread
from probode.base.compile import TURN_ON_CPU
from probode.base.precision import double_precision
from probode.base.said import logger
from probode.base.status import Status
from probode.engines.lanes.records import COUNTS, SIGN_COUNT, LaneResults, Members
from probode.engines.lanes.refill import Places
from probode.ensemble import batch
from probode.ensemble.batch import Plan, Start, vacant_lanes
from probode.ensemble.constraint import constraint_of
from probode.ensemble.function import bind_member
from probode.ensemble.problem import member, usable
from probode.ensemble.settings import Settings
from probode.filter.control import PControl
from probode.filter.given import for_each_derivative
from probode.global_error.beside import Beside
from probode.global_error.schemes import scheme_for
from probode.model.equation import FirstOrder, check_equation
from probode.model.implicit import Implicit, was_changed
from probode.model.invariant import Constraint
from probode.programs.field import Field
from probode.programs.inputs import inputs_in
from probode.programs.switches import MOST_OF_A_TABLE

_LANES = {"cpu": 64}
_LANES_ELSEWHERE = 4096
_REFILLED = 4
"""A batch stops for refilling when this part of its lanes has finished."""
_ROUND = 256
"""Attempted steps after which Python gets its turn."""
_LANE_BYTES = 2**28
"""Memory that the lanes may take."""


def solve_vmapped(
    vector_field: Callable[..., Any],
    members: Members,
    settings: Settings,
    *,
    device: Any = None,
    on_progress: Callable[[int], Any] | None = None,
    stop: Event | None = None,
    samples: int = 0,
    seed: int = 0,
    numbers: np.ndarray | None = None,
    lanes: int | None = None,
) -> tuple[LaneResults, np.ndarray | None]:
    """Solve all members on one device; return results and joint samples ``(B, n, T, d)``.

    ``on_progress`` is told how many members have finished since it was told last. Members that
    have not when ``stop`` is set are marked as interrupted. Samples depend on ``seed`` and on the
    ``numbers`` of the members. ``lanes`` is the size of a batch, a power of two.
    """
    # BLAS threads: no matrix here is large enough for them.
    with double_precision(), one_blas_thread(), jax.default_device(device):
        fits = usable(members)
        platform = (device or jax.devices()[0]).platform
        some = int(np.argmax(fits))
        plan, field = _plan(vector_field, members, settings, some, samples)
        held = constraint_of(members, settings, some)
        if held is not None and held.invariants is not None:
            plan = replace(plan, places=_places(field, held.invariants, member(members, some)[2]))
        if lanes is None:
            lanes = _lanes(plan, platform, members.times.shape[1])
        queue = _starts(members, field, plan.swept, seed, numbers)
        driver = Driver(
            plan,
            field,
            _control(plan, settings.control),
            held,
            settings.max_steps,
            queue,
            np.flatnonzero(fits),
            lanes,
            on_progress,
            TURN_ON_CPU if platform == "cpu" else nullcontext(),
        )
        found = list(driver.run(stop)) if fits.any() else []
        if driver.changed and not samples:
            logger.warning(
                "y0 of %d members does not fulfil the algebraic equations: it was changed in its "
                "algebraic components.",
                driver.changed,
            )
    return _gather(members, settings, plan, fits, found)


def _plan(
    vector_field: Callable[..., Any], members: Members, settings: Settings, i: int, samples: int
) -> tuple[Plan, Field]:
    """The compiled part, and the vector field with the parameters of member ``i``."""
    solver = settings.solver
    args = member(members, i)[2]
    field = bind_member(vector_field, members, settings, i)
    equation = settings.equation
    # A solver of a user's own may know of equations of first order only.
    method = solver.method(field.d, *(() if type(equation) is FirstOrder else (equation,)))
    check_equation(equation, field, method.structure, method.jacobian)
    beside = None
    if settings.calibration != "model":
        beside = Beside(scheme_for(method, False, settings.calibration))
    plan = Plan(
        *(solver, method, members.shape or (members.d,), _swept(members, field, args)),
        *(settings.smooth or samples > 0, settings.covariance, settings.calibration),
        *(beside, samples),
        sys.maxsize if inputs_in(members.args) else MOST_OF_A_TABLE,
    )
    return plan, field


def _control(plan: Plan, control: PControl) -> PControl:
    """For the steps; its tolerances are replaced by those of the members."""
    if plan.method.equation.order > 1:
        control = for_each_derivative(control, plan.method.equation, plan.shape[1:])
    return control.flat(plan.shape).within(plan.solver.prior.longest_step)


def _swept(members: Members, field: Field, args: tuple[Any, ...]) -> tuple[int, ...]:
    """Parameters of which each member has its own: those that vary, and numbers.

    So the program does not depend on which of the numbers vary.
    """
    axes = [members.axes[k] for k in field.data_leaves(args)]
    return tuple(
        k for k, axis in enumerate(axes) if axis is not None or np.ndim(field.args[k]) == 0
    )


def _places(field: Field, g: Field, args: tuple[Any, ...]) -> tuple[int | None, ...]:
    """Of each parameter of ``g``, its place among those of the vector field, if it is there."""
    known = field.data_leaves(args)
    return tuple(known.index(k) if k in known else None for k in g.data_leaves(args))


def _lanes(plan: Plan, platform: str, times: int) -> int:
    """Lanes of a batch: as many as suit the device, if there is memory for them.

    The number of members plays no part: one program for all ensembles, and the same member gives
    the same result in each of them.
    """
    structure = plan.method.structure
    state = 8 * (structure.n * structure.d + int(np.prod(structure.factor_shape)))
    # A saved state and its backward kernel at each save point, and what one step works on.
    one = state * (3 * times + 16)
    lanes = _LANES.get(platform, _LANES_ELSEWHERE)
    while lanes > 1 and lanes * one > _LANE_BYTES:
        lanes //= 2
    return lanes


def _starts(
    members: Members, field: Field, swept: tuple[int, ...], seed: int, numbers: Any
) -> Start:
    """All members as a queue, NumPy arrays."""
    numbers = np.arange(members.count) if numbers is None else numbers
    leaves = jax.tree.leaves(members.args)
    _, _, args = member(members, 0)
    data = [leaves[k] for k in field.data_leaves(args)]
    own: list[Any] = [
        data[k] if np.ndim(data[k]) else np.full(members.count, data[k]) for k in swept
    ]
    seeds: Any = np.stack([np.full(members.count, seed), numbers], axis=1).astype(np.uint32)
    real: Any = np.ones(members.count, bool)
    given: Any = members
    return Start(
        t0=given.t0,
        t1=given.t1,
        y0=given.given,
        rtol=given.rtol,
        atol=given.atol,
        save_at=given.times,
        own=own,
        seed=seeds,
        real=real,
    )


@dataclass
class Driver:
    """A batch, and the members that wait for a place in it."""

    plan: Plan
    field: Field
    control: PControl
    held: Constraint | None
    max_steps: int
    queue: Start
    """All members."""
    order: np.ndarray
    """Numbers of those that can be begun."""
    width: int
    on_progress: Callable[[int], Any] | None
    turn: AbstractContextManager[Any]
    """What is held while the device computes."""
    changed: int = 0
    """Members whose start did not fulfil an implicit equation, and was changed until it does."""

    def run(self, stop: Event | None) -> Iterator[tuple[np.ndarray, Any]]:
        """Solve all; give the numbers and outcomes of members as they finish."""
        one = jax.tree.map(lambda x: x[0], self.queue)
        self.lanes = vacant_lanes(self.plan, self.field, self.control, one, self.width)
        count = len(self.order)
        self.places = Places.vacant(np, self.width, count, count)
        going = np.zeros(self.width, bool)
        while self.places.open:
            if stop is not None and stop.is_set():
                return
            yield from self._refill(going)
            going = self._advance()

    @property
    def exchanged(self) -> int:
        """Lanes that are exchanged at once."""
        return max(1, self.width // _REFILLED)

    def _refill(self, going: np.ndarray) -> Iterator[tuple[np.ndarray, Any]]:
        """Harvest lanes that have finished, and put members that wait into their places."""
        before, self.places = self.places, self.places.give(np, ~going)
        free = np.flatnonzero(~going & (before.taken | self.places.taken))
        for first in range(0, len(free), self.exchanged):
            slots = free[first : first + self.exchanged]
            missing = (0, self.exchanged - len(slots))
            real = np.pad(self.places.taken[slots], missing)
            rows = self.order[np.where(real, np.pad(self.places.who[slots], missing), 0)]
            starts = jax.tree.map(lambda x, rows=rows: x[rows], self.queue)
            padded = np.pad(slots, missing, constant_values=self.width)
            with self.turn:
                outcome, self.lanes = jax.block_until_ready(
                    batch.exchange_lanes(
                        *(self.plan, self.field, self.control, self.held, self.lanes, padded),
                        replace(starts, real=real),
                    )
                )
            if isinstance(self.plan.method.equation, Implicit):
                self._look_at_starts(slots, self.queue.y0[rows])
            done = np.flatnonzero(before.taken[slots])
            if len(done):
                leaving = self.order[before.who[slots[done]]]
                yield leaving, jax.tree.map(lambda x, i=done: np.asarray(x)[i], outcome)
                if self.on_progress is not None:
                    self.on_progress(len(done))

    def _look_at_starts(self, slots: np.ndarray, given: Any) -> None:
        """Count those that were begun elsewhere than was given."""
        begun = self.lanes.kept.solve
        fresh = self.places.taken[slots] & (np.asarray(begun.status)[slots] == Status.RUNNING.value)
        found = np.asarray(begun.state.mean)[slots, 0]
        moved = was_changed(given[: len(slots), : found.shape[1]], found)
        self.changed += int(np.sum(fresh & moved))

    def _advance(self) -> np.ndarray:
        """Step until enough lanes are at rest; return which are not."""
        at_rest = self.width - self.places.least(np, self.exchanged)
        # What is handed out is not part of the steps: these are compiled once.
        steps = replace(self.plan, covariance=False, samples=0, places=())
        with self.turn:
            self.lanes, going = jax.block_until_ready(
                batch.advance_lanes(
                    *(steps, self.field, self.control, self.lanes),
                    *(self.max_steps, _ROUND, at_rest),
                )
            )
        return np.asarray(going)


def _gather(
    members: Members,
    settings: Settings,
    plan: Plan,
    fits: np.ndarray,
    found: list[tuple[np.ndarray, Any]],
) -> tuple[LaneResults, np.ndarray | None]:
    """Outcomes in the order of the members; NaN for those that have none."""
    count, times, d = members.count, members.times.shape[1], members.d
    status = np.where(fits, Status.INTERRUPTED.value, Status.START_NOT_FINITE.value)
    counts = np.zeros((5, count), int)
    mean, std = (np.full((count, times, d), np.nan) for _ in range(2))
    cov = np.full((count, times, d, d), np.nan) if settings.covariance else None
    samples = np.full((count, plan.samples, times, d), np.nan) if plan.samples else None
    signs = None if settings.calibration == "model" else np.full((count, SIGN_COUNT), np.nan)
    for which, outcome in found:
        mean[which], std[which] = outcome["mean"], outcome["std"]
        status[which], counts[:, which] = outcome["status"], outcome["counts"].T
        if cov is not None:
            cov[which] = outcome["cov"]
        if signs is not None:
            signs[which] = outcome["signs"]
        if samples is not None:
            samples[which] = outcome["samples"]
    by_name = dict(zip(COUNTS, counts, strict=True))
    return LaneResults(mean, std, cov, status, signs=signs, **by_name), samples
