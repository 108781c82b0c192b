"""Mechanics as equations of second order, against the same as systems of first order.

    python -m benchmarks.second_order [--quick] [--rounds N]

Pleiades as 14 second-order and as 28 first-order components, Kepler's ellipse (10 revolutions,
eccentricity 0.3) and a Hénon-Heiles orbit, by EK0 (one evaluation in a step, or two) and EK1 of
orders 3, 5 and 8, at tolerances of 0.1 to 1e-11 (absolute ones a thousandth of these): work
against precision. The error is the largest of the positions and velocities at the end, relative to
the largest of either; the time is that of a solve which keeps the final state alone, and of one
with all steps smoothed, each the fastest of several rounds.

"seconds at an error" are interpolated in the logarithms between the tolerances around it; the
best order of each form is taken, and "gain" is how many times as fast the second-order form is.
"""

import argparse
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp

import probode
from probode import EK0, EK1, PIControl, SecondOrder, problems

ORDERS = (3, 5, 8)
TOLERANCES = 10.0 ** -np.arange(1.0, 12.0)
ERRORS = (1e-3, 1e-5, 1e-7, 1e-9)
SOLVERS = {"EK0": (EK0, partial(EK0, evaluations=2)), "EK1": (EK1,)}
LONGEST = 1.0
"""Seconds of a solve after which no tighter tolerance is tried."""


def kepler(t, y, v):
    return -y / (y[0] ** 2 + y[1] ** 2) ** 1.5


def henon_heiles(t, y, v):
    return jnp.array([-y[0] - 2.0 * y[0] * y[1], y[1] ** 2 - y[1] - y[0] ** 2])


def pleiades(t, y, v):
    x, z = y[:7], y[7:]
    dx, dz = x[None, :] - x[:, None], z[None, :] - z[:, None]
    # Ones on the diagonal: no star attracts itself.
    attraction = jnp.arange(1.0, 8.0) / (dx**2 + dz**2 + jnp.eye(7)) ** 1.5
    return jnp.concatenate([jnp.sum(attraction * dx, axis=1), jnp.sum(attraction * dz, axis=1)])


def as_system(function):
    """``u = (y, v)`` of first order, the same function on every call."""

    def system(t, u):
        half = u.shape[0] // 2
        return jnp.concatenate([u[half:], function(t, u[:half], u[half:])])

    return system


class Motion:
    """A problem in both forms, and where it ends."""

    def __init__(self, name, function, t1, y0, v0, end=None):
        self.name, self.function, self.t_span = name, function, (0.0, t1)
        self.start = np.asarray(y0, float), np.asarray(v0, float)
        self.system = as_system(function)
        self.end = self._accurate() if end is None else end

    def _accurate(self):
        u0 = np.concatenate(self.start)
        with jax.enable_x64(True):
            compiled = jax.jit(self.system).lower(0.0, u0).compile()
            found = solve_ivp(
                lambda t, u: np.asarray(compiled(np.float64(t), u)),
                *(self.t_span, u0, "DOP853"),
                rtol=1e-13,
                atol=1e-15,
            )
        return found.y[:, -1]

    def solved(self, order_of_equation, solver, tolerance, smooth):
        control = PIControl(tolerance, 1e-3 * tolerance)
        how = {"solver": solver, "control": control, "max_steps": 100_000}
        how |= {"smooth": True} if smooth else {"save_at": self.t_span[1]}
        if order_of_equation == 2:
            return probode.solve(SecondOrder(self.function), self.t_span, self.start, **how)
        return probode.solve(self.system, self.t_span, np.concatenate(self.start), **how)

    def error(self, posterior, order_of_equation):
        mean = posterior.mean[-1]
        if order_of_equation == 2:
            mean = np.concatenate([mean, posterior.derivative().mean[-1]])
        return float(np.max(abs(mean - self.end)) / np.max(abs(self.end)))


def motions(quick):
    given = problems.pleiades()
    y0, v0 = np.split(np.asarray(given.y0), 2)
    yield Motion("Pleiades", pleiades, 3.0, y0, v0, np.asarray(given.reference_end))
    if quick:
        return
    e, turns = 0.3, 20 * np.pi
    back = np.array([1 - e, 0.0, 0.0, np.sqrt((1 + e) / (1 - e))])
    yield Motion("Kepler", kepler, turns, back[:2], back[2:], back)
    yield Motion("Henon-Heiles", henon_heiles, 100.0, [0.0, 0.1], [0.5, 0.0])


def measure(motion, equation, solver, tolerance, smooth, rounds, budget):
    """Error and seconds (the fastest), ``None`` where the solve does not end well."""
    posterior = motion.solved(equation, solver, tolerance, smooth)
    if not posterior.success:
        return None
    times = []
    for _ in range(rounds):
        before = time.perf_counter()
        motion.solved(equation, solver, tolerance, smooth)
        times.append(time.perf_counter() - before)
        if sum(times) > budget:
            break
    return motion.error(posterior, equation), min(times)


def seconds_at(points, error):
    """Interpolated in logarithms; NaN where no solve was as exact."""
    points = sorted((e, s) for e, s in points if 0.0 < e < np.inf)
    errors = np.log([e for e, _ in points])
    if not points or errors[0] > np.log(error):
        return np.nan
    # Where a tighter tolerance has a larger error, the faster of the two counts.
    seconds = np.minimum.accumulate([s for _, s in points])
    return float(np.exp(np.interp(np.log(error), errors, np.log(seconds))))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="Pleiades only")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--budget", type=float, default=0.5, help="seconds for the rounds of one")
    arguments = parser.parse_args()
    for motion in motions(arguments.quick):
        for smooth in (False, True):
            print(f"\n{motion.name}, {'all steps smoothed' if smooth else 'final state'}")
            _compare(motion, smooth, arguments.rounds, arguments.budget)


def _compare(motion, smooth, rounds, budget):
    for family, kinds in SOLVERS.items():
        best = {}
        for equation in (1, 2):
            for solver in (kind(order) for kind in kinds for order in ORDERS):
                points = []
                for tolerance in TOLERANCES:
                    found = measure(motion, equation, solver, tolerance, smooth, rounds, budget)
                    if found is None or found[1] > LONGEST:
                        break
                    points.append(found)
                at = [seconds_at(points, error) for error in ERRORS]
                shown = "".join(f"{1e3 * s:10.2f}" for s in at)
                print(f"{solver.name:8} order {equation}  ms {shown}", flush=True)
                best[equation] = np.fmin(best.get(equation, np.nan), at)
        errors = ", ".join(f"{e:.0e}" for e in ERRORS)
        ratio = "".join(f"{x:10.2f}" for x in best[1] / best[2])
        print(f"{family}: gain at errors of {errors}: {ratio}", flush=True)


if __name__ == "__main__":
    main()
