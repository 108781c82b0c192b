"""Models with doses, inputs, switches and resets: with probode, and by hand with SciPy.

Each problem is solved twice. ``ours`` is one call of ``probode.solve_ivp``; ``by_hand`` is what the
same takes with SciPy's: a loop that starts anew wherever something happens. By hand and to thirteen
digits it also says where the true pieces begin, from which the true solution follows.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.integrate import solve_ivp as scipy_solve_ivp

import probode
from probode import Restart, solve_ivp

DATA = Path(__file__).with_name("data") / "forcing.csv"
"""A force that was measured every half second: time, value."""


class Begun(NamedTuple):
    """A piece of the solution: where it begins, and its vector field."""

    t: float
    y: Any
    f: Callable[[float, Any], Any]


class ByHand(NamedTuple):
    """What SciPy gives: the pieces, the last state, the steps."""

    pieces: list[Begun]
    y: Any
    steps: int


class Problem(NamedTuple):
    """A model, solved in one call and by hand."""

    title: str
    ours: Callable[[Any, float], Any]
    """Of a method and a tolerance."""
    by_hand: Callable[[str, float], ByHand]
    scale: Any
    """Of the components: absolute tolerances are that times the relative one."""

    @property
    def lines(self) -> tuple[int, int]:
        """Lines of both, without the vector field."""
        return _lines(self.ours), _lines(self.by_hand)


def _lines(function: Callable[..., Any]) -> int:
    return sum(bool(line.strip()) for line in inspect.getsource(function).splitlines()[1:])


# A drug in three compartments, 40 doses ---------------------------------------------------------

DOSES = 12.0 * np.arange(40)
DRUG = np.array([100.0, 100.0, 1.0])


def drug(t: float, y: Any) -> Any:
    """Gut, blood, and a response that the drug holds back."""
    held = 1.0 - 0.9 * y[1] / (40.0 + y[1])
    return np.array([-0.8 * y[0], 0.8 * y[0] - 0.12 * y[1], 0.2 * held - 0.2 * y[2]])


def drug_ours(method: Any, rtol: float) -> Any:
    table = probode.doses(0.0, 100.0, repeats=40, every=12.0)
    atol = rtol * DRUG
    return solve_ivp(drug, (0, 480), [0.0, 0.0, 1.0], method, doses=table, rtol=rtol, atol=atol)


def drug_by_hand(method: str, rtol: float) -> ByHand:
    y, pieces, steps = np.array([0.0, 0.0, 1.0]), [], 0
    for begin, end in zip(DOSES, np.append(DOSES[1:], 480.0), strict=True):
        y = y + np.array([100.0, 0.0, 0.0])
        pieces.append(Begun(begin, y, drug))
        found = scipy_solve_ivp(drug, (begin, end), y, method, rtol=rtol, atol=rtol * DRUG)
        y, steps = found.y[:, -1], steps + len(found.t) - 1
    return ByHand(pieces, y, steps)


# A ball with drag, 100 bounces ------------------------------------------------------------------

BOUNCES = 100
BALL = np.array([1.0, 4.0])


def ball(t: float, y: Any) -> Any:
    """Height and speed."""
    return np.array([y[1], -9.81 - 0.3 * y[1]])


def ball_ours(method: Any, rtol: float) -> Any:
    def floor(t: float, y: Any) -> Any:
        return y[0]

    floor.direction, floor.terminal = -1, BOUNCES
    floor.reset = lambda t, y: [0.0, -0.98 * y[1]]
    options = {"events": floor, "rtol": rtol, "atol": rtol * BALL}
    return solve_ivp(ball, (0, 1e3), [1.0, 0.0], method, **options)


def ball_by_hand(method: str, rtol: float) -> ByHand:
    def floor(t: float, y: Any) -> Any:
        return y[0]

    floor.direction, floor.terminal = -1, True
    t, y, pieces, steps = 0.0, np.array([1.0, 0.0]), [], 0
    for _ in range(BOUNCES):
        pieces.append(Begun(t, y, ball))
        found = scipy_solve_ivp(
            ball, (t, 1e3), y, method, events=floor, rtol=rtol, atol=rtol * BALL
        )
        (t,), ((_, speed),) = found.t_events[0], found.y_events[0]
        before = found.y[:, -1]
        y, steps = np.array([0.0, -0.98 * speed]), steps + len(found.t) - 1
    return ByHand(pieces, before, steps)


# A thermostat -----------------------------------------------------------------------------------

ROOM = np.array([20.0])


def room(t: float, y: Any, heating: float) -> Any:
    """A temperature."""
    return np.array([heating - 0.5 * (y[0] - 15.0)])


def room_ours(method: Any, rtol: float) -> Any:
    def warm(t: float, y: Any, heating: float) -> Any:
        return y[0] - 21.0

    def cold(t: float, y: Any, heating: float) -> Any:
        return y[0] - 19.0

    warm.direction, cold.direction = 1, -1
    warm.reset = lambda t, y, heating: Restart(y, args=(0.0,))
    cold.reset = lambda t, y, heating: Restart(y, args=(5.0,))
    options = {"events": [warm, cold], "rtol": rtol, "atol": rtol * ROOM}
    return solve_ivp(room, (0, 50), [15.0], method, args=(5.0,), **options)


def room_by_hand(method: str, rtol: float) -> ByHand:
    def warm(t: float, y: Any) -> Any:
        return y[0] - 21.0

    def cold(t: float, y: Any) -> Any:
        return y[0] - 19.0

    warm.direction, cold.direction = 1, -1
    warm.terminal = cold.terminal = True
    t, y, heating, pieces, steps = 0.0, np.array([15.0]), 5.0, [], 0
    while t < 50.0:
        f = lambda t, y, heating=heating: room(t, y, heating)  # noqa: E731
        pieces.append(Begun(t, y, f))
        event = warm if heating else cold
        found = scipy_solve_ivp(f, (t, 50.0), y, method, events=event, rtol=rtol, atol=rtol * ROOM)
        t, y, heating = found.t[-1], found.y[:, -1], 5.0 - heating
        steps += len(found.t) - 1
    return ByHand(pieces, y, steps)


# A neuron that fires (Izhikevich) ---------------------------------------------------------------

NEURON = np.array([30.0, 10.0])


def neuron(t: float, y: Any) -> Any:
    """Membrane potential and recovery, in mV and ms."""
    v, u = y[0], y[1]
    return np.array([0.04 * v * v + 5.0 * v + 150.0 - u, 0.02 * (0.2 * v - u)])


def neuron_ours(method: Any, rtol: float) -> Any:
    def fires(t: float, y: Any) -> Any:
        return y[0] - 30.0

    fires.direction = 1
    fires.reset = lambda t, y: [-65.0, y[1] + 8.0]
    options = {"events": fires, "rtol": rtol, "atol": rtol * NEURON}
    return solve_ivp(neuron, (0, 300), [-65.0, -13.0], method, **options)


def neuron_by_hand(method: str, rtol: float) -> ByHand:
    def fires(t: float, y: Any) -> Any:
        return y[0] - 30.0

    fires.direction, fires.terminal = 1, True
    t, y, pieces, steps = 0.0, np.array([-65.0, -13.0]), [], 0
    while t < 300.0:
        pieces.append(Begun(t, y, neuron))
        found = scipy_solve_ivp(
            neuron, (t, 300.0), y, method, events=fires, rtol=rtol, atol=rtol * NEURON
        )
        t, last = found.t[-1], found.y[:, -1]
        y, steps = np.array([-65.0, last[1] + 8.0]), steps + len(found.t) - 1
    return ByHand(pieces, last, steps)


# An oscillator with a measured force -------------------------------------------------------------

OSCILLATOR = np.array([1.0, 1.0])


def oscillator(t: float, y: Any, force: Callable[[float], Any]) -> Any:
    """Displacement and speed."""
    return np.array([y[1], force(t) - 0.2 * y[1] - 4.0 * y[0]])


def oscillator_ours(method: Any, rtol: float) -> Any:
    force = probode.inputs.linear(*np.loadtxt(DATA, delimiter=",").T)
    options = {"args": (force,), "rtol": rtol, "atol": rtol * OSCILLATOR}
    return solve_ivp(oscillator, (0, 30), [0.0, 0.0], method, **options)


def oscillator_by_hand(method: str, rtol: float) -> ByHand:
    times, values = np.loadtxt(DATA, delimiter=",").T
    y, pieces, steps = np.zeros(2), [], 0
    for i in range(len(times) - 1):
        slope = (values[i + 1] - values[i]) / (times[i + 1] - times[i])
        line = lambda t, i=i, slope=slope: values[i] + slope * (t - times[i])  # noqa: E731
        f = lambda t, y, line=line: oscillator(t, y, line)  # noqa: E731
        pieces.append(Begun(times[i], y, f))
        found = scipy_solve_ivp(
            f, (times[i], times[i + 1]), y, method, rtol=rtol, atol=rtol * OSCILLATOR
        )
        y, steps = found.y[:, -1], steps + len(found.t) - 1
    return ByHand(pieces, y, steps)


# A rocket with two stages ------------------------------------------------------------------------

ROCKET = np.array([1e4, 1e3, 1e3])
STAGES = ((60e3, 25.0, 2000.0), (16e3, 6.0, 500.0), (0.0, 0.0, 0.0))
"""Thrust, flow of the fuel, and the mass at which it has run out."""
DROPPED = (900.0, 0.0)


def rocket(t: float, y: Any, thrust: float, flow: float, empty: float) -> Any:
    """Height, speed, mass."""
    drag = 0.02 * np.exp(-y[0] / 8500.0) * y[1] * np.abs(y[1])
    pull = 9.81 / (1.0 + y[0] / 6.371e6) ** 2
    return np.array([y[1], (thrust - drag) / y[2] - pull, -flow])


def rocket_ours(method: Any, rtol: float) -> Any:
    def runs_out(t: float, y: Any, thrust: float, flow: float, empty: float) -> Any:
        return y[2] - empty

    def separates(t: float, y: Any, thrust: float, flow: float, empty: float) -> Any:
        stage = [stage[2] for stage in STAGES].index(empty)
        return Restart(y - np.array([0.0, 0.0, DROPPED[stage]]), args=STAGES[stage + 1])

    runs_out.direction, runs_out.reset = -1, separates
    options = {"args": STAGES[0], "events": runs_out, "rtol": rtol, "atol": rtol * ROCKET}
    return solve_ivp(rocket, (0, 250), [0.0, 0.0, 4000.0], method, **options)


def rocket_by_hand(method: str, rtol: float) -> ByHand:
    t, y, pieces, steps = 0.0, np.array([0.0, 0.0, 4000.0]), [], 0
    for number, stage in enumerate(STAGES):
        f = lambda t, y, stage=stage: rocket(t, y, *stage)  # noqa: E731
        pieces.append(Begun(t, y, f))

        def runs_out(t: float, y: Any, empty: float = stage[2]) -> Any:
            return y[2] - empty

        runs_out.terminal, runs_out.direction = True, -1
        found = scipy_solve_ivp(
            f, (t, 250.0), y, method, events=runs_out, rtol=rtol, atol=rtol * ROCKET
        )
        t, y, steps = found.t[-1], found.y[:, -1], steps + len(found.t) - 1
        if number < 2:
            y = y - np.array([0.0, 0.0, DROPPED[number]])
    return ByHand(pieces, y, steps)


PROBLEMS = (
    Problem("drug, 40 doses", drug_ours, drug_by_hand, DRUG),
    Problem("ball, 100 bounces", ball_ours, ball_by_hand, BALL),
    Problem("thermostat", room_ours, room_by_hand, ROOM),
    Problem("neuron with reset", neuron_ours, neuron_by_hand, NEURON),
    Problem("oscillator, measured force", oscillator_ours, oscillator_by_hand, OSCILLATOR),
    Problem("rocket, two stages", rocket_ours, rocket_by_hand, ROCKET),
)
