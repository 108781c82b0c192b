"""Figures of the comparisons: calibration and work-precision, Dormand-Prince."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments import calibration, dormand_prince
from experiments.claims import Records, percent
from experiments.figures import MARKERS, Figure, Style, plain_ticks
from experiments.settings import METHODS, PROBLEMS
from probode.posterior import plotting

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

Row = dict[str, Any]

_CHI2_LIMITS = (1e-8, 1e6)
_ERROR_LIMITS = (1e-15, 1e1)
TITLES = {
    "fitzhugh-nagumo": "FitzHugh-Nagumo",
    "lotka-volterra": "Lotka-Volterra",
    "logistic": "Logistic equation",
    "brusselator": "Brusselator",
}


def _of(records: Records, problem: str) -> list[Row]:
    return [row for row in calibration.rows(list(records)) if row["problem"] == problem]


def _draw_grid(
    problem: str, draw: Callable[..., None], labels: Row, records: Records, style: Style
) -> "Drawing":
    """Filters above smoothers, one column for each solver and diffusion, a line for each order."""
    plt = plotting.pyplot()
    rows = _of(records, problem)
    orders = sorted({row["order"] for row in rows})
    drawing, axes = plt.subplots(
        2, len(METHODS), figsize=(15, 7), sharex=True, sharey=True, squeeze=False
    )
    # A constrained layout of so many panels takes seconds.
    drawing.subplots_adjust(0.055, 0.075, 0.99, 0.89, wspace=0.08, hspace=0.16)
    for i, view in enumerate(("filter", "smoother")):
        for j, (solver, diffusion) in enumerate(METHODS):
            panel = axes[i, j]
            for order in orders:
                wanted = (view, solver, diffusion, order)
                line = [
                    row
                    for row in rows
                    if tuple(row[k] for k in ("view", "solver", "diffusion", "order")) == wanted
                ]
                line.sort(key=lambda row: -row["rtol"])
                draw(panel, line, style.orders[order - 1], MARKERS[order - 1], order)
            name = f"EK{'FS'[i]}{solver[-1]} {diffusion}"
            panel.set_title(name, fontsize=11)
            panel.set(**labels["scales"])
            panel.minorticks_off()  # hundreds of them, which take longer than all lines
            if i == 1:
                panel.set_xlabel(labels["x"])
            if j == 0:
                panel.set_ylabel(labels["y"])
    _legend(drawing, axes[0, 0], orders, style)
    return drawing


def _legend(drawing: Any, panel: Any, orders: list[int], style: Style) -> None:
    lines = [
        panel.plot([], [], color=style.orders[q - 1], marker=MARKERS[q - 1], ms=5, label=f"q = {q}")
        for q in orders
    ]
    mark = panel.plot([], [], "x", color=style.ink, label="failed")
    hollow = panel.plot(
        [], [], "o", color=style.ink, mfc="none", label="hollow: error below the reference's"
    )
    edge = panel.plot(
        [], [], ls="", marker="$\\updownarrow$", color=style.ink, label="off the axis"
    )
    handles = [line[0] for line in (*lines, mark, hollow, edge)]
    drawing.legend(handles=handles, loc="upper center", ncols=len(handles), fontsize=10)


def _draw_chi2(d: int, panel: Any, line: list[Row], color: str, marker: str, order: int) -> None:
    low, high = _CHI2_LIMITS
    x = np.array([row["rtol"] for row in line])
    y = np.array([row["chi2"] for row in line])
    _draw_line(panel, line, x, y, (low, high), color, marker)
    failed = [row["rtol"] for row in line if not row["success"]]
    # Failed runs sit above the axis' data, orders side by side.
    panel.plot(failed, [high / 10 ** (0.35 * order)] * len(failed), "x", color=color, ms=6)


def _draw_work(panel: Any, line: list[Row], color: str, marker: str, order: int) -> None:
    x = np.array([row["evaluations"] for row in line], float)
    y = np.array([row["error"] for row in line])
    _draw_line(panel, line, x, y, _ERROR_LIMITS, color, marker)
    failed = [row["evaluations"] for row in line if not row["success"]]
    high = _ERROR_LIMITS[1]
    panel.plot(failed, [high / 10 ** (0.4 * order)] * len(failed), "x", color=color, ms=6)


def _draw_line(
    panel: Any,
    line: list[Row],
    x: np.ndarray,
    y: np.ndarray,
    limits: tuple[float, float],
    color: str,
    marker: str,
) -> None:
    """A line with full markers; hollow where the reference is no better; arrows off the axis."""
    low, high = limits
    inside = np.clip(y, low, high)
    known = np.array([row["known"] for row in line], bool)
    panel.plot(x, inside, color=color, lw=1.3)
    for mask, face in ((known, color), (~known, "none")):
        panel.plot(x[mask], inside[mask], ls="", marker=marker, ms=4.2, color=color, mfc=face)
    for mask, arrow in ((y > high, "$\\uparrow$"), (y < low, "$\\downarrow$")):
        panel.plot(x[mask], inside[mask], ls="", marker=arrow, ms=9, color=color, clip_on=False)


def _draw_calibration(problem: str, records: Records, style: Style) -> "Drawing":
    rows = _of(records, problem)
    d = rows[0]["d"]
    labels = {
        "x": "relative tolerance",
        "y": "χ²",
        "scales": {"xscale": "log", "yscale": "log", "ylim": _CHI2_LIMITS},
    }
    drawing = _draw_grid(problem, partial(_draw_chi2, d), labels, records, style)
    for k, panel in enumerate(drawing.axes):
        panel.axhspan(rows[0]["chi2_low"], rows[0]["chi2_high"], color=style.band, alpha=0.22, lw=0)
        panel.axhline(d, color=style.band, lw=1)
        if k == 0:
            panel.set_xticks([1e-1, 1e-4, 1e-7, 1e-10])
            panel.set_xlim(2 * max(r["rtol"] for r in rows), min(r["rtol"] for r in rows) / 2)
    note = f"■ 99 % interval, d = {d}"
    drawing.text(0.99, 0.965, note, color=style.band, ha="right", fontsize=10)
    return drawing


def _draw_work_precision(problem: str, records: Records, style: Style) -> "Drawing":
    labels = {
        "x": "evaluations of f and Jacobian",
        "y": "error (RMS)",
        "scales": {"xscale": "log", "yscale": "log", "ylim": _ERROR_LIMITS},
    }
    drawing = _draw_grid(problem, _draw_work, labels, records, style)
    level = _of(records, problem)[0]["reference_level"]
    for panel in drawing.axes:
        panel.axhspan(_ERROR_LIMITS[0], level, color=style.faint, alpha=0.6, lw=0)
    text = "below the reference's own error"
    place: Row = {"transform": drawing.axes[0].get_yaxis_transform(), "fontsize": 8.5, "va": "top"}
    drawing.axes[0].text(0.03, level * 0.8, text, **place)
    return drawing


def _shares(rows: list[Row]) -> str:
    """How many of the judged runs lie inside, below and above the interval."""
    judged = [row for row in rows if row["judged"]]
    if not judged:
        return "none to judge"
    below = np.mean([row["chi2"] < row["chi2_low"] for row in judged])
    above = np.mean([row["chi2"] > row["chi2_high"] for row in judged])
    inside = percent(1 - below - above)
    return f"{inside} inside, {percent(below)} below, {percent(above)} above"


def _caption_calibration(problem: str, records: Records) -> tuple[str, str]:
    rows = _of(records, problem)
    failed = sum(not row["success"] for row in rows if row["view"] == "filter")
    shares = {
        kind: _shares([row for row in rows if row["diffusion"].startswith(kind)])
        for kind in ("dynamic", "fixed")
    }
    return (
        "Calibration over tolerances: inside the green interval error bars are right, below it too "
        f"wide (underconfident), above it too narrow. {failed} of {len(rows) // 2} solves failed.",
        f"Time-varying diffusions: {shares['dynamic']}. Fixed diffusions: {shares['fixed']}.",
    )


def _caption_work(problem: str, records: Records) -> tuple[str, str]:
    rows = [row for row in _of(records, problem) if row["judged"] and row["view"] == "smoother"]
    best = min(rows, key=lambda row: row["evaluations"] * row["error"] ** (1 / 6))
    return (
        "Error (root mean square over 1000 times) against evaluations of f and Jacobian, rejected "
        "steps included.",
        f"The cheapest smoother for its error (evaluations × error^(1/6)) is {best['solver']}"
        f"({best['order']}), {best['diffusion']}: {best['error']:.1e} with {best['evaluations']}.",
    )


def _draw_against(quantity: str, label: str, records: Records, style: Style) -> "Drawing":
    plt = plotting.pyplot()
    rows = dormand_prince.rows(list(records))
    drawing, axes = plt.subplots(2, 2, figsize=(13, 9), sharey=True)
    drawing.subplots_adjust(0.07, 0.06, 0.985, 0.91, wspace=0.05, hspace=0.2)
    looks = {
        "EKF0": (style.palette[0], ":", "o"),
        "EKS0": (style.palette[0], "-", "o"),
        "EKF1": (style.palette[1], ":", "s"),
        "EKS1": (style.palette[1], "-", "s"),
        "DP5": (style.palette[3], "--", "D"),
    }
    for panel, problem in zip(axes.flat, PROBLEMS, strict=True):
        for name, (color, dash, marker) in looks.items():
            line = [r for r in rows if (r["problem"], r["algorithm"]) == (problem, name)]
            line.sort(key=lambda row: -row["rtol"])
            x = np.array([row[quantity] for row in line], float)
            y = np.array([row["error"] for row in line])
            known = np.array([row["known"] for row in line], bool)
            panel.plot(x, y, color=color, ls=dash, lw=1.6)
            panel.plot(x[known], y[known], ls="", color=color, marker=marker, ms=5)
            panel.plot(x[~known], y[~known], ls="", color=color, marker=marker, ms=5, mfc="none")
            failed = [r["evaluations"] for r in line if not r["success"]]
            if quantity == "evaluations":
                panel.plot(failed, [1.0] * len(failed), "x", color=color)
        level = next(r for r in rows if r["problem"] == problem)["reference_level"]
        panel.axhspan(1e-16, level, color=style.faint, alpha=0.6, lw=0)
        panel.set(xscale="log", yscale="log", ylim=(1e-15, 2.0), title=TITLES[problem])
        plain_ticks(panel.xaxis)
        if quantity == "evaluations":
            _slope(panel, style)
    for panel in axes[1]:
        panel.set_xlabel(label)
    for panel in axes[:, 0]:
        panel.set_ylabel("error (RMS)")
    handles = [
        axes[0, 0].plot([], [], color=c, ls=dash, marker=m, ms=5, label=name)[0]
        for name, (c, dash, m) in looks.items()
    ]
    drawing.legend(handles=handles, loc="upper center", ncols=len(handles), fontsize=11)
    return drawing


def _slope(panel: Any, style: Style) -> None:
    """A line of slope -6 in the lower left, to compare with."""
    left, _ = panel.get_xlim()
    x = left * np.array([1.3, 1.3 * 10**0.75])
    y = 1e-7 * (x / x[0]) ** -6.0
    panel.plot(x, y, color=style.ink, lw=1, alpha=0.7)
    middle = np.sqrt(x.prod()), np.sqrt(y.prod())
    panel.annotate("rate 6", middle, (-6, -6), textcoords="offset points", ha="right", va="top")


def _caption_evaluations(records: Records) -> tuple[str, str]:
    rows = [r for r in dormand_prince.rows(list(records)) if r["problem"] == "lotka-volterra"]
    loosest = {r["algorithm"]: r for r in sorted(rows, key=lambda r: r["rtol"])}
    return (
        "Solvers of order five (dynamic diffusion) and Dormand-Prince: error over the interval "
        "against evaluations. Shaded: below the reference's own error.",
        f"At the loosest tolerance on Lotka-Volterra EK0 takes {loosest['EKS0']['evaluations']} "
        f"evaluations, EK1 {loosest['EKS1']['evaluations']}, Dormand-Prince "
        f"{loosest['DP5']['evaluations']}.",
    )


def _caption_seconds(records: Records) -> tuple[str, str]:
    rows = [r for r in dormand_prince.rows(list(records)) if np.isfinite(r["seconds"])]
    micro = {
        name: np.median([1e6 * r["seconds"] / r["steps"] for r in rows if r["algorithm"] == name])
        for name in ("EKS1", "EKF1", "DP5")
    }
    return (
        "Error against seconds (compiled beforehand; solution at the steps). Not in the paper. "
        "Dormand-Prince is SciPy's, written in Python.",
        f"Median microseconds a step: EKF1 {micro['EKF1']:.0f}, EKS1 {micro['EKS1']:.0f}, "
        f"Dormand-Prince {micro['DP5']:.0f} (of six evaluations).",
    )


FIGURES = (
    *(
        Figure(
            f"{kind}-{problem}",
            calibration.NAME,
            f"{TITLES[problem]}: {title}",
            partial(caption, problem),
            partial(draw, problem),
        )
        for problem in PROBLEMS
        for kind, title, caption, draw in (
            ("calibration", "calibration", _caption_calibration, _draw_calibration),
            ("work-precision", "work and precision", _caption_work, _draw_work_precision),
        )
    ),
    Figure(
        "dormand-prince-evaluations",
        dormand_prince.NAME,
        "Error against evaluations",
        _caption_evaluations,
        partial(_draw_against, "evaluations", "evaluations of f and Jacobian"),
    ),
    Figure(
        "dormand-prince-seconds",
        dormand_prince.NAME,
        "Error against wall time",
        _caption_seconds,
        partial(_draw_against, "seconds", "seconds"),
    ),
)
