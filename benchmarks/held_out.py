"""Problems that nothing in the calibration was chosen on: twenty that the zoo does not have.

Each has a reference made without this library: a closed form where there is one, else SciPy's
DOP853 or Radau at tight tolerances, compared with a second solution by LSODA.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from probode.problems import InitialValueProblem

_REGISTRY: dict[str, Callable[[], InitialValueProblem]] = {}


def _held_out(make: Callable[[], InitialValueProblem]) -> Callable[[], InitialValueProblem]:
    _REGISTRY[make.__name__.replace("_", "-")] = make
    return make


def names() -> list[str]:
    """Of all held-out problems."""
    return list(_REGISTRY)


def get(name: str) -> InitialValueProblem:
    """The problem of a name."""
    return _REGISTRY[name]()


def _problem(name: str, field: Any, t_span: Any, y0: Any, **options: Any) -> InitialValueProblem:
    return InitialValueProblem(name, field, t_span, np.asarray(y0, float), **options)


# --- not stiff ------------------------------------------------------------------------------------


@_held_out
def duffing() -> InitialValueProblem:
    """A driven oscillator between two wells."""

    def field(t, y):
        return jnp.stack([y[1], y[0] - y[0] ** 3 - 0.2 * y[1] + 0.3 * jnp.cos(t)])

    return _problem("duffing", field, (0.0, 20.0), [1.0, 0.0])


@_held_out
def damped_pendulum() -> InitialValueProblem:
    """A pendulum that swings high and comes to rest."""

    def field(t, y):
        return jnp.stack([y[1], -jnp.sin(y[0]) - 0.1 * y[1]])

    return _problem("damped-pendulum", field, (0.0, 30.0), [3.0, 0.0])


@_held_out
def kepler(name: str = "kepler", eccentricity: float = 0.5) -> InitialValueProblem:
    """Two revolutions on an ellipse of eccentricity one half; Kepler's equation gives the place."""

    def field(t, y):
        r3 = (y[0] ** 2 + y[1] ** 2) ** 1.5
        return jnp.stack([y[2], y[3], -y[0] / r3, -y[1] / r3])

    def exact(t):
        t = np.asarray(t, float)
        anomaly = t + eccentricity * np.sin(t)
        for _ in range(10):
            anomaly -= (anomaly - eccentricity * np.sin(anomaly) - t) / (
                1 - eccentricity * np.cos(anomaly)
            )
        c, s, b = np.cos(anomaly), np.sin(anomaly), np.sqrt(1 - eccentricity**2)
        rate = 1 / (1 - eccentricity * c)
        return np.stack([c - eccentricity, b * s, -s * rate, b * c * rate], axis=-1)

    y0 = [1 - eccentricity, 0.0, 0.0, np.sqrt((1 + eccentricity) / (1 - eccentricity))]
    return _problem(name, field, (0.0, 4 * np.pi), y0, exact=exact)


@_held_out
def rossler() -> InitialValueProblem:
    """Two turns on a chaotic attractor."""

    def field(t, y):
        return jnp.stack([-y[1] - y[2], y[0] + 0.2 * y[1], 0.2 + y[2] * (y[0] - 5.7)])

    return _problem("rossler", field, (0.0, 15.0), [1.0, 1.0, 0.0])


@_held_out
def epidemic_with_seasons() -> InitialValueProblem:
    """SIR with births and a contact rate that follows the year."""

    def field(t, y):
        contact = 2.0 * (1.0 + 0.2 * jnp.cos(0.5 * t)) * y[0] * y[1]
        return jnp.stack([0.02 * (1 - y[0]) - contact, contact - 0.5 * y[1], 0.5 * y[1]])

    return _problem("epidemic-with-seasons", field, (0.0, 40.0), [0.98, 0.02, 0.0])


@_held_out
def repressilator() -> InitialValueProblem:
    """A ring of three genes, each of which represses the next."""

    def field(t, y):
        m, p = y[:3], y[3:]
        dm = -m + 20.0 / (1.0 + jnp.roll(p, 1) ** 2) + 0.1
        return jnp.concatenate([dm, -1.5 * (p - m)])

    return _problem("repressilator", field, (0.0, 25.0), [0.0, 1.0, 2.0, 1.0, 0.5, 0.1])


@_held_out
def witch_backward() -> InitialValueProblem:
    """``y = 1/(1 + t²)`` from its foot to its top: ``y' = -2 t y²``, backward in time."""

    def field(t, y):
        return -2.0 * t * y**2

    def exact(t):
        return 1.0 / (1.0 + np.asarray(t, float)[..., None] ** 2)

    return _problem("witch-backward", field, (4.0, 0.0), [1.0 / 17.0], exact=exact)


