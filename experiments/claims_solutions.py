"""What the paper says of single solutions: Lotka-Volterra, Van der Pol, the structure of bands."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from experiments import lotka_volterra, structure, van_der_pol
from experiments.claims import Claim, Figures, Finding, Records, Verdict, yes_if

_VISIBLE = 1 / 200
"""A band narrower than this part of the axis cannot be told from a line of ordinary width."""
_CLOSE = 0.05
"""Relative difference up to which counts of iterations are the same: rounding and details of the
control move single decisions of the step size control."""
_STRUCTURED = 0.8
"""Rank correlation with the true error from which on a band shows its structure."""


def _band(records: Records) -> Figures:
    (record,) = records
    return {"share": record["band_to_range"]}


def _band_rule(f: Figures) -> Finding:
    text = f"widest 95 % band: {100 * f['share']:.2g} % of the solution's range"
    limit = f"a line of ordinary width covers {100 * _VISIBLE:g} %"
    return Finding(yes_if(f["share"] < _VISIBLE), text, limit)


def _pattern(records: Records) -> Figures:
    (record,) = records
    low, high = np.quantile(record["sample_patterns"], [0.005, 0.995])
    figures = {name: record[name] for name in ("pattern", "chi2", "sample_chi2")}
    return {**figures, "pattern_low": float(low), "pattern_high": float(high)}


def _pattern_rule(f: Figures) -> Finding:
    """Pattern: no worse than the samples' own. Calibrated: as large as the samples are."""
    similar = f["pattern"] >= f["pattern_low"]
    low, high = f["sample_chi2"]
    calibrated = low <= f["chi2"] <= high
    measured = (
        f"correlation of |error| with the band {f['pattern']:.2f} (99 % of samples: "
        f"{f['pattern_low']:.2f} to {f['pattern_high']:.2f}); χ² {f['chi2']:.2g} (99 % of samples: "
        f"{low:.2g} to {high:.2g})"
    )
    if similar and calibrated:
        return Finding(Verdict.CONFIRMED, measured, "pattern and size are those of the samples")
    if similar:
        side = "smaller" if f["chi2"] < low else "larger"
        factor = np.sqrt(f["chi2"] / 2) if f["chi2"] > high else np.sqrt(2 / f["chi2"])
        reason = f"the pattern is that of the samples, but the true error is {factor:.2g} times "
        return Finding(Verdict.DIFFERS, measured, f"{reason}{side} than calibrated")
    return Finding(Verdict.NOT_CONFIRMED, measured, "the band is wide where the error is not large")


def start_name(y0: Sequence[float]) -> str:
    """A start in words."""
    return f"({y0[0]:.3g}, {y0[1]:.3g})"


def _of(records: Records, kind: str) -> list[dict[str, Any]]:
    return [record for record in records if record["kind"] == kind]


def by_start(name: str) -> Callable[[Records], Figures]:
    """One figure of the adaptive runs, from the published and from the printed start."""
    published, printed = van_der_pol.STARTS

    def measure(records: Records) -> Figures:
        values = {start_name(record["y0"]): record[name] for record in _of(records, "adaptive")}
        return {"published": values[start_name(published)], "printed": values[start_name(printed)]}

    return measure


def matches(said: float, tolerance: float, form: str) -> Callable[[Figures], Finding]:
    """A printed number: reproduced from the printed start, from the other one, or from none."""
    published, printed = map(start_name, van_der_pol.STARTS)

    def rule(f: Figures) -> Finding:
        away = {name: f[name] / said - 1.0 for name in ("printed", "published")}
        measured = (
            f"from {printed}: {f['printed']:{form}} ({100 * away['printed']:+.1f} %); "
            f"from {published}: {f['published']:{form}} ({100 * away['published']:+.1f} %)"
        )
        if abs(away["printed"]) <= tolerance:
            reason = f"within {100 * tolerance:g} % from the printed start"
            return Finding(Verdict.CONFIRMED, measured, reason)
        if abs(away["published"]) <= tolerance:
            reason = f"the number belongs to the start {published}, not to the printed {printed}"
            return Finding(Verdict.DIFFERS, measured, reason)
        return Finding(Verdict.NOT_CONFIRMED, measured, f"off by more than {100 * tolerance:g} %")

    return rule


