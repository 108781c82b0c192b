"""What the paper says of work and precision, against Dormand-Prince."""

from typing import NamedTuple

import numpy as np
from scipy import stats

from experiments import dormand_prince
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

_LV = "lotka-volterra"
_DP = dormand_prince.NAME
_RATE, _RATE_MARGIN = 6.0, 0.5
_ASYMPTOTIC = 1e-3
"""Errors below this are taken for the asymptotic regime; all solutions are of size one."""
_ROUNDING = 1e-11
"""Errors below this carry the rounding of thousands of steps."""
_MANY = 1.5
"""More evaluations than expected: at least so many times as many."""


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
        found[p] = {"share": share_of(ours < least), "factor": factor}
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


CLAIMS = (
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
