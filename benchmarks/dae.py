"""Differential-algebraic equations: errors, evaluations, and whether calibrated bars are true.

    python -m benchmarks.dae [--references] [--problems robertson,pendulum] [--orders 3,5]

The problems of :mod:`benchmarks.dae_problems` by EK1 at tolerances of 1e-3 to 1e-9 (absolute ones
a thousandth of these, or as the problem says). For each run: the largest error at the end, the
evaluations of the equation, ``chi²/d`` of the errors in units of the calibrated standard
deviations, and what ``diagnose()`` flags. ``--references`` computes the references anew instead.
"""

import argparse
import time

import jax.numpy as jnp
import numpy as np

import probode
from benchmarks import dae_problems, dae_reference
from probode import EK1, MassMatrix, PIControl

TOLERANCES = 10.0 ** -np.arange(3.0, 10.0)


def references(problems) -> None:
    """By the code of :mod:`benchmarks.dae_reference`."""
    for problem in problems:
        mass = problem.mass.astype(np.longdouble)

        def residual(t, y, slope, problem=problem, mass=mass):
            weighed = mass * slope if mass.ndim == 1 else mass @ slope
            return weighed - problem.f(np, t, y)

        print(problem.name)
        found = dae_reference.checked(residual, (0.0, problem.end), problem.y0)
        print("  ", [np.format_float_scientific(x, precision=17) for x in found])
        print("   from what is noted:", np.max(abs(found - np.array(problem.reference))))


def run(problem, order: int, rtol: float) -> tuple[bool, bool]:
    """One row of the table; whether ``chi²/d`` is within a factor three of one, and flagged."""

    def f(t, y):
        return problem.f(jnp, t, y)

    control = PIControl(rtol, 1e-3 * rtol * problem.unit)
    began = time.process_time()
    posterior = probode.solve(
        MassMatrix(f, problem.mass),
        (0.0, problem.end),
        np.array(problem.y0),
        solver=EK1(order),
        control=control,
    )
    spent = time.process_time() - began
    posterior = posterior.calibrate()
    error = posterior.mean[-1] - np.array(problem.reference)
    chi = float(np.mean((error / posterior.std[-1]) ** 2))
    flags = posterior.diagnose().flags
    stats = posterior.stats
    print(
        f"{problem.name:18s} EK1({order})  rtol {rtol:.0e}  error {np.max(abs(error)):.1e}  "
        f"relative {np.max(abs(error / np.array(problem.reference))):.1e}  "
        f"steps {int(stats.steps):6d}  evaluations {int(stats.f_evaluations):6d}  "
        f"chi2/d {chi:8.2g}  {'' if posterior.success else 'FAILED '}{' '.join(flags)}  "
        f"{spent:.1f} s",
        flush=True,
    )
    return 1 / 3 <= chi <= 3, bool(flags)


def main() -> None:
    """Print the table and a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--references", action="store_true")
    parser.add_argument("--problems", default="")
    parser.add_argument("--orders", default="3,5")
    options = parser.parse_args()
    chosen = [name for name in options.problems.split(",") if name]
    problems = [p for p in dae_problems.PROBLEMS if not chosen or p.name in chosen]
    if options.references:
        references(problems)
        return
    found = [
        run(problem, int(order), rtol)
        for problem in problems
        for order in options.orders.split(",")
        for rtol in TOLERANCES
    ]
    good = sum(fits for fits, _ in found)
    flagged = sum(flagged for fits, flagged in found if not fits)
    print(
        f"chi2/d within a factor 3 of 1: {good} of {len(found)}; of the others {flagged} flagged."
    )


if __name__ == "__main__":
    main()
