"""EK0 with a million unknowns: what a step costs, against copying as many bytes, and memory.

    python -m benchmarks.large_ek0 [--size 1000000] [--problems wave allen-cahn] [--ways end]

Each line is a fresh process. Three equations on a ring, by differences, none of them stiff: a wave
(``u' = v``, ``v' = u_xx``), advection, Allen and Cahn's. The ways to ask for a solution:

- ``end``: ``solve``, the state at the end, filtered: no step is kept
- ``save_at``: the same at four times and the end
- ``model``: ``solve_ivp``, all steps, smoothed, with the model's own error bars
- ``bars``: the same with calibrated error bars, which is what ``solve_ivp`` does by default

CPU time, page faults and attempted steps are differences between a solve of a few steps and one of
more (both are stopped), so that starts are left out. Bytes that a step
has to move, in vectors: all ``n`` derivatives are read to predict value and slope, which are
written, ``f`` reads one and writes one, the error looks at six (both values, slope, ``f``,
``rtol``, ``atol``), the update reads all derivatives and ``f`` and writes all: ``3 n + 11``.
``copy`` is how fast NumPy copies long arrays afterwards in the same process. ``peak`` is that of
the process, without what Python and the libraries take.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np

PROBLEMS = ("wave", "advection", "allen-cahn")
WAYS = ("end", "save_at", "model", "bars")
ORDER, TOLERANCE, FEW = 3, 1e-4, 8


def problem(name: str, size: int, xp: Any) -> tuple[Any, np.ndarray]:
    """The function and where it starts: waves in an envelope."""
    m = size // 2 if name == "wave" else size
    x = np.arange(m)
    u = np.exp(-(((x - m / 2) / (m / 20)) ** 2)) * np.cos(2 * np.pi * x / 100)

    def second(u: Any) -> Any:
        return xp.roll(u, 1) - 2 * u + xp.roll(u, -1)

    def wave(t: Any, y: Any) -> Any:
        return xp.concatenate([y[m:], second(y[:m])])

    def advection(t: Any, y: Any) -> Any:
        return 0.5 * (xp.roll(y, 1) - xp.roll(y, -1))

    def allen_cahn(t: Any, y: Any) -> Any:
        return 0.25 * second(y) + y - y**3

    field = {"wave": wave, "advection": advection, "allen-cahn": allen_cahn}[name]
    return field, np.concatenate([u, 0 * u]) if name == "wave" else u


def peak() -> float:
    """Of this process, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def copied_per_second() -> float:
    """Bytes read and written."""
    a, best = np.ones(10**7), np.inf
    b = a.copy()
    for _ in range(9):
        begun = time.perf_counter()
        np.copyto(b, a)
        best = min(best, time.perf_counter() - begun)
    return 2 * a.nbytes / best


def measure(name: str, way: str, kind: str, size: int, steps: int) -> dict[str, Any]:
    """In this process."""
    import jax.numpy as jnp

    import probode

    field, y0 = problem(name, size, jnp if kind == "jax" else np)
    far = 1e4

    def run(most: int) -> Any:
        if way in ("end", "save_at"):
            return probode.solve(
                *(field, (0.0, far), y0),
                solver=probode.EK0(ORDER),
                control=probode.PIControl(TOLERANCE, TOLERANCE),
                save_at=far if way == "end" else [1.0, 2.0, 3.0, 4.0, far],
                smooth=False,
                max_steps=most,
            )
        options: Any = {"calibration": "model"} if way == "model" else {}
        found = probode.solve_ivp(
            *(field, (0.0, far), y0, "EK0"),
            order=ORDER,
            rtol=TOLERANCE,
            atol=TOLERANCE,
            max_num_steps=most,
            **options,
        )
        return found.posterior

    base = peak()
    run(FEW)
    reached, cost = [], []
    for most in (FEW, FEW + steps):
        before = resource.getrusage(resource.RUSAGE_SELF), time.process_time()
        found = run(most)
        after = resource.getrusage(resource.RUSAGE_SELF)
        cost.append((time.process_time() - before[1], after.ru_minflt - before[0].ru_minflt))
        reached.append(int(found.stats.steps))
    top, taken = peak() - base, reached[1] - reached[0]
    seconds, faults = np.subtract(cost[1], cost[0]) / taken
    moved = 8 * size * (3 * (ORDER + 1) + 11)
    return {
        "engine": found.engine,
        "steps": taken,
        "ms": 1e3 * seconds,
        "faults": faults,
        "rate": moved / seconds / 1e9,
        "copy": copied_per_second() / 1e9,
        "peak": top,
    }


def main() -> None:
    """Run every case in a process of its own, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=lambda x: int(float(x)), default=10**6)
    parser.add_argument("--problems", nargs="*", default=PROBLEMS, choices=PROBLEMS)
    parser.add_argument("--ways", nargs="*", default=WAYS, choices=WAYS)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--one", nargs=5, default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        name, way, kind, size, steps = arguments.one
        print(json.dumps(measure(name, way, kind, int(size), int(steps))))
        return
    print(
        "problem, f, way: engine, steps, CPU ms / step, page faults / step, GB/s (of copy), peak MB"
    )
    for name in arguments.problems:
        for way in arguments.ways:
            for kind in ("jax", "numpy"):
                if kind == "numpy" and way in ("end", "save_at"):
                    continue  # `solve` takes functions of JAX
                given = [name, way, kind, str(arguments.size), str(arguments.steps)]
                command = [sys.executable, "-m", "benchmarks.large_ek0", "--one", *given]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    print(f"{name}, {kind}, {way}: {done.stderr.strip().splitlines()[-1]}")
                    continue
                one = json.loads(done.stdout.splitlines()[-1])
                print(
                    f"{name}, {kind}, {way}: {one['engine']}, {one['steps']}, {one['ms']:.1f}, "
                    f"{one['faults']:.0f}, {one['rate']:.1f} ({one['rate'] / one['copy']:.0%}), "
                    f"{one['peak']:.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
