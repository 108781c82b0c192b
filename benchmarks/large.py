"""Large stiff problems: work and precision against other codes, error bars, memory.

    python -m benchmarks.large [--quick] [--out out] [--problems heat burgers] [--sizes 1000 10000]
                               [--solvers ...] [--rtol ...] [--repeats 3] [--limit 120] [--cpu]
    python -m benchmarks.large --bars [--reserve] [--again] [--quick] [--problems ...]
                               [--orders 3 4 5] [--rtol ...]
    python -m benchmarks.large --memory [--quick]

Without an option: for each problem and size the solvers of :mod:`benchmarks.large_solvers`, in
rounds, so that what else a machine does meets all of them; of each solve the shortest time counts.
Errors are those at the end, root mean squares in units of ``atol/rtol + |y|``, against a reference
of another code. Times at equal errors are interpolated, never extrapolated. ``--bars`` judges error
bars (:mod:`benchmarks.large_bars`), ``--memory`` runs a million unknowns, each in a process of its
own (:mod:`benchmarks.large_memory`). Tables are printed as Markdown and written to ``--out``.
"""

import argparse
import csv
import itertools
import json
import platform
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import large_bars, large_memory, large_problems
from benchmarks.large_problems import Problem
from benchmarks.large_references import reference
from benchmarks.large_solvers import (
    BUILDERS,
    WITHOUT,
    Failed,
    Run,
    Unfit,
    build,
    fits,
    quick_function,
    size,
)

SIZES = {
    "brusselator-1d": (1000, 10_000, 100_000),
    "brusselator-2d": (2048, 8192, 32_768),
    "burgers": (1000, 10_000),
    "heat": (1000, 10_000, 100_000),
    "allen-cahn-2d": (2500, 10_000, 40_000),
    "cahn-hilliard": (500, 2000),
    "advection": (400, 4000),
    "gray-scott-3d": (2000, 16_000, 128_000),
    "finite-elements": (2500, 10_000),
    "network": (120, 300),
}
QUICK_SIZES = {
    "brusselator-1d": (300,),
    "brusselator-2d": (512,),
    "heat": (300,),
    "network": (120,),
}
TOLERANCES = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
QUICK_TOLERANCES = (1e-3, 1e-5)
EQUAL = (1e-3, 1e-4, 1e-5, 1e-6)
"""Errors at which times are compared."""
SOLVERS = [name for name in BUILDERS if "(3)" not in name and "(5)" not in name]
OURS = "SparseEK1(4)"


def sweep(problem: Problem, asked: int, options: Any) -> list[dict[str, Any]]:
    """All solvers at all tolerances on one problem."""
    known = reference(problem, np.array([problem.end]))
    exact, doubt = known.y[-1], size(problem, known.y[-1], known.doubt[-1])
    print(
        f"\n### {problem.name}, d = {problem.d} ({problem.words})\n\n"
        f"Reference good to {doubt:.0e}; peers evaluate the {quick_function(problem)[1]} "
        "function.\n",
        flush=True,
    )
    runs, points = _built(problem, fits(problem, options.solvers)), []
    for name in list(runs):  # compiled, and everything made that is kept
        outcome, seconds, _ = _timed(runs[name], options.rtol[0])
        if outcome is not None and seconds > options.limit:
            runs.pop(name)
            print(f"- {name} at {options.rtol[0]:.0e}: {seconds:.0f} s, left out")
    for rtol, name in itertools.product(options.rtol, list(runs)):
        if name not in runs:
            continue
        point = {"problem": problem.name, "size": asked, "d": problem.d, "solver": name}
        outcome, seconds, cpu = _timed(runs[name], rtol)
        if outcome is None:
            print(f"- {name} at {rtol:.0e}: {seconds}")
            continue
        if seconds > options.limit:
            runs.pop(name)  # tighter ones take longer
        error = size(problem, exact, outcome.y - exact)
        point |= {
            "rtol": rtol,
            "error": error,
            "clear": error > 5.0 * doubt,
            "steps": outcome.steps,
            "f": outcome.f,
            "jacobians": outcome.jacobians,
            "factorisations": outcome.factorisations,
            "bars": outcome.bars,
            "flags": " ".join(outcome.flags),
            "times": [seconds],
            "cpus": [cpu],
        }
        points.append(point)
    for _, point in itertools.product(range(options.repeats - 1), points):
        if point["times"][0] > options.limit / 4:
            continue
        run = runs.get(point["solver"])
        if run is not None:
            _, seconds, cpu = _timed(run, point["rtol"])
            point["times"].append(seconds)
            point["cpus"].append(cpu)
    for point in points:
        point["seconds"], point["cpu"] = min(point["times"]), min(point["cpus"])
    print(_table(points), flush=True)
    return points


