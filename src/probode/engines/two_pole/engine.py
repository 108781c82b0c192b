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
from probode.engines.two_pole import dense
from probode.engines.two_pole.frozen import frozen, thawed
from probode.engines.two_pole.step import Standing, System, Weights, attempt
from probode.filter.control import ConstantStep, Control, ControlState, GridSteps, PControl
from probode.filter.loop import Counts, Rows, Solve
from probode.filter.smooth import Marginals
from probode.filter.step import Method, State
from probode.model.diffusion import Evidence
from probode.model.two_pole import gains

KIND = "sparse"
"""``Method.jacobian`` of the filter."""
OUTSIDE = (
    "SparseEK1 runs outside of jit, vmap and grad: its factorisations are not JAX's. Solve outside "
    "of the transformation, or use EK0 or EK1 inside."
)
_STRETCH = 1.0 + 1e-10
_SLIVER = 1e-6


class Follower(Protocol):
    """What goes along with the steps, and is told of each: it returns the one that follows.

    :class:`probode.global_error.two_pole.Transport` carries the error.
    """

    def passed(self, now: Standing) -> "Follower":
        """After an accepted step."""

    def across(self, t: float, y: np.ndarray) -> "Follower":
        """After a switch, where the filter starts anew."""


class Large(NamedTuple):
    """What the filter needs besides the inputs of a solve."""

    system: System
    follower: Follower | None = None


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
    inputs, system = given.inputs, large.system
    begun = begin(system, inputs.control, float(inputs.t0), float(inputs.t1), inputs.y0)

    def fill(carry: Carry, attempts: int, wanted: int) -> tuple[Carry, Rows]:
        following, rows = _fill(given, system, carry, attempts, min(wanted, most) if most else 0)
        given.large = given.large._replace(follower=following.form.follower)  # it outlives them
        return following, rows

    def freeze(carry: Carry) -> list[np.ndarray]:
        return [np.asarray(carry.solve.status), *frozen(carry.form)]

    def thaw(arrays: list[np.ndarray]) -> Carry:
        found = thawed(system, form, arrays[1:])
        given.large = given.large._replace(follower=found.follower)
        return Carry(solve_of(inputs.method, found, Status(int(arrays[0]))), found)

    form = Form(begun, 0.0, 0.0, large.follower)
    finite = bool(np.all(np.isfinite(begun.x)))
    status = Status.RUNNING if finite else Status.START_NOT_FINITE
    if finite and inputs.t0 == inputs.t1:
        status = Status.SUCCESS
    first = Carry(solve_of(inputs.method, form, status), form)
    return Steps(first, fill, FIRST_ATTEMPTS, freeze, thaw)


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
        form, finite = _across(system, control, form, *beyond, t1)
        if not finite:
            return form, Status.NOT_FINITE, False
    else:
        judged, until = isinstance(control, PControl), float(given.until(now.t))
        end = _next_time(control, now, until)
        following = attempt(system, _weights(control), now, end, judged)
        if following.counts.accepted == now.counts.accepted:
            return form._replace(standing=following), _judged(control, following), False
        form = _accepted(form, following)
    return form, Status.SUCCESS if form.standing.t == t1 else Status.RUNNING, True


def _accepted(form: Form, now: Standing) -> Form:
    """After a step that was accepted."""
    u = now.correction
    assert u is not None
    scale = float(np.sqrt(np.dot(u, u) / u.size))
    local = gains(now.order).error * scale
    follower = None if form.follower is None else form.follower.passed(now)
    return Form(now, float(np.hypot(form.std, local)), scale / abs(now.h), follower)


def _across(
    system: System, control: Any, form: Form, t: float, share: float, t1: float
) -> tuple[Form, bool]:
    """Over a switch to ``t``: ``y`` goes on with its slope, all else begins anew."""
    now = form.standing
    y, slope = now.x[0], now.x[1] / now.h
    beyond = np.asarray(system.slope(t, y))
    y = y + (t - now.t) * ((1.0 - share) * slope + share * beyond)
    anew = begin(system, control, t, t1, y)
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


