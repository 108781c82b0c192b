"""Work-precision figures: time against error, one for each problem, lines labelled directly."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import NullFormatter

from benchmarks import problems
from benchmarks.measure import Point, Results
from benchmarks.solvers import SOLVERS
from benchmarks.table import by_curve, envelope

# Okabe and Ito's colours, which survive colour blindness, for ours; the peers stay behind them and
# are told apart by lightness, dashes and their labels.
OURS = {
    "EK0(3)": "#56b4e9",
    "EK0(5)": "#0072b2",
    "EK0(3)x2": "#56b4e9",
    "EK0(5)x2": "#0072b2",
    "EK0(7)x2": "#332288",
    "EK1(3)": "#e69f00",
    "EK1(5)": "#d55e00",
    "EK1(8)": "#cc79a7",
    "auto": "#009e73",
}
PEERS: dict[str, dict[str, Any]] = {
    "probdiffeq": {"color": "#117733", "linestyle": (0, (4, 1.5))},
    "diffrax": {"color": "#222222", "linestyle": "-"},
    "SciPy": {"color": "#777777", "linestyle": (0, (1, 1))},
    "CVODE": {"color": "#8a6d3b", "linestyle": (0, (6, 1.5, 1, 1.5))},
}
LARGEST, SMALLEST = 1e-1, 1e-14


def draw(results: Results, out: Path) -> list[Path]:
    """One PNG for each problem."""
    curves = by_curve(results.points)
    paths = []
    for name in dict.fromkeys(problem for problem, _ in curves):
        own = {solver: points for (p, solver), points in curves.items() if p == name}
        path = out / f"work_precision-{name}.png"
        _panel(name, own, path)
        paths.append(path)
    return paths


def _panel(name: str, curves: dict[str, list[Point]], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(7.6, 5.2), layout="constrained")
    ends = []
    for solver, points in curves.items():
        family = SOLVERS[solver].family
        if family == "smoother":
            continue
        front = envelope((point.error, point.seconds) for point in points)
        front = [(e, s) for e, s in front if e < LARGEST]
        if not front:
            continue
        style = _style(solver)
        error, seconds = np.array(front).T
        error = np.maximum(error, SMALLEST)
        axes.plot(error, seconds, marker="o", markersize=3 if family == "probode" else 2, **style)
        ends.append((float(error[-1]), float(seconds[-1]), solver, style["color"]))
    axes.set(xscale="log", yscale="log", xlabel="error at the end", ylabel="seconds")
    axes.set_xlim(LARGEST, min((e for e, *_ in ends), default=1e-12) / 2)
    low, high = axes.get_ylim()
    if high > 10 * low:
        axes.yaxis.set_minor_formatter(NullFormatter())
    title = problems.get(name).title if name in problems.NAMES else name
    axes.set_title(f"{title}: time to an error (lower is better)", loc="left", fontsize=11)
    axes.grid(True, which="major", color="#e6e6e6", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    _label(axes, ends)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _style(solver: str) -> dict[str, Any]:
    family = SOLVERS[solver].family
    if family == "probode":
        line = (0, (5, 1)) if solver.endswith("x2") else "-"
        color = OURS[solver.removeprefix("probode ")]
        return {"color": color, "linestyle": line, "linewidth": 2.2, "zorder": 3}
    return {**PEERS[family], "linewidth": 1.1, "zorder": 2}


def _label(axes: Any, ends: list[tuple[float, float, str, str]]) -> None:
    """Names to the right of the panel, in the order of the lines' ends, joined to them."""
    if not ends:
        return
    ends = sorted(ends, key=lambda end: end[1])
    axes.figure.canvas.draw()
    axis = axes.transAxes.inverted()
    heights = [axis.transform(axes.transData.transform((e, s)))[1] for e, s, *_ in ends]
    for height, (error, seconds, solver, color) in zip(_spread(heights), ends, strict=True):
        axes.annotate(
            solver,
            xy=(error, seconds),
            xytext=(1.04, height),
            textcoords="axes fraction",
            color=color,
            fontsize=8,
            fontweight="bold" if SOLVERS[solver].family == "probode" else "normal",
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": color,
                "linewidth": 0.5,
                "alpha": 0.6,
                "relpos": (0.0, 0.5),
                "shrinkA": 2,
            },
        )


def _spread(heights: list[float], gap: float = 0.047) -> list[float]:
    """Move sorted heights apart, as little as a pass up and a pass down allow."""
    out = list(heights)
    for i in range(1, len(out)):
        out[i] = max(out[i], out[i - 1] + gap)
    top = 1.02
    for i in reversed(range(len(out))):
        out[i] = min(out[i], top)
        top = out[i] - gap
    return out
