"""What all figures have in common: style, axes, labels, legends.

Needs Matplotlib (``pip install probode[plot]``), which is imported when a figure is drawn.
"""

from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from probode.posterior.curves import Curves, steps_grow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Colours of Okabe and Ito, which colour-blind readers can tell apart."""

GREY = "0.35"

_STYLE = {
    "font.size": 10.0,
    "axes.labelsize": 10.0,
    "axes.titlesize": 11.0,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "legend.fontsize": 9.0,
}
MOST_MARKERS = 150
_FEW_DECADES = 30.0
"""Ratio of the ends of a logarithmic axis up to which numbers between powers of ten are named."""
_LARGEST = 1e200
_DECADES_BELOW = 2.0
"""How far below the smallest standard deviations the axis of the true error reaches."""


def pyplot() -> ModuleType:
    """Import Matplotlib, or say how to get it."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("figures need Matplotlib: pip install probode[plot]") from error
    return plt


def styled() -> Any:
    """A context with the sizes of letters that all figures have."""
    return pyplot().rc_context(_STYLE)


def new_axes(ax: "Axes | None", size: tuple[float, float] = (8.0, 3.0)) -> "Axes":
    """The axes that were given, or those of a new figure."""
    if ax is not None:
        return ax
    plt = pyplot()
    with plt.rc_context(_STYLE):
        return plt.subplots(figsize=size, layout="constrained")[1]


def end_below(ax: "Axes", std: np.ndarray) -> None:
    """Let a logarithmic axis end a little below the standard deviations."""
    positive = std[std > 0.0]
    if positive.size:
        floor = np.quantile(positive, 0.02) * 10.0**-_DECADES_BELOW
        ax.set_ylim(bottom=max(ax.get_ylim()[0], floor))


def positive(values: np.ndarray) -> np.ndarray:
    """What a logarithmic axis can show; zeros become gaps, as does what has no ticks any more."""
    return np.where((values > 0.0) & (values < _LARGEST), values, np.nan)


def over_time(
    ax: "Axes", nodes: np.ndarray, label: str, *, log: bool = False, legend: bool
) -> None:
    """Axes, labels and grid that all panels over time have in common."""
    if log:
        ax.set_yscale("log")
        ax.yaxis.set_minor_formatter(lambda value, place: _between_decades(ax, value))
    if nodes.size > 1:
        low, high = float(nodes.min()), float(nodes.max())
        if steps_grow(nodes):
            ax.set_xscale("log")
            low = low or float(nodes[1])
        ax.set_xlim(low, high)
    decorate(ax, "$t$", label, legend=legend)


def _between_decades(ax: "Axes", value: float) -> str:
    """Labels for two and five, where an axis has hardly a power of ten."""
    low, high = ax.get_ylim()
    exponent = int(np.floor(np.log10(value) + 1e-9))
    digit = round(value / 10.0**exponent)
    if digit not in (2, 5) or high > _FEW_DECADES * low:
        return ""
    return rf"${digit}\times10^{{{exponent}}}$"


def decorate(ax: "Axes", x_label: str, y_label: str, *, legend: bool) -> None:
    """Labels, a grid, a legend."""
    ax.set_xlabel(x_label)
    ax.set_ylabel(y_label)
    ax.grid(True, color="0.88", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    if legend:
        name_lines(ax)
    _keep_labels(ax)


def name_lines(ax: "Axes") -> None:
    """A legend: beside the axes where the figure makes room for it, else where it hides least."""
    if _makes_room(ax):
        beside: dict[str, Any] = {
            "loc": "upper left",
            "bbox_to_anchor": (1.01, 1.0),
            "borderaxespad": 0.0,
        }
        ax.legend(frameon=False, handlelength=1.6, **beside)
    else:
        ax.legend(loc="best", framealpha=0.8, handlelength=1.6)


def _makes_room(ax: "Axes") -> bool:
    """Whether the figure is laid out around what its axes hold, legends beside them included."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine, TightLayoutEngine

    engine = ax.figure.get_layout_engine()
    return isinstance(engine, ConstrainedLayoutEngine | TightLayoutEngine)


def _keep_labels(ax: "Axes") -> None:
    """Widen the margins of a figure that cuts labels off, where nobody else lays it out."""
    from matplotlib.figure import Figure

    drawing = ax.figure
    if not isinstance(drawing, Figure) or drawing.get_layout_engine() is not None:
        return
    if any(one.get_subplotspec() is None for one in drawing.axes):  # placed by hand
        return
    box, room = ax.get_tightbbox(), drawing.bbox
    if box is not None and (min(box.x0, box.y0) < 0.0 or box.x1 > room.x1 or box.y1 > room.y1):
        drawing.tight_layout()


def named(drawn: Curves) -> bool:
    """Whether there are few enough lines for bands and a legend."""
    return drawn.shown.size <= len(PALETTE)


def line_options(drawn: Curves) -> dict[str, Any]:
    """How thick to draw, and whether with markers."""
    few = named(drawn)
    options: dict[str, Any] = {"linewidth": 1.5 if few else 0.7}
    if drawn.at_nodes and drawn.t.size <= MOST_MARKERS:
        options |= {"marker": "o", "markersize": 3.5 if few else 2.0}
    return options


def colors(drawn: Curves) -> list[Any]:
    """A colour for each line; of few components each keeps its own in all figures."""
    if drawn.d <= len(PALETTE):
        return [PALETTE[i] for i in drawn.shown]
    if named(drawn):
        return list(PALETTE[: drawn.shown.size])
    from matplotlib import colormaps

    # Many colours, in an order that is seen as one; the palest, hard to see, are left out.
    return list(colormaps["viridis"](np.linspace(0.0, 0.9, drawn.shown.size)))
