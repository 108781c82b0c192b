"""Engines for ensembles: time to an error, against diffrax and SciPy, on the CPU or a GPU.

    python -m benchmarks.ensemble_engines [--members 10000 ...] [--points 11 100] [--json FILE]

Each engine solves all members at several tolerances; the error is the root mean square over the
members and components at the final time, against a tight reference. Members that failed are
counted, and left out of the error; a run with such members is not used for the table. Times at
equal error are interpolated between the tolerances (log-log); a dash means that no tolerance
reached it.
On a GPU inputs and results stay on the card. Needs diffrax; SciPy runs on the CPU only. With
``--points`` whole time series are compared instead, see :mod:`benchmarks.ensemble_series`.
"""

import argparse
import json
import os
import time
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

import probode
from benchmarks.ensemble_series import from_numpy_to_numpy, measure_series, step_costs
from probode.base.precision import double_precision
from probode.engines.abreast.on_card import Run
from probode.engines.native.members import NOTES, Results
from probode.ensemble.one_by_one import side_by_side
from probode.ensemble.problem import read_family
from probode.ensemble.solve import read_settings
from probode.model.equation import as_equation


def lorenz(t, y, rho):
    return jnp.stack([10 * (y[1] - y[0]), y[0] * (rho - y[2]) - y[1], y[0] * y[1] - 8 / 3 * y[2]])


def rober(t, y, k1):
    a, b, c = k1 * y[0], 1e4 * y[1] * y[2], 3e7 * y[1] * y[1]
    return jnp.stack([b - a, a - b - c, c])


@dataclass(frozen=True)
class Case:
    """A problem with one swept parameter, and the solvers that are compared on it."""

    field: object
    y0: tuple
    t1: float
    sweep: tuple
    ratio: float
    """atol / rtol."""
    ours: tuple
    theirs: tuple
    scipy: str
    targets: tuple
    reference: tuple
    """A solver and its rtol."""

    def parameters(self, count):
        return np.linspace(*self.sweep, count)


CASES = {
    "Lorenz": Case(
        lorenz,
        (1.0, 1.0, 1.0),
        1.0,
        (0.0, 21.0),
        1e-2,
        (
            (probode.EK0(2), (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)),
            (probode.EK0(3), (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)),
            (probode.EK0(4), (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)),
        ),
        (
            ("Tsit5", (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9)),
            ("Dopri8", (1e-3, 1e-5, 1e-7, 1e-9, 1e-11)),
        ),
        "RK45",
        (1e-4, 1e-6, 1e-8),
        ("Dopri8", 1e-13),
    ),
    "ROBER": Case(
        rober,
        (1.0, 0.0, 0.0),
        100.0,
        (0.02, 0.08),
        1e-5,  # y2 is below 4e-5: with 1e-4 it may become negative, from where ROBER blows up
        (
            (probode.EK1(1), (10.0, 1.0, 1e-1)),
            (probode.EK1(2), (1.0, 1e-1, 1e-2, 1e-3)),
        ),
        (("Kvaerno5", (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)),),
        "LSODA",
        (1e-5, 1e-6, 1e-7, 1e-8),
        ("EK1(2)", 1e-5),
    ),
}


def seconds(function, repeats=3):
    """The shortest of a few runs, after one that is not counted."""
    result, times = function(), []
    for _ in range(repeats):
        start = time.perf_counter()
        result = function()
        times.append(time.perf_counter() - start)
        if sum(times) > 10:
            break
    return min(times), result


def our_engine(case, solver, count):
    """A function of the tolerance: final means, and the steps of all members.

    On a GPU inputs lie there before, and results after; see ``--whole`` for all of a call.
    """
    if jax.default_backend() == "gpu":
        return _our_kernel(case, solver, count)
    parameters = case.parameters(count)

    def run(rtol):
        found = probode.solve_ensemble(
            *(case.field, (0.0, case.t1), np.array(case.y0), (parameters,)),
            solver=solver,
            calibration="model",
            rtol=rtol,
            atol=case.ratio * rtol,
        )
        return found.mean[:, 0], found.steps.sum()

    return run


