"""Value and gradient of a likelihood: time at equal accuracy, against diffrax and SciPy.

    python -m benchmarks.inference [--quick] [--problem NAME ...]

Each code computes the log likelihood of the same data and its gradient by all parameters, in one
call, at tolerances from loose to tight. The error is that of the gradient, relative to its size,
against ours at the tightest tolerance (checked against finite differences of SciPy's solution at
1e-12). Table: microseconds to reach an error, by interpolation between tolerances, and the ratio to
the best peer. All in one process, in turns, minima of several rounds.

diffrax: ``RecursiveCheckpointAdjoint`` (reverse) and ``ForwardMode`` (``jacfwd``); SciPy: solutions
at parameters moved one by one. Ours: ``plain`` and ``fenrir`` (calibrated uncertainty).
"""

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp

from benchmarks.table import time_to_error
from probode import EK0, EK1, Observations, PIControl, log_likelihood

TARGETS = (1e-2, 1e-3, 1e-4, 1e-6)


class Problem(NamedTuple):
    """A model with parameters ``p`` (all that is differentiated), and data."""

    name: str
    function: Callable[..., Any]
    """``f(t, y, rates)``."""
    parts: Callable[[Any], tuple[Any, Any, Any]]
    """``p`` to initial values, rates, noise."""
    p: np.ndarray
    times: np.ndarray
    noise: float
    seen: tuple[int, ...]
    stiff: bool
    atol: float


def predators(count: int) -> Problem:
    """Lotka-Volterra, hare and lynx: four rates; with eight, initial values and noise too."""

    def f(t: Any, y: Any, r: Any) -> Any:
        return jnp.stack([(r[0] - r[1] * y[1]) * y[0], (r[3] * y[0] - r[2]) * y[1]])

    start = np.array([34.0, 6.0])
    rates = np.array([0.55, 0.028, 0.8, 0.024])

    def parts(p: Any) -> tuple[Any, Any, Any]:
        return (p[4:6], p[:4], p[6:8]) if count == 8 else (start, p, np.array([1.0, 1.0]))

    p = np.concatenate([rates, start, [1.0, 1.0]]) if count == 8 else rates
    times = np.linspace(0.0, 20.0, 21)
    return Problem(f"predators, {count}", f, parts, p, times, 1.0, (0, 1), False, 1.0)


def robertson() -> Problem:
    """Robertson's reaction over four decades: three rates, two of the species measured."""

    def f(t: Any, y: Any, r: Any) -> Any:
        k = jnp.exp(r)
        a, b, c = k[0] * y[0], k[1] * y[1] ** 2, k[2] * y[1] * y[2]
        return jnp.stack([c - a, a - b - c, b])

    start = np.array([1.0, 0.0, 0.0])
    p = np.log(np.array([0.04, 3e7, 1e4]))
    times = np.geomspace(0.1, 1e3, 15)
    return Problem(
        "Robertson, 3", f, lambda p: (start, p, np.array([0.01, 0.01])), p, times, 0.01, (0, 2),
        True, 1e-5,
    )  # fmt: skip


def hires() -> Problem:
    """High irradiance response: twelve rates, eight species."""
    start = np.array([1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0057])
    p = np.array([1.71, 0.43, 8.32, 0.69, 0.035, 8.32, 280.0, 0.69, 0.69, 1.745, 10.03, 1.81])

    def f(t: Any, y: Any, k: Any) -> Any:
        binding = k[6] * y[5] * y[7]
        return jnp.stack(
            [
                -k[0] * y[0] + k[1] * y[1] + k[5] * y[2] + 0.0007,
                k[0] * y[0] - 8.75 * y[1],
                -k[10] * y[2] + k[1] * y[3] + k[4] * y[4],
                k[2] * y[1] + k[0] * y[2] - 1.12 * y[3],
                -k[9] * y[4] + k[1] * (y[5] + y[6]),
                -binding + k[3] * y[3] + k[0] * y[4] - k[1] * y[5] + k[7] * y[6],
                binding - k[11] * y[6],
                -binding + k[11] * y[6],
            ]
        )

    times = np.linspace(5.0, 100.0, 20)
    return Problem(
        "HIRES, 12", f, lambda p: (start, p, np.array([0.01, 0.01])), p, times, 0.01, (0, 4),
        True, 1e-3,
    )  # fmt: skip


