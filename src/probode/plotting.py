"""Figures of a posterior: the solution with its band, standard deviations, step sizes.

Needs Matplotlib (``pip install probode[plot]``), which is imported when a figure is drawn.
"""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from probode.paths import NodePath
from probode.posterior import Posterior

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["figure", "plot_solution", "plot_std", "plot_steps"]

Reference = Callable[[float], Any]

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Colours of Okabe and Ito, which colour-blind readers can tell apart."""

_STYLE = {
    "font.size": 10.0,
    "axes.labelsize": 10.0,
    "axes.titlesize": 11.0,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "legend.fontsize": 9.0,
}
_BAND = 1.959963984540054
"""Half width of the central 95 % of a Gaussian, in standard deviations."""
_GREY = "0.35"
_TIMES = 500
_MOST_LINES = 200
_MOST_MARKERS = 150
_GROWTH = 1e6
"""If the steps grow by this factor, and hardly ever shrink, the time axis is logarithmic."""
_DECADES_BELOW = 2.0
"""How far below the smallest standard deviations the axis of the true error reaches."""


class _Lines(NamedTuple):
    """The components to draw, at the times to draw them; arrays of shape ``(times, lines)``."""

    nodes: np.ndarray
    """Times of the steps (or ``save_at``)."""
    t: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    error: np.ndarray | None
    names: list[str]
    colors: list[Any]
    legend: bool
    options: dict[str, Any]


def figure(
    posterior: Posterior,
    *,
    names: Sequence[str] | None = None,
    reference: Reference | None = None,
    title: str | None = None,
) -> "Figure":
    """Draw solution, standard deviations and step sizes over a common time axis.

    Parameters
    ----------
    posterior
        What :func:`probode.solve` returned. A filter (``smooth=False``) is drawn at its steps; a
        solution computed with ``save_at`` at these times only, without the panel of step sizes.
    names
        One name per component of ``y`` (flattened in C order); by default ``y1``, ``y2``, ...
    reference
        The true solution ``t -> y``, called with one time after the other. If given, the absolute
        error is drawn beside the standard deviations.
    title
        Title of the figure.

    Returns
    -------
    Figure
        Made by ``matplotlib.pyplot``: show it with ``plt.show()``, or save it with ``savefig``.
    """
    plt = pyplot()  # before any work, should it be missing
    lines = _lines(posterior, names, reference)
    heights = [3.0, 2.4, 1.6] if isinstance(posterior.path, NodePath) else [3.0, 2.4]
    with plt.rc_context(_STYLE):
        drawing, axes = plt.subplots(
            len(heights),
            sharex=True,
            figsize=(8.0, sum(heights)),
            height_ratios=heights,
            layout="constrained",
        )
        _draw_solution(lines, axes[0])
        _draw_std(lines, axes[1])
        if isinstance(posterior.path, NodePath):
            plot_steps(posterior, axes[2])
        for ax in axes:
            ax.label_outer()
        drawing.align_ylabels(axes)
        if title is not None:
            axes[0].set_title(title, pad=10.0)
    return drawing


def plot_solution(
    posterior: Posterior, ax: "Axes", *, names: Sequence[str] | None = None
) -> "Axes":
    """Draw the mean of each component with a band of 95 % probability; return ``ax``.

    Parameters
    ----------
    posterior, names
        As for :func:`figure`.
    ax
        Where to draw.
    """
    return _draw_solution(_lines(posterior, names), ax)


def plot_std(
    posterior: Posterior,
    ax: "Axes",
    *,
    names: Sequence[str] | None = None,
    reference: Reference | None = None,
) -> "Axes":
    """Draw the standard deviation of each component on a logarithmic scale; return ``ax``.

    Parameters
    ----------
    posterior, names, reference
        As for :func:`figure`.
    ax
        Where to draw.
    """
    return _draw_std(_lines(posterior, names, reference), ax)


def plot_steps(posterior: Posterior, ax: "Axes") -> "Axes":
    """Draw the lengths of the accepted steps on a logarithmic scale; return ``ax``.

    Parameters
    ----------
    posterior
        As for :func:`figure`, but computed without ``save_at``.
    ax
        Where to draw.
    """
    nodes, sizes = np.asarray(posterior.t), np.abs(np.asarray(posterior.step_sizes))
    options: dict[str, Any] = {"color": _GREY, "linewidth": 1.2}
    if sizes.size <= _MOST_MARKERS:
        options |= {"marker": "o", "markersize": 3.0}
    count = f"{sizes.size} accepted\n{int(posterior.stats.rejected)} rejected"
    drawn = np.append(sizes, sizes[-1:] if sizes.size else np.nan)
    ax.step(nodes, _positive(drawn), where="post", label=count, **options)
    _finish(ax, nodes, "step size", log=True, legend=True)
    return ax


def pyplot() -> ModuleType:
    """Import Matplotlib, or say how to get it."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("figures need Matplotlib: pip install probode[plot]") from error
    return plt