def problem_of(case, solver, count, rtol, save_at=None, smooth=True, calibration="model"):
    """The members as the kernels of a card take them."""
    family = read_family(
        *((0.0, case.t1), np.array(case.y0), (case.parameters(count),), save_at),
        *(rtol, case.ratio * rtol, probode.PIControl(), (), as_equation(case.field)),
    )
    settings = read_settings(
        *(solver, probode.PIControl(), smooth, False, calibration, 100_000, None, "kernels")
    )
    members = family.members(slice(0, count))
    return side_by_side(case.field, members, settings, jax.devices()[0])


def _our_kernel(case, solver, count):
    known = {}

    def run(rtol):
        if rtol not in known:
            known.clear()
            known[rtol] = Run(problem_of(case, solver, count, rtol), jax.devices()[0])
        known[rtol].solve()
        return known[rtol], None

    return run


def unpack(result):
    """Means and the number of steps, as NumPy arrays (outside what is timed)."""
    found, steps = result
    if not isinstance(found, Run):
        return np.asarray(found), int(steps)
    count, d = found.problem.members, found.problem.sizes.d
    ends = [np.empty((count, 1, d)) for _ in range(2)]
    results = Results(ends[0], ends[1], None, np.empty((NOTES, count)))
    found.fetch(results)
    return results.mean[:, 0], int(results.notes[1].sum())


def diffrax_engine(case, name, count):
    import diffrax

    term = diffrax.ODETerm(lambda t, y, k: case.field(t, y, k))
    solver = getattr(diffrax, name)()

    def one(k, rtol):
        solution = diffrax.diffeqsolve(
            term,
            solver,
            0.0,
            case.t1,
            None,
            jnp.asarray(case.y0, float),
            args=k,
            stepsize_controller=diffrax.PIDController(rtol=rtol, atol=case.ratio * rtol),
            saveat=diffrax.SaveAt(t1=True),
            max_steps=1_000_000,
        )
        return solution.ys[0], solution.stats["num_steps"]

    compiled = jax.jit(jax.vmap(one, in_axes=(0, None)))
    parameters = jax.device_put(case.parameters(count))

    def run(rtol):
        means, steps = jax.block_until_ready(compiled(parameters, rtol))
        return means, jnp.sum(steps)

    return run


SAMPLED = 50
"""Members that the loop over SciPy solves; its time is per member."""


def scipy_engine(case, count):
    from scipy.integrate import solve_ivp

    def field(t, y, k):
        if case.field is lorenz:
            return [10 * (y[1] - y[0]), y[0] * (k - y[2]) - y[1], y[0] * y[1] - 8 / 3 * y[2]]
        a, b, c = k * y[0], 1e4 * y[1] * y[2], 3e7 * y[1] * y[1]
        return [b - a, a - b - c, c]

    chosen = np.linspace(0, count - 1, SAMPLED).astype(int)
    parameters = case.parameters(count)[chosen]

    def run(rtol):
        ends = [
            solve_ivp(
                *(field, (0.0, case.t1), case.y0),
                method=case.scipy,
                args=(k,),
                rtol=rtol,
                atol=case.ratio * rtol,
            ).y[:, -1]
            for k in parameters
        ]
        return np.array(ends), 0

    return run, chosen


def interpolated(curve, target):
    """Time at an error, log-log between two tolerances; the fastest run if all are better."""
    curve = sorted((error, spent) for error, spent in curve if np.isfinite(error))
    better = [spent for error, spent in curve if error <= target]
    if not better:
        return None
    worse = [(error, spent) for error, spent in curve if error > target]
    if not worse:
        return min(better)
    (e0, t0), (e1, t1) = max(x for x in curve if x[0] <= target), min(worse)
    weight = (np.log(target) - np.log(e0)) / (np.log(e1) - np.log(e0))
    between = float(np.exp(np.log(t0) + weight * (np.log(t1) - np.log(t0))))
    return min(between, *better)


def reference_of(case, count):
    name, rtol = case.reference
    if name.startswith("EK1"):
        return unpack(our_engine(case, probode.EK1(int(name[4])), count)(rtol))[0]
    return np.asarray(diffrax_engine(case, name, count)(rtol)[0])


def error_of(means, reference):
    """The root mean square error of the members that reached the end, and how many did not."""
    if not np.all(np.isfinite(reference)):
        raise ValueError("members of the reference failed: it needs another tolerance.")
    done = np.isfinite(means).all(axis=1)
    if not done.any():
        return float("nan"), len(means)
    error = float(np.sqrt(np.mean((means[done] - reference[done]) ** 2)))
    return error, int(np.sum(~done))