def _built(problem: Problem, names: list[str]) -> dict[str, Run]:
    found = {}
    for name in names:
        try:
            found[name] = build(name, problem)
        except Unfit:
            continue
        except ImportError as error:
            print(f"- {name}: {error}")
    return found


def _timed(run: Run, rtol: float) -> tuple[Any, Any, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    try:
        outcome = run(rtol)
    except (Failed, MemoryError, RuntimeError, ValueError) as error:
        return None, str(error).splitlines()[0] if str(error) else repr(error), 0.0
    return outcome, time.perf_counter() - wall, time.process_time() - cpu


def _table(points: list[dict[str, Any]]) -> str:
    lines = [
        "| solver | rtol | error | bars / error | steps | f | J | LU | s | CPU s | flags |",
        "|" + "---|" * 11,
    ]
    for one in sorted(points, key=lambda one: (list(BUILDERS).index(one["solver"]), -one["rtol"])):
        counts = [one[key] for key in ("steps", "f", "jacobians", "factorisations")]
        ratio = "" if one["bars"] is None else f"{one['bars'] / one['error']:.2f}"
        error = f"{one['error']:.1e}" + ("" if one["clear"] else " (as the reference)")
        lines.append(
            f"| {one['solver']} | {one['rtol']:.0e} | {error} | {ratio} | "
            + " | ".join("" if n is None else str(n) for n in counts)
            + f" | {one['seconds']:.3f} | {one['cpu']:.3f} | {one['flags']} |"
        )
    return "\n".join(lines)


def at_error(points: list[dict[str, Any]], target: float, key: str = "seconds") -> float:
    """Time to an error: a line between the tolerances around, in logarithms; NaN outside."""
    pairs = sorted((one["error"], one[key]) for one in points if one["clear"] and one[key])
    if not pairs or not pairs[0][0] <= target <= pairs[-1][0]:
        return float("nan")
    errors, values = np.log(np.array(pairs)).T
    return float(np.exp(np.interp(np.log(target), errors, values)))


def summary(points: list[dict[str, Any]], key: str = "seconds") -> tuple[str, list[dict[str, Any]]]:
    """Times at equal errors (or processor times), and what error bars cost."""
    lines = [f"\n## {'Processor seconds' if key == 'cpu' else 'Seconds'} at equal errors\n"]
    solvers = [name for name in BUILDERS if any(one["solver"] == name for one in points)]
    lines += [
        "| problem | d | error | " + " | ".join(solvers) + " | ours / BDF | ours / CVODE |",
        "|" + "---|" * (len(solvers) + 5),
    ]
    rows: list[dict[str, Any]] = []
    for (name, d), target in itertools.product(_cases(points), EQUAL):
        mine = [one for one in points if (one["problem"], one["d"]) == (name, d)]
        times = {s: at_error([p for p in mine if p["solver"] == s], target, key) for s in solvers}
        if not any(np.isfinite(t) for t in times.values()):
            continue
        ours = _best(times, (OURS,), bars=True)
        rivals = [_best(times, ("SciPy BDF",)), _best(times, ("CVODE", "IDA"))]
        ratios = [ours / rival for rival in rivals]
        row = {"problem": name, "d": d, "error": target, **times}
        rows.append(row | {"ours/BDF": ratios[0], "ours/CVODE": ratios[1]})
        shown = [_number(times[s]) for s in solvers] + [_number(ratio) for ratio in ratios]
        lines.append(f"| {name} | {d} | {target:.0e} | " + " | ".join(shown) + " |")
    lines.append(
        "\nOurs is with error bars; of several ways to solve the systems the fastest, "
        "for ours and for CVODE (for mass matrices: IDA).\n"
    )
    return "\n".join(lines + _cost_of_bars(points, key)), rows


def _best(times: dict[str, float], kinds: tuple[str, ...], bars: bool = False) -> float:
    """The shortest time of solvers whose names begin so; with ``bars`` of those that have them."""
    found = [t for s, t in times.items() if s.startswith(kinds) and not (bars and WITHOUT in s)]
    return float(np.nanmin(found)) if np.isfinite(found).any() else float("nan")


def _number(x: float) -> str:
    return f"{x:.3g}" if np.isfinite(x) else ""


def _cases(points: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return list(dict.fromkeys((one["problem"], one["d"]) for one in points))


def _cost_of_bars(points: list[dict[str, Any]], key: str) -> list[str]:
    lines = [
        "## Cost of error bars\n",
        "| problem | d | solver | time, % more (smallest to largest over tolerances) |",
        "|" + "---|" * 4,
    ]
    found = {(p["problem"], p["d"], p["solver"], p["rtol"]): p[key] for p in points}
    costs: dict[tuple[str, int, str], list[float]] = {}
    for (name, d, solver, rtol), seconds in found.items():
        plain = found.get((name, d, solver + WITHOUT, rtol))
        if plain is not None:
            costs.setdefault((name, d, solver), []).append(100 * (seconds / plain - 1))
    for (name, d, solver), each in costs.items():
        lines.append(f"| {name} | {d} | {solver} | {min(each):.0f} to {max(each):.0f} |")
    return lines


def machine() -> str:
    """What it ran on."""
    import jax
    import scipy

    return (
        f"Python {platform.python_version()}, NumPy {np.__version__}, SciPy {scipy.__version__}, "
        f"JAX {jax.__version__}, {platform.machine()}"
    )


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few problems, sizes, tolerances")
    parser.add_argument("--bars", action="store_true", help="judge the error bars instead")
    parser.add_argument("--reserve", action="store_true", help="of --bars: the other parameters")
    parser.add_argument("--again", action="store_true", help="of --bars: compare with rtol/10, too")
    parser.add_argument("--memory", action="store_true", help="a million unknowns instead")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--problems", nargs="*", default=None)
    parser.add_argument("--sizes", nargs="*", type=int, default=None)
    parser.add_argument("--solvers", nargs="*", default=SOLVERS, help="by name; 'all': all orders")
    parser.add_argument("--orders", nargs="*", type=int, default=None, help="of --bars")
    parser.add_argument("--rtol", nargs="*", type=float, default=None)
    parser.add_argument("--repeats", type=int, default=None)
    parser.add_argument("--cpu", action="store_true", help="compare processor times")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds of a solve")
    options = parser.parse_args()
    if options.solvers == ["all"]:
        options.solvers = list(BUILDERS)
    return options


def main() -> None:
    """Run what was asked for."""
    import jax

    warnings.simplefilter("ignore")
    jax.config.update("jax_enable_x64", True)
    options = _arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    print(f"{machine()}{', --quick: not for conclusions' if options.quick else ''}", flush=True)
    if options.bars:
        chosen = options.problems, options.orders, options.rtol
        large_bars.main(options.out, options.quick, *chosen, options.reserve, options.again)
        return
    if options.memory:
        large_memory.main(options.out, options.quick)
        return
    sizes = QUICK_SIZES if options.quick else SIZES
    options.rtol = options.rtol or (QUICK_TOLERANCES if options.quick else TOLERANCES)
    options.repeats = options.repeats or (2 if options.quick else 5)
    points: list[dict[str, Any]] = []
    for name in options.problems or sizes:
        for asked in options.sizes or sizes.get(name, (1000,)):
            points += sweep(large_problems.get(name, asked), asked, options)
            jax.clear_caches()
            words, equal = summary(points, "cpu" if options.cpu else "seconds")
            _write(options.out, points, equal)
    print(words)


def _write(out: Path, points: list[dict[str, Any]], equal: list[dict[str, Any]]) -> None:
    (out / "large.json").write_text(json.dumps({"machine": machine(), "points": points}, indent=1))
    for name, rows in (("large.csv", points), ("large_equal_errors.csv", equal)):
        fields = list(dict.fromkeys(itertools.chain.from_iterable(rows)))
        with open(out / name, "w", newline="") as file:
            writer = csv.DictWriter(file, fields)
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
