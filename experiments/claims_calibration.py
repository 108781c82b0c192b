"""What the paper says of calibration: which diffusion models, which solvers, how much."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from experiments import calibration
from experiments.claims import (
    Claim,
    Figures,
    Finding,
    Records,
    Rows,
    Verdict,
    across_problems,
    per_problem,
    percent,
    share_of,
)

_FHN = "fitzhugh-nagumo"
_CAL = calibration.NAME
_SETTING = ("solver", "view", "diffusion", "order")
_SMALL_FACTOR = 3.0
"""A change of χ² by less than this factor is not a large one: settings move it by decades."""


def _judged(records: Records) -> dict[str, Rows]:
    """Rows with a known error and a finite statistic, by problem."""
    found: dict[str, Rows] = {}
    for row in calibration.rows(list(records)):
        found.setdefault(row["problem"], [])
        if row["judged"]:
            found[row["problem"]].append(row)
    return found


def paired(rows: Rows, field: str, a: str, b: str, names: Iterable[str]) -> list[tuple[Any, Any]]:
    """Rows that differ in one field, which is ``a`` in the first and ``b`` in the second."""
    keys = [name for name in names if name != field]
    index = {(row[field], *(row[k] for k in keys)): row for row in rows}
    return [
        (row, index[other])
        for key, row in index.items()
        if key[0] == a and (other := (b, *key[1:])) in index
    ]


def miscalibration(row: dict[str, Any]) -> float:
    """Decades between ``χ²`` and its expected value ``d``."""
    return abs(float(np.log10(row["chi2"] / row["d"])))


_EACH = (*_SETTING, "atol", "rtol")
_VARIANTS = (("dynamic", "fixed"), ("dynamic-mv", "fixed-mv"))


def _diffusion_pairs(rows: Rows) -> list[tuple[Any, Any]]:
    return [
        pair
        for dynamic, fixed in _VARIANTS
        for pair in paired(rows, "diffusion", dynamic, fixed, _EACH)
    ]


def _better(records: Records) -> Figures:
    return {
        problem: share_of(miscalibration(a) < miscalibration(b) for a, b in _diffusion_pairs(rows))
        for problem, rows in _judged(records).items()
    }


def spreads(rows: Rows) -> list[tuple[float, float]]:
    """Decades that ``χ²`` covers over common tolerances: dynamic and fixed, setting by setting."""
    groups: dict[Any, list[tuple[float, float]]] = {}
    for a, b in _diffusion_pairs(rows):
        key = tuple(a[name] for name in _SETTING)
        groups.setdefault(key, []).append((np.log10(a["chi2"]), np.log10(b["chi2"])))
    ranges = [np.ptp(np.array(values), axis=0) for values in groups.values() if len(values) > 1]
    return [(float(a), float(b)) for a, b in ranges]


def _variation(records: Records) -> Figures:
    found = {}
    for problem, rows in _judged(records).items():
        pairs = spreads(rows)
        dynamic, fixed = np.median(pairs, axis=0) if pairs else (np.nan, np.nan)
        share = share_of(a < b for a, b in pairs)
        found[problem] = {"share": share, "dynamic": float(dynamic), "fixed": float(fixed)}
    return found


def _variation_rule(f: Figures) -> Finding:
    texts = {
        p: f"{v['dynamic']:.1f} decades against {v['fixed']:.1f}, less in {percent(v['share'])}"
        for p, v in f.items()
    }
    verdict, reason = across_problems({p: v["share"] > 0.5 for p, v in f.items()}, _FHN)
    return Finding(verdict, per_problem(texts), reason)


def majority(words: str, printed: str) -> Callable[[Figures], Finding]:
    """A share for each problem: the statement holds where it is above one half."""

    def rule(f: Figures) -> Finding:
        verdict, reason = across_problems({p: share > 0.5 for p, share in f.items()}, printed)
        return Finding(verdict, f"{words} in {per_problemshare_of(f)}", reason)

    return rule


def per_problemshare_of(f: Figures) -> str:
    """Shares, problem by problem."""
    return ", ".join(f"{percent(share)} ({problem})" for problem, share in f.items())


def _multivariate(records: Records) -> Figures:
    found = {}
    for problem, rows in _judged(records).items():
        pairs = [
            pair
            for scalar in ("fixed", "dynamic")
            for pair in paired(rows, "diffusion", f"{scalar}-mv", scalar, _EACH)
        ]
        if not pairs or pairs[0][0]["d"] == 1:
            continue  # one component: the two models are the same
        decades = [abs(np.log10(a["chi2"] / b["chi2"])) for a, b in pairs]
        found[problem] = float(10 ** np.median(decades))
    return found


def _multivariate_rule(f: Figures) -> Finding:
    texts = {p: f"{factor:.1f}" for p, factor in f.items()}
    verdict, reason = across_problems({p: v < _SMALL_FACTOR for p, v in f.items()}, _FHN)
    reason += f" (limit: a factor of {_SMALL_FACTOR:g})"
    return Finding(verdict, f"median factor between χ² of the two: {per_problem(texts)}", reason)


def _underconfidence(records: Records) -> Figures:
    return {
        problem: {
            solver: share_of(row["chi2"] < row["d"] for row in rows if row["solver"] == solver)
            for solver in ("EK1", "EK0")
        }
        for problem, rows in _judged(records).items()
    }


def _underconfidence_rule(f: Figures) -> Finding:
    """A tendency of EK1: in most of its runs, and more often than with EK0."""
    texts = {p: f"{percent(v['EK1'])} of runs (EK0: {percent(v['EK0'])})" for p, v in f.items()}
    holds = {p: v["EK1"] > max(0.5, v["EK0"]) for p, v in f.items()}
    verdict, reason = across_problems(holds, _FHN)
    return Finding(verdict, f"χ² below d in {per_problem(texts)}", reason)


def _lowest(records: Records) -> Figures:
    return {
        problem: share_of(
            a["error"] < b["error"] for a, b in paired(rows, "solver", "EK1", "EK0", _EACH)
        )
        for problem, rows in _judged(records).items()
    }


def _inside(records: Records) -> Figures:
    """Shares within the 99 % interval; a failed run is not within it."""
    found: Figures = {}
    for row in calibration.rows(list(records)):
        if row["success"] and not row["known"]:
            continue  # nobody can tell
        kind = "dynamic" if row["diffusion"].startswith("dynamic") else "fixed"
        inside = row["judged"] and row["chi2_low"] <= row["chi2"] <= row["chi2_high"]
        found.setdefault(row["problem"], {"dynamic": [], "fixed": []})[kind].append(inside)
    return {p: {k: share_of(x) for k, x in shares.items()} for p, shares in found.items()}


def _inside_rule(f: Figures) -> Finding:
    """Decent: at least half of the time-varying runs, and more than of the fixed ones."""
    texts = {p: f"{percent(v['dynamic'])} (fixed: {percent(v['fixed'])})" for p, v in f.items()}
    measured = f"time-varying models inside the 99 % interval: {per_problem(texts)}"
    half = {p: v["dynamic"] >= 0.5 for p, v in f.items()}
    more = {p: v["dynamic"] > v["fixed"] for p, v in f.items()}
    if all(not x for x in more.values()):
        return Finding(Verdict.NOT_CONFIRMED, measured, "not better than the fixed models")
    if all(half.values()) and all(more.values()):
        return Finding(Verdict.CONFIRMED, measured, "most runs on every problem")
    reason = (
        f"better than the fixed models on {sum(more.values())} of {len(f)} problems, but most runs "
        f"are inside the interval on {sum(half.values())}"
    )
    return Finding(Verdict.DIFFERS, measured, reason)


CLAIMS = (
    Claim(
        "better-calibrated",
        _CAL,
        "Section 6.2",
        "For most configurations time-varying diffusions are better calibrated than fixed ones",
        _better,
        majority("χ² nearer to d than with the fixed model", _FHN),
    ),
    Claim(
        "varies-less",
        _CAL,
        "Section 6.2",
        "Across tolerances, time-varying diffusions vary less in calibration than fixed ones",
        _variation,
        _variation_rule,
    ),
    Claim(
        "multivariate",
        _CAL,
        "Section 6.2",
        "Multivariate models have no large impact on χ²",
        _multivariate,
        _multivariate_rule,
    ),
    Claim(
        "underconfident",
        _CAL,
        "Section 6.2",
        "EKF1 and EKS1 tend to be underconfident",
        _underconfidence,
        _underconfidence_rule,
    ),
    Claim(
        "lowest-errors",
        _CAL,
        "Section 6.2",
        "EKF1 and EKS1 achieve the lowest errors",
        _lowest,
        majority("EK1's error below EK0's, same tolerance, order and diffusion,", _FHN),
    ),
    Claim(
        "decent",
        _CAL,
        "Section 7",
        "Decent calibration over a wide range of tolerances, above all if time-varying",
        _inside,
        _inside_rule,
    ),
)