PROBLEMS = {
    "predators-4": lambda: predators(4),
    "predators-8": lambda: predators(8),
    "robertson": robertson,
    "hires": hires,
}


def exact(problem: Problem, p: np.ndarray, tol: float = 1e-12, method: str = "") -> np.ndarray:
    """The solution at the data by SciPy."""
    start, rates, _ = problem.parts(p)
    field = jax.jit(lambda t, y: problem.function(t, y, jnp.asarray(rates)))
    jacobian = jax.jit(jax.jacfwd(lambda y: problem.function(0.0, y, jnp.asarray(rates))))
    chosen = method or ("Radau" if problem.stiff else "DOP853")
    options = {"jac": lambda t, y: np.asarray(jacobian(y))} if chosen == "Radau" else {}
    found = solve_ivp(
        lambda t, y: np.asarray(field(t, y)),
        (0.0, problem.times[-1]),
        np.asarray(start),
        method=chosen,
        t_eval=problem.times,
        rtol=max(tol, 1e-13),
        atol=problem.atol * tol,
        **options,
    )
    return found.y.T[:, list(problem.seen)]


def gaussian(problem: Problem, p: Any, seen: Any, data: np.ndarray) -> Any:
    """The log likelihood, given the solution."""
    noise = problem.parts(p)[2]
    z = (data - seen) / noise
    return -0.5 * jnp.sum(z**2) - jnp.sum(jnp.log(noise * jnp.ones_like(z)))


Call = Callable[[Any], Any]


def ours(problem: Problem, data: np.ndarray, solver: Any, method: str, tol: float) -> Call:
    """Value and gradient by this library."""

    def value(p: Any) -> Any:
        start, rates, noise = problem.parts(p)
        seen = list(problem.seen)
        observed = Observations(problem.times, data, noise, lambda y: y[np.array(seen)])
        return log_likelihood(
            problem.function,
            (0.0, problem.times[-1]),
            start,
            (rates,),
            observed,
            method=method,
            solver=solver,
            control=PIControl(tol, problem.atol * tol),
        )

    return jax.jit(jax.value_and_grad(value))


def diffrax(problem: Problem, data: np.ndarray, name: str, forward: bool, tol: float) -> Call:
    """Value and gradient by diffrax."""
    import diffrax as dx

    adjoint = dx.ForwardMode() if forward else dx.RecursiveCheckpointAdjoint()

    def value(p: Any) -> Any:
        start, rates, _ = problem.parts(p)
        found = dx.diffeqsolve(
            dx.ODETerm(problem.function),
            getattr(dx, name)(),
            0.0,
            problem.times[-1],
            None,
            jnp.asarray(start),
            args=rates,
            saveat=dx.SaveAt(ts=jnp.asarray(problem.times)),
            stepsize_controller=dx.PIDController(rtol=tol, atol=problem.atol * tol),
            adjoint=adjoint,
            max_steps=4096,
        )
        return gaussian(problem, p, found.ys[:, np.array(problem.seen)], data)

    if forward:
        return jax.jit(lambda p: (value(p), jax.jacfwd(value)(p)))
    return jax.jit(jax.value_and_grad(value))


def scipy(problem: Problem, data: np.ndarray, method: str, tol: float) -> Call:
    """Value and gradient by SciPy, with forward differences."""
    field = jax.jit(problem.function)

    def value(p: np.ndarray) -> float:
        start, rates, noise = problem.parts(p)
        found = solve_ivp(
            lambda t, y: np.asarray(field(t, y, rates)),
            (0.0, problem.times[-1]),
            np.asarray(start),
            method=method,
            t_eval=problem.times,
            rtol=tol,
            atol=problem.atol * tol,
        ).y.T[:, list(problem.seen)]
        z = (data - found) / noise
        return float(-0.5 * np.sum(z**2) - np.sum(np.log(noise * np.ones_like(z))))

    def both(p: Any) -> Any:
        p = np.asarray(p)
        base, slopes = value(p), np.zeros(len(p))
        for i in range(len(p)):
            h = max(np.sqrt(tol), 1e-7) * abs(p[i])
            slopes[i] = (value(p + h * np.eye(len(p))[i]) - base) / h
        return base, slopes

    return both


