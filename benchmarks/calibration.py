"""Are the error bars true? Coverage and chi² of posteriors against accurate references.

    python -m benchmarks.calibration [--quick] [--sets zoo held-out long stress] [--out out]

Four sets of problems, reported apart:

- ``zoo``: the problems of the library, on some of which the method was worked out
- ``held-out``: problems that nothing was chosen on (:mod:`benchmarks.held_out`)
- ``long``: a hundred periods and more, where a small friction in the estimate would hide a drift
- ``stress``: where estimates are expected to fail (very loose tolerances, chaos over long times,
  layers, rounding level), to see whether failures are flagged

Every run is judged at its own nodes with the standard deviations of the model (one of four
diffusions), and calibrated by defect transport, in full and fast:

- chi²/d: mean of (error/std)² over components, averaged over time, and at the final time. One is
  perfect, above is overconfident, below is underconfident.
- coverage: part of all node values within the 50, 90, 95, 99 % bands.

Nodes at which the error is less than 20 times the reference's are left out; runs with more than a
fifth of such nodes are skipped and listed, as are runs that need too many steps. All orders are run
with dynamic diffusion; the other diffusions and the fast mode with two of them, on twelve problems.
EK1 is left out where its state is large, EK0 on stiff problems. "EK0x2": two evaluations in a step.
"EK1-correction" (not by default): steps judged by the correction of y.

Writes calibration.csv and calibration.png.
"""

import argparse
import csv
import itertools
import warnings
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
from scipy.stats import norm

import probode
from benchmarks import held_out
from benchmarks.adapters import our_solver
from benchmarks.calibration_report import draw, report
from benchmarks.references import ABSOLUTE, Reference, judgeable
from probode import problems

MOST_STEPS = {"long": 200_000}
"""Else 20 000; fewer where EK1's dense state is large."""
LARGEST_STATE = 120
"""Dense states above this size (EK1) take too long: left out."""
BANDS = (0.5, 0.9, 0.95, 0.99)
ZOO = [
    *("lotka-volterra", "logistic", "fitzhugh-nagumo", "brusselator", "rigid-body", "seir"),
    *("linear-oscillator", "exponential-decay", "henon-heiles", "three-body", "lorenz"),
    *("van-der-pol-bari", "hires", "rober", "orego", "prothero-robinson"),
    *("pleiades", "neural", "van-der-pol", "reaction-diffusion"),
]
PARAMETERS = {"reaction-diffusion": {"n": 10}}
QUICK = {
    "zoo": ["lotka-volterra", "brusselator", "prothero-robinson", "lorenz"],
    "held-out": ["duffing", "flame", "akzo-nobel", "witch-backward"],
    "long": ["circular-orbit", "lotka-volterra"],
    "stress": ["lorenz", "flame", "switch-with-memory"],
}
LONG = {
    "circular-orbit": 200 * np.pi,
    "kepler": 200 * np.pi,
    "linear-oscillator": 200 * np.pi,
    "rigid-body": 750.0,
    "lotka-volterra": 600.0,
    "brusselator": 700.0,
    "fitzhugh-nagumo": 1200.0,
}
"""Ends of the intervals in the long set: 100 to 150 periods."""
LONGER = {
    "lorenz": 20.0,
    "rossler": 100.0,
    "duffing": 150.0,
    "henon-heiles": 300.0,
    "double-pendulum-backward": -9.0,
    "damped-pendulum": 60.0,
}
"""Ends of the intervals in the stress set: as long as a reference can follow the trajectory."""
DIFFUSIONS = {
    "EK1": ("dynamic", "fixed"),
    "EK1-correction": ("dynamic", "fixed"),
    "EK0": ("dynamic", "dynamic-mv", "fixed", "fixed-mv"),
    "EK0x2": ("dynamic", "dynamic-mv", "fixed", "fixed-mv"),
}
ORDERS = {"zoo": range(2, 9), "held-out": range(2, 9), "long": (3, 5, 8), "stress": (2, 3, 5, 8)}
FEW_ORDERS = (3, 5)
"""Of the fast mode, and with other diffusions than the dynamic one."""
FEW_PROBLEMS = [
    *("lotka-volterra", "fitzhugh-nagumo", "brusselator", "lorenz", "hires", "van-der-pol-bari"),
    *("duffing", "kepler", "repressilator", "flame", "akzo-nobel", "switch-with-memory"),
]
"""With other diffusions than the dynamic one: compilation takes most of the time."""
TOLERANCES = {
    "zoo": (1e-3, 1e-4, 1e-6, 1e-8, 1e-10),
    "held-out": (1e-3, 1e-4, 1e-6, 1e-8, 1e-10),
    "long": (1e-3, 1e-6, 1e-9),
    "stress": (1e-1, 1e-2, 1e-12),
}


def problem_of(name):
    """From the zoo, or held out."""
    if name == "circular-orbit":
        return held_out.kepler(name, 0.0)
    if name in held_out.names():
        return held_out.get(name)
    return problems.get(name, **PARAMETERS.get(name, {}))


def problems_of(kind):
    """Names of a set."""
    held = held_out.names()
    return {"zoo": ZOO, "held-out": held, "long": list(LONG), "stress": [*ZOO, *held]}[kind]


def judge(error, std, clear):
    """chi²/d in the mean and at the end, and coverage, where the reference is ``clear``."""
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = np.where(error == 0.0, 0.0, error / std)
    scaled, clear = scaled[1:], clear[1:]
    final = float(np.mean(scaled[-1] ** 2)) if np.all(clear[-1]) else float("nan")
    scaled = scaled[clear]
    covered = [float(np.mean(np.abs(scaled) <= norm.ppf((1 + p) / 2))) for p in BANDS]
    return [float(np.mean(scaled**2)), final, *covered]


