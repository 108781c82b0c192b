"""Microseconds per attempted step, and compile times, of EK0 and EK1.

    python -m benchmarks.step_cost [--quick]

The vector field is a ring of coupled oscillators whose evaluation costs next to nothing, so what
is measured is the solver. Each figure is the median of repeated solves of a few hundred steps;
"filter" keeps every step, "smoother" adds the backward pass. "first" is the first call on a fresh
problem (tracing and compiling included, import excluded).
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

import probode

STEPS = 400
REPEATS = 7


def field(t, y):
    return jnp.sin(jnp.roll(y, 1)) - 0.1 * y + jnp.cos(t)


def measure(solver, d, smooth, steps):
    """Seconds of the first call, and median seconds of the ones after it."""
    y0 = np.linspace(0.0, 1.0, d)
    step = 0.01

    def run():
        return probode.solve(
            field, (0.0, step * steps), y0, solver=solver, step=step, smooth=smooth
        )

    start = time.perf_counter()
    run()
    first = time.perf_counter() - start
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return first, statistics.median(times)


def per_step(solver, d, smooth, steps):
    """Marginal cost of a step: the difference of two solves, so that fixed costs cancel."""
    first, short = measure(solver, d, smooth, steps)
    _, long = measure(solver, d, smooth, 3 * steps)
    return first, 1e6 * (long - short) / (2 * steps)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="d = 2 only")
    arguments = parser.parse_args()
    print(f"jax {jax.__version__}, {jax.devices()[0].device_kind}")
    columns = ("solver", "d", "filter us/step", "smoother us/step", "first call s")
    print("{:8} {:>6} {:>15} {:>17} {:>13}".format(*columns))
    for method, dimensions in ((probode.EK0, (2, 10, 100, 1000)), (probode.EK1, (2, 10, 100))):
        for d in dimensions[:1] if arguments.quick else dimensions:
            for q in (3, 5, 8):
                if method is probode.EK1 and d == 100 and q > 3:
                    steps = 10
                else:
                    steps = STEPS if d < 100 else 40
                solver = method(q)
                first, smoothing = per_step(solver, d, True, steps)
                _, filtering = per_step(solver, d, False, steps)
                print(f"{solver.name:8} {d:6} {filtering:15.2f} {smoothing:17.2f} {first:13.2f}")


if __name__ == "__main__":
    main()