def _steps(records: Records) -> Figures:
    runs = _of(records, "adaptive")
    return {name: [run[name] for run in runs] for name in ("smallest_step", "largest_step")}


def _steps_rule(f: Figures) -> Finding:
    largest, smallest = min(f["largest_step"]), max(f["smallest_step"])
    text = f"from {largest:.1e} down to {smallest:.1e}, from either start"
    holds = 3e-3 <= largest <= 3e-2 and smallest < 1e-8
    return Finding(yes_if(holds), text, f"a ratio of {largest / smallest:.1e}")


def _seconds(records: Records) -> Figures:
    run = _of(records, "adaptive")[0]
    names = ("smoother_seconds", "smoother_microseconds", "filter_seconds", "filter_microseconds")
    return {name: run[name] for name in names}


def _seconds_rule(f: Figures) -> Finding:
    seconds = f["smoother_seconds"]
    measured = (
        f"smoother {seconds:.2f} s ({f['smoother_microseconds']:.1f} µs an iteration), filter "
        f"{f['filter_seconds']:.2f} s ({f['filter_microseconds']:.1f} µs), compiled beforehand"
    )
    if 0.5 <= seconds <= 2.0:
        return Finding(Verdict.CONFIRMED, measured, "within a factor of two of a second")
    if seconds < 0.5:
        return Finding(Verdict.DIFFERS, measured, f"{1 / seconds:.1f} times as fast")
    return Finding(Verdict.NOT_CONFIRMED, measured, f"{seconds:.1f} times as slow")


def _hours(records: Records) -> Figures:
    (fixed,) = _of(records, "fixed-step")
    run = _of(records, "adaptive")[0]
    ratio = fixed["steps"] / run["steps"]
    names = ("steps", "microseconds", "hours")
    return {**{k: fixed[k] for k in names}, "ratio": ratio, "seconds": run["smoother_seconds"]}


def _hours_rule(f: Figures) -> Finding:
    measured = (
        f"{f['steps']:.2g} iterations of {f['microseconds']:.1f} µs: {f['hours']:.1f} h, against "
        f"{f['seconds']:.2f} s with step size control"
    )
    if abs(f["steps"] / 6.3e8 - 1) > _CLOSE:
        return Finding(Verdict.NOT_CONFIRMED, measured, "another number of iterations")
    if f["hours"] > 7.0:
        return Finding(Verdict.CONFIRMED, measured, f"{f['ratio']:.0f} times the iterations")
    reason = f"iterations are faster here; their number still grows {f['ratio']:.0f} times"
    return Finding(Verdict.DIFFERS, measured, reason)


def _explicit(records: Records) -> Figures:
    return {"runs": _of(records, "explicit")}


def _explicit_rule(f: Figures) -> Finding:
    """Confirmed: no run reached the end within its budget, and each said why."""
    runs = f["runs"]
    ends = [
        f"from {start_name(run['y0'])}: {run['status']} at t = {run['t_reached']:.2g} after "
        f"{run['steps']} steps"
        for run in runs
    ]
    reached = [run for run in runs if run["success"]]
    silent = [run for run in runs if not run["message"]]
    if reached:
        reason = f"{len(reached)} of {len(runs)} runs reached the end"
        return Finding(Verdict.NOT_CONFIRMED, "; ".join(ends), reason)
    if silent:
        return Finding(Verdict.DIFFERS, "; ".join(ends), "stopped without a message")
    needed = min(run["steps"] * 6.3 / max(run["t_reached"], 1e-300) for run in runs)
    reason = f"stopped with a message; at this pace {needed:.0e} steps or more would be needed"
    return Finding(Verdict.CONFIRMED, "; ".join(ends), reason)


def model_name(record: dict[str, Any]) -> str:
    """A smoother in the paper's abbreviation."""
    return f"EKS{record['solver'][-1]} {record['diffusion']}"


def _models(records: Records) -> Figures:
    return {
        model_name(r): {k: r[k] for k in ("structure", "band_ratio", "band_difference")}
        for r in records
    }


