"""Events: where a function of time and state crosses zero along a posterior, and how surely.

Candidates are found on the Hermite interpolant of the node derivatives, which costs next to nothing
and is sampled inside each step, so that two roots within one step are not missed. Each root is then
settled on the posterior mean itself.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from probode.engine import AnyChunk
from probode.limits import Limits
from probode.posterior import Posterior

_SAMPLES = 4
"""Parts into which a step is cut to look for sign changes."""

_PIECE = 256
"""Steps between two looks at the clock."""
_POLISHING = 6
_ROOT = 4 * float(np.finfo(float).eps)


class Event(NamedTuple):
    """A function ``g(t, y)`` whose zeros are wanted."""

    function: Callable[[float, np.ndarray], float]
    direction: float
    """Positive: only where ``g`` goes from negative to positive; negative: the opposite."""
    terminal: float
    """The solve ends at this occurrence (infinity: never)."""


def prepare(events: Any, args: Sequence[Any]) -> list[Event]:
    """Read events as SciPy does: functions with attributes ``terminal`` and ``direction``."""
    if callable(events):
        events = (events,)
    prepared = []
    for event in events:
        if not callable(event):
            raise TypeError(f"an event must be a function (t, y), got {type(event).__name__}.")
        terminal = getattr(event, "terminal", None)
        if terminal is None or terminal == 0:
            limit = np.inf
        elif int(terminal) == terminal and terminal > 0:
            limit = int(terminal)
        else:
            raise ValueError(
                "The `terminal` attribute of an event must be a boolean or a positive integer, "
                f"got {terminal!r}."
            )

        def function(t: float, y: np.ndarray, event: Any = event) -> float:
            return event(t, y, *args)

        prepared.append(Event(function, float(getattr(event, "direction", 0)), limit))
    return prepared


class Hermite:
    """Piecewise polynomial through values and derivatives at the nodes.

    Quintic where second derivatives are given, cubic where only slopes are.
    """

    def __init__(self, t: np.ndarray, derivatives: np.ndarray) -> None:
        h = np.diff(t)[:, None]
        y, dy = derivatives[:, 0], derivatives[:, 1]
        rise, left, right = y[1:] - y[:-1], h * dy[:-1], h * dy[1:]
        self.t, self.h = t, h[:, 0]
        if derivatives.shape[1] > 2:
            a, b = h**2 * derivatives[:-1, 2] / 2, h**2 * derivatives[1:, 2] / 2
            r0, r1, r2 = rise - left - a, right - left - 2 * a, b - a
            high = [10 * r0 - 4 * r1 + r2, -15 * r0 + 7 * r1 - 2 * r2, 6 * r0 - 3 * r1 + r2]
            self.coefficients = [y[:-1], left, a, *high]
        else:
            r0, r1 = rise - left, right - left
            self.coefficients = [y[:-1], left, 3 * r0 - r1, r1 - 2 * r0]

    def __call__(self, i: Any, s: Any) -> np.ndarray:
        """The value in step ``i`` after a part ``s`` of it."""
        value = self.coefficients[-1][i]
        for coefficient in self.coefficients[-2::-1]:
            value = value * s + coefficient[i]
        return value


class Crossing(NamedTuple):
    """A zero of an event on the interpolant."""

    t: float
    event: int
    step: int


def crossings(events: Sequence[Event], t: np.ndarray, derivatives: np.ndarray) -> list[Crossing]:
    """All zeros of all events along the nodes, in the order of integration."""
    if len(t) < 2:
        return []
    path = Hermite(t, derivatives)
    found = [
        Crossing(path.t[step] + s * path.h[step], k, step)
        for k, event in enumerate(events)
        for step, s in _roots(event, path)
    ]
    sign = 1.0 if t[-1] >= t[0] else -1.0
    return sorted(found, key=lambda crossing: (sign * crossing.t, crossing.event))


def _roots(event: Event, path: Hermite) -> Iterator[tuple[int, float]]:
    """Zeros of one event: the step and the part of it after which they lie."""
    parts = np.linspace(0.0, 1.0, _SAMPLES + 1)

    def g(s: float, step: int) -> float:
        return float(event.function(path.t[step] + s * path.h[step], path(step, s)))

    before = g(0.0, 0)
    settled = False  # whether the zero at the left end was reported by the interval before
    for step in range(len(path.h)):
        values = [before, *(g(s, step) for s in parts[1:])]
        for j in range(_SAMPLES):
            left, right = values[j], values[j + 1]
            if settled and left == 0.0:
                settled = False
                continue
            up, down = left <= 0.0 <= right, left >= 0.0 >= right
            if up or down:
                wanted = (up and event.direction >= 0) or (down and event.direction <= 0)
                s = _bracketed(g, step, parts[j], parts[j + 1], left, right)
                settled = right == 0.0
                if wanted:
                    yield step, s
            elif j > 0 and _dips(values[j - 1], left, right):
                yield from _pair(g, step, event, parts[j - 1], parts[j + 1], left)
        before = values[-1]


def _dips(before: float, middle: float, after: float) -> bool:
    """Whether three values of one sign come nearer to zero in the middle."""
    same_sign = before * middle > 0.0 and middle * after > 0.0
    return same_sign and abs(middle) < 0.9 * min(abs(before), abs(after))


def _bracketed(
    g: Callable[[float, int], float], step: int, a: float, b: float, ga: float, gb: float
) -> float:
    if ga == 0.0:
        return a
    if gb == 0.0:
        return b
    return brentq(g, a, b, args=(step,), xtol=_ROOT, rtol=_ROOT)


def _pair(
    g: Callable[[float, int], float], step: int, event: Event, a: float, b: float, middle: float
) -> Iterator[tuple[int, float]]:
    """Two zeros between samples of one sign, where the function dips towards zero in between."""
    sign = np.sign(middle)
    dip = minimize_scalar(lambda s: sign * g(s, step), bounds=(a, b), method="bounded")
    if dip.fun > 0.0:
        return
    for low, high in ((a, dip.x), (dip.x, b)):
        rising = g(low, step) < g(high, step)
        if (rising and event.direction >= 0) or (not rising and event.direction <= 0):
            yield step, _bracketed(g, step, low, high, g(low, step), g(high, step))


class Watch:
    """Looks for terminal events chunk by chunk, on the filter's means."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events
        self.counts = np.zeros(len(events))

    def __call__(self, chunk: AnyChunk) -> int | None:
        """The number of steps of this chunk to keep, if a terminal event lies in it."""
        steps = int(chunk.steps)
        t = np.asarray(chunk.rows.t)[: steps + 1]
        derivatives = np.asarray(chunk.rows.mean)[: steps + 1, :3]
        for crossing in crossings(self.events, t, derivatives):
            self.counts[crossing.event] += 1
            if self.counts[crossing.event] >= self.events[crossing.event].terminal:
                return crossing.step + 1
        return None


