"""Events: where a function of time and state crosses zero along a posterior, and how surely."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from probode.base.limits import Limits
from probode.base.status import Status
from probode.filter.loop import Rows
from probode.model.equation import Equation
from probode.posterior.crossings import Crossing, Function, Search
from probode.posterior.hermite import Curve
from probode.posterior.outcome import Gaussian, Joint
from probode.posterior.paths import NodePath
from probode.posterior.posterior import Posterior

_WATCHED = 3
"""Derivatives of a filter's mean that are used: the higher ones jump at the nodes."""

_TOGETHER = 32
"""Events at which the posterior is evaluated together: one size, so that one program is compiled
however many there are."""

_NUMBERS = 2**19
"""Numbers that are held at once to differentiate events."""

_PIECE = 256
"""Steps between two looks at the clock."""

Convert = Callable[[np.ndarray], np.ndarray]


class Event(NamedTuple):
    """A function ``g(t, y)`` whose zeros are wanted."""

    function: Function
    direction: float
    """Positive: only where ``g`` goes from negative to positive; negative: the opposite."""
    terminal: float
    """The solve ends at this occurrence (infinity: never)."""
    leaves: float = 0.0
    """The sign that ``g`` has soon after the start, where it begins with a zero that was counted
    already, perhaps on the wrong side of it by rounding; else zero."""


def prepare(events: Any, args: Sequence[Any]) -> list[Event]:
    """Read events as SciPy does: functions with attributes ``terminal`` and ``direction``."""
    if callable(events):
        events = (events,)
    prepared = []
    for event in events:
        if isinstance(event, Event):
            prepared.append(event)
            continue
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

        direction = float(getattr(event, "direction", 0))
        prepared.append(Event(function if args else event, direction, limit))
    return prepared


def _search(events: Sequence[Event], convert: Convert) -> Search:
    functions, directions, leaves = (
        [getattr(event, name) for event in events] for name in ("function", "direction", "leaves")
    )
    return Search(functions, directions, leaves, convert)


class Watch:
    """Looks for terminal events chunk by chunk, on the filter's means."""

    def __init__(self, events: Sequence[Event], equation: Equation, convert: Convert) -> None:
        self._equation = equation
        self.events = [event for event in events if np.isfinite(event.terminal)]
        self._search = _search(self.events, convert)
        self._counts = _Counts(self.events)

    def __call__(self, rows: Rows) -> int | None:
        """The number of these steps to keep, if a terminal event lies in them."""
        curve = Curve(np.asarray(rows.t), _watched(self._equation, np.asarray(rows.mean)))
        for crossing in self._search(curve):
            if self._counts.is_last(crossing):
                return crossing.step + 1
        return None


def _watched(equation: Equation, means: np.ndarray) -> np.ndarray:
    """Of a filter's means, those derivatives of the state that are used."""
    found: np.ndarray = equation.stacked(means[:, : _WATCHED + equation.order - 1])
    return found


