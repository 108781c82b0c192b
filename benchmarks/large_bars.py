"""Whether the error bars of SparseEK1 are true: chi²/d on problems that it was not tuned on.

For every problem of ``large_problems.HELD_OUT``, every order and tolerance: the mean of
``(error / std)²`` over components and some forty times, by dense output of a solve that keeps all
steps, and again of one that keeps nothing but these times. Times at which the error is not 20 times
as large as that of the reference are left out.

With ``again``, what users can do without a reference, ``diagnose(again=True)``: the difference to a
solve at a tenth of the tolerance takes the place of the error. Bars that are too small for it are
found so.
"""

import csv
import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import large_problems
from benchmarks.large_problems import Problem
from benchmarks.large_references import Reference, reference
from benchmarks.large_solvers import posterior_of, size

ORDERS = (3, 4, 5)
TOLERANCES = tuple(10.0 ** -np.arange(2.0, 9.0))
QUICK_PROBLEMS = ("fisher", "heat", "network")
QUICK_TOLERANCES = (1e-3, 1e-6)
_NORMAL_95 = 1.959964


def save_times(problem: Problem) -> np.ndarray:
    """Twenty times that are as far apart, and twenty that are dense at the start."""
    even, log = np.linspace(0.05, 1.0, 20), np.geomspace(1e-3, 0.9, 20)
    return problem.end * np.unique(np.round(np.concatenate([even, log]), 12))


def judged(error: np.ndarray, std: np.ndarray, clear: np.ndarray) -> dict[str, float]:
    """chi²/d over all times, at the end, by time; and what bands of 95 % cover."""
    with np.errstate(all="ignore"):
        scaled = np.where(error == 0.0, 0.0, error / std)
        by_time = np.mean(scaled**2, axis=1)
    some = scaled[clear]
    inside = (by_time[clear] >= 1 / 3) & (by_time[clear] <= 3)
    return {
        "chi2": float(np.mean(some**2)) if some.size else float("nan"),
        "chi2_median": float(np.median(by_time[clear])) if some.size else float("nan"),
        "chi2_end": float(by_time[-1]) if clear[-1] else float("nan"),
        "times_within": float(np.mean(inside)) if some.size else float("nan"),
        "cover95": float(np.mean(np.abs(some) <= _NORMAL_95)) if some.size else float("nan"),
    }


def rms(values: np.ndarray) -> np.ndarray:
    """Over components."""
    return np.sqrt(np.mean(values**2, axis=1))


def run(
    problem: Problem, known: Reference, order: int, rtol: float, again: bool = False
) -> dict[str, Any]:
    """One row."""
    times = save_times(problem)
    began = time.process_time()
    posterior = posterior_of(problem, rtol, order)
    row: dict[str, Any] = {"order": order, "rtol": rtol}
    if not posterior.success:
        return row | {"failed": str(posterior.message)}
    at = posterior(times)
    error, std = np.asarray(at.mean) - known.y, np.asarray(at.std)
    clear = rms(error) >= 20.0 * rms(known.doubt)
    row |= judged(error, std, clear)
    estimate = np.asarray(posterior.global_error(times))
    row["estimate_off"] = float(np.median(rms(estimate - error)[clear] / rms(error)[clear]))
    saved = posterior_of(problem, rtol, order, save_at=times)
    of_saved = judged(np.asarray(saved.mean) - known.y, np.asarray(saved.std), clear)
    row["chi2_saved"], row["chi2_saved_end"] = of_saved["chi2"], of_saved["chi2_end"]
    stats, diagnosis = posterior.stats, posterior.diagnose()
    if again:
        for suffix, one in (("", posterior), ("_saved", saved)):
            found = one.diagnose(again=True)
            row[f"again{suffix}"] = found.numbers["again"]
            row[f"found{suffix}"] = "again" in found.flags
    row |= {
        "error_end": size(problem, known.y[-1], error[-1]),
        "error_worst": max(size(problem, y, e) for y, e in zip(known.y, error, strict=True)),
        "steps": int(stats.steps),
        "judged": float(np.mean(clear)),
        "flags": " ".join(diagnosis.flags),
        "flags_saved": " ".join(saved.diagnose().flags),
        **{f"sign_{name}": value for name, value in diagnosis.numbers.items()},
        "cpu": time.process_time() - began,
    }
    return row


def within(chi: float) -> bool:
    """Whether bars have the size of the errors, up to a factor of 1.7."""
    return 1 / 3 <= chi <= 3


