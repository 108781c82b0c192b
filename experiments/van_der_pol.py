"""Experiment 2: the stiff Van der Pol oscillator, μ = 1e6, by EK1 with IWP(3).

The text starts from ``(0, √3)``; the published run started from ``(2, 0)``. Both are run.
"""

import math
from functools import partial
from typing import Any

import numpy as np

from experiments.cache import Cache, Configuration, Values
from experiments.measure import build, chi_squared, counts, ending, run, shortest
from experiments.reference import stiff_reference
from experiments.settings import Extent
from experiments.work import Batch
from probode import problems
from probode.filter.solvers import EK1
from probode.solve import solve

NAME = "van-der-pol"
TITLE = "Stiff Van der Pol"

STARTS = ((2.0, 0.0), (0.0, math.sqrt(3.0)))
"""The start of the published run, and the printed one."""
FIXED_STEP = 1e-8
_FIXED_STEPS = 50_000
_ATOL, _RTOL, _ORDER = 1e-6, 1e-3, 3
_MOST_STEPS = 4000
_TIME_LIMIT = 300.0


def batches(extent: Extent) -> list[Batch]:
    """References (which may run beside other work), then what is timed."""
    references = [Batch((_reference(y0, extent.radau_rtol),)) for y0 in STARTS]
    common = {"order": _ORDER, "atol": _ATOL, "rtol": _RTOL}
    timed = []
    for y0 in STARTS:
        start = {"y0": list(y0)}
        timing = {"repetitions": extent.repetitions, "radau_rtol": extent.radau_rtol}
        timed.append(Configuration.of(NAME, kind="adaptive", **start, **common, **timing))
        budget = {"max_steps": extent.explicit_steps}
        timed.append(Configuration.of(NAME, kind="explicit", **start, **common, **budget))
    fixed = {"step": FIXED_STEP, "max_steps": _FIXED_STEPS, "repetitions": extent.repetitions}
    timed.append(Configuration.of(NAME, kind="fixed-step", y0=list(STARTS[0]), **fixed))
    return [*references, Batch(tuple(timed), timed=True)]


def _reference(y0: tuple[float, float], rtol: float) -> Configuration:
    return Configuration.of(NAME, kind="reference", y0=list(y0), rtol=rtol)


def compute(c: Configuration, cache: Cache) -> Values:
    """One of the kinds of runs."""
    y0 = (float(c["y0"][0]), float(c["y0"][1]))
    if c["kind"] == "reference":
        found = stiff_reference(y0, c["rtol"])
        arrays = {"t": found.t.tolist(), "y": found.y.tolist()}
        return {**arrays, "level": found.level, "source": found.source}
    if c["kind"] == "adaptive":
        return _adaptive(c, y0, cache)
    if c["kind"] == "explicit":
        return _explicit(c, y0)
    return _fixed_step(c, y0)