class Occurrences(NamedTuple):
    """Events along a posterior: one list per event."""

    t: list[np.ndarray]
    y: list[np.ndarray]
    std: list[np.ndarray]
    end: float | None
    """Time of the terminal event, if there was one."""
    whole: bool = True
    """Whether there was time to look at all of them."""


def locate(
    events: Sequence[Event],
    posterior: Posterior,
    convert: Callable[[np.ndarray], np.ndarray] = lambda y: y,
    limits: Limits | None = None,
) -> Occurrences:
    """All events along a posterior, up to the first terminal one (or as time allows).

    ``convert`` turns flat real states into what the user's functions expect.
    """
    limits = limits or Limits()
    order = min(posterior.solver.order, 2)
    t = np.asarray(posterior.t)
    derivatives = np.stack(
        [posterior.path.select(posterior.method, k)[0] for k in range(order + 1)]
    )
    found = _crossings_in_time(events, t, np.swapaxes(derivatives, 0, 1), limits)
    counts = np.zeros(len(events))
    times: list[list[float]] = [[] for _ in events]
    values: list[list[np.ndarray]] = [[] for _ in events]
    stds: list[list[float]] = [[] for _ in events]
    end, whole = None, True
    for crossing in found:
        if crossing is None:
            whole = False
            break
        k = crossing.event
        settled = _polish(events[k], posterior, crossing, t, convert)
        times[k].append(settled)
        values[k].append(convert(np.ravel(posterior(settled).mean)))
        stds[k].append(_time_std(events[k], posterior, settled, convert))
        counts[k] += 1
        if counts[k] >= events[k].terminal:
            end = settled
            break
    t_events, y_events, deviations = (
        [np.array(each) for each in some] for some in (times, values, stds)
    )
    return Occurrences(t_events, y_events, deviations, end, whole)


