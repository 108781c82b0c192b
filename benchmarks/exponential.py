"""Exponential integrators: the published runs of IOUP priors, with ours beside them.

    python -m benchmarks.exponential [--quick]

The published numbers are those of ProbNumDiffEq.jl for order 2 (order 3 for the logistic equation)
and a fixed diffusion, as errors of the final state. Ours: the largest and the root mean square over
the components, and CPU seconds with compilation. The equations on 250 and 100 points take minutes;
``--quick`` leaves the finer step out.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp

import probode
from probode import EK0, EK1, IOUP


class Run(NamedTuple):
    """An equation ``y' = L y + N(y)``, and what was published for it."""

    name: str
    function: Callable[..., Any]
    linear: Any
    y0: Any
    end: float
    order: int
    steps: dict[float, tuple[str, str, str]]
    """Published errors of EK0 + IOUP, of the Rosenbrock method (or EK1 + IOUP), of EK1 + IWP."""


def logistic() -> Run:
    """``y' = -y + y²/100``."""
    steps = {1.0: ("1.0e-8", "6.5e-9", "9.3e-7")}
    return Run("logistic", lambda t, y: -y + 0.01 * y**2, -1.0, np.ones(1), 10.0, 3, steps)


def burgers(n: int = 250, diffusivity: float = 0.075) -> Run:
    """``u_t = D u_xx - u u_x``, zero at both ends; central differences."""
    x, dx = np.linspace(0.0, 1.0, n + 2)[1:-1], 1.0 / (n + 1)
    linear = diffusivity / dx**2 * (np.eye(n, k=1) - 2.0 * np.eye(n) + np.eye(n, k=-1))

    def function(t: Any, u: Any) -> Any:
        slope = jnp.pad(u[1:], (0, 1)) - jnp.pad(u[:-1], (1, 0))
        return jnp.asarray(linear) @ u - u * slope / (2.0 * dx)

    start = np.sin(3.0 * np.pi * x) ** 3 * (1.0 - x) ** 1.5
    steps = {0.1: ("3.4e-4", "1.6e-4", "diverges"), 0.01: ("2.4e-7", "1.3e-7", "8.6e-6")}
    return Run(f"Burgers {n}", function, linear, start, 1.0, 2, steps)


def fisher(n: int = 100, diffusivity: float = 0.25) -> Run:
    """``u_t = D u_xx + u (1 - u)``, no flux at both ends."""
    x = np.linspace(0.0, 1.0, n)
    linear = np.eye(n, k=1) - 2.0 * np.eye(n) + np.eye(n, k=-1)
    linear[0, 0] = linear[-1, -1] = -1.0
    linear = diffusivity * (n - 1) ** 2 * linear

    def function(t: Any, u: Any) -> Any:
        return jnp.asarray(linear) @ u + u * (1.0 - u)

    start = 1.0 / (1.0 + np.exp(30.0 * x - 10.0))
    steps = {0.1: ("4.4e-4", "1.8e-4", "diverges"), 0.01: ("4.6e-7", "3.5e-7", "2.9e-5")}
    return Run(f"Fisher {n}", function, linear, start, 2.0, 2, steps)


def reference(run: Run) -> np.ndarray:
    """The final state by another code, at tight tolerances."""
    made = solve_ivp(
        *(lambda t, y: np.asarray(run.function(t, jnp.asarray(y))), (0.0, run.end), run.y0),
        method="Radau",
        jac=lambda t, y: _jacobian(run, y),
        rtol=1e-11,
        atol=1e-13,
    )
    assert made.success
    return made.y[:, -1]


def _jacobian(run: Run, y: np.ndarray) -> np.ndarray:
    return np.asarray(jax.jacfwd(lambda y: run.function(0.0, y))(jnp.asarray(y)))


def errors(run: Run, step: float, true: np.ndarray) -> list[str]:
    """Largest and root mean square error of the final state, and the time, of each solver."""
    found = []
    for solver in (
        EK0(IOUP(run.order, run.linear), "fixed"),
        EK1(IOUP(run.order, run.linear), "fixed"),
        EK1(IOUP(run.order, "jacobian"), "fixed"),
        EK1(run.order, "fixed"),
    ):
        begun = time.process_time()
        made = probode.solve(
            run.function, (0.0, run.end), run.y0, solver=solver, step=step, smooth=False
        )
        error = made.mean[-1] - true
        largest, mean = np.max(abs(error)), np.sqrt(np.mean(error**2))
        spent = time.process_time() - begun
        found.append(f"{largest:.1e} {mean:.1e} ({spent:.0f} s)")
        print(f"  {run.name} {step:g} {type(solver).__name__}: {found[-1]}", flush=True)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the longer steps only")
    quick = parser.parse_args().quick
    lines = [
        "| equation | step | EK0 + IOUP | EK1 + IOUP | Rosenbrock | EK1 + IWP "
        "| published: EK0 + IOUP, Rosenbrock, EK1 + IWP |",
        "|---|---|---|---|---|---|---|",
    ]
    for make in (logistic, fisher, burgers):
        run = make()
        with jax.enable_x64(True):
            true = reference(run)
        for step, published in run.steps.items():
            if quick and step < 0.1:
                continue
            ours = " | ".join(errors(run, step, true))
            lines.append(f"| {run.name} | {step:g} | {ours} | {', '.join(published)} |")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
