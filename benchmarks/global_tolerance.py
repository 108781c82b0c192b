"""Is a tolerance on the answer met, and at what price?

    python -m benchmarks.global_tolerance [--quick]

``solve_ivp(..., global_rtol=r, global_atol=1e-3 r)`` on the problems of the calibration benchmark,
judged by its references: the largest true error over all nodes and components, in units of what was
asked for. One or less: met. Targets nearer than 20 times to the reference's own error are skipped.
"""

import argparse
import warnings

import jax
import numpy as np

from benchmarks.calibration import PARAMETERS, QUICK, ZOO, Reference
from probode import problems, solve_ivp


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few problems")
    parser.add_argument("--problems", nargs="*", default=None)
    parser.add_argument("--methods", nargs="*", default=["EK1", "EK0"])
    arguments = parser.parse_args()
    results, refused, skipped = [], [], 0
    for name in arguments.problems or (QUICK if arguments.quick else ZOO):
        problem = problems.get(name, **PARAMETERS.get(name, {}))
        try:
            reference = Reference(problem)
        except RuntimeError as error:
            print(f"{name}: {error}")
            continue
        for method in arguments.methods:
            if method == "EK0" and problem.stiff:
                continue
            for rtol in [10.0**-k for k in range(3, 10)]:
                result = solve_ivp(
                    *(problem.vector_field, problem.t_span, problem.y0, method),
                    args=problem.args,
                    global_rtol=rtol,
                    global_atol=1e-3 * rtol,
                    max_num_steps=100_000,
                )
                label = f"{name} {method} {rtol:g}"
                if not result.get("global_met", False):
                    refused.append(f"{label}: {result.message}")
                    continue
                value, uncertainty = reference(result.t)
                weight = rtol * (1e-3 + np.abs(result.y.T))
                if np.max(uncertainty / weight) > 0.05:
                    skipped += 1
                    continue
                true = float(np.max(np.abs(result.y.T - value) / weight))
                results.append((label, true, result.global_estimate, result.global_rounds))
                if true > 1.0:
                    print(f"  missed: {label}: {true:.2g} (estimate {result.global_estimate:.2g})")
        print(name, flush=True)
        jax.clear_caches()
    true, rounds = np.array([r[1] for r in results]), np.array([r[3] for r in results])
    print(f"\n{len(results)} runs: target met in {100 * np.mean(true <= 1):.1f} %")
    print(
        f"error in units of the target: median {np.median(true):.2g}, "
        f"80 % between {np.quantile(true, 0.1):.2g} and {np.quantile(true, 0.9):.2g}"
    )
    print(f"rounds: {np.mean(rounds):.2f} on average, at most {rounds.max()}")
    print(f"not judged: {skipped}; said not to be met: {len(refused)}")
    for line in refused:
        print("  ", line)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
