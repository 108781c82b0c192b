"""Is a tolerance on the answer met, and at what price?

    python -m benchmarks.global_tolerance [--quick] [--sets zoo held-out]

``solve_ivp(..., global_rtol=r, global_atol=1e-3 r)`` on the problems of the calibration benchmark,
judged by its references: the largest true error over all nodes and components, in units of what was
asked for. One or less: met. Targets nearer than 20 times to the reference's own error are skipped.
"""

import argparse
import warnings

import jax
import numpy as np

from benchmarks.calibration import LARGEST_STATE, QUICK, problem_of, problems_of
from benchmarks.references import Reference
from probode import solve_ivp

ORDER = 5
"""The default of ``solve_ivp``."""


class Tally:
    """What became of the runs of one set."""

    def __init__(self):
        self.judged, self.refused, self.skipped = [], [], 0

    def run(self, problem, reference, method, rtol):
        """Ask for a tolerance on the answer, and look at the answer."""
        result = solve_ivp(
            *(problem.vector_field, problem.t_span, problem.y0, method),
            args=problem.args,
            order=ORDER,
            global_rtol=rtol,
            global_atol=1e-3 * rtol,
            max_num_steps=100_000,
        )
        label = f"{problem.name} {method} {rtol:g}"
        if not result.get("global_met", False):
            self.refused.append(f"{label}: {result.message}")
            return
        value, uncertainty = reference(result.t)
        weight = rtol * (1e-3 + np.abs(result.y.T))
        if np.max(uncertainty / weight) > 0.05:
            self.skipped += 1
            return
        true = float(np.max(np.abs(result.y.T - value) / weight))
        self.judged.append((label, true, result.global_estimate, result.global_rounds))

    def report(self, title):
        """Print it."""
        true = np.array([r[1] for r in self.judged])
        rounds = np.array([r[3] for r in self.judged])
        print(f"\n=== {title}: {len(true)} runs, target met in {100 * np.mean(true <= 1):.1f} %")
        print(
            f"error in units of the target: median {np.median(true):.2g}, "
            f"80 % between {np.quantile(true, 0.1):.2g} and {np.quantile(true, 0.9):.2g}"
        )
        print(f"rounds: {np.mean(rounds):.2f} on average, at most {rounds.max()}")
        for label, error, estimate, _ in self.judged:
            if error > 1.0:
                print(f"   missed: {label}: {error:.2g} (estimate {estimate:.2g})")
        print(f"not judged: {self.skipped}; said not to be met: {len(self.refused)}")
        for line in self.refused:
            print("  ", line)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few problems")
    parser.add_argument("--sets", nargs="*", default=["zoo", "held-out"])
    parser.add_argument("--methods", nargs="*", default=["EK1", "EK0"])
    arguments = parser.parse_args()
    for kind in arguments.sets:
        tally = Tally()
        for name in QUICK[kind] if arguments.quick else problems_of(kind):
            problem = problem_of(name)
            reference = Reference(problem)
            for method in arguments.methods:
                large = problem.dimension * (ORDER + 1) > LARGEST_STATE
                if (method == "EK0" and problem.stiff) or (method == "EK1" and large):
                    continue
                for rtol in [10.0**-k for k in range(3, 10)]:
                    tally.run(problem, reference, method, rtol)
            print(name, flush=True)
            jax.clear_caches()
        tally.report(kind)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