def _crossings_in_time(
    events: Sequence[Event], t: np.ndarray, derivatives: np.ndarray, limits: Limits
) -> Iterator[Crossing | None]:
    """All zeros; with a time limit in pieces of the path, and ``None`` when time is over."""
    piece = len(t) if limits.left == np.inf else _PIECE
    before: set[Crossing] = set()
    for begin in range(0, len(t) - 1, piece):
        if limits.expired():
            yield None
            return
        some = slice(begin, begin + piece + 1)
        found = [
            crossing._replace(step=crossing.step + begin)
            for crossing in crossings(events, t[some], derivatives[some])
        ]
        for crossing in found:
            if limits.expired():
                yield None
                return
            if crossing._replace(step=begin - 1) not in before:  # at a node between two pieces
                yield crossing
        before = set(found)


def _polish(
    event: Event,
    posterior: Posterior,
    crossing: Crossing,
    nodes: np.ndarray,
    convert: Callable[[np.ndarray], np.ndarray],
) -> float:
    """Move a zero of the interpolant to one of the posterior mean: secant steps that improve."""

    def g(t: float) -> float:
        return float(event.function(t, convert(np.ravel(posterior(t).mean))))

    low, high = sorted(nodes[crossing.step : crossing.step + 2])
    t, value = crossing.t, g(crossing.t)
    t_other = t + 1e-4 * (high - low) * (1.0 if t + 1e-4 * (high - low) <= high else -1.0)
    other = g(t_other)
    for _ in range(_POLISHING):
        if value == 0.0 or other == value:
            break
        proposal = float(np.clip(t - value * (t - t_other) / (value - other), low, high))
        result = g(proposal)
        if not abs(result) < abs(value):
            break
        t_other, other, t, value = t, value, proposal, result
    return t


def _time_std(
    event: Event, posterior: Posterior, t: float, convert: Callable[[np.ndarray], np.ndarray]
) -> float:
    """``sqrt(∇g Σ ∇gᵀ) / |dg/dt|``: first-order standard deviation of an event's time."""
    gaussian, slope = posterior(t), np.ravel(posterior.derivative(t, 1).mean)
    y, std = np.ravel(gaussian.mean), np.ravel(gaussian.std)

    def g(t: float, y: np.ndarray) -> float:
        return float(event.function(t, convert(y)))

    gradient = np.zeros(y.size)
    for i in range(y.size):
        step = 1e-6 * max(abs(y[i]), 1e3 * std[i], 1e-6)
        up, down = y.copy(), y.copy()
        up[i] += step
        down[i] -= step
        gradient[i] = (g(t, up) - g(t, down)) / (up[i] - down[i])
    nodes = np.asarray(posterior.t)
    step = 1e-6 * max(abs(t), float(np.ptp(nodes)))
    in_time = (g(t + step, y) - g(t - step, y)) / (2 * step)
    rate = in_time + gradient @ slope
    across = gaussian.project(gradient)
    return float(across / abs(rate)) if rate != 0.0 else np.inf