def _shared_rule(f: Figures) -> Finding:
    difference = f["EKS0 dynamic"]["band_difference"]
    text = f"largest relative difference between the two standard deviations: {difference:.1g}"
    return Finding(yes_if(difference < 1e-6), text, "one diffusion and no coupling: C ⊗ I")


def _lifted_rule(f: Figures) -> Finding:
    """Large for the first component, barely visible for the second: a factor of five or more."""
    ratio = f["EKS0 dynamic-mv"]["band_ratio"]
    text = f"median ratio of the standard deviations, y1 to y2: {ratio:.1f}"
    if ratio >= 5.0:
        return Finding(Verdict.CONFIRMED, text, "the band of y2 is a fifth of that of y1 or less")
    if ratio > 1.5:
        return Finding(Verdict.DIFFERS, text, "different bands, but both of visible size")
    return Finding(Verdict.NOT_CONFIRMED, text, "no larger band for y1")


def _only_ek1_rule(f: Figures) -> Finding:
    worst = {name: min(model["structure"]) for name, model in f.items()}
    measured = "correlation of |error| with the band, the worse component: " + ", ".join(
        f"{name} {value:.2f}" for name, value in worst.items()
    )
    best = worst.pop("EKS1 dynamic")
    rivals = [name for name, value in worst.items() if value >= _STRUCTURED]
    if best < _STRUCTURED or best <= max(worst.values()):
        return Finding(Verdict.NOT_CONFIRMED, measured, "EKS1's band is not the one that fits")
    if rivals:
        reason = f"EKS1 is best, but {', '.join(rivals)} also reach {_STRUCTURED:g}"
        return Finding(Verdict.DIFFERS, measured, reason)
    return Finding(Verdict.CONFIRMED, measured, f"only EKS1 reaches {_STRUCTURED:g}")


_LV, _VDP, _ST = lotka_volterra.NAME, van_der_pol.NAME, structure.NAME

CLAIMS = (
    Claim("band", _LV, "Figure 1", "The uncertainty is too small to be seen", _band, _band_rule),
    Claim(
        "pattern",
        _LV,
        "Figure 1",
        "True error and sampled errors show similar patterns: structured and calibrated",
        _pattern,
        _pattern_rule,
    ),
    Claim(
        "iterations",
        _VDP,
        "Section 6.1",
        "23824 iterations, from (0, √3)",
        by_start("steps"),
        matches(23824, _CLOSE, ".0f"),
    ),
    Claim(
        "rejections",
        _VDP,
        "Section 6.1",
        "6977 of the steps are rejected",
        by_start("rejected"),
        matches(6977, _CLOSE, ".0f"),
    ),
    Claim(
        "final-error",
        _VDP,
        "Section 6.1",
        "Final error 6.17e-2",
        by_start("final_error"),
        matches(6.17e-2, 2 * _CLOSE, ".3g"),
    ),
    Claim(
        "steps",
        _VDP,
        "Section 6.1",
        "Steps shrink from about 1e-2 to below 1e-8",
        _steps,
        _steps_rule,
    ),
    Claim("seconds", _VDP, "Section 6.1", "About one second", _seconds, _seconds_rule),
    Claim(
        "hours",
        _VDP,
        "Section 6.1",
        "A fixed step of 1e-8 takes 6.3e8 iterations and more than 7 hours",
        _hours,
        _hours_rule,
    ),
    Claim("explicit", _VDP, "Section 6.1", "EKS0 cannot solve it", _explicit, _explicit_rule),
    Claim(
        "shared-band",
        _ST,
        "Section 6.2",
        "EKS0, scalar time-varying: the same band in both dimensions",
        _models,
        _shared_rule,
    ),
    Claim(
        "separate-bands",
        _ST,
        "Section 6.2",
        "EKS0, multivariate: a large band for y1, a barely visible one for y2",
        _models,
        _lifted_rule,
    ),
    Claim(
        "only-ek1",
        _ST,
        "Section 6.2",
        "Only EKS1 describes the structure of the true error",
        _models,
        _only_ek1_rule,
    ),
)
