"""Time series of ensembles: CPU time to an error at all save points, against diffrax.

    python -m benchmarks.ensemble_engines --points 11 100 --members 4096 [--json FILE]

Ours is :func:`probode.solve_ensemble`, from NumPy to NumPy, in its default form (smoothed, with
calibrated error bars) and as a filter with the model's; the error is the root mean square over
members, components and save points. ``chi2`` is the share of members whose mean of
``(error / std)²`` lies in [1/3, 3]. Times are those of all cores together (``process_time``; with a
GPU those that pass), the shortest of a few calls, the first call beside; what is compared takes
turns in one process.
With ``--steps`` instead of ``--points``, what a step of a member costs with each engine; with
``--whole``, for a GPU, what a sweep takes from NumPy to NumPy, and what of it the card.
"""

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import probode
from probode.engines.abreast import on_card
from probode.ensemble.one_by_one import side_by_side
from probode.ensemble.solve import read_settings

MODES = {
    "smoothed, calibrated": {},
    "filter, model": {"smooth": False, "calibration": "model"},
}

OURS = {
    "Lorenz": (
        (probode.EK0(3), (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)),
        (probode.EK0(4, evaluations=2), (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)),
        (probode.EK0(5), (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9)),
        (probode.EK0(5, evaluations=2), (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)),
        (probode.EK1(5), (1e-3, 1e-5, 1e-7, 1e-9)),
    ),
    "ROBER": (
        (probode.EK1(3), (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)),
        (probode.EK1(5), (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)),
    ),
}
THEIRS = {
    "Lorenz": (("Tsit5", (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)), ("Dopri8", (1e-5, 1e-7, 1e-9))),
    "ROBER": (("Kvaerno5", (1e-3, 1e-4, 1e-5, 1e-6, 1e-7)),),
}
REPEATS = 3


def our_series(case, solver, count, times, mode):
    """A function of the tolerance: an :class:`probode.Ensemble`."""
    parameters = case.parameters(count)

    def run(rtol):
        tolerances = {"rtol": rtol, "atol": case.ratio * rtol}
        return probode.solve_ensemble(
            *(case.field, (0.0, case.t1), np.array(case.y0), (parameters,)),
            **{"solver": solver, "save_at": times, **tolerances, **MODES[mode]},
        )

    return run


def diffrax_series(case, name, count, times):
    """A function of the tolerance: means at the save points."""
    import diffrax

    term, solver = diffrax.ODETerm(lambda t, y, k: case.field(t, y, k)), getattr(diffrax, name)()

    def one(k, rtol):
        control = diffrax.PIDController(rtol=rtol, atol=case.ratio * rtol)
        solution = diffrax.diffeqsolve(
            *(term, solver, 0.0, case.t1, None, jnp.asarray(case.y0, float)),
            args=k,
            stepsize_controller=control,
            saveat=diffrax.SaveAt(ts=jnp.asarray(times)),
            max_steps=1_000_000,
        )
        return solution.ys

    compiled = jax.jit(jax.vmap(one, in_axes=(0, None)))
    parameters = case.parameters(count)

    def run(rtol):
        return np.asarray(compiled(parameters, rtol))

    return run


def extrapolated(f, y0, times, longest=0.05, orders=9):
    """``(B, T, d)``: the midpoint rule, extrapolated, in 80-bit numbers; ``f(y)`` of ``(d, B)``.

    With half of the longest step the results are the same to 3e-15.
    """
    wide = np.longdouble
    y, t, found = np.asarray(y0, wide), wide(times[0]), []
    for time_ in np.asarray(times, wide):
        steps = int(np.ceil(float((time_ - t) / wide(longest))))
        for _ in range(steps):
            step, table = (time_ - t) / steps, []
            for parts in range(2, 2 * orders + 2, 2):
                h = step / parts
                before, now = np.zeros_like(y), h * f(y)
                for _ in range(parts - 1):
                    before, now = now, before + 2 * h * f(y + now)
                table.append((before + now + h * f(y + now)) / 2)
            for column in range(1, orders):
                for row in range(orders - 1, column - 1, -1):
                    ratio = (wide(row + 1) / wide(row - column + 1)) ** 2
                    table[row] = table[row] + (table[row] - table[row - 1]) / (ratio - 1)
            y = y + table[-1]
        t = time_
        found.append(y)
    return np.stack(found).transpose(2, 0, 1)