@_held_out
def double_pendulum_backward() -> InitialValueProblem:
    """Two equal pendulums, one hanging from the other, backward in time."""

    def field(t, y):
        a, b, u, v = y
        c, s = jnp.cos(a - b), jnp.sin(a - b)
        # Unit masses and lengths: M (u', v') = right.
        right_u = -(v**2) * s - 2 * 9.81 * jnp.sin(a)
        right_v = u**2 * s - 9.81 * jnp.sin(b)
        det = 2 - c**2
        return jnp.stack([u, v, (right_u - c * right_v) / det, (2 * right_v - c * right_u) / det])

    return _problem("double-pendulum-backward", field, (3.0, 0.0), [1.0, 0.5, 0.0, 0.3])


@_held_out
def chain_of_springs() -> InitialValueProblem:
    """Twelve masses between nonlinear springs (Fermi, Pasta, Ulam, Tsingou)."""
    n = 12

    def field(t, y):
        x, v = y[:n], y[n:]
        stretch = jnp.diff(jnp.concatenate([jnp.zeros(1), x, jnp.zeros(1)]))
        force = stretch + 0.3 * stretch**2
        return jnp.concatenate([v, force[1:] - force[:-1]])

    x0 = np.sin(np.pi * np.arange(1, n + 1) / (n + 1))
    return _problem("chain-of-springs", field, (0.0, 40.0), np.concatenate([x0, np.zeros(n)]))


@_held_out
def predator_with_saturation() -> InitialValueProblem:
    """Rosenzweig and MacArthur's limit cycle: long waits, short outbreaks."""

    def field(t, y):
        eaten = 2.0 * y[0] * y[1] / (1.0 + y[0])
        return jnp.stack([y[0] * (1.0 - y[0] / 5.0) - eaten, eaten - 0.8 * y[1]])

    return _problem("predator-with-saturation", field, (0.0, 40.0), [1.0, 0.5])


# --- stiff ----------------------------------------------------------------------------------------


@_held_out
def flame() -> InitialValueProblem:
    """A flame that ignites: ``y' = y² - y³`` from ``1e-3``, solved by Lambert's function."""
    start = 1e-3

    def field(t, y):
        return y**2 - y**3

    def exact(t):
        a = 1 / start - 1
        # W(a exp(a - t)) by Newton's method on w + log w = log a + a - t, which cannot overflow.
        goal = np.log(a) + a - np.asarray(t, float)
        w = np.where(goal > 1, np.maximum(goal, 1), np.exp(np.clip(goal, -700, 1)))
        for _ in range(8):
            w = np.where(goal > -30, w * (1 + goal - np.log(w)) / (1 + w), w)
        return (1 / (w + 1))[..., None]

    return _problem("flame", field, (0.0, 2 / start), [start], stiff=True, exact=exact)


@_held_out
def stiff_with_forcing() -> InitialValueProblem:
    """Three coupled rates (1, 1e3, 1e5) around a given curve, started off it."""
    basis = np.array([[1.0, 1.0, 0.0], [0.5, -1.0, 1.0], [0.0, 1.0, 2.0]])
    rates = np.array([-1.0, -1e3, -1e5])
    matrix = basis @ np.diag(rates) @ np.linalg.inv(basis)

    def curve(xp, t):
        return xp.stack([xp.sin(t), xp.cos(2 * t), xp.exp(-0.3 * t)], axis=-1)

    def field(t, y):
        slope = jnp.stack([jnp.cos(t), -2 * jnp.sin(2 * t), -0.3 * jnp.exp(-0.3 * t)])
        return jnp.asarray(matrix) @ (y - curve(jnp, t)) + slope

    off = basis @ np.array([0.5, 0.3, 0.1])

    def exact(t):
        t = np.asarray(t, float)
        decay = np.exp(t[..., None] * rates) * np.linalg.solve(basis, off)
        return curve(np, t) + decay @ basis.T

    return _problem(
        *("stiff-with-forcing", field, (0.0, 5.0), curve(np, np.array(0.0)) + off),
        stiff=True,
        exact=exact,
    )


@_held_out
def stiff_detest_d4() -> InitialValueProblem:
    """Gear's chemical kinetics, problem D4 of the STIFF DETEST set."""

    def field(t, y):
        a, b = 0.013 * y[0] + 1000.0 * y[0] * y[2], 2500.0 * y[1] * y[2]
        return jnp.stack([-a, -b, -a - b])

    return _problem("stiff-detest-d4", field, (0.0, 5.0), [1.0, 1.0, 0.0], stiff=True)


