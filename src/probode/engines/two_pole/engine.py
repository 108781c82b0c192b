"""Taking the steps of the two-pole filter, behind the protocol that all engines have.

The standard deviations of the model are those that steps are judged by: local errors add up in
squares in ``y``, as if no step knew of another and nothing were damped; a higher derivative is as
uncertain as the last update has moved it. They are one number for all components. Calibrated ones
(:mod:`probode.global_error.two_pole`) are each component's own.
"""

import math
from math import factorial
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from probode.base.limits import Limits
from probode.base.status import Status
from probode.engines.in_jax import JAX
from probode.engines.kept import Kept, pack_rows
from probode.engines.monitor import Monitor, collect
from probode.engines.protocol import FIRST_ATTEMPTS, Carry, Given, Inputs, Steps
from probode.engines.two_pole import dense, in_kernels
from probode.engines.two_pole.frozen import frozen, thawed
from probode.engines.two_pole.machine import Carried, Scheme
from probode.engines.two_pole.outset import begin, weights_of
from probode.engines.two_pole.rows import as_row, as_solve
from probode.engines.two_pole.step import STRETCH, Standing, System, attempt
from probode.filter.control import ConstantStep, Control, GridSteps, PControl
from probode.filter.loop import Rows, Solve
from probode.filter.smooth import Marginals
from probode.filter.step import Method
from probode.model.two_pole import gains

KIND = "sparse"
"""``Method.jacobian`` of the filter."""
OUTSIDE = (
    "SparseEK1 runs outside of jit, vmap and grad: its factorisations are not JAX's. Solve outside "
    "of the transformation, or use EK0 or EK1 inside."
)
_SLIVER = 1e-6


class Follower(Protocol):
    """What goes along with the steps, and is told of each: it returns the one that follows.

    :class:`probode.global_error.two_pole.Transport` carries the error.
    """

    def passed(self, now: Standing) -> "Follower":
        """After an accepted step."""

    def across(self, t: float, y: np.ndarray) -> "Follower":
        """After a switch, where the filter starts anew."""

    @property
    def scheme(self) -> Scheme:
        """How the kernels are to carry it."""

    def found_by_kernels(self, carried: Carried) -> "Follower":
        """With what they have found."""


class Large(NamedTuple):
    """What the filter needs besides the inputs of a solve."""

    system: System
    follower: Follower | None = None
    stored: bool = False
    """Whether it has to be stored between two chunks, which what is in the kernels cannot be."""


class Form(NamedTuple):
    """A solve between two chunks, as this engine goes on from it."""

    standing: Standing
    std: float
    """Of ``y``, by the model."""
    noise: float
    """``s`` of the last step: how far the slope was off, in the units of ``y'``."""
    follower: Follower | None


class TwoPole:
    """See :class:`probode.engines.protocol.Engine`."""

    name = "two-pole"

    def supports(self, method: Method, control: Control, wanted: str = "steps") -> bool:
        """Its own method, which nobody else runs."""
        return method.jacobian == KIND

    def interpolates(self, method: Method) -> bool:
        """Its own method."""
        return method.jacobian == KIND

    def traced(self, given: Given, rows: int, limits: Limits) -> Steps:
        """Between two evaluations of a compiled function."""
        return _steps(given, rows)

    def driven(self, given: Given, rows: int, limits: Limits) -> Steps:
        """Between two evaluations by Python."""
        return _steps(given, rows)

    def run(self, given: Given, monitor: Monitor, keep: bool = True) -> tuple[Solve, Status, Kept]:
        """Solve and keep every step, or none."""
        return collect(self, given, monitor, keep)

    def end(self, inputs: Inputs) -> Solve:
        """Inside a trace there are no factorisations."""
        raise ValueError(OUTSIDE)

    def join(self, method: Method, chunks: list[Rows]) -> Rows:
        """Rows of all chunks."""
        return JAX.join(method, chunks)

    def smooth(
        self, method: Method, rows: Rows, last: Marginals, limits: Limits
    ) -> Marginals | None:
        """There is no smoother: what the filter finds is what is handed out."""
        return None

    interpolate = staticmethod(dense.interpolate)


TWO_POLE = TwoPole()


def _steps(given: Given, most: int) -> Steps:
    """Chunks of steps; ``most`` rows are kept of each, with none only the last."""
    large = given.large
    assert isinstance(large, Large)
    inputs, system, compiled = given.inputs, large.system, in_kernels.takes(given)
    t0 = float(inputs.t0)
    begun = begin(system, inputs.control, t0, float(given.until(t0)), inputs.y0)

    def fill(carry: Carry, attempts: int, wanted: int) -> tuple[Carry, Rows]:
        most_now = min(wanted, most) if most else 0
        if compiled:
            following, rows = in_kernels.filled(inputs.method, carry, attempts, most_now)
            follower = following.form.waiting
        else:
            following, rows = _fill(given, system, carry, attempts, most_now)
            follower = following.form.follower
        given.large = given.large._replace(follower=follower)  # it outlives them
        return following, rows

    form = Form(begun, 0.0, 0.0, large.follower)

    def freeze(carry: Carry) -> list[np.ndarray]:
        return [np.asarray(carry.solve.status), *frozen(carry.form)]

    def thaw(arrays: list[np.ndarray]) -> Carry:
        found = thawed(system, form, arrays[1:])
        given.large = given.large._replace(follower=found.follower)
        return Carry(solve_of(inputs.method, found, Status(int(arrays[0]))), found)

    finite = bool(np.all(np.isfinite(begun.x)))
    status = Status.RUNNING if finite else Status.START_NOT_FINITE
    if finite and inputs.t0 == inputs.t1:
        status = Status.SUCCESS
    if compiled:
        carry = in_kernels.carry_of(inputs.method, in_kernels.begun(given, begun), status)
        return Steps(carry, fill, FIRST_ATTEMPTS)
    carry = Carry(solve_of(inputs.method, form, status), form)
    return Steps(carry, fill, FIRST_ATTEMPTS, freeze, thaw)


