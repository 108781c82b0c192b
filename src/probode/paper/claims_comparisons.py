"""What the paper says of its comparisons: calibration, and work against Dormand-Prince."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from probode.paper import calibration, dormand_prince
from probode.paper.claims import (
    Claim,
    Figures,
    Finding,
    Verdict,
    across_problems,
    per_problem,
    percent,
)

Records = Sequence[dict[str, Any]]
Rows = list[dict[str, Any]]

_SETTING = ("solver", "view", "diffusion", "order")
_SMALL_FACTOR = 3.0
"""A change of χ² by less than this factor is not a large one: settings move it by decades."""
_RATE, _RATE_MARGIN = 6.0, 0.5
_ASYMPTOTIC = 1e-3
"""Errors below this are taken for the asymptotic regime; all solutions are of size one."""
_ROUNDING = 1e-11
"""Errors below this carry the rounding of thousands of steps."""
_MANY = 1.5
"""More evaluations than expected: at least so many times as many."""


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


def _share(truths: Iterable[Any]) -> float:
    values = list(truths)
    return float(np.mean(values)) if values else float("nan")


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
        problem: _share(miscalibration(a) < miscalibration(b) for a, b in _diffusion_pairs(rows))
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
        share = _share(a < b for a, b in pairs)
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
        return Finding(verdict, f"{words} in {per_problem_share(f)}", reason)

    return rule


def per_problem_share(f: Figures) -> str:
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
            solver: _share(row["chi2"] < row["d"] for row in rows if row["solver"] == solver)
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
        problem: _share(
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
    return {p: {k: _share(x) for k, x in shares.items()} for p, shares in found.items()}


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


def curve(rows: Rows, problem: str, algorithm: str, error: str = "error") -> np.ndarray:
    """Logarithms of evaluations and errors, from loose to tight; what is known only."""
    known = "known" if error == "error" else "final_known"
    mine = [r for r in rows if (r["problem"], r["algorithm"]) == (problem, algorithm)]
    mine = sorted((r for r in mine if r[known] and r[error] > 0), key=lambda r: -r["rtol"])
    return np.log10([[r["evaluations"], r[error]] for r in mine]).reshape(-1, 2)


class Line(NamedTuple):
    """``log error = offset - rate log evaluations``, and the standard error of the rate."""

    rate: float
    offset: float
    uncertainty: float


def fitted_line(points: np.ndarray) -> Line | None:
    """Least squares where errors are small, but not yet of rounding size; None with few points.

    Stability-limited runs, whose evaluations hardly change with the tolerance, say nothing about
    the rate: the fit begins after the last decade of tolerance that costs less than a tenth more.
    """
    errors = points[:, 1]
    small = points[(errors < np.log10(_ASYMPTOTIC)) & (errors > np.log10(_ROUNDING))]
    stuck = np.flatnonzero(np.diff(small[:, 0]) <= np.log10(1.1))
    small = small[stuck[-1] + 2 :] if len(stuck) else small
    if len(small) < 3:
        return None
    x, y = small.T
    found = stats.linregress(x, y)
    return Line(-float(found.slope), float(found.intercept), float(found.stderr))


def _rates(records: Records) -> Figures:
    """Rate and its standard error for each problem and algorithm, where there is a line."""
    rows = dormand_prince.rows(list(records))
    found: Figures = {}
    for p in dict.fromkeys(r["problem"] for r in rows):
        lines = {a: fitted_line(curve(rows, p, a)) for a in dormand_prince.ALGORITHMS}
        found[p] = {a: line and [line.rate, line.uncertainty] for a, line in lines.items()}
    return found


def _rates_rule(f: Figures) -> Finding:
    """Confirmed: every rate on the paper's problem is 6 ± 0.5, up to two standard errors."""

    def text(rates: Figures) -> str:
        shown = (f"{a} {f'{r[0]:.1f} ± {r[1]:.1f}' if r else '-'}" for a, r in rates.items())
        return ", ".join(shown)

    measured = per_problem({p: text(rates) for p, rates in f.items()})
    rates = {a: r for a, r in f[_LV].items() if r}
    off = [a for a, (r, error) in rates.items() if abs(r - _RATE) > _RATE_MARGIN + 2 * error]
    missing = [a for a in f[_LV] if a not in rates]
    if rates and not off and not missing:
        return Finding(Verdict.CONFIRMED, measured, f"all 6 ± {_RATE_MARGIN:g} on {_LV}")
    if len(off) < len(rates):
        reasons = [f"outside 6 ± {_RATE_MARGIN:g}: {', '.join(off)}"] if off else []
        reasons += [f"too few points: {', '.join(missing)}"] if missing else []
        return Finding(Verdict.DIFFERS, measured, f"on {_LV} {'; '.join(reasons)}")
    return Finding(Verdict.NOT_CONFIRMED, measured, f"no rate is 6 ± {_RATE_MARGIN:g}")


def _excess(records: Records) -> Figures:
    """At the loosest tolerance: evaluations over those that the fitted line asks for."""
    rows = dormand_prince.rows(list(records))
    found: Figures = {}
    for p in dict.fromkeys(r["problem"] for r in rows):
        found[p] = {}
        for a in ("EKF0", "EKS1"):
            points = curve(rows, p, a)
            line = fitted_line(points)
            if line is None:
                # No asymptotic regime at all: more than any line asks for.
                found[p][a] = float("inf")
                continue
            expected = (line.offset - points[0, 1]) / line.rate
            found[p][a] = float(10 ** (points[0, 0] - expected))
    return found