def reference_of(name, case, count, times):
    """Exact to rounding for what is not stiff, a tight EK1(5) for what is."""
    if name == "Lorenz":
        rho = case.parameters(count).astype(np.longdouble)

        def lorenz(y):
            x, y, z = y
            return np.stack([10 * (y - x), x * (rho - z) - y, x * y - 8 / 3 * z])

        return extrapolated(lorenz, np.tile(np.array(case.y0)[:, None], count), times)
    return our_series(case, probode.EK1(5), count, times, "filter, model")(1e-9).mean


def timed(run, rtol):
    """Seconds of the first call and of the shortest after it, and the result.

    CPU seconds of all cores, or, with a GPU, those that pass.
    """
    first, spent, _, result = timed_both(run, rtol)
    return first, spent, result


def timed_both(run, rtol):
    """The same with the seconds that pass in the shortest call."""
    clock = time.process_time if jax.default_backend() == "cpu" else time.perf_counter
    spent, passed = [], []
    for _ in range(1 + REPEATS):
        before, begun = clock(), time.perf_counter()
        result = run(rtol)
        spent.append(clock() - before)
        passed.append(time.perf_counter() - begun)
    return spent[0], min(spent[1:]), min(passed[1:]), result


def share_calibrated(found, reference):
    """Of the members: those whose bars are of the size of their errors, where they have any."""
    known = found.std > 0.0
    squares = np.where(known, (found.mean - reference) / np.where(known, found.std, 1.0), 0.0) ** 2
    chi2 = squares.sum(axis=(1, 2)) / np.maximum(known.sum(axis=(1, 2)), 1)
    return float(np.mean((chi2 > 1 / 3) & (chi2 < 3)))


def measure_series(name, case, count, points, solvers=None):
    """Rows ``(label, rtol, error, seconds, failed, chi2)``, printed as they come."""
    times = np.linspace(0.0, case.t1, points)
    reference = reference_of(name, case, count, times)
    rows = []

    def add(label, rtol, first, spent, passed, means, chi2, note):
        done = np.isfinite(means).all(axis=(1, 2))
        failed = int(np.sum(~done))
        error = float(np.sqrt(np.mean((means[done] - reference[done]) ** 2))) if done.any() else 1e9
        rows.append((label, rtol, error, spent, failed, chi2))
        bars = "" if chi2 is None else f", bars of {chi2:.1%} right"
        print(
            f"{name} {count} x {points} {label} rtol {rtol:g}: error {error:.2e}, "
            f"{1e3 * spent:.1f} ms, {1e3 * passed:.1f} ms pass, first call {first:.2f} s"
            f"{bars}{note}",
            flush=True,
        )

    def wanted(solvers_of):
        return [x for x in solvers_of if solvers is None or getattr(x[0], "name", x[0]) in solvers]

    for solver, tolerances in wanted(OURS[name]):
        for mode in MODES:
            run = our_series(case, solver, count, times, mode)
            for rtol in tolerances:
                first, spent, passed, found = timed_both(run, rtol)
                chi2 = None if "model" in mode else share_calibrated(found, reference)
                label = f"probode {solver.name}, {mode}"
                add(label, rtol, first, spent, passed, found.mean, chi2, f" ({found.engine})")
    for solver, tolerances in wanted(THEIRS[name]):
        run = diffrax_series(case, solver, count, times)
        for rtol in tolerances:
            first, spent, passed, means = timed_both(run, rtol)
            add(f"diffrax {solver}", rtol, first, spent, passed, means, None, "")
    return rows