def _lines(
    posterior: Posterior, names: Sequence[str] | None, reference: Reference | None = None
) -> _Lines:
    """Evaluate the posterior for drawing and choose how to draw it."""
    nodes = np.asarray(posterior.t)
    if nodes.ndim != 1:
        raise ValueError(
            f"figures show one solution, got a batch of shape {nodes.shape[:-1]}: draw its members "
            "one by one."
        )
    t = nodes
    if isinstance(posterior.path, NodePath) and nodes.size > 1:
        # Between its steps a filter only predicts, with errors that are corrected at the next.
        t = _few(nodes, _TIMES) if posterior.path.smoothed is None else _times(nodes)
    marginals = posterior(t) if t is not nodes else posterior.marginals
    mean, std = np.asarray(marginals.mean), np.asarray(marginals.std)
    mean, std = mean.reshape(t.size, -1), std.reshape(t.size, -1)
    d = mean.shape[1]
    if names is None:
        names = _default_names(posterior.shape)
    elif isinstance(names, str) or len(names) != d:
        raise ValueError(f"names must be {d} strings, one per component, got {names!r}.")
    error = None if reference is None else _error(t, mean, reference)
    few = d <= len(PALETTE)
    shown = _few(np.arange(d), _MOST_LINES)
    options: dict[str, Any] = {"linewidth": 1.5 if few else 0.7}
    if t is nodes and t.size <= _MOST_MARKERS:
        options |= {"marker": "o", "markersize": 3.5 if few else 2.0}
    return _Lines(
        nodes=nodes,
        t=t,
        mean=mean[:, shown],
        std=std[:, shown],
        error=None if error is None else error[:, shown],
        names=[str(names[i]) for i in shown],
        colors=list(PALETTE[:d]) if few else _shades(shown.size),
        legend=few,
        options=options,
    )


def _default_names(shape: tuple[int, ...]) -> list[str]:
    if np.prod(shape) == 1:
        return ["$y$"]
    indices = (",".join(str(i + 1) for i in index) for index in np.ndindex(shape))
    return [f"$y_{{{index}}}$" for index in indices]


def _shades(n: int) -> list[Any]:
    """Many colours, in an order that is seen as one; the palest, hard to see, are left out."""
    from matplotlib import colormaps

    return list(colormaps["viridis"](np.linspace(0.0, 0.9, n)))


def _few(values: np.ndarray, n: int) -> np.ndarray:
    """At most ``n`` of the values, the first and the last among them."""
    places = np.linspace(0, values.size - 1, min(values.size, n))
    return values[places.round().astype(int)]


def _times(nodes: np.ndarray) -> np.ndarray:
    """Times to draw at: half of them spread over the interval, half over the steps.

    The latter keep layers that are thin in comparison to the interval, the former long steps.
    """
    half = _TIMES // 2
    places = np.linspace(0, nodes.size - 1, half)
    over_steps = np.interp(places, np.arange(nodes.size), nodes)
    if _steps_grow(nodes):
        over_time = np.geomspace(nodes[0] or nodes[1], nodes[-1], half)
    else:
        over_time = np.linspace(nodes[0], nodes[-1], half)
    times = np.unique(np.concatenate([over_steps, over_time]))
    times = np.clip(times, nodes.min(), nodes.max())
    return times if nodes[-1] >= nodes[0] else times[::-1]