def run(problem, reference, solver, rtol, modes, most_steps):
    """Rows of results for one solve, or the reason why there are none."""
    dense = problem.dimension * (solver.order + 1) if isinstance(solver, probode.EK1) else 0
    posterior = probode.solve(
        *(problem.vector_field, problem.t_span, problem.y0, problem.args),
        solver=solver,
        control=probode.PIControl(rtol=rtol, atol=ABSOLUTE * rtol),
        max_steps=most_steps // (1 + dense // 25),
    )
    if not bool(posterior.success):
        return str(posterior.message)
    value, uncertainty = reference(posterior.t)
    error = posterior.mean - value
    clear = judgeable(error, uncertainty)
    if np.any(np.mean(clear, axis=0) < 0.8):
        return "error too small to be judged"
    size = np.sqrt(np.mean(error**2, axis=0))
    steps = int(posterior.stats.accepted)
    common = {
        "accepted": steps,
        "error": float(np.max(size / np.maximum(np.abs(value).max(0), 1e-300))),
    }
    names = ("chi2", "chi2_final", *(f"cover{100 * p:.0f}" for p in BANDS))
    rows = []
    for mode in ("model", *modes):
        seen = posterior if mode == "model" else posterior.calibrate(mode)
        row = {"scale": mode, **dict(zip(names, judge(error, seen.std, clear), strict=True))}
        if mode != "model":
            off = np.linalg.norm((seen.global_error() - error) / size)
            diagnosis = seen.diagnose()
            row["estimate_off"] = float(off / np.linalg.norm(error / size))
            row["f_per_step"] = seen.stats.calibration_f_evaluations / steps
            row["j_per_step"] = seen.stats.calibration_jacobian_evaluations / steps
            row |= {"flags": " ".join(diagnosis.flags), **diagnosis.numbers}
        rows.append({**row, **common})
    return rows


def runs_of(kind, problem, arguments):
    """All that is run on a problem: method, diffusion, order, tolerance, modes."""
    quick = arguments.quick
    tolerances = arguments.rtol or (TOLERANCES[kind][::2] if quick else TOLERANCES[kind])
    orders = arguments.orders or (FEW_ORDERS if quick else ORDERS[kind])
    other = kind != "stress" and problem.name in FEW_PROBLEMS
    for method in arguments.methods:
        if not method.startswith("EK1") and problem.stiff:
            continue
        for diffusion in arguments.diffusions or DIFFUSIONS[method]:
            plain = diffusion == "dynamic"
            if diffusion not in DIFFUSIONS[method] or not (plain or other):
                continue
            for q, rtol in itertools.product(orders, tolerances):
                few = q in FEW_ORDERS
                if (method == "EK0" and q > 5) or not (plain or few):
                    continue
                if method.startswith("EK1") and problem.dimension * (q + 1) > LARGEST_STATE:
                    continue
                if kind == "stress" and rtol < 1e-9 and (problem.exact is None or q < 5):
                    continue  # cannot be judged, or needs too many steps
                modes = arguments.modes if plain and few and other else arguments.modes[:1]
                yield method, diffusion, q, rtol, modes


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few problems, orders, tolerances")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--sets", nargs="*", default=["zoo", "held-out", "long", "stress"])
    parser.add_argument("--problems", nargs="*", default=None)
    parser.add_argument("--orders", nargs="*", type=int, default=None)
    parser.add_argument("--rtol", nargs="*", type=float, default=None)
    parser.add_argument("--methods", nargs="*", default=["EK1", "EK0", "EK0x2"])
    parser.add_argument("--diffusions", nargs="*", default=None, help="default: all that fit")
    parser.add_argument("--modes", nargs="*", default=["defect", "defect-fast"])
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    chosen = {
        kind: [
            name
            for name in (QUICK[kind] if arguments.quick else problems_of(kind))
            if arguments.problems is None or name in arguments.problems
        ]
        for kind in arguments.sets
    }
    rows, skipped = [], []
    for name in dict.fromkeys(itertools.chain.from_iterable(chosen.values())):
        original = problem_of(name)
        for kind in (kind for kind, members in chosen.items() if name in members):
            problem = original
            end = {"long": LONG, "stress": LONGER}.get(kind, {}).get(name)
            if end is not None:
                problem = replace(problem, t_span=(problem.t_span[0], end))
            reference = Reference(problem)
            count = len(rows)
            for method, diffusion, q, rtol, modes in runs_of(kind, problem, arguments):
                label = {"set": kind, "problem": name, "method": method, "order": q, "rtol": rtol}
                label["diffusion"] = diffusion
                solver = our_solver(method, q, diffusion)
                most_steps = MOST_STEPS.get(kind, 20_000)
                found = run(problem, reference, solver, rtol, modes, most_steps)
                if isinstance(found, str):
                    skipped.append((*label.values(), found))
                else:
                    rows += [{**label, **row} for row in found]
            print(
                f"{kind} {name}: {len(rows) - count} rows; reference and LSODA agree to "
                f"{reference.agreement:.0e}",
                flush=True,
            )
        write(arguments.out / "calibration.csv", rows)
        jax.clear_caches()
    report(rows, skipped)
    draw(rows, arguments.out / "calibration.png")


def write(path, rows):
    """All rows as a table."""
    names = list(dict.fromkeys(itertools.chain.from_iterable(rows)))
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    warnings.simplefilter("ignore", RuntimeWarning)
    main()
