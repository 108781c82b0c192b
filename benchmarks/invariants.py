"""Invariants: errors with and without them, what is left of them, and the error bars.

For each problem with invariants, each solver and tolerance: the largest error over the interval of
a plain solve, how much larger it is with ``invariants=``, the largest invariant that is left, and
chi²/d of the calibrated error bars. At the end, the worst of them::

    python benchmarks/invariants.py [--quick]
"""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.integrate import solve_ivp as scipy_solve_ivp

from probode import EK0, EK1, solve_ivp

ORDERS, TOLERANCES = (3, 5, 8), (1e-3, 1e-5, 1e-7, 1e-9)
TIMES = 201
SURE = 2e-11
"""Errors below this part of the solution are not judged: the reference has some, too."""


class Problem(NamedTuple):
    """A right-hand side, its start and span, and what it conserves."""

    f: Callable[..., Any]
    y0: Any
    span: float
    conserved: list[Callable[..., Any]]

    def invariants(self) -> list[Callable[..., Any]]:
        """Zero along the solution."""
        y0 = np.asarray(self.y0, float)

        def from_start(g: Callable[..., Any]) -> Callable[..., Any]:
            at = g(y0)
            return lambda y: g(y) - at

        return list(map(from_start, self.conserved))


def henon_heiles(t: float, u: Any) -> Any:
    x, y, v, w = u
    return np.array([v, w, -x - 2 * x * y, -y - x * x + y * y])


def henon_heiles_energy(u: Any) -> Any:
    x, y, v, w = u
    return (v * v + w * w + x * x + y * y) / 2 + x * x * y - y**3 / 3


def kepler(t: float, u: Any) -> Any:
    cube = (u[0] ** 2 + u[1] ** 2) ** 1.5
    return np.array([u[2], u[3], -u[0] / cube, -u[1] / cube])


def kepler_energy(u: Any) -> Any:
    return (u[2] ** 2 + u[3] ** 2) / 2 - 1 / np.sqrt(u[0] ** 2 + u[1] ** 2)


def kepler_momentum(u: Any) -> Any:
    return u[0] * u[3] - u[1] * u[2]


def rigid_body(t: float, y: Any) -> Any:
    return np.array([(1 / 3 - 1 / 2) * y[1] * y[2], (1 - 1 / 3) * y[2] * y[0], -y[0] * y[1] / 2])


def square(y: Any) -> Any:
    return y[0] ** 2 + y[1] ** 2 + y[2] ** 2


def rigid_energy(y: Any) -> Any:
    return y[0] ** 2 + y[1] ** 2 / 2 + y[2] ** 2 / 3


def predator_prey(t: float, y: Any) -> Any:
    return np.array([y[0] * (1.5 - y[1]), y[1] * (y[0] - 3)])


def predator_prey_constant(y: Any) -> Any:
    return y[0] - 3 * np.log(y[0]) + y[1] - 1.5 * np.log(y[1])


def pendulum(t: float, y: Any) -> Any:
    return np.array([y[1], -np.sin(y[0])])


def pendulum_energy(y: Any) -> Any:
    return y[1] ** 2 / 2 - np.cos(y[0])


def turning(t: float, y: Any) -> Any:
    a, b, c = np.sin(t), np.cos(2 * t), 1.0
    return np.array([b * y[2] - c * y[1], c * y[0] - a * y[2], a * y[1] - b * y[0]])


def reactions(t: float, y: Any) -> Any:
    slow, back, fast = 0.4 * y[0], 3 * y[1] * y[2], 30 * y[1] ** 2
    return np.array([back - slow, slow - back - fast, fast])


def robertson(t: float, y: Any) -> Any:
    slow, back, fast = 0.04 * y[0], 1e4 * y[1] * y[2], 3e7 * y[1] ** 2
    return np.array([back - slow, slow - back - fast, fast])


def mass(y: Any) -> Any:
    return y[0] + y[1] + y[2]


def _orbit(e: float) -> list[float]:
    return [1 - e, 0.0, 0.0, float(np.sqrt((1 + e) / (1 - e)))]