def begin(system: System, control: Any, t0: float, t1: float, y0: np.ndarray) -> Standing:
    """Before the first step: the value, its slope, and how far a step of order one may go."""
    y0 = np.array(y0, float)
    slope, evaluations = system.slope(t0, y0), 1
    h = _given_step(control, t0)
    if h is None and np.all(np.isfinite(slope)):
        h = _first_step(system, _weights(control)(np.abs(y0)), t0, t1, y0, slope)
        evaluations += 1
        h = float(np.clip(h, control.min_step, control.max_step))
    h = float(np.copysign(min(abs(h or 1.0), abs(t1 - t0)) or 1.0, t1 - t0))
    begun = Standing(t0, h, np.stack([y0, h * slope]), h)
    return begun.counted(f=evaluations)


def _given_step(control: Any, t0: float) -> float | None:
    if isinstance(control, PControl):
        return None if control.first_step is None else float(control.first_step)
    if isinstance(control, GridSteps):
        return float(control.grid[1] - control.grid[0])
    if isinstance(control, ConstantStep):
        return float(control.size)
    raise TypeError(
        f"SparseEK1 holds its steps, by rules of its own: control must be PControl or PIControl "
        f"(of which it reads tolerances and bounds), or pass grid or step; got {control!r}."
    )


def _first_step(
    system: System, weight: np.ndarray, t0: float, t1: float, y0: np.ndarray, slope: np.ndarray
) -> float:
    """Where ``h² y''/2`` is half of the tolerance, with ``y''`` from one more evaluation."""

    def norm(u: np.ndarray) -> float:
        return float(np.sqrt(np.mean((u * weight) ** 2)))

    value, speed = norm(y0), norm(slope)
    near = min(0.01 * value / speed if value > 0.0 < speed else 1e-6, abs(t1 - t0))
    step = float(np.copysign(near, t1 - t0))
    bent = norm(system.slope(t0 + step, y0 + step * slope) - slope) / near
    if not np.isfinite(bent):
        return near
    return min(100.0 * near, 1.0 / np.sqrt(bent) if bent > 0.0 else abs(t1 - t0))


def _weights(control: Any) -> Weights:
    """``1 / (atol + rtol |y|)``; where steps are given, those of Newton's method alone."""
    atol: Any = 1e-9
    rtol: Any = 1e-6
    if isinstance(control, PControl):
        atol, rtol = np.asarray(control.atol), np.asarray(control.rtol)
    return lambda size: 1.0 / (atol + rtol * size)


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
    if abs(h) * _STRETCH >= abs(left):
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
    now, prior = form.standing, method.prior
    n, d = method.structure.n, method.structure.d
    mean, std = np.zeros((n, d)), np.zeros(n)
    std[0], gain = form.std, gains(now.order)
    for i in range(len(now.x)):
        np.multiply(now.x[i], factorial(i) / now.h**i, out=mean[i])
        if i > 1:
            std[i] = factorial(i) / abs(now.h) ** (i - 1) * gain.at_zero[i] * form.noise
    coordinates = np.abs(prior.weights * now.h ** (1.0 - np.arange(n)))
    noise: Any = np.asarray(form.noise)
    return Rows(np.asarray(now.t), np.asarray(now.h), noise, mean, np.diag(std / coordinates))  # type: ignore[arg-type]


def solve_of(method: Method, form: Form, status: Status) -> Solve:
    """The same for those who look at a solve between two chunks."""
    now, row = form.standing, row_of(method, form)
    d, counts = method.structure.d, now.counts
    control: list[Any] = [now.following, 1.0, counts.accepted, now.failures > 0]
    made: list[Any] = [
        *(counts.attempted, counts.accepted, counts.f, counts.jacobians),
        counts.factorisations,
    ]
    zero: Any = np.zeros(())
    return Solve(
        state=State(row.t, row.h, row.mean, row.factor),
        scale=row.scale,
        control=ControlState(*(np.asarray(x) for x in control)),  # type: ignore[arg-type]
        evidence=Evidence(zero, zero, zero, zero, d, False),
        counts=Counts(*(np.asarray(x) for x in made)),  # type: ignore[arg-type]
        status=np.asarray(status.value),  # type: ignore[arg-type]
        reference=np.asarray(1.0),  # type: ignore[arg-type]
    )