def show(row: dict[str, Any]) -> str:
    """A row of the Markdown table."""
    head = f"| {row['problem']} | {row['d']} | {row['order']} | {row['rtol']:.0e} |"
    if "failed" in row:
        return f"{head} {row['failed']} |"
    return (
        f"{head} {row['steps']} | {row['error_worst']:.1e} | {row['chi2']:.2f} | "
        f"{row['chi2_end']:.2f} | {row['chi2_saved']:.2f} | {100 * row['times_within']:.0f} % | "
        f"{100 * row['cover95']:.0f} % | {row['estimate_off']:.2f} | {row['flags'] or '-'} |"
    )


HEAD = (
    "| problem | d | order | rtol | steps | worst error | chi²/d | at the end | saved times only | "
    "times within | 95 % bands | estimate off | flags |\n|" + "---|" * 13
)


def summary(rows: list[dict[str, Any]]) -> str:
    """How many runs have bars of the right size, which do not, and whether these are flagged."""
    done = [row for row in rows if "failed" not in row and np.isfinite(row["chi2"])]
    lines = []
    for key, flags, words in (
        ("chi2", "flags", "all steps kept"),
        ("chi2_saved", "flags_saved", "saved times only"),
    ):
        good = [row for row in done if within(row[key])]
        bad = [row for row in done if not within(row[key])]
        caught = [row for row in bad if row[flags]]
        trusted = [row for row in done if not row[flags]]
        right = sum(within(row[key]) for row in trusted)
        lines.append(
            f"- {words}: chi²/d within [1/3, 3] in {len(good)} of {len(done)} runs; of the other "
            f"{len(bad)}, {len(caught)} are flagged. Of {len(trusted)} runs without a flag: {right}"
            f" ({100 * right / max(len(trusted), 1):.0f} %). False alarms: "
            f"{sum(bool(row[flags]) for row in good)}."
        )
        lines += [
            f"  - outside, no flag: {row['problem']} order {row['order']} rtol {row['rtol']:.0e}: "
            f"chi²/d {row[key]:.3g}, worst error {row['error_worst']:.1e}"
            for row in bad
            if not row[flags]
        ]
    for order in sorted({row["order"] for row in done}):
        mine = [row for row in done if row["order"] == order]
        lines.append(f"- order {order}: {sum(within(r['chi2']) for r in mine)} of {len(mine)}")
    for key, suffix, words in (
        ("chi2", "", "all steps kept"),
        ("chi2_saved", "_saved", "saved times only"),
    ):
        again = [r for r in done if f"found{suffix}" in r and not r[f"flags{suffix}"]]
        if again:
            small = [r[f"found{suffix}"] for r in again if r[key] > 3]
            others = [r[f"found{suffix}"] for r in again if not r[key] > 3]
            lines.append(
                f"- {words}: diagnose(again=True) finds {sum(small)} of {len(small)} runs with "
                f"bars too small and no flag; false alarms: {sum(others)} of {len(others)}"
            )
    failed = [row for row in rows if "failed" in row]
    unclear = [row for row in rows if "failed" not in row and not np.isfinite(row["chi2"])]
    lines.append(f"- not solved: {len(failed)}; too exact to be judged: {len(unclear)}")
    return "\n".join(lines)


def main(
    out: Path,
    quick: bool,
    chosen: Any,
    orders: Any = None,
    rtols: Any = None,
    reserve: bool = False,
    again: bool = False,
) -> None:
    """Run, print the table and its summary, write ``large_bars.csv``."""
    names = chosen or (QUICK_PROBLEMS if quick else large_problems.HELD_OUT)
    tolerances = rtols or (QUICK_TOLERANCES if quick else TOLERANCES)
    rows: list[dict[str, Any]] = []
    print(f"\n## Error bars{' (reserve)' if reserve else ''}\n\n{HEAD}", flush=True)
    for name in names:
        problem = large_problems.held_out(name, reserve)
        known = reference(problem, save_times(problem), 1e-12)
        for order, rtol in itertools.product(orders or ORDERS, tolerances):
            row = {"problem": name, "d": problem.d, **run(problem, known, order, rtol, again)}
            rows.append(row)
            print(show(row), flush=True)
        _write(out / f"large_bars{'_reserve' if reserve else ''}.csv", rows)
    print("\n" + summary(rows), flush=True)


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    fields = list(dict.fromkeys(itertools.chain.from_iterable(rows)))
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, fields)
        writer.writeheader()
        writer.writerows(rows)
