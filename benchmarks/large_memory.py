"""A million unknowns: time and memory, each run in a process of its own.

- SparseEK1 and CVODE with bands, SparseEK1 with GMRES; only the end is kept. Memory is the largest
  resident set, less what the process had before it made the problem.
- EK0 on a wave equation that is not stiff: the time of a step, and how fast it moves what it has to
  move (the state read and written, ``f`` read and written), next to NumPy's triad ``a = b + s c``.
"""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

CASES = [
    ("heat", "SparseEK1(4), no bars", 1e-4),
    ("heat", "SparseEK1(4)", 1e-4),
    ("heat", "CVODE band", 1e-4),
    ("brusselator-1d", "SparseEK1(4), no bars", 1e-4),
    ("brusselator-1d", "SparseEK1(4)", 1e-4),
    ("brusselator-1d", "CVODE band", 1e-4),
    ("brusselator-2d", "SparseEK1(4) GMRES, no bars", 1e-4),
    ("brusselator-2d", "SparseEK1(4) GMRES", 1e-4),
    ("brusselator-2d", "CVODE GMRES", 1e-4),
    ("gray-scott-3d", "SparseEK1(4) GMRES", 1e-4),
]
MILLION, QUICK = 1_000_000, 20_000
TIMEOUT = 3600.0


def peak() -> float:
    """Largest resident set so far, in MB."""
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes / 1024.0 if sys.platform != "darwin" else kilobytes / 1024.0**2


def solve_once(name: str, solver: str, size: int, rtol: float, repeats: int = 1) -> dict[str, Any]:
    """One solve, with nothing before it, or the last of several."""
    import jax

    jax.config.update("jax_enable_x64", True)
    from benchmarks import large_problems, large_solvers

    np.asarray(jax.jit(lambda x: x + 1.0)(np.zeros(8)))
    before = peak()
    problem = large_problems.get(name, size)
    run = large_solvers.build(solver, problem)
    for _ in range(repeats):
        cpu, wall = time.process_time(), time.perf_counter()
        outcome = run(rtol)
        seconds, cpu = time.perf_counter() - wall, time.process_time() - cpu
    first = peak()
    found = {
        "d": problem.d,
        "steps": outcome.steps,
        "f": outcome.f,
        "factorisations": outcome.factorisations,
        "seconds": seconds,
        "cpu": cpu,
        "megabytes": first - before,
        "vectors": (first - before) * 2**20 / (8.0 * problem.d),
        "flags": " ".join(outcome.flags),
        "bars": outcome.bars,
    }
    if problem.exact is not None:
        exact = problem.exact(problem.end)
        found["error"] = large_solvers.size(problem, exact, outcome.y - exact)
    return found


def triad(d: int) -> float:
    """Bytes a second of ``a = b + s c`` with NumPy, in two passes: five vectors are moved."""
    a, b, c = (np.ones(d) for _ in range(3))
    times = []
    for _ in range(20):
        began = time.perf_counter()
        np.multiply(c, 3.0, out=a)
        np.add(a, b, out=a)
        times.append(time.perf_counter() - began)
    return 5 * 8 * d / min(times)


def wave(size: int, order: int) -> dict[str, Any]:
    """EK0 on ``u'' = u_xx`` in units of the grid."""
    import jax
    import jax.numpy as jnp

    import probode

    jax.config.update("jax_enable_x64", True)
    n = size // 2
    x = np.arange(n) / 50.0

    def f(t, y):
        u, v = y[:n], y[n:]
        return jnp.concatenate([v, jnp.roll(u, 1) - 2.0 * u + jnp.roll(u, -1)])

    y0 = np.concatenate([np.sin(x), np.zeros(n)])
    before = peak()

    def solved(end: float) -> tuple[int, float]:
        began = time.perf_counter()
        posterior = probode.solve(
            *(f, (0.0, end), y0),
            solver=probode.EK0(order),
            control=probode.PIControl(1e-5, 1e-5),
            save_at=[end],
        )
        np.asarray(posterior.mean)
        return int(posterior.stats.steps), time.perf_counter() - began

    solved(1.0)
    pairs = [[solved(end) for _ in range(3)] for end in (10.0, 50.0)]
    (few, short), (many, long) = (min(each, key=lambda one: one[1]) for each in pairs)
    step = (long - short) / max(many - few, 1)
    moved = 8 * 2 * n * (2 * (order + 1) + 2)
    speed = triad(2 * n * (order + 1))  # arrays as large as the state
    return {
        "d": 2 * n,
        "order": order,
        "steps": many,
        "step_ms": 1e3 * step,
        "gigabytes_per_second": moved / step / 1e9,
        "triad": speed / 1e9,
        "share": moved / step / speed,
        "megabytes": peak() - before,
    }


def apart(*arguments: Any) -> dict[str, Any]:
    """What a process of its own says."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "benchmarks.large_memory",
        *map(str, arguments),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"not done in {TIMEOUT:.0f} s"}
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return {"failed": lines[-1] if lines else f"exit status {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def main(out: Path, quick: bool) -> None:
    """All cases, as tables; ``large_memory.json``."""
    size, rows = QUICK if quick else MILLION, []
    print(f"\n## {size} unknowns, the end alone is kept\n", flush=True)
    print("| problem | solver | rtol | steps | f | LU | s | CPU s | MB | vectors of d | flags |")
    print("|" + "---|" * 11, flush=True)
    for name, solver, rtol in CASES:
        found = apart("solve", name, solver, size, rtol)
        rows.append({"problem": name, "solver": solver, "rtol": rtol, **found})
        if "failed" in found:
            print(f"| {name} | {solver} | {rtol:.0e} | {found['failed']} |", flush=True)
            continue
        counts = [found[key] for key in ("steps", "f", "factorisations")]
        print(
            f"| {name} | {solver} | {rtol:.0e} | "
            + " | ".join("" if n is None else str(n) for n in counts)
            + f" | {found['seconds']:.1f} | {found['cpu']:.1f} | {found['megabytes']:.0f} | "
            f"{found['vectors']:.0f} | {found['flags']} |",
            flush=True,
        )
    print(f"\n## EK0 on a wave equation, {size} unknowns\n", flush=True)
    print("| order | steps | ms a step | GB/s | triad GB/s | share | MB |\n|" + "---|" * 7)
    for order in (3, 5):
        found = apart("wave", size, order)
        rows.append({"problem": "wave", "solver": f"EK0({order})", **found})
        if "failed" in found:
            print(f"| {order} | {found['failed']} |", flush=True)
            continue
        print(
            f"| {order} | {found['steps']} | {found['step_ms']:.1f} | "
            f"{found['gigabytes_per_second']:.1f} | {found['triad']:.1f} | "
            f"{100 * found['share']:.0f} % | {found['megabytes']:.0f} |",
            flush=True,
        )
    (out / "large_memory.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    if kind == "solve":
        said = solve_once(rest[0], rest[1], int(rest[2]), float(rest[3]), *map(int, rest[4:]))
    else:
        said = wave(int(rest[0]), int(rest[1]))
    print(json.dumps(said))
