"""Experiment 3: calibration and work-precision of all solvers, diffusions, orders, tolerances."""

from typing import Any

import numpy as np

from experiments.cache import Cache, Configuration, Values
from experiments.measure import (
    ABOVE_REFERENCE,
    build,
    chi_squared,
    chi_squared_interval,
    counts,
    ending,
    filtered,
    rms,
    run,
)
from experiments.reference import reference
from experiments.settings import METHODS, PROBLEMS, TIME_LIMIT, Extent, calibration_tolerances
from experiments.work import Batch
from probode import problems

NAME = "calibration"
TITLE = "Calibration across solvers, diffusions, orders and tolerances"


def batches(extent: Extent) -> list[Batch]:
    """One batch per compiled solver, which all problems and tolerances share."""
    return [
        Batch(
            tuple(
                Configuration.of(
                    NAME,
                    problem=problem,
                    solver=solver,
                    diffusion=diffusion,
                    order=order,
                    atol=atol,
                    rtol=rtol,
                    max_steps=extent.max_steps,
                )
                for problem in PROBLEMS
                for atol, rtol in (calibration_tolerances(problem, k) for k in extent.decades)
            )
        )
        # The lowest order takes the most steps: begin with it.
        for order in extent.orders
        for solver, diffusion in reversed(METHODS)
    ]


def compute(c: Configuration, cache: Cache) -> Values:
    """One solve, seen as a filter and as a smoother.

    Error: root mean square over 1000 uniform times and all components. Chi-squared: the mean of
    ``rᵀ Cov⁻¹ r`` over the same times.
    """
    problem, truth = problems.get(c["problem"]), reference(c["problem"])
    solver = build(c["solver"], c["order"], c["diffusion"])
    limits = {"max_steps": c["max_steps"], "time_limit": TIME_LIMIT}
    posterior = run(problem, solver, c["atol"], c["rtol"], **limits)
    common = {**ending(posterior), **counts(posterior), "reference_level": truth.level}
    if not common["success"]:
        return {**common, "views": {}}
    views = {}
    for name, view in (("filter", filtered(posterior)), ("smoother", posterior)):
        at = view(truth.t)
        error = np.asarray(at.mean) - truth.y
        size = rms(error)
        chi2, singular = chi_squared(at, error)
        known = size > ABOVE_REFERENCE * truth.level
        views[name] = {"error": size, "chi2": chi2, "singular": singular, "known": known}
    return {**common, "views": views}


def rows(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per configuration and view; failed ones too, with NaN for what was not reached.

    ``judged``: the run succeeded, its numbers are finite, and its error is above the reference's.
    """
    nothing = {"error": np.nan, "chi2": np.nan, "singular": 0, "known": False}
    found = []
    for record in records:
        d = problems.get(record["problem"]).dimension
        low, high = chi_squared_interval(d)
        shared = {k: v for k, v in record.items() if k != "views"}
        for view in ("filter", "smoother"):
            row = {**shared, "view": view, "d": d, **record["views"].get(view, nothing)}
            row |= {"chi2_low": low, "chi2_high": high}
            row["judged"] = bool(row["known"] and np.isfinite(row["chi2"]) and row["chi2"] > 0)
            found.append(row)
    return found


def tables(records: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """One table for each problem."""
    all_rows = rows(records)
    return {
        f"calibration-{problem}": [row for row in all_rows if row["problem"] == problem]
        for problem in PROBLEMS
    }
