"""Differential-algebraic equations: errors, evaluations, and whether calibrated bars are true.

    python -m benchmarks.dae [--references] [--problems robertson,pendulum] [--orders 3,5]
                             [--rtol 1e-2]

The problems of :mod:`benchmarks.dae_problems` by EK1 at tolerances of 1e-3 to 1e-9 (absolute ones
a thousandth of these, or as the problem says). For each run:

- the largest error at the end, also relative to each value, and the evaluations of the equation
- ``chi²/d`` of the errors in units of the calibrated standard deviations over all nodes, as
  :mod:`benchmarks.calibration` judges ordinary equations, and that of the last node. The latter is
  one draw: of a Gaussian with one or two degrees of freedom (components whose errors go together
  count as one) half to two thirds are within a factor 3 of 1
- how far the estimate of the error is from the error, and what ``diagnose()`` flags

Nodes at which the error is less than 20 times the reference's are left out. ``--references`` only
computes the references and compares them with those that are noted.
"""

import argparse
import time
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

import probode
from benchmarks import dae_problems, dae_reference
from benchmarks.calibration import judge
from benchmarks.references import judgeable
from probode import EK1, MassMatrix, PIControl

TOLERANCES = 10.0 ** -np.arange(3.0, 10.0)


class Run(NamedTuple):
    """What the summary counts."""

    chi: float
    final: float
    cover: list[float]
    flagged: bool

    @property
    def good(self) -> bool:
        """Whether the error bars have the size of the errors."""
        return bool(1 / 3 <= self.chi <= 3)


def reference(problem) -> dae_reference.Reference:
    """By the code of :mod:`benchmarks.dae_reference`."""
    mass = problem.mass.astype(np.longdouble)

    def residual(t, y, slope):
        weighed = mass * slope if mass.ndim == 1 else mass @ slope
        return weighed - problem.f(np, t, y)

    found = dae_reference.checked(residual, (0.0, problem.end), problem.y0)
    noted = np.array(problem.reference)
    print(
        f"{problem.name}: reference of {len(found.fine.t) - 1} steps, ends agree to "
        f"{found.agreement:.1e}; from what is noted: "
        f"{float(np.max(abs(found.fine.end - noted) / abs(noted))):.1e}",
        flush=True,
    )
    return found


def run(problem, exact, order: int, rtol: float) -> Run | None:
    """One row of the table."""

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
    label = f"{problem.name:18s} EK1({order})  rtol {rtol:.0e}"
    if not posterior.success:
        print(f"{label}  stopped at t = {posterior.t[-1]:.3g}: {posterior.message}", flush=True)
        return None
    posterior = posterior.calibrate()
    value, uncertainty = exact(posterior.t)
    error = (posterior.mean - value).astype(float)
    clear = judgeable(error, uncertainty)
    chi, final, *cover = judge(error, posterior.std, clear)
    off = np.linalg.norm(np.where(clear, posterior.global_error() - error, 0.0), axis=0)
    flags = posterior.diagnose().flags
    stats, last = posterior.stats, abs(error[-1])
    print(
        f"{label}  error {np.max(last):.1e}  relative {np.max(last / abs(value[-1])):.1e}  "
        f"steps {int(stats.steps):6d}  evaluations {int(stats.f_evaluations):6d}  "
        f"chi2/d {chi:5.2f}, at the end {final:5.2f}  estimate off by "
        f"{np.max(off / np.linalg.norm(error, axis=0)):.0e}  judged {100 * np.mean(clear):.0f} %  "
        f"{' '.join(flags)}  {spent:.1f} s",
        flush=True,
    )
    return Run(chi, final, cover, bool(flags))


def summarise(found: list[Run]) -> None:
    """How many runs have bars of the right size, and whether the others are flagged."""
    good = sum(one.good for one in found)
    flagged = sum(one.flagged for one in found if not one.good)
    trusted = [one for one in found if not one.flagged]
    ends = np.array([one.final for one in trusted if np.isfinite(one.final)])
    cover = 100 * np.mean([one.cover for one in trusted], axis=0)
    print(
        f"chi2/d within a factor 3 of 1: {good} of {len(found)}; of the others {flagged} flagged.\n"
        f"Of {len(trusted)} runs that are not flagged: {sum(one.good for one in trusted)}; at the "
        f"end {np.sum((ends >= 1 / 3) & (ends <= 3))}, within a factor 10 "
        f"{np.sum((ends >= 0.1) & (ends <= 10))} of {len(ends)}; 50 / 90 / 95 / 99 % bands cover "
        + " / ".join(f"{c:.0f}" for c in cover)
        + " %."
    )


def main() -> None:
    """Print the table and a summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--references", action="store_true")
    parser.add_argument("--problems", default="")
    parser.add_argument("--orders", default="3,5")
    parser.add_argument("--rtol", type=float, nargs="*", default=TOLERANCES)
    options = parser.parse_args()
    chosen = [name for name in options.problems.split(",") if name]
    found = []
    for problem in dae_problems.PROBLEMS:
        if chosen and problem.name not in chosen:
            continue
        exact = reference(problem)
        if options.references:
            continue
        for order in options.orders.split(","):
            found += [run(problem, exact, int(order), rtol) for rtol in options.rtol]
    if not options.references:
        summarise([one for one in found if one is not None])


if __name__ == "__main__":
    main()