def _excess_rule(f: Figures) -> Finding:
    def text(v: dict[str, float]) -> str:
        return ", ".join(
            f"{a} {'never on a line' if np.isinf(x) else f'{x:.1f} times'}" for a, x in v.items()
        )

    measured = per_problem({p: text(v) for p, v in f.items()})
    holds = {p: v["EKF0"] >= _MANY and v["EKF0"] > v["EKS1"] for p, v in f.items()}
    verdict, reason = across_problems(holds, _LV)
    return Finding(verdict, f"evaluations at the loosest tolerance: {measured}", reason)


def evaluations_at(points: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Logarithm of the evaluations at which errors are reached, on the line through the points.

    A curve that turns back counts with its best: the fewest evaluations that reach an error.
    """
    if len(points) < 2:
        return np.full(len(levels), np.nan)
    lowest = np.minimum.accumulate(points[:, 1])
    needed = np.interp(levels, lowest[::-1], points[::-1, 0])
    outside = (levels > lowest[0]) | (levels < lowest[-1])
    return np.where(outside, np.nan, needed)


_LEVELS = np.arange(-2.0, -12.1, -0.25)


def _fewest(records: Records) -> Figures:
    """Over error levels that all methods reach: how often EKS1 is cheapest, and by how much."""
    rows = dormand_prince.rows(list(records))
    found: Figures = {}
    for p in dict.fromkeys(r["problem"] for r in rows):
        needed = {a: evaluations_at(curve(rows, p, a), _LEVELS) for a in dormand_prince.ALGORITHMS}
        common = np.isfinite(np.array(list(needed.values()))).all(0)
        ours = needed.pop("EKS1")[common]
        rivals = {a: n[common] for a, n in needed.items()}
        least = np.min(list(rivals.values()), axis=0) if common.any() else np.array([])
        factor = {
            a: float(10 ** np.median(n - ours)) if len(n) else np.nan for a, n in rivals.items()
        }
        found[p] = {"share": _share(ours < least), "factor": factor}
    return found


def _fewest_rule(f: Figures) -> Finding:
    texts = {p: f"{percent(v['share'])} of error levels" for p, v in f.items()}
    factors = ", ".join(f"{a} {x:.2f}" for a, x in f[_LV]["factor"].items())
    measured = f"EKS1 needs the fewest at {per_problem(texts)}; on {_LV} times as many: {factors}"
    verdict, reason = across_problems({p: v["share"] > 0.5 for p, v in f.items()}, _LV)
    cheaper = [a for a, x in f[_LV]["factor"].items() if x < 1.0]
    if cheaper:
        reason += f"; there cheaper at most levels: {', '.join(cheaper)}"
    return Finding(verdict, measured, reason)


def _classic_rule(f: Figures) -> Finding:
    factors = {p: v["factor"]["DP5"] for p, v in f.items()}
    texts = {p: f"{x:.2f} times as many" for p, x in factors.items()}
    verdict, reason = across_problems({p: x > 1.0 for p, x in factors.items()}, _LV)
    return Finding(verdict, f"DP5 against EKS1, median over errors: {per_problem(texts)}", reason)


def _alike(records: Records) -> Figures:
    rows = dormand_prince.rows(list(records))
    found = {}
    for p in dict.fromkeys(r["problem"] for r in rows):
        a, b = (curve(rows, p, name) for name in ("EKF0", "EKS0"))
        n = min(len(a), len(b))
        found[p] = float(10 ** np.median(np.abs(a[-n:, 1] - b[-n:, 1])))
    return found


def _alike_rule(f: Figures) -> Finding:
    texts = {p: f"{x:.2f}" for p, x in f.items()}
    verdict, reason = across_problems({p: x < 2.0 for p, x in f.items()}, _LV)
    return Finding(verdict, f"median factor between their errors: {per_problem(texts)}", reason)


_FHN, _LV = "fitzhugh-nagumo", "lotka-volterra"
_CAL, _DP = calibration.NAME, dormand_prince.NAME


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
    Claim(
        "rates",
        _DP,
        "Section 6.3",
        "Convergence rates of order 6 for all methods (IWP(5))",
        _rates,
        _rates_rule,
    ),
    Claim(
        "loose",
        _DP,
        "Section 6.3",
        "EKF0 needs more evaluations than expected at loose tolerances, EKS1 does not",
        _excess,
        _excess_rule,
    ),
    Claim(
        "fewest",
        _DP,
        "Section 6.3",
        "EKS1 needs the fewest evaluations (f and Jacobian) for an error",
        _fewest,
        _fewest_rule,
    ),
    Claim(
        "classic",
        _DP,
        "Section 7",
        "EKS1 needs fewer evaluations than Dormand-Prince for an error",
        _fewest,
        _classic_rule,
    ),
    Claim(
        "alike",
        _DP,
        "Figure 5",
        "EKF0 and EKS0 perform so alike that their curves are hard to tell apart",
        _alike,
        _alike_rule,
    ),
)
