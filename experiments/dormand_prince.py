"""Experiment 5: solvers of order five against the Runge-Kutta method of Dormand and Prince.

That method is SciPy's RK45. Its right-hand side is plain Python, the fastest it can have here.
"""

from functools import partial
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp

from experiments.cache import Cache, Configuration, Values
from experiments.measure import (
    ABOVE_REFERENCE,
    build,
    counts,
    ending,
    filtered,
    rms,
    run,
    shortest,
)
from experiments.reference import FIELDS, reference
from experiments.settings import PROBLEMS, TIME_LIMIT, Extent, comparison_tolerances
from experiments.work import Batch
from probode import problems

NAME = "dormand-prince"
TITLE = "Against Dormand-Prince 4/5"

ALGORITHMS = ("EKF0", "EKS0", "EKF1", "EKS1", "DP5")
"""Filters and smoothers in the paper's abbreviations."""
_ORDER = 5


def batches(extent: Extent) -> list[Batch]:
    """Everything here is timed."""
    return [
        Batch(
            tuple(
                Configuration.of(
                    NAME,
                    problem=problem,
                    method=method,
                    atol=atol,
                    rtol=rtol,
                    max_steps=extent.max_steps,
                    repetitions=extent.repetitions,
                )
                for atol, rtol in map(comparison_tolerances, extent.comparison_decades)
            ),
            timed=True,
        )
        for problem in PROBLEMS
        for method in ("EK0", "EK1", "RK45")
    ]


def compute(c: Configuration, cache: Cache) -> Values:
    """Evaluations, errors and seconds (of solutions at the steps, without dense output)."""
    return _runge_kutta(c) if c["method"] == "RK45" else _filter(c)


def _filter(c: Configuration) -> Values:
    problem, truth = problems.get(c["problem"]), reference(c["problem"])
    solver = build(c["method"], _ORDER)
    limits = {"max_steps": c["max_steps"], "time_limit": TIME_LIMIT}

    def solve_once(smooth: bool = True) -> Any:
        return run(problem, solver, c["atol"], c["rtol"], smooth=smooth, **limits)

    posterior = solve_once()
    common = {**ending(posterior), **counts(posterior), "reference_level": truth.level}
    if not common["success"]:
        return {**common, "views": {}}
    views = {}
    digit = c["method"][-1]
    for name, view in ((f"EKF{digit}", filtered(posterior)), (f"EKS{digit}", posterior)):
        smooth = name.startswith("EKS")
        error = np.asarray(view(truth.t).mean) - truth.y
        final = np.asarray(view.mean[-1]) - truth.y[-1]
        seconds = shortest(partial(solve_once, smooth), c["repetitions"])
        views[name] = _view(error, final, truth.level) | {"seconds": seconds}
    return {**common, "views": views}


def _runge_kutta(c: Configuration) -> Values:
    problem, truth = problems.get(c["problem"]), reference(c["problem"])

    def solve_once(times: Any = None) -> Any:
        return solve_ivp(
            FIELDS[c["problem"]],
            problem.t_span,
            problem.y0,
            "RK45",
            t_eval=times,
            rtol=c["rtol"],
            atol=c["atol"],
        )

    found = solve_once(truth.t)
    common = {
        "success": bool(found.success),
        "status": "SUCCESS" if found.success else "STEP_TOO_SMALL",
        "message": found.message,
        "t_reached": float(found.t[-1]),
        "steps": found.nfev // 6,
        "evaluations": int(found.nfev),
        "reference_level": truth.level,
    }
    if not found.success:
        return {**common, "views": {}}
    error = found.y.T - truth.y
    seconds = shortest(solve_once, c["repetitions"])
    return {**common, "views": {"DP5": _view(error, error[-1], truth.level) | {"seconds": seconds}}}


def _view(error: np.ndarray, final: np.ndarray, level: float) -> Values:
    """Errors over the whole interval (dense output) and at its end."""
    size, end = rms(error), rms(final)
    return {
        "error": size,
        "final_error": end,
        "known": size > ABOVE_REFERENCE * level,
        "final_known": end > ABOVE_REFERENCE * level,
    }


def rows(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per algorithm, problem and tolerance; failed ones with NaN."""
    nothing = {"error": np.nan, "final_error": np.nan, "known": False, "final_known": False}
    nothing["seconds"] = np.nan
    found = []
    for record in records:
        shared = {k: v for k, v in record.items() if k not in ("views", "method")}
        digit = record["method"][-1]
        names = ("DP5",) if record["method"] == "RK45" else (f"EKF{digit}", f"EKS{digit}")
        for name in names:
            values = record["views"].get(name, nothing)
            found.append(
                {"algorithm": name, **shared, "rejected": record.get("rejected"), **values}
            )
    return found


def tables(records: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """One table."""
    return {"dormand-prince": rows(records)}
