"""Orbits over thousands of periods, as equations of second order: error bars against true errors.

    python -m benchmarks.orbits [--quick | --short]

Kepler's ellipse (eccentricities 0.1 and 0.5, 1000 and 3000 revolutions; the closed form is the
reference) and the outer solar system (the sun and five planets in space, 18 components; 1000
revolutions of Jupiter, 11 900 years). Where two runs of SciPy's DOP853, at 2.3e-14 and 1e-13, are
not twenty times nearer to each other than the error, a run is not judged. ``--short``: other
mechanics over short times instead, orders 3, 5 and 8 at tolerances from 1e-3 to 1e-9.

chi²/d is the mean of (error / standard deviation)² over 200 times and all components, of the
positions and of the velocities; "estimate" the largest error that :meth:`Posterior.global_error`
names at the end, relative to the true one.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp

import probode
from benchmarks.second_order import henon_heiles, pleiades
from probode import EK0, EK1, PIControl, SecondOrder, problems

TIMES = 200
GRAVITY = 2.95912208286e-4
"""In astronomical units, days and masses of the sun; this and what follows: Hairer, Lubich, Wanner,
Geometric Numerical Integration, section I.2.4."""
MASSES = np.array(
    [
        *(1.00000597682, 0.000954786104043, 0.000285583733151),
        *(0.0000437273164546, 0.0000517759138449, 1.0 / 1.3e8),
    ]
)
POSITIONS = np.array(
    [
        [0.0, 0.0, 0.0],
        [-3.5023653, -3.8169847, -1.5507963],
        [9.0755314, -3.0458353, -1.6483708],
        [8.3101420, -16.2901086, -7.2521278],
        [11.4707666, -25.7294829, -10.8169456],
        [-15.5387357, -25.2225594, -3.1902382],
    ]
)
VELOCITIES = np.array(
    [
        [0.0, 0.0, 0.0],
        [0.00565429, -0.00412490, -0.00190589],
        [0.00168318, 0.00483525, 0.00192462],
        [0.00354178, 0.00137102, 0.00055029],
        [0.00288930, 0.00114527, 0.00039677],
        [0.00276725, -0.00170702, -0.00136504],
    ]
)
JUPITER = 4332.6
"""Days of a revolution."""


def kepler(t, y, v):
    return -y / (y[0] ** 2 + y[1] ** 2) ** 1.5


def planets(t, y, v):
    difference = y[None, :, :] - y[:, None, :]
    # Ones on the diagonal: no body attracts itself.
    cubes = (jnp.sum(difference**2, axis=-1) + jnp.eye(6)) ** 1.5
    return GRAVITY * jnp.einsum("j,ij,ijk->ik", MASSES, 1.0 / cubes, difference)


def planets_in_numpy(t, u):
    y, v = u.reshape(2, 6, 3)
    difference = y[None, :, :] - y[:, None, :]
    cubes = (np.sum(difference**2, axis=-1) + np.eye(6)) ** 1.5
    pull = GRAVITY * np.einsum("j,ij,ijk->ik", MASSES, 1.0 / cubes, difference)
    return np.concatenate([v.ravel(), pull.ravel()])


def ellipse(eccentricity, t):
    """``(y, v)`` of an orbit with period 2π that begins nearest to the centre."""
    mean = np.remainder(t, 2.0 * np.pi)
    angle = mean + eccentricity * np.sin(mean)
    for _ in range(50):
        rest = angle - eccentricity * np.sin(angle) - mean
        angle = angle - rest / (1.0 - eccentricity * np.cos(angle))
    axis = np.sqrt(1.0 - eccentricity**2)
    rate = 1.0 / (1.0 - eccentricity * np.cos(angle))
    y = np.stack([np.cos(angle) - eccentricity, axis * np.sin(angle)], -1)
    v = np.stack([-np.sin(angle) * rate, axis * np.cos(angle) * rate], -1)
    return np.stack([y, v], axis=1)


def kepler_case(eccentricity, revolutions):
    start = ellipse(eccentricity, np.zeros(1))[0]
    t = np.linspace(0.0, 2.0 * np.pi * revolutions, TIMES + 1)[1:]
    # The time itself is rounded, and so is its remainder.
    doubt = 4e-16 * t[-1] / (1.0 - eccentricity) ** 2
    return kepler, start, t, ellipse(eccentricity, t), doubt


def referenced(function, system, start, end):
    """A case with SciPy's solutions as its reference."""
    t, found = np.linspace(0.0, end, TIMES + 1)[1:], []
    for rtol in (2.3e-14, 1e-13):
        options = {"method": "DOP853", "rtol": rtol, "atol": 1e-16, "t_eval": t}
        done = solve_ivp(system, (0.0, end), start.ravel(), **options)
        found.append(done.y.T.reshape(-1, *start.shape))
    return function, start, t, found[0], np.max(abs(found[0] - found[1]))


