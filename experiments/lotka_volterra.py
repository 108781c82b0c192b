"""Experiment 1: the posterior of Lotka-Volterra, and errors drawn from it beside the true one.

The paper does not print this figure's settings. We take those of its Van der Pol experiment.
"""

from typing import Any

import numpy as np

from experiments.cache import Cache, Configuration, Values
from experiments.measure import (
    build,
    chi_squared,
    counts,
    ending,
    rank_correlation,
    rms,
    run,
)
from experiments.reference import reference
from experiments.settings import Extent
from experiments.work import Batch
from probode import problems

NAME = "lotka-volterra"
TITLE = "Lotka-Volterra: a posterior and errors drawn from it"

_SAMPLES = 100
_DRAWN = 8
_EVERY = 2


def batches(extent: Extent) -> list[Batch]:
    """One solve."""
    settings = {"solver": "EK1", "order": 3, "diffusion": "dynamic", "atol": 1e-6, "rtol": 1e-3}
    return [Batch((Configuration.of(NAME, **settings, samples=_SAMPLES),))]


def compute(c: Configuration, cache: Cache) -> Values:
    """Mean, standard deviations, true error and sampled errors at uniform times.

    Pattern: the rank correlation between ``|error|`` and the standard deviation, of the true error
    and of each sampled one. If the posterior is right about where errors are large, the true one
    is an ordinary member of the sampled ones.
    """
    problem, truth = problems.get("lotka-volterra"), reference("lotka-volterra")
    solver = build(c["solver"], c["order"], c["diffusion"])
    posterior = run(problem, solver, c["atol"], c["rtol"], max_steps=10**5)
    at = posterior(truth.t)
    mean, std = np.asarray(at.mean), np.asarray(at.std)
    error = mean - truth.y
    samples = np.asarray(posterior.sample(c["samples"], t=truth.t)) - mean

    def pattern(e: np.ndarray) -> list[float]:
        return [rank_correlation(np.abs(e[:, i]), std[:, i]) for i in range(e.shape[1])]

    chi2, singular = chi_squared(at, error)
    scales = [chi_squared(at, sample)[0] for sample in samples]
    return {
        **ending(posterior),
        **counts(posterior),
        "reference_level": truth.level,
        "error": rms(error),
        "chi2": chi2,
        "singular": singular,
        "sample_chi2": np.quantile(scales, [0.005, 0.995]).tolist(),
        "pattern": float(np.mean(pattern(error))),
        "sample_patterns": [float(np.mean(pattern(sample))) for sample in samples],
        "band_to_range": float((2 * 1.96 * std.max(0) / np.ptp(truth.y, axis=0)).max()),
        "curves": {
            "t": truth.t[::_EVERY].tolist(),
            "mean": mean[::_EVERY].tolist(),
            "std": std[::_EVERY].tolist(),
            "error": error[::_EVERY].tolist(),
            "samples": samples[:_DRAWN, ::_EVERY].tolist(),
        },
    }


def tables(records: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The numbers behind the figure."""
    (record,) = records
    curves = record["curves"]
    rows = []
    for n, t in enumerate(curves["t"]):
        row: dict[str, Any] = {"t": t}
        for i in range(2):
            for name in ("mean", "std", "error"):
                row[f"y{i + 1}_{name}"] = curves[name][n][i]
            for k, sample in enumerate(curves["samples"]):
                row[f"y{i + 1}_sampled_error_{k + 1}"] = sample[n][i]
        rows.append(row)
    kept = {k: v for k, v in record.items() if not isinstance(v, list | dict)}
    return {"lotka-volterra": rows, "lotka-volterra-summary": [kept]}