def _fill(
    given: Given, system: System, carry: Carry, attempts: int, wanted: int
) -> tuple[Carry, Rows]:
    """Until ``wanted`` steps are accepted (none: any number, of which no row is kept)."""
    method, form = given.inputs.method, carry.form
    kept, taken, status = [row_of(method, form)], 0, Status.RUNNING
    while status == Status.RUNNING and attempts > 0 and (taken < wanted or not wanted):
        form, status, accepted = advance(given, system, form)
        attempts -= 1
        taken += accepted
        if accepted and wanted:
            kept.append(row_of(method, form))
    rows: Any = jax.tree.map(lambda *each: np.stack(each), *kept)
    return Carry(solve_of(method, form, status), form), pack_rows(rows)


def advance(given: Given, system: System, form: Form) -> tuple[Form, Status, bool]:
    """One attempt, or over a switch: where it leads, how the solve stands, whether it went on."""
    control, now, t1 = given.inputs.control, form.standing, float(given.inputs.t1)
    beyond = given.restarts.beyond(now.t) if len(given.restarts.before) else None
    if beyond is not None:
        until = float(given.until(beyond[0]))
        form, finite = _across(system, control, form, *beyond, until)
        if not finite:
            return form, Status.NOT_FINITE, False
    else:
        judged, until = isinstance(control, PControl), float(given.until(now.t))
        end = _next_time(control, now, until)
        following = attempt(system, weights_of(control), now, end, judged)
        if following.counts.accepted == now.counts.accepted:
            return form._replace(standing=following), _judged(control, following), False
        form = _accepted(form, following)
    return form, Status.SUCCESS if form.standing.t == t1 else Status.RUNNING, True


def _accepted(form: Form, now: Standing) -> Form:
    """After a step that was accepted."""
    u = now.correction
    assert u is not None
    scale = float(np.sqrt(u @ u / u.size))
    local = gains(now.order).error * scale
    follower = None if form.follower is None else form.follower.passed(now)
    return Form(now, float(np.hypot(form.std, local)), scale / abs(now.h), follower)


def _across(
    system: System, control: Any, form: Form, t: float, share: float, until: float
) -> tuple[Form, bool]:
    """Over a switch to ``t``: ``y`` goes on with its slope, all else begins anew."""
    now = form.standing
    y, slope = now.x[0], now.x[1] / now.h
    beyond = system.slope(t, y)
    y = y + (t - now.t) * ((1.0 - share) * slope + share * beyond)
    anew = begin(system, control, t, until, y)
    if not np.all(np.isfinite(anew.x)):
        return form, False
    counts = now.counts._replace(
        attempted=now.counts.attempted + 1,
        accepted=now.counts.accepted + 1,
        f=now.counts.f + anew.counts.f + 1,
    )
    anew = anew._replace(counts=counts)
    follower = None if form.follower is None else form.follower.across(t, y)
    return Form(anew, form.std, form.noise, follower), True


def _next_time(control: Any, now: Standing, t1: float) -> float:
    """Where the next step ends."""
    if isinstance(control, GridSteps):
        return float(control.grid[min(now.counts.accepted + 1, len(control.grid) - 1)])
    if isinstance(control, ConstantStep):
        size = float(np.copysign(control.size, t1 - now.t))
        following = float(control.start) + (now.counts.accepted + 1) * size
        near = abs(t1 - following) < _SLIVER * abs(size)
        return t1 if near or (following - t1) * size > 0.0 else following
    end = t1
    if control.stops is not None:
        end = float(control.next_stop(np.asarray(now.t), np.asarray(t1)))
    left = end - now.t
    h = math.copysign(min(abs(now.following), float(control.max_step)), left)
    if abs(h) * STRETCH >= abs(left):
        return end
    # Two steps of one length to the end, not one and a sliver: both are factorised anew.
    return now.t + (0.5 * left if abs(left) < 2.0 * abs(h) else h)


def _judged(control: Any, now: Standing) -> Status:
    """Whether it makes sense to go on after a step was rejected."""
    smallest = float(10.0 * np.finfo(float).eps * abs(now.t))
    if isinstance(control, PControl):
        smallest = max(smallest, float(control.min_step))
    if abs(now.following) > max(smallest, np.finfo(float).tiny):
        return Status.RUNNING
    return Status.STEP_TOO_SMALL if now.resolved else Status.NOT_FINITE


def row_of(method: Method, form: Form) -> Rows:
    """Derivatives in plain units, those above the order of the step zero."""
    now = form.standing
    mean = np.zeros((method.structure.n, method.structure.d))
    for i in range(len(now.x)):
        np.multiply(np.asarray(now.x[i]), factorial(i) / now.h**i, out=mean[i])
    return as_row(method, (now.t, now.h, form.noise, form.std, now.order), mean)


def solve_of(method: Method, form: Form, status: Status) -> Solve:
    """The same for those who look at a solve between two chunks."""
    now, row = form.standing, row_of(method, form)
    return as_solve(method, row, now.following, now.failures, now.counts, status)