def codes(problem: Problem, data: np.ndarray, quick: bool) -> dict[str, Callable[[float], Call]]:
    """Everything that is compared."""
    made: dict[str, Callable[[float], Call]] = {}
    chosen = (
        [EK1(3), EK1(5)]
        if problem.stiff
        else [EK0(5, evaluations=2), EK0(8, evaluations=2), EK1(8)]
    )
    for solver in chosen:
        for method in ("plain", "fenrir"):
            made[f"{method} {solver.name}"] = lambda tol, s=solver, m=method: ours(
                problem, data, s, m, tol
            )
    names = ("Kvaerno3", "Kvaerno5") if problem.stiff else ("Tsit5", "Dopri8")
    for name in names:
        for forward in (True, False):
            text = f"diffrax {name} {'forward' if forward else 'reverse'}"
            made[text] = lambda tol, n=name, f=forward: diffrax(problem, data, n, f, tol)
    if not quick:
        for name in ("LSODA", "Radau") if problem.stiff else ("LSODA", "DOP853"):
            made[f"SciPy {name}"] = lambda tol, n=name: scipy(problem, data, n, tol)
    return made


def timed(call: Call, p: Any, rounds: int) -> float:
    """Seconds: the fastest of several."""
    best = np.inf
    for _ in range(rounds):
        start = time.perf_counter()
        jax.block_until_ready(call(p))
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer tolerances, without SciPy")
    parser.add_argument("--problem", nargs="+", choices=list(PROBLEMS), default=list(PROBLEMS))
    chosen = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    for name in chosen.problem:
        problem = PROBLEMS[name]()
        random = np.random.default_rng(0)
        solution = exact(problem, problem.p)
        data = solution + problem.noise * random.normal(size=solution.shape)
        p = jnp.asarray(problem.p * (1.0 + 0.01 * random.normal(size=len(problem.p))))
        best = ours(problem, data, EK1(5), "plain", 1e-10)
        reference = np.asarray(best(p)[1])
        _check(problem, np.asarray(p), data, reference)
        size = np.max(np.abs(reference * np.asarray(p)))
        print(
            f"\n{problem.name} parameters, {data.size} numbers; microseconds to an error of the "
            "gradient"
        )
        print("| code | " + " | ".join(f"{x:.0e}" for x in TARGETS) + " | first call, s |")
        print("|---|" + "---|" * (len(TARGETS) + 1))
        tolerances = 10.0 ** -np.arange(1.0, 9.0, 2.0 if chosen.quick else 1.0)
        for label, make in codes(problem, data, chosen.quick).items():
            points, first = [], 0.0
            for tol in tolerances:
                try:
                    call = make(float(tol))
                    start = time.perf_counter()
                    found = np.asarray(jax.block_until_ready(call(p))[1])
                    first = first or time.perf_counter() - start
                except Exception as error:  # diffrax raises where it takes too many steps
                    print(f"{label} at {tol:.0e}: {type(error).__name__}", flush=True)
                    break
                wrong = np.max(np.abs((found - reference) * np.asarray(p))) / size
                seconds = timed(call, p, 3 if label.startswith("SciPy") else 20)
                points.append((float(wrong), seconds))
                if seconds > 2.0:
                    break
            cells = []
            for target in TARGETS:
                at = time_to_error(points, target)
                cells.append("-" if at is None else f"{'<' * at.bound}{1e6 * at.seconds:.0f}")
            print(f"| {label} | " + " | ".join(cells) + f" | {first:.1f} |", flush=True)


def _check(problem: Problem, p: np.ndarray, data: np.ndarray, reference: np.ndarray) -> None:
    """The gradient that all are compared with, against differences of SciPy's solutions."""
    i = 1
    h = 1e-4 * abs(p[i]) * np.eye(len(p))[i]
    values = [float(gaussian(problem, x, exact(problem, x), data)) for x in (p + h, p - h)]
    differences = (values[0] - values[1]) / (2.0 * h[i])
    assert abs(differences - reference[i]) < 1e-4 * abs(differences), (differences, reference[i])


if __name__ == "__main__":
    main()