def planets_case(revolutions):
    start = np.stack([POSITIONS, VELOCITIES])
    return referenced(planets, planets_in_numpy, start, JUPITER * revolutions)


def van_der_pol(t, y, v):
    return 5.0 * (1.0 - y**2) * v - y


def short_cases():
    """Mechanics of other kinds, and where errors of components differ much."""

    def case(function, start, end):
        def system(t, u):
            y, v = np.split(u, 2)
            return np.concatenate([v, np.asarray(function(t, y, v))])

        with jax.enable_x64():
            return referenced(function, system, np.asarray(start), end)

    stars = np.asarray(problems.pleiades().y0).reshape(2, 14)
    return {
        "Kepler, eccentricity 0.5, 3 revolutions": kepler_case(0.5, 3),
        "Hénon-Heiles, T = 50": case(henon_heiles, [[0.0, 0.1], [0.5, 0.0]], 50.0),
        "van der Pol, mu = 5, T = 20": case(van_der_pol, [[2.0], [0.0]], 20.0),
        "Pleiades, T = 3": case(pleiades, stars, 3.0),
    }


def judged(solver, rtol, case):
    """One line: steps, seconds, error at the end, chi²/d of positions and velocities, a flag."""
    function, start, t, true, doubt = case
    began = time.perf_counter()
    posterior = probode.solve(
        *(SecondOrder(function), (0.0, t[-1]), tuple(start)),
        solver=solver,
        control=PIControl(rtol, rtol * 1e-3),
    ).calibrate()
    took, steps = time.perf_counter() - began, int(posterior.stats.accepted)
    at = posterior.state(t)
    error = np.asarray(at.mean) - true
    worst = np.max(abs(error))
    if worst < 20.0 * doubt:
        return f"{steps:8d} steps: error {worst:.1e}, the reference's {doubt:.0e}"
    axes = (0, *range(2, error.ndim))
    chi = np.mean((error / np.asarray(at.std)) ** 2, axis=axes)
    last = abs(error[-1, 0])
    estimate = np.max(abs(np.asarray(posterior.global_error(t[-1:]))[0]))
    flagged = "" if posterior.diagnose().trusted else "  flagged"
    return (
        f"{steps:8d} steps {took:7.2f} s  error at the end {np.max(last):.1e}  estimate "
        f"{estimate / np.max(last):5.2f}  chi²/d {chi[0]:5.2f} {chi[1]:5.2f}{flagged}"
    )


def long_cases(quick):
    counts = (100,) if quick else (1000, 3000)
    cases = {
        f"Kepler, eccentricity {e}, {n} revolutions": kepler_case(e, n)
        for e in (0.1, 0.5)
        for n in counts
    }
    cases[f"outer solar system, {counts[0]} revolutions of Jupiter"] = planets_case(counts[0])
    return cases


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="100 revolutions, two tolerances")
    parser.add_argument("--short", action="store_true", help="other mechanics, over short times")
    arguments = parser.parse_args()
    if arguments.short:
        cases, orders = short_cases(), (3, 5, 8)
        rtols = (1e-3, 1e-5, 1e-7, 1e-9)
    else:
        cases, orders = long_cases(arguments.quick), (5, 8)
        rtols = (1e-6, 1e-9) if arguments.quick else (1e-5, 1e-7, 1e-9)
    for name, case in cases.items():
        print(f"\n{name}", flush=True)
        implicit = [EK1(q) for q in orders] if case[1][0].size < 16 else []
        for solver in (*(EK0(q, evaluations=2) for q in orders), *implicit):
            for rtol in rtols if solver.order > 3 else rtols[:3]:
                print(f"{solver.name:9s} {rtol:.0e} {judged(solver, rtol, case)}", flush=True)


if __name__ == "__main__":
    main()
