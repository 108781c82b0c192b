"""What true error bars cost: solve_ivp with and without them, in turns in one run.

    python -m benchmarks.calibration_cost [--repeats 30]

``solve_ivp`` with ``calibration="defect"``, ``"defect-fast"`` and ``"model"`` on problems of
several dimensions and lengths, the best of calls in turns, compilation excluded. The last columns
are evaluations of the calibration alone, per accepted step.
"""

import argparse
import time

from probode import problems, solve_ivp

CASES = [
    *(("lotka-volterra", "EK1", order) for order in (3, 5, 8)),
    *(("hires", "EK1", order) for order in (3, 5)),
    *(("lotka-volterra", "EK0", order) for order in (3, 5)),
    ("pleiades", "EK0", 5),
]
TOLERANCES = (1e-3, 1e-6, 1e-9)
MODES = ("model", "defect", "defect-fast")


def measure(name, method, order, rtol, repeats):
    """Least seconds of each mode, and the last result of the full one."""
    problem = problems.get(name)
    times = {mode: [] for mode in MODES}
    results = {}
    for turn in range(repeats + 2):
        for mode in MODES:
            start = time.perf_counter()
            results[mode] = solve_ivp(
                *(problem.vector_field, problem.t_span, problem.y0, method),
                args=problem.args,
                order=order,
                rtol=rtol,
                atol=1e-3 * rtol,
                calibration=mode,
            )
            if turn > 1:
                times[mode].append(time.perf_counter() - start)
    return {mode: min(x) for mode, x in times.items()}, results["defect"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=30)
    arguments = parser.parse_args()
    print("| problem | method | steps | model, ms | defect | defect-fast | f | Jacobians |")
    print("|---|---|---|---|---|---|---|---|")
    for name, method, order in CASES:
        for rtol in TOLERANCES:
            seconds, result = measure(name, method, order, rtol, arguments.repeats)
            steps = len(result.t) - 1
            stats = result.posterior.stats
            extra = [f"+{100 * (seconds[m] / seconds['model'] - 1):.0f} %" for m in MODES[1:]]
            print(
                f"| {name} | {method}({order}) | {steps} | {1e3 * seconds['model']:.2f} | "
                f"{extra[0]} | {extra[1]} | {stats.calibration_f_evaluations / steps:.2f} | "
                f"{stats.calibration_jacobian_evaluations / steps:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