def measure(name, case, count, fewer):
    """Rows ``(solver, rtol, error, seconds per call, steps, failed)``, printed as they come."""
    reference = reference_of(case, count)
    rows = []

    def add(label, tolerances, run, at=slice(None), part=1.0):
        for rtol in tolerances[:: 2 if fewer else 1]:
            try:
                start = time.perf_counter()
                spent, result = seconds(lambda rtol=rtol: run(rtol), 1 if fewer else 3)
                means, steps = unpack(result)
            except Exception as failure:  # the other engines go on
                print(f"{name} {count} {label} {rtol:g}: {str(failure)[:200]}", flush=True)
                break
            error, failed = error_of(means, reference[at])
            rows.append((label, rtol, error, spent * part, int(steps), failed))
            total = time.perf_counter() - start
            marked = f"{failed} of {len(means)} members failed, " if failed else ""
            print(
                f"{name} {count} {label} rtol {rtol:g}: {marked}error {error:.2e}, "
                f"{1e3 * spent * part:.3f} ms, {count / (spent * part):.4g} members/s "
                f"({total:.1f} s)",
                flush=True,
            )

    for solver, tolerances in case.ours:
        add(f"probode {solver.name}", tolerances, our_engine(case, solver, count))
    for solver, tolerances in case.theirs:
        add(f"diffrax {solver}", tolerances, diffrax_engine(case, solver, count))
    if jax.default_backend() == "cpu":
        run, chosen = scipy_engine(case, count)
        add(f"SciPy {case.scipy}", (1e-3, 1e-5, 1e-7, 1e-9), run, chosen, count / SAMPLED)
    return rows


def table(name, count, case, rows):
    labels = list(dict.fromkeys(row[0] for row in rows))
    print(f"\n| {name}, {count} members: error | " + " | ".join(labels) + " |")
    print("|" + " --- |" * (len(labels) + 1))
    for target in case.targets:
        cells = []
        for label in labels:
            whole = [(r[2], r[3]) for r in rows if r[0] == label and not r[5]]
            spent = interpolated(whole, target)
            cells.append("-" if spent is None else f"{1e3 * spent:.3g} ms")
        print(f"| {target:g} | " + " | ".join(cells) + " |")
    print(flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--members", type=int, nargs="+", default=[4096])
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--points", type=int, nargs="+", help="save points: time series instead")
    parser.add_argument("--solvers", nargs="+", help="of time series, such as 'EK0(3)' Tsit5")
    parser.add_argument("--steps", action="store_true", help="what a step of a member costs")
    parser.add_argument("--whole", action="store_true", help="from NumPy to NumPy, with a GPU")
    parser.add_argument("--fewer", action="store_true", help="every second tolerance, one run each")
    parser.add_argument("--json", help="where to write all rows")
    options = parser.parse_args()
    print(jax.__version__, jax.devices(), f"{len(os.sched_getaffinity(0))} cores", flush=True)
    collected = {}
    if options.steps:
        return step_costs(CASES["Lorenz"], options.members[0])
    if options.whole:
        return from_numpy_to_numpy(CASES["Lorenz"], options.members[0])
    with double_precision():
        for name in options.cases:
            case = CASES[name]
            for count in options.members if options.points else ():
                for points in options.points:
                    rows = measure_series(name, case, count, points, options.solvers)
                    collected[f"{name} {count} x {points}"] = rows
                    table(
                        f"{name}, {points} points", count, case, [(*r[:4], 0, r[4]) for r in rows]
                    )
            if options.points:
                continue
            for count in options.members:
                shown = replace(case) if count < 10**6 else _first_choices(case)
                rows = measure(name, shown, count, options.fewer)
                collected[f"{name} {count}"] = rows
                table(name, count, case, rows)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(collected, file, indent=1)


def _first_choices(case):
    """Fewer tolerances, for a million members of a stiff problem."""
    if case.field is lorenz:
        return case
    return replace(
        case,
        ours=tuple((solver, tolerances[:3]) for solver, tolerances in case.ours),
        theirs=tuple((solver, tolerances[:4:2]) for solver, tolerances in case.theirs),
        reference=("EK1(2)", 1e-3),
    )


if __name__ == "__main__":
    main()