def _adaptive(c: Configuration, y0: tuple[float, float], cache: Cache) -> Values:
    """The experiment itself, timed on calls after the first, which compiles."""
    problem, solver = problems.van_der_pol(y0=y0), EK1(c["order"])
    truth = cache.get(_reference(y0, c["radau_rtol"]), lambda r: compute(r, cache))
    t, y = np.array(truth["t"]), np.array(truth["y"])

    def solve_once(smooth: bool = True) -> Any:
        return run(problem, solver, c["atol"], c["rtol"], smooth=smooth, time_limit=_TIME_LIMIT)

    posterior = solve_once()
    ended, counted = ending(posterior), counts(posterior)
    times: dict[str, float] = {}
    for kind, smooth in (("filter", False), ("smoother", True)):
        seconds = shortest(partial(solve_once, smooth), c["repetitions"])
        times[f"{kind}_seconds"] = seconds
        times[f"{kind}_microseconds"] = 1e6 * seconds / counted["steps"]
    at = posterior(t)
    error = np.asarray(at.mean) - y
    final = np.asarray(posterior.mean[-1]) - y[-1]
    steps = np.asarray(posterior.step_sizes)
    # The smallest and largest of each group, so that nothing is lost of the range.
    group = max(1, 2 * len(steps) // _MOST_STEPS)
    parts = [steps[i : i + group] for i in range(0, len(steps), group)]
    seen = _visible(np.asarray(posterior.t), np.asarray(posterior.mean))
    return {
        **ended,
        **counted,
        **times,
        "final_error": float(np.linalg.norm(final)),
        "final_std": np.asarray(posterior.std[-1]).tolist(),
        "final_chi2": chi_squared(posterior(t[-1:]), final[None])[0],
        "reference_level": truth["level"],
        "smallest_step": float(steps.min()),
        "largest_step": float(steps.max()),
        "curves": {
            "mean_t": np.asarray(posterior.t)[seen].tolist(),
            "mean": np.asarray(posterior.mean)[seen].tolist(),
            "t": t.tolist(),
            "error": np.abs(error).tolist(),
            "std": np.asarray(at.std).tolist(),
            "step_t": np.asarray(posterior.t)[1::group].tolist(),
            "step_low": [float(part.min()) for part in parts],
            "step_high": [float(part.max()) for part in parts],
        },
    }


def _visible(t: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Indices of the nodes that make a difference to a drawing of the means within ±7."""
    shown = np.c_[t / 0.01, np.clip(mean, -8.0, 8.0) / 0.05]
    kept = [0]
    for n in range(1, len(t)):
        if np.abs(shown[n] - shown[kept[-1]]).max() > 1.0:
            kept.append(n)
    return np.array([*kept, len(t) - 1])


def _explicit(c: Configuration, y0: tuple[float, float]) -> Values:
    """EK0 within its budget."""
    problem, solver = problems.van_der_pol(y0=y0), build("EK0", c["order"])
    limits = {"max_steps": c["max_steps"], "time_limit": _TIME_LIMIT}
    posterior = run(problem, solver, c["atol"], c["rtol"], smooth=False, **limits)
    return {**ending(posterior), **counts(posterior)}


def _fixed_step(c: Configuration, y0: tuple[float, float]) -> Values:
    """Microseconds of an iteration with constant steps, over the first of them."""
    problem = problems.van_der_pol(y0=y0)

    def solve_once() -> Any:
        return solve(
            problem.vector_field,
            problem.t_span,
            problem.y0,
            problem.args,
            solver=EK1(_ORDER),
            step=c["step"],
            max_steps=c["max_steps"],
        )

    made = int(solve_once().stats.steps)
    seconds = shortest(solve_once, c["repetitions"])
    span = problem.t_span[1] - problem.t_span[0]
    microseconds = 1e6 * seconds / made
    needed = span / c["step"]
    hours = needed * microseconds / 3.6e9
    return {"measured_steps": made, "microseconds": microseconds, "steps": needed, "hours": hours}


def tables(records: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """A summary of all runs, and the curves of each start."""
    found: dict[str, list[dict[str, Any]]] = {}
    summary = []
    for record in records:
        flat = {k: v for k, v in record.items() if k not in ("curves", "t", "y")}
        summary.append(flat)
        if record["kind"] == "adaptive":
            start = "-".join(f"{x:.3g}" for x in record["y0"])
            curves = record["curves"]
            found[f"van-der-pol-mean-from-{start}"] = [
                {"t": t, "y1_mean": mean[0], "y2_mean": mean[1]}
                for t, mean in zip(curves["mean_t"], curves["mean"], strict=True)
            ]
            columns = ("error", "std")
            found[f"van-der-pol-from-{start}"] = [
                {"t": t}
                | {f"y{i + 1}_{name}": curves[name][n][i] for name in columns for i in range(2)}
                for n, t in enumerate(curves["t"])
            ]
            names = ("step_t", "step_low", "step_high")
            found[f"van-der-pol-steps-from-{start}"] = [
                dict(zip(names, row, strict=True))
                for row in zip(*(curves[name] for name in names), strict=True)
            ]
    keys = list(dict.fromkeys(key for row in summary for key in row))
    found["van-der-pol-summary"] = [{key: row.get(key, "") for key in keys} for row in summary]
    return found