def _error(t: np.ndarray, mean: np.ndarray, reference: Reference) -> np.ndarray:
    values = [np.asarray(reference(float(time)), float).reshape(-1) for time in t]
    sizes = sorted({value.size for value in values})
    if sizes != [mean.shape[1]]:
        raise ValueError(
            f"reference must return {mean.shape[1]} components, as many as y has, got {sizes}."
        )
    return np.abs(np.array(values) - mean)


def _draw_solution(lines: _Lines, ax: "Axes") -> "Axes":
    low, high = lines.mean - _BAND * lines.std, lines.mean + _BAND * lines.std
    for i, (name, color) in enumerate(zip(lines.names, lines.colors, strict=True)):
        ax.plot(lines.t, lines.mean[:, i], color=color, label=name, **lines.options)
        if lines.legend:
            ax.fill_between(lines.t, low[:, i], high[:, i], color=color, alpha=0.25, linewidth=0.0)
    if lines.legend:
        ax.fill_between([], [], [], color=_GREY, alpha=0.25, linewidth=0.0, label="95 % band")
    _finish(ax, lines.nodes, "solution", legend=lines.legend)
    return ax


def _draw_std(lines: _Lines, ax: "Axes") -> "Axes":
    error = lines.error
    for i, color in enumerate(lines.colors):
        ax.plot(lines.t, _positive(lines.std[:, i]), color=color, **lines.options)
        if error is not None:
            ax.plot(lines.t, _positive(error[:, i]), ":", color=color, linewidth=0.9)
    if error is not None:
        ax.plot([], [], color=_GREY, linewidth=1.5, label="standard\ndeviation")
        ax.plot([], [], ":", color=_GREY, linewidth=0.9, label="true error")
    label = "standard deviation" if error is None else "error"
    _finish(ax, lines.nodes, label, log=True, legend=error is not None)
    positive = lines.std[lines.std > 0.0]
    if error is not None and positive.size:
        # Where an error changes its sign its logarithm has no bottom.
        floor = np.quantile(positive, 0.02) * 10.0**-_DECADES_BELOW
        ax.set_ylim(bottom=max(ax.get_ylim()[0], floor))
    return ax


def _positive(values: np.ndarray) -> np.ndarray:
    """What a logarithmic axis can show; zeros become gaps."""
    return np.where(values > 0.0, values, np.nan)


def _finish(ax: "Axes", nodes: np.ndarray, label: str, *, log: bool = False, legend: bool) -> None:
    """Axes, labels and grid that all panels have in common."""
    ax.set_xlabel("$t$")
    ax.set_ylabel(label)
    if log:
        ax.set_yscale("log")
    _set_time_axis(ax, nodes)
    ax.grid(True, color="0.88", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    if legend:
        ax.legend(
            loc="upper left",
            bbox_to_anchor=(1.01, 1.0),
            frameon=False,
            borderaxespad=0.0,
            handlelength=1.6,
        )


def _set_time_axis(ax: "Axes", nodes: np.ndarray) -> None:
    if nodes.size < 2:
        return
    low, high = float(nodes.min()), float(nodes.max())
    if _steps_grow(nodes):
        ax.set_xscale("log")
        low = low or float(nodes[1])
    ax.set_xlim(low, high)


def _steps_grow(nodes: np.ndarray) -> bool:
    """Whether the steps grow over many decades: the case for a logarithmic time axis."""
    # The last step may have been cut short by the end of the interval.
    steps = np.diff(nodes)[:-1]
    if nodes[0] < 0.0 or steps.size < 2 or steps[0] < 0.0:
        return False
    largest = np.maximum.accumulate(steps)
    return bool(largest[-1] > _GROWTH * steps[0] and np.all(steps > 0.1 * largest))
