"""One attempted step of all lanes: the formulas of :mod:`probode.filter.loop`, on lanes.

Prediction, evaluation, calibration and the error estimate are the library's own functions, run on
lanes; the update and the verdict, which cost most, are written out.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from probode.base.record import record
from probode.base.status import Status
from probode.engines.lanes.update import EPSILON, Moved, condition
from probode.filter.control import _SMALLEST_ERROR, _STRETCH, PControl, PIControl
from probode.filter.step import Method, State, attempt
from probode.model.diffusion import Evidence
from probode.programs.field import Field
from probode.programs.unroll import entries as e
from probode.programs.unroll.entries import Entry, Lanes, scalar
from probode.programs.unroll.interpret import lift

TINY = float(np.finfo(float).tiny)


@record
class Member:
    """What is given of a member: all that does not change while it is solved. Lanes."""

    t0: Any
    t1: Any
    field: Field
    control: PControl
    reference: Any


@record
class Lane:
    """A solve in progress: lanes, all numbers as floats.

    ``squares`` is ``Σ w²`` over the accepted steps, for a fixed diffusion; ``scale`` the ``s`` of
    the step that led here.
    """

    t: Any
    h: Any
    mean: Any
    factor: Any
    step: Any
    log_error: Any
    rejected: Any
    attempted: Any
    accepted: Any
    status: Any
    squares: Any
    scale: Any


@dataclass(frozen=True)
class Stepped:
    """A lane after an attempted step, and whether it was accepted."""

    lane: Lane
    accepted: Entry


def running(lane: Lane) -> Entry:
    """Whether a lane has anything left to do."""
    return e.equal(lane.status[()], float(Status.RUNNING.value))


def advance(method: Method, member: Member, lane: Lane, active: Entry, limit: Entry) -> Stepped:
    """Attempt one step on the ``active`` lanes; the others stay as they are.

    A lane that is still running after ``limit`` attempts has reached its maximal number of steps.
    """
    t, t1, step = lane.t[()], member.t1[()], lane.step[()]
    # As Control.next_time.
    near = e.greater(e.absolute(e.sub(t1, t)), e.mul(_STRETCH, e.absolute(step)))
    t_next = e.choose(near, e.add(t, step), t1)
    state = State(lane.t, lane.h, lane.mean, lane.factor)
    evidence = Evidence(
        lane.accepted,
        lane.squares,
        lane.squares,
        lane.squares,
        method.structure.d,
        method.diffusion.multivariate,
    )
    tried: Any = lift(
        lambda field, state, t_next, reference, evidence, before: attempt(
            method, field, state, t_next, reference, evidence, before
        ),
        member.field,
        state,
        scalar(t_next),
        member.reference,
        evidence,
        lane.scale,
    )
    verdict = judge(method, member.control, lane, tried)
    accepted = _both(active, verdict.accepted)

    h = tried.h[()]
    coords = _powers(h, method.prior.weights)
    change = _powers(e.div(lane.h[()], h), np.ones(method.prior.size))
    moved = condition(
        method,
        lane.factor,
        change,
        coords,
        tried.mean,
        tried.residual.z,
        tried.residual.rounding,
        tried.residual.blocks.get(0),
        tried.scale,
    )
    mean = moved.mean
    if method.evaluations == 2:
        mean = _iterated(method, member, coords, tried, moved)
    squares = lane.squares
    if method.diffusion.fixed:
        parts = list(map(e.square, moved.whitened))
        parts = parts if method.diffusion.multivariate else [e.total(parts)]
        squares = _added(squares, parts, accepted)

    finite = _all(_finite(x) for x in tried.error.entries)
    resolved = e.choose(e.equal(h, 0.0), True, finite)
    reached = _both(verdict.accepted, e.equal(t_next, t1))
    status = e.choose(
        verdict.failed,
        e.choose(resolved, float(Status.STEP_TOO_SMALL.value), float(Status.NOT_FINITE.value)),
        e.choose(reached, float(Status.SUCCESS.value), float(Status.RUNNING.value)),
    )
    attempted = e.add(lane.attempted[()], e.choose(active, 1.0, 0.0))
    ongoing = float(Status.RUNNING.value)
    spent = _both(e.equal(status, ongoing), lax.ge(attempted, jnp.broadcast_to(limit, h.shape)))
    status = e.choose(spent, float(Status.MAX_STEPS.value), status)
    one = e.choose(accepted, 1.0, 0.0)
    after = replace(
        lane,
        t=scalar(e.choose(accepted, t_next, t)),
        h=scalar(e.choose(accepted, h, lane.h[()])),
        mean=_selected(accepted, mean, lane.mean),
        factor=_selected(accepted, moved.factor, lane.factor),
        step=scalar(e.choose(active, verdict.step, step)),
        log_error=scalar(e.choose(accepted, verdict.log_error, lane.log_error[()])),
        rejected=scalar(e.choose(active, e.sub(1.0, one), lane.rejected[()])),
        attempted=scalar(attempted),
        accepted=scalar(e.add(lane.accepted[()], one)),
        status=scalar(e.choose(active, status, lane.status[()])),
        squares=squares,
        scale=_selected(accepted, tried.scale, lane.scale) if lane.scale.entries else lane.scale,
    )
    return Stepped(after, accepted)


def _iterated(
    method: Method, member: Member, coords: list[Entry], tried: Any, moved: Moved
) -> Lanes:
    """The mean corrected by a second evaluation, where it is finite: as in ``step.update``."""
    n, d = method.structure.n, method.structure.d
    y = Lanes((d,), moved.mean.entries[:d])
    f: Any = lift(lambda field, t, y: field(t, y), member.field, tried.t, y)
    z = [e.sub(tried.mean[1, k], f[k]) for k in range(d)]
    entries = [
        e.sub(tried.mean[i, k], e.mul(e.mul(coords[i], moved.gain[i * d + k]), z[k]))
        for i in range(n)
        for k in range(d)
    ]
    return _selected(_all(map(_finite, z)), Lanes((n, d), entries), moved.mean)


@dataclass(frozen=True)
class Verdict:
    """What the control says about an attempted step."""

    accepted: Entry
    step: Entry
    log_error: Entry
    failed: Entry


def judge(method: Method, control: PControl, lane: Lane, tried: Any) -> Verdict:
    """As :meth:`probode.filter.control.PControl.judge`; powers by logarithm and exponential."""
    d, power = method.structure.d, 1.0 / method.prior.size
    squares: list[Entry] = []
    for k in range(d):
        size = e.largest(e.absolute(lane.mean[0, k]), e.absolute(tried.mean[0, k]))
        scale = e.add(_component(control.atol, k), e.mul(_component(control.rtol, k), size))
        squares.append(e.square(e.div(tried.error[0, k], scale)))
    norm = e.mul(1.0 / d, e.total(squares))
    one = lax.full_like(norm, 1.0)
    accepted, finite = lax.le(norm, one), _finite(norm)
    bounded = e.choose(finite, e.largest(norm, lax.full_like(norm, _SMALLEST_ERROR**2)), 1.0)
    log_error = e.mul(0.5, lax.log(bounded))

    rho, eta_min = control.rho[()], control.eta_min[()]
    plain = e.mul(-power, log_error)
    exponent = plain
    if isinstance(control, PIControl):
        integral, proportional = control.integral[()], control.proportional[()]
        gain = e.mul(power, proportional)
        damped = e.sub(
            e.mul(gain, lane.log_error[()]),
            e.mul(e.add(e.mul(power, integral), gain), log_error),
        )
        exponent = e.choose(lax.gt(bounded, one), plain, damped)
    factor = e.mul(rho, lax.exp(exponent))
    if isinstance(control, PIControl):
        held = _both(e.equal(lane.rejected[()], 1.0), lax.le(bounded, one))
        factor = e.choose(held, e.smallest(factor, one), factor)
    factor = lax.min(lax.max(factor, eta_min), control.eta_max[()])
    factor = e.choose(finite, factor, eta_min)

    h = tried.h[()]
    length = e.absolute(h)
    size = e.mul(length, factor)
    smallest = lax.max(e.mul(10.0 * EPSILON, e.absolute(lane.t[()])), control.min_step[()])
    too_small = _both(e.greater(smallest, size), lax.le(length, e.mul(1.5, smallest)))
    too_small = e.choose(e.greater(TINY, size), True, too_small)
    failed = e.choose(e.equal(h, 0.0), True, e.choose(accepted, False, too_small))
    size = lax.min(lax.max(size, smallest), control.max_step[()])
    signed = e.choose(e.greater(h, 0.0), size, e.choose(e.equal(h, 0.0), 0.0, e.neg(size)))
    return Verdict(accepted, signed, log_error, failed)


def _component(tolerance: Lanes, k: int) -> Entry:
    return tolerance.entries[0 if len(tolerance.entries) == 1 else k]


def _powers(ratio: Entry, weights: np.ndarray) -> list[Entry]:
    """``ratio^(1-i) weights_i``, i = 0..q."""
    inverse = e.reciprocal(ratio)
    powers, power = [ratio], None
    for _ in range(1, len(weights)):
        powers.append(1.0 if power is None else power)
        power = inverse if power is None else e.mul(power, inverse)
    return [e.mul(float(weight), x) for weight, x in zip(weights, powers, strict=True)]


def _finite(x: Entry) -> Entry:
    return e.greater(float("inf"), e.absolute(x))


def _both(a: Entry, b: Entry) -> Entry:
    if e.constant(a):
        return b if a else False
    if e.constant(b):
        return a if b else False
    return lax.bitwise_and(a, b)


def _all(conditions: Any) -> Entry:
    result: Entry = True
    for one in conditions:
        result = _both(result, one)
    return result


def _selected(condition: Entry, yes: Lanes, no: Lanes) -> Lanes:
    pairs = zip(yes.entries, no.entries, strict=True)
    return Lanes(no.shape, [e.choose(condition, a, b) for a, b in pairs])


def _added(sums: Lanes, parts: list[Entry], condition: Entry) -> Lanes:
    pairs = zip(sums.entries, parts, strict=True)
    return Lanes(sums.shape, [e.add(a, e.choose(condition, b, 0.0)) for a, b in pairs])