@_held_out
def stiff_detest_b5() -> InitialValueProblem:
    """Fast damped oscillations beside slow decay, problem B5 of the STIFF DETEST set."""
    rates = np.array([4.0, 1.0, 0.5, 0.1])

    def field(t, y):
        spiral = jnp.stack([-10 * y[0] + 100 * y[1], -100 * y[0] - 10 * y[1]])
        return jnp.concatenate([spiral, -jnp.asarray(rates) * y[2:]])

    def exact(t):
        t = np.asarray(t, float)[..., None]
        turn = [np.cos(100 * t) + np.sin(100 * t), np.cos(100 * t) - np.sin(100 * t)]
        return np.concatenate([np.exp(-10 * t) * np.concatenate(turn, -1), np.exp(-rates * t)], -1)

    return _problem("stiff-detest-b5", field, (0.0, 20.0), np.ones(6), stiff=True, exact=exact)


@_held_out
def akzo_nobel() -> InitialValueProblem:
    """Six reactants in a tank (the Bari test set's chemical Akzo Nobel problem)."""

    def field(t, y):
        root = jnp.sqrt(y[1])
        r1 = 18.7 * y[0] ** 4 * root
        r2 = 0.58 * y[2] * y[3]
        r3 = 0.58 / 34.4 * y[0] * y[4]
        r4 = 0.09 * y[0] * y[3] ** 2
        r5 = 0.42 * y[5] ** 2 * root
        inflow = 3.3 * (0.9 / 737.0 - y[1])
        return jnp.stack(
            [
                -2 * r1 + r2 - r3 - r4,
                -0.5 * r1 - r4 - 0.5 * r5 + inflow,
                r1 - r2 + r3,
                -r2 + r3 - 2 * r4,
                r2 - r3 + r5,
                115.83 * y[0] * y[3] - y[5],
            ]
        )

    y0 = [0.444, 0.00123, 0.0, 0.007, 0.0, 115.83 * 0.444 * 0.007]
    return _problem("akzo-nobel", field, (0.0, 180.0), y0, stiff=True)


@_held_out
def brusselator_on_a_line() -> InitialValueProblem:
    """The Brusselator with diffusion on 15 points: 30 equations."""
    n, exchange = 15, 0.2 * 16**2

    def field(t, y):
        u, v = y[:n], y[n:]

        def spread(x, wall):
            edge = jnp.full(1, wall)
            return exchange * jnp.diff(jnp.concatenate([edge, x, edge]), 2)

        reaction = u**2 * v
        return jnp.concatenate(
            [1.0 + reaction - 4.0 * u + spread(u, 1.0), 3.0 * u - reaction + spread(v, 3.0)]
        )

    x = np.arange(1, n + 1) / (n + 1)
    y0 = np.concatenate([1 + np.sin(2 * np.pi * x), np.full(n, 3.0)])
    return _problem("brusselator-on-a-line", field, (0.0, 8.0), y0, stiff=True)


@_held_out
def burgers() -> InitialValueProblem:
    """Burgers' equation, a wave that steepens, on 40 points."""
    n, viscosity = 40, 0.02
    width = 1.0 / (n + 1)

    def field(t, y):
        full = jnp.concatenate([jnp.zeros(1), y, jnp.zeros(1)])
        advection = (full[2:] ** 2 - full[:-2] ** 2) / (4 * width)
        return viscosity * jnp.diff(full, 2) / width**2 - advection

    x = np.arange(1, n + 1) * width
    return _problem("burgers", field, (0.0, 1.0), np.sin(2 * np.pi * x))


@_held_out
def switch_with_memory() -> InitialValueProblem:
    """A slow drive over a fold: van der Pol's equation in Liénard's form, four jumps."""

    def field(t, y):
        return jnp.stack([200.0 * (y[1] - y[0] ** 3 / 3 + y[0]), -y[0]])

    return _problem("switch-with-memory", field, (0.0, 3.0), [2.0, 0.6], stiff=True)


@_held_out
def enzyme() -> InitialValueProblem:
    """Michaelis and Menten's reaction in full: a layer, then slow consumption."""

    def field(t, y):
        bound = 1e4 * y[0] * (1e-2 - y[1])
        return jnp.stack([-bound + 10.0 * y[1], bound - 60.0 * y[1]])

    return _problem("enzyme", field, (0.0, 4.0), [1.0, 0.0], stiff=True)