WHOLE = (
    ("ends, the model's bars", 1.0, {"calibration": "model"}),
    ("ends", 1.0, {}),
    ("11 points, the model's bars", 1.0, {"save_at": 11, "calibration": "model"}),
    ("11 points, filtered", 1.0, {"save_at": 11, "smooth": False}),
    ("11 points", 1.0, {"save_at": 11}),
    ("100 points", 0.1, {"save_at": 100}),
)
"""What is asked for, and of which part of the members."""


def from_numpy_to_numpy(case, count):
    """Seconds of a sweep with EK0(3) and EK1(3), ``rtol`` 1e-4: first and later calls, the card."""
    print("| members | solver | wanted | first call | later | on the card | steps |")
    print("|" + " --- |" * 7)
    for solver in (probode.EK0(3), probode.EK1(3)):
        for label, part, options in WHOLE:
            members = int(count * part) if solver.jacobian == "none" else int(0.1 * count * part)
            chosen = {"solver": solver, "rtol": 1e-4, "atol": 1e-6, "engine": "kernels", **options}
            if "save_at" in chosen:
                chosen["save_at"] = np.linspace(0.0, case.t1, chosen["save_at"])
            run = partial(
                probode.solve_ensemble,
                *(case.field, (0.0, case.t1), np.array(case.y0), (case.parameters(members),)),
                **chosen,
            )
            first, spent, found = timed(lambda _, run=run: run(), None)
            settings = read_settings(
                *(solver, probode.PIControl(), chosen.get("smooth", True), False),
                *(chosen.get("calibration", "defect"), 100_000, None, "kernels"),
            )
            family = found.family.members(slice(0, members))
            problem = side_by_side(case.field, family, settings, jax.devices()[0])
            solved = on_card.Run(problem, jax.devices()[0])
            card = timed(lambda _, solved=solved: solved.solve(), None)[1]
            cells = f"{first:.2f} s | {spent:.3f} s | {card:.3f} s | {found.steps.mean():.0f}"
            print(f"| {members} | {solver.name} | {label} | {cells} |", flush=True)


STEPPED = (probode.EK0(3), probode.DiagonalEK1(3), probode.EK1(2), probode.EK1(3), probode.EK1(5))
SAVED = {
    "ends": {},
    "11 filtered": {"save_at": np.linspace(0.0, 1.0, 11), "smooth": False},
    "11 smoothed": {"save_at": np.linspace(0.0, 1.0, 11)},
    "100 smoothed": {"save_at": np.linspace(0.0, 1.0, 100)},
}


def step_costs(case, count):
    """CPU microseconds of all cores for a step of a member, ``rtol`` 1e-6, for each engine."""
    parameters = case.parameters(count)
    print(f"| {count} members | " + " | ".join(SAVED) + " | first calls, s |")
    print("|" + " --- |" * (len(SAVED) + 2))
    for engine, calibration in (("kernels", "model"), ("kernels", "defect"), ("lanes", "model")):
        for solver in STEPPED:
            cells, firsts = [], []
            for options in SAVED.values():
                chosen = {"engine": engine, "calibration": calibration, "solver": solver, **options}

                def run(rtol, chosen=chosen):
                    return probode.solve_ensemble(
                        *(case.field, (0.0, case.t1), np.array(case.y0), (parameters,)),
                        **{"rtol": rtol, "atol": 1e-3 * rtol, **chosen},
                    )

                try:
                    if engine == "lanes" and "save_at" in options and "smooth" not in options:
                        raise ValueError("compiles for a minute, and gains nothing")
                    first, spent, found = timed(run, 1e-6)
                except ValueError:  # not for this engine
                    cells.append("-")
                    continue
                cells.append(f"{1e6 * spent / found.steps.sum():.2f}")
                firsts.append(f"{first:.1f}")
            label = f"{engine}, {solver.name}, {calibration}"
            print(f"| {label} | " + " | ".join(cells) + f" | {', '.join(firsts)} |", flush=True)
