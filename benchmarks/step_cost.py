"""Microseconds per attempted step, and compile times, of EK0 and EK1.

    python -m benchmarks.step_cost [--quick]

The vector field is a ring of coupled oscillators whose evaluation costs next to nothing, so what
is measured is the solver: the difference of two solves of different length, each the fastest of
several. "final state" keeps nothing else, "filter" keeps every step, "smoother" adds the backward
pass, all in microseconds a step; "first call" is on a fresh problem (tracing and compiling
included, import excluded).
"""

import argparse
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import probode

STEPS = 1500
REPEATS = 9


def field(t, y):
    return jnp.sin(jnp.roll(y, 1)) - 0.1 * y + jnp.cos(t)


def measure(solver, d, kind, steps):
    """Seconds of the first call, and of the fastest one after it."""
    y0 = np.linspace(0.0, 1.0, d)
    step = 0.01
    end = step * steps
    options = {
        "final": {"save_at": end},
        "filter": {"smooth": False},
        "smoother": {"smooth": True},
    }[kind]

    def run():
        return probode.solve(field, (0.0, end), y0, solver=solver, step=step, **options)

    start = time.perf_counter()
    run()
    first = time.perf_counter() - start
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return first, min(times)


def per_step(solver, d, kind, steps):
    """Marginal cost of a step: the difference of two solves, so that fixed costs cancel."""
    first, short = measure(solver, d, kind, steps)
    _, long = measure(solver, d, kind, 3 * steps)
    return first, 1e6 * (long - short) / (2 * steps)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="d = 2 only")
    arguments = parser.parse_args()
    print(f"jax {jax.__version__}, {jax.devices()[0].device_kind}")
    columns = ("solver", "d", "final state", "filter", "smoother", "first call s")
    print("{:9} {:>6} {:>12} {:>8} {:>9} {:>13}".format(*columns))
    twice = partial(probode.EK0, evaluations=2)
    large, small = (2, 10, 100, 1000), (2, 10, 100)
    for method, dimensions in ((probode.EK0, large), (twice, large), (probode.EK1, small)):
        for d in dimensions[:1] if arguments.quick else dimensions:
            for q in (3, 5, 8):
                if method is probode.EK1 and d == 100 and q > 3:
                    steps = 10
                else:
                    steps = STEPS if d < 100 else 40
                solver = method(q)
                first, final = per_step(solver, d, "final", steps)
                _, filtering = per_step(solver, d, "filter", steps)
                _, smoothing = per_step(solver, d, "smoother", steps)
                costs = f"{final:12.2f} {filtering:8.2f} {smoothing:9.2f}"
                print(f"{solver.name:9} {d:6} {costs} {first:13.2f}")


if __name__ == "__main__":
    main()
