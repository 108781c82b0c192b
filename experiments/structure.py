"""Experiment 4: what the bands of three solvers look like beside the true error."""

from typing import Any

import numpy as np

from experiments.cache import Cache, Configuration, Values
from experiments.measure import build, chi_squared, counts, ending, rank_correlation, rms, run
from experiments.reference import reference
from experiments.settings import Extent
from experiments.work import Batch
from probode import problems

NAME = "structure"
TITLE = "What the uncertainty looks like"

_PROBLEM = "fitzhugh-nagumo"
_MODELS = (("EK0", "dynamic"), ("EK0", "dynamic-mv"), ("EK1", "dynamic"))


def batches(extent: Extent) -> list[Batch]:
    """Three solves."""
    common = {"problem": _PROBLEM, "order": 3, "atol": 1e-10, "rtol": 1e-7}
    return [
        Batch((Configuration.of(NAME, solver=solver, diffusion=diffusion, **common),))
        for solver, diffusion in _MODELS
    ]


def compute(c: Configuration, cache: Cache) -> Values:
    """Error and standard deviations of the smoother at 1000 uniform times.

    Structure: for each component the rank correlation between ``|error|`` and the standard
    deviation over time. One means that the band is wide exactly where the error is large.
    """
    problem, truth = problems.get(c["problem"]), reference(c["problem"])
    solver = build(c["solver"], c["order"], c["diffusion"])
    posterior = run(problem, solver, c["atol"], c["rtol"], max_steps=10**6)
    at = posterior(truth.t)
    std = np.asarray(at.std)
    error = np.asarray(at.mean) - truth.y
    components = range(error.shape[1])
    return {
        **ending(posterior),
        **counts(posterior),
        "reference_level": truth.level,
        "error": rms(error),
        "chi2": chi_squared(at, error)[0],
        "structure": [rank_correlation(np.abs(error[:, i]), std[:, i]) for i in components],
        "band_ratio": float(np.median(std[:, 0] / std[:, 1])),
        "band_difference": float(np.abs(std[:, 0] / std[:, 1] - 1.0).max()),
        "curves": {"t": truth.t.tolist(), "error": error.tolist(), "std": std.tolist()},
    }


def tables(records: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """A summary, and the curves of each solver."""
    found = {}
    for record in records:
        curves = record["curves"]
        found[f"structure-{record['solver']}-{record['diffusion']}"] = [
            {"t": t}
            | {f"y{i + 1}_{name}": curves[name][n][i] for name in ("error", "std") for i in (0, 1)}
            for n, t in enumerate(curves["t"])
        ]
    summary = [{k: v for k, v in record.items() if k != "curves"} for record in records]
    return {**found, "structure-summary": summary}