class _Counts:
    """Counts events as they come."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._left = [event.terminal for event in events]

    def is_last(self, crossing: Crossing) -> bool:
        """Whether the solve ends here."""
        self._left[crossing.event] -= 1
        return self._left[crossing.event] <= 0


class End(NamedTuple):
    """The state at a terminal event, in real form."""

    t: float
    mean: np.ndarray
    std: np.ndarray


class Occurrences(NamedTuple):
    """Events along a posterior: one list per event."""

    t: list[np.ndarray]
    y: list[np.ndarray]
    std: list[np.ndarray]
    end: End | None
    """The terminal event, if there was one."""
    whole: bool = True
    """Whether there was time to look at all of them."""


def locate(
    events: Sequence[Event],
    posterior: Posterior,
    convert: Convert = lambda y: y,
    limits: Limits | None = None,
) -> Occurrences:
    """All events along a posterior, up to the first terminal one (or as time allows).

    ``convert`` turns flat real states (of an equation of order ``k`` all of ``y, ..., y^(k-1)``)
    into what the user's functions expect.
    """
    limits = limits or Limits()
    path = cast(NodePath, posterior.path)  # every step was kept
    t = np.asarray(posterior.t)
    curve, search = _curve(posterior), _search(events, convert)
    located = posterior.problem.located or crossings_of(events, posterior, convert, limits)
    found, ended, whole = located
    if not found:
        none = [np.array([]) for _ in events]
        return Occurrences(none, none, none, None, whole)
    blocks = _together(posterior, np.array([c.t for c in found]), limits)
    if len(found) > len(blocks) * _TOGETHER:
        found, ended, whole = found[: len(blocks) * _TOGETHER], False, False
    which, times, step, part = (
        np.array([getattr(c, name) for c in found]) for name in ("event", "t", "step", "s")
    )
    mean = curve(step, part)
    if path.held is not None:  # a curve through states on a manifold leaves it between them
        parts = [np.reshape(block.mean, (_TOGETHER, -1)) for block in blocks]
        mean = np.concatenate(parts)[: len(times)]
    at = _States(times, mean, curve.slope(step, part), blocks)
    time_std = at.time_std(search, which, (t.min(), t.max()))
    mine = [which == k for k in range(len(events))]
    return Occurrences(
        [times[i] for i in mine],
        [convert(at.mean[i]) if np.any(i) else np.array([]) for i in mine],
        [time_std[i] for i in mine],
        End(times[-1], at.mean[-1], at.std[-1]) if ended else None,
        whole,
    )


def _curve(posterior: Posterior) -> Curve:
    """The mean of the state."""
    path = cast(NodePath, posterior.path)
    means = posterior.method.equation.stacked(np.asarray(path.means))
    return Curve(np.asarray(posterior.t), means, closed=path.smoothed is not None)


def _ending(events: Sequence[Event], posterior: Posterior, convert: Convert) -> list[Crossing]:
    """The crossing that has ended a solve, where the mean of the posterior does not show it.

    In the last step the filter's mean has crossed zero, the smoothed one has not; or it does so at
    the end, where it was cut, and rounding hides it.
    """
    t, path = np.asarray(posterior.t), cast(NodePath, posterior.path)
    means = _watched(posterior.method.equation, np.asarray(path.rows.mean)[-2:])
    last = len(t) - 2
    for crossing in _search(events, convert)(Curve(t[-2:], means)):
        if np.isfinite(events[crossing.event].terminal):
            return [crossing._replace(step=last)]
    terminal = [k for k, event in enumerate(events) if np.isfinite(event.terminal)]
    state = convert(means[-1:, 0])[0]
    sizes = [abs(float(events[k].function(t[-1], state.copy()))) for k in terminal]
    return [Crossing(float(t[-1]), terminal[int(np.argmin(sizes))], last, 1.0)] if sizes else []


class Located(NamedTuple):
    """The crossings along a curve, up to the first terminal one."""

    crossings: Sequence[Crossing]
    ended: bool
    """Whether the last crossing ends the solve."""
    whole: bool
    """Whether there was time to search the whole curve."""

    def cut_at(self, t: np.ndarray) -> "Located":
        """Return the crossings for a posterior that ends at the last one; ``t`` are its nodes.

        Its last step is shorter than it was, all others are the same.
        """
        last = len(t) - 2
        begin, length = float(t[-2]), float(t[-1] - t[-2])
        crossings = [
            one._replace(step=last, s=min(max((one.t - begin) / length, 0.0), 1.0))
            if one.step >= last
            else one
            for one in self.crossings
        ]
        return self._replace(crossings=crossings)


def crossings_of(
    events: Sequence[Event], posterior: Posterior, convert: Convert, limits: Limits
) -> Located:
    """Locate events along the mean of a posterior, up to the first terminal one."""
    crossings, whole = _crossings(_search(events, convert), _curve(posterior), limits)
    found, ended = _until_terminal(events, crossings)
    if posterior.status == Status.EVENT and whole and not ended:
        ending = _ending(events, posterior, convert)
        found, ended = [*found, *ending], bool(ending)
    return Located(found, ended, whole)


def _crossings(search: Search, curve: Curve, limits: Limits) -> tuple[list[Crossing], bool]:
    """All crossings; with a time limit in pieces of the curve, and whether there was time."""
    if limits.left == np.inf:
        return search(curve), True
    found: list[Crossing] = []
    for begin in range(0, len(curve.h), _PIECE):
        if limits.expired():
            return found, False
        some = slice(begin, begin + _PIECE + 1)
        piece = Curve(curve.t[some], curve.derivatives[some], closed=curve.closed)
        found += [crossing._replace(step=crossing.step + begin) for crossing in search(piece)]
    return found, True


def _until_terminal(
    events: Sequence[Event], crossings: Sequence[Crossing]
) -> tuple[Sequence[Crossing], bool]:
    """The crossings up to the one that ends the solve, and whether there is one."""
    counts = _Counts(events)
    for i, crossing in enumerate(crossings):
        if counts.is_last(crossing):
            return crossings[: i + 1], True
    return crossings, False


def _together(posterior: Posterior, t: np.ndarray, limits: Limits) -> list[Gaussian | Joint]:
    """The posterior at several times, in blocks of one size (the last time is repeated).

    One of them, and then as many as there is time for.
    """
    count = -(-len(t) // _TOGETHER) * _TOGETHER
    padded = np.append(t, np.repeat(t[-1], count - len(t)))
    blocks: list[Gaussian | Joint] = []
    for block in padded.reshape(-1, _TOGETHER):
        if blocks and limits.expired():
            break
        blocks.append(posterior.state(block))
    return blocks


class _States:
    """Solution and slope at the times of events, with the posterior there in blocks."""

    def __init__(
        self, t: np.ndarray, mean: np.ndarray, slope: np.ndarray, blocks: list[Gaussian | Joint]
    ) -> None:
        self.t, self.mean, self.slope, self._blocks = t, mean, slope, blocks
        std = [np.reshape(block.std, (_TOGETHER, -1)) for block in blocks]
        self.std = np.concatenate(std)[: len(t)]

    def time_std(
        self, search: Search, which: np.ndarray, interval: tuple[float, float]
    ) -> np.ndarray:
        """``sqrt(∇g Σ ∇gᵀ) / |dg/dt|``: first-order standard deviations of the events' times."""
        count, d = self.mean.shape
        gradient, rate = np.zeros((len(self._blocks) * _TOGETHER, d)), np.empty(count)
        size = max(1, _NUMBERS // (d * (d + 1)))
        for k in np.unique(which):
            mine = np.flatnonzero(which == k)
            for i in np.split(mine, range(size, len(mine), size)):
                gradient[i], in_time = self._differences(search, k, i, interval)
                rate[i] = np.abs(in_time + np.sum(gradient[i] * self.slope[i], axis=1))
        parts = zip(self._blocks, np.split(gradient, len(self._blocks)), strict=True)
        across = np.concatenate([block.project(part) for block, part in parts])[:count]
        return np.where(rate == 0.0, np.inf, across / np.where(rate == 0.0, 1.0, rate))

    def _differences(
        self, search: Search, k: int, i: np.ndarray, interval: tuple[float, float]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Central differences of function ``k`` in the state and in time, at the events ``i``.

        NaN where it cannot be evaluated next to the event (a square root, a logarithm).
        """
        t, y, std = self.t[i], self.mean[i], self.std[i]
        d = y.shape[1]
        step = 1e-6 * np.maximum(np.maximum(np.abs(y), 1e3 * std), 1e-6)
        later = 1e-6 * np.maximum(np.abs(t), interval[1] - interval[0])
        # Points: each component up, then down, at the same time; then the state later and before.
        times = np.repeat(t[:, None], 2 * d + 2, axis=1)
        times[:, -2:] = np.clip(np.stack([t + later, t - later], axis=1), *interval)
        states = np.repeat(y[:, None], 2 * d + 2, axis=1)
        each = np.arange(d)
        states[:, each, each] += step
        states[:, d + each, each] -= step
        try:
            g = search.evaluate(k, times.reshape(-1), states.reshape(-1, d)).reshape(len(i), -1)
        except (ArithmeticError, ValueError):
            if len(i) == 1:
                return np.full((1, d), np.nan), np.full(1, np.nan)
            each_event = [self._differences(search, k, one, interval) for one in i[:, None]]
            gradients, rates = zip(*each_event, strict=True)
            return np.concatenate(gradients), np.concatenate(rates)
        width = states[:, each, each] - states[:, d + each, each]
        gradient = (g[:, :d] - g[:, d : 2 * d]) / width
        return gradient, (g[:, -2] - g[:, -1]) / (times[:, -2] - times[:, -1])