PROBLEMS = {
    "Henon-Heiles": Problem(henon_heiles, [0, 0.1, 0.5, 0], 100, [henon_heiles_energy]),
    **{
        f"Kepler e={e}, {name}": Problem(kepler, _orbit(e), 20, conserved)
        for e in (0.0, 0.01, 0.3, 0.6)
        for name, conserved in {
            "energy": [kepler_energy],
            "both": [kepler_energy, kepler_momentum],
        }.items()
        if e > 0 or name == "energy"  # on a circle one follows from the other
    },
    "rigid body": Problem(rigid_body, [0.8, 0.0, 0.6], 30, [square, rigid_energy]),
    "Lotka-Volterra": Problem(predator_prey, [1.0, 2.0], 20, [predator_prey_constant]),
    "pendulum": Problem(pendulum, [2.0, 0.0], 20, [pendulum_energy]),
    "sphere": Problem(turning, [0.0, 0.6, 0.8], 20, [square]),
    "reactions": Problem(reactions, [1.0, 0.0, 0.0], 20, [mass]),
    "Robertson": Problem(robertson, [1.0, 0.0, 0.0], 1e3, [mass]),
}


class Row(NamedTuple):
    """One solver on one problem at one tolerance, without and with invariants."""

    error: float
    ratio: float
    left: float
    chi: float
    trusted: bool


def reference(problem: Problem, t: np.ndarray) -> np.ndarray:
    stiff = problem.f is robertson
    method, rtol = ("Radau", 1e-12) if stiff else ("DOP853", 3e-14)
    found = scipy_solve_ivp(
        *(problem.f, (0, problem.span), problem.y0, method, t), rtol=rtol, atol=1e-16
    )
    return np.asarray(found.y)


def measure(problem: Problem, solver: Any, tolerance: float, t: np.ndarray, true: Any) -> Row:
    known = {"rtol": tolerance, "atol": 1e-3 * tolerance, "t_eval": t, "method": solver}
    args = (problem.f, (0, problem.span), problem.y0)
    free = solve_ivp(*args, calibration="model", **known)
    held = solve_ivp(*args, invariants=problem.invariants(), **known)
    errors = [np.max(abs(result.y - true)) for result in (free, held)]
    left = max(np.max(abs(g(held.y))) for g in problem.invariants())
    error, std = (held.y - true)[:, 1:], held.y_std[:, 1:]
    ratio, chi = errors[1] / errors[0], float(np.mean((error / std) ** 2))
    if max(errors) < SURE * np.max(abs(true)):
        ratio = chi = np.nan
    return Row(errors[0], ratio, left, chi, held.posterior.diagnose().flags == ())


def main(quick: bool) -> None:
    orders, tolerances = ((5,), (1e-3, 1e-6)) if quick else (ORDERS, TOLERANCES)
    worst: list[tuple[Row, str]] = []
    heads = ("error", "ratio", "left", "chi²/d")
    print(f"{'problem':22} {'solver':8} {'rtol':6}", *(f"{head:>9}" for head in heads))
    for name, problem in PROBLEMS.items():
        t = np.linspace(0, problem.span, TIMES)
        true = reference(problem, t)
        for order in orders:
            for solver in (EK0(order, evaluations=2), EK1(order)):
                if problem.f is robertson and isinstance(solver, EK0):
                    continue
                for tolerance in tolerances:
                    if order == 3 and tolerance < 1e-7:
                        continue
                    row = measure(problem, solver, tolerance, t, true)
                    where = f"{name:22} {solver.name:8} {tolerance:.0e} "
                    numbers = f"{row.error:9.1e} {row.ratio:9.2f} {row.left:9.1e} {row.chi:9.2f}"
                    print(where + numbers, "" if row.trusted else "flagged", flush=True)
                    worst.append((row, where))
    rows = [row for row, _ in worst]
    judged = [(row, where) for row, where in worst if np.isfinite(row.ratio)]
    ratio, where = max((row.ratio, where) for row, where in judged)
    fine = np.mean([1 / 3 < row.chi < 3 for row, _ in judged])
    print(
        f"{len(rows)} runs, {len(judged)} judged. Largest ratio {ratio:.2f} ({where.strip()}), ",
        end="",
    )
    print(f"median {np.median([row.ratio for row, _ in judged]):.2f}, ", end="")
    print(f"largest invariant left {max(row.left for row in rows):.1e}, ", end="")
    print(f"chi²/d within [1/3, 3]: {fine:.0%}.")


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
