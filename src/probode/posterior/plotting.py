"""Figures of a posterior: solution and band, errors, samples, step sizes, phase plane.

Needs Matplotlib (``pip install probode[plot]``), which is imported when a figure is drawn.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from probode.model.structure import Dense
from probode.posterior.conditioned import Given
from probode.posterior.curves import Curves, Reference, curves, steps_grow
from probode.posterior.paths import NodePath
from probode.posterior.posterior import Posterior, one_solve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["figure", "plot_phase", "plot_samples", "plot_solution", "plot_std", "plot_steps"]

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
_ELLIPSE = 2.447746830680816
"""Radius of the central 95 % of a Gaussian in the plane, in standard deviations."""
_ELLIPSES = 24
_SMALLEST_ELLIPSE, _LARGEST_ELLIPSE = 0.02, 0.1
"""Radii, as part of the drawing, below which ellipses are enlarged, and up to which."""
_BESIDE = 0.5
"""Part of the solution's range by which bands may widen the axis, up and down."""
_GREY = "0.35"
_MOST_MARKERS = 150
MOST_SAMPLED = 3
_ACROSS = 1e-6
"""Part of the next step below which one is not chosen by a control."""
_DECADES_BELOW = 2.0
"""How far below the smallest standard deviations the axis of the true error reaches."""


def figure(
    posterior: Posterior,
    *,
    names: Sequence[str] | None = None,
    reference: Reference | None = None,
    title: str | None = None,
    k: int = 0,
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
        error is drawn with the standard deviations.
    title
        Title of the figure.
    k
        Which derivative to draw: of an equation of second order, 1 are velocities.

    Returns
    -------
    Figure
        Made by ``matplotlib.pyplot``: show it with ``plt.show()``, or save it with ``savefig``.
    """
    plt = pyplot()  # before any work, in case it is missing
    drawn = curves(posterior, names, reference, k=k)
    heights = [3.0, 2.4, 1.6] if isinstance(posterior.path, NodePath) else [3.0, 2.4]
    with plt.rc_context(_STYLE):
        drawing, axes = plt.subplots(
            len(heights),
            sharex=True,
            figsize=(8.0, sum(heights)),
            height_ratios=heights,
            layout="constrained",
        )
        _draw_solution(drawn, axes[0], posterior.given if k == 0 else None)
        _draw_std(drawn, axes[1])
        if isinstance(posterior.path, NodePath):
            plot_steps(posterior, axes[2])
        for ax in axes:
            ax.label_outer()
        drawing.align_ylabels(axes)
        if title is not None:
            axes[0].set_title(title, pad=10.0)
    return drawing


def plot_solution(
    posterior: Posterior,
    ax: "Axes | None" = None,
    *,
    names: Sequence[str] | None = None,
    title: str | None = None,
    k: int = 0,
) -> "Axes":
    """Draw the mean of each component with a band of 95 % probability; return the axes.

    Parameters
    ----------
    posterior, names, title, k
        As for :func:`figure`.
    ax
        Where to draw; by default a new figure.
    """
    pyplot()
    drawn = curves(posterior, names, k=k)
    ax = new_axes(ax)
    if title is not None:
        ax.set_title(title)
    return _draw_solution(drawn, ax, posterior.given if k == 0 else None)


def plot_std(
    posterior: Posterior,
    ax: "Axes | None" = None,
    *,
    names: Sequence[str] | None = None,
    reference: Reference | None = None,
    k: int = 0,
) -> "Axes":
    """Draw the standard deviation of each component on a logarithmic scale; return the axes.

    Parameters
    ----------
    posterior, names, reference, k
        As for :func:`figure`.
    ax
        Where to draw; by default a new figure.
    """
    pyplot()
    drawn = curves(posterior, names, reference, k=k)
    return _draw_std(drawn, new_axes(ax), alone=True)


def plot_steps(posterior: Posterior, ax: "Axes | None" = None) -> "Axes":
    """Draw the lengths of the accepted steps on a logarithmic scale; return the axes.

    Parameters
    ----------
    posterior
        As for :func:`figure`, but computed without ``save_at``.
    ax
        Where to draw; by default a new figure.
    """
    pyplot()
    posterior = one_solve(posterior, "a figure")
    nodes, sizes = np.asarray(posterior.t), np.abs(np.asarray(posterior.step_sizes))
    options: dict[str, Any] = {"color": _GREY, "linewidth": 1.2}
    if sizes.size <= _MOST_MARKERS:
        options |= {"marker": "o", "markersize": 3.0}
    count = f"{sizes.size} accepted\n{int(posterior.stats.rejected)} rejected"
    if posterior.given is not None:
        count = "between nodes\nand data"
    drawn = np.append(sizes, sizes[-1:] if sizes.size else np.nan)
    drawn[_leads_across(drawn)] = np.nan
    ax = new_axes(ax)
    ax.step(nodes, _positive(drawn), where="post", label=count, **options)
    _finish(ax, nodes, "step size", log=True, legend=True)
    return ax


def plot_samples(
    posterior: Posterior,
    ax: "Axes | None" = None,
    *,
    n: int = 20,
    seed: Any = 0,
    deviations: bool = True,
    components: Sequence[int] | None = None,
    names: Sequence[str] | None = None,
    k: int = 0,
) -> "Axes":
    """Draw joint samples of the trajectory, and the band of 95 % probability; return the axes.

    Parameters
    ----------
    posterior, names
        As for :func:`figure`; a posterior of the smoother.
    ax
        Where to draw; by default a new figure.
    n, seed, k
        As for :meth:`probode.Posterior.sample`.
    deviations
        Draw what the samples differ from the mean by, or the samples themselves: at good tolerances
        these cannot be told from the mean.
    components
        Which components of ``y`` (flattened in C order) to draw; by default three at most.
    """
    pyplot()
    posterior = one_solve(posterior, "a figure")
    drawn = curves(posterior, names, components=components, most=MOST_SAMPLED, k=k)
    times = None if drawn.at_nodes else drawn.t
    samples = np.asarray(posterior.sample(n, seed=seed, t=times, k=k))
    return draw_samples(drawn, samples.reshape(n, drawn.t.size, drawn.d), new_axes(ax), deviations)


def draw_samples(drawn: Curves, samples: np.ndarray, ax: "Axes", deviations: bool) -> "Axes":
    """Draw samples ``(n, times, d)`` at the times of curves, or what they differ from these by."""
    samples = samples[:, :, drawn.shown]
    if deviations:
        samples = samples - drawn.mean
        drawn = drawn._replace(mean=np.zeros_like(drawn.mean))
    for i, (name, color) in enumerate(zip(drawn.names, _colors(drawn), strict=True)):
        lines = ax.plot(drawn.t, samples[:, :, i].T, color=color, linewidth=0.7, alpha=0.8)
        lines[0].set_label(name)
    _draw_bands(drawn, ax)
    if deviations:
        ax.axhline(0.0, color=_GREY, linewidth=0.8)
    label = _label("sample − mean" if deviations else "samples", drawn)
    _finish(ax, drawn.nodes, label, legend=_named(drawn))
    return ax


def plot_phase(
    posterior: Posterior,
    i: int = 0,
    j: int = 1,
    ax: "Axes | None" = None,
    *,
    enlarge: float | None = None,
    names: Sequence[str] | None = None,
) -> "Axes":
    """Draw component ``j`` over component ``i`` with ellipses that hold 95 %; return the axes.

    Parameters
    ----------
    posterior, names
        As for :func:`figure`.
    i, j
        Indices into ``y``, flattened in C order; of an equation of second order, into values and
        then velocities (of a number ``y``, 0 and 1: its phase portrait).
    ax
        Where to draw; by default a new figure.
    enlarge
        Factor for the size of the ellipses; by default one, or the round number with which they
        can be seen. The legend states it.
    """
    pyplot()
    posterior = one_solve(posterior, "a figure")
    drawn = curves(posterior, names, components=(i, j), k=None)
    x, y = drawn.mean.T
    ax = new_axes(ax, (6.4, 4.4))
    # What lies between the times of save_at is not known: hardly a line there.
    line = {} if isinstance(posterior.path, NodePath) else {"linewidth": 0.4}
    ax.plot(x, y, color=PALETTE[0], **{**_options(drawn), **line})
    ax.plot(x[:1], y[:1], "o", color=PALETTE[0], mfc="white", zorder=4.0, label="start")
    ax.plot(x[-1:], y[-1:], "o", color=PALETTE[0], zorder=4.0, label="end")

    some = _evenly(drawn)
    std, correlation = drawn.std[some], _correlation(posterior, drawn, some)
    if enlarge is None:
        enlarge = enlargement(std, np.ptp(drawn.mean, axis=0) if x.size else np.ones(2))
    angle = np.linspace(0.0, 2.0 * np.pi, 73)
    circle = np.cos(angle), np.sin(angle)
    radii = _ELLIPSE * enlarge * std
    for k, r, (width, height) in zip(some, correlation, radii, strict=True):
        across = x[k] + width * circle[0]
        along = y[k] + height * (r * circle[0] + np.sqrt(1.0 - r * r) * circle[1])
        ax.fill(across, along, color=PALETTE[1], alpha=0.35, zorder=3.0)
    size = "" if enlarge == 1.0 else f",\nenlarged {_readable(enlarge)} times"
    ax.fill([], [], color=PALETTE[1], alpha=0.35, label=f"95 % ellipses{size}")
    decorate(ax, drawn.names[0], drawn.names[1], legend=True)
    return ax


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


def _named(drawn: Curves) -> bool:
    """Whether there are few enough lines for bands and a legend."""
    return drawn.shown.size <= len(PALETTE)


def _options(drawn: Curves) -> dict[str, Any]:
    """How thick to draw, and whether with markers."""
    named = _named(drawn)
    options: dict[str, Any] = {"linewidth": 1.5 if named else 0.7}
    if drawn.at_nodes and drawn.t.size <= _MOST_MARKERS:
        options |= {"marker": "o", "markersize": 3.5 if named else 2.0}
    return options


def _colors(drawn: Curves) -> list[Any]:
    """A colour for each line; of few components each keeps its own in all figures."""
    if drawn.d <= len(PALETTE):
        return [PALETTE[i] for i in drawn.shown]
    if _named(drawn):
        return list(PALETTE[: drawn.shown.size])
    from matplotlib import colormaps

    # Many colours, in an order that is seen as one; the palest, hard to see, are left out.
    return list(colormaps["viridis"](np.linspace(0.0, 0.9, drawn.shown.size)))


def _draw_solution(drawn: Curves, ax: "Axes", given: Given | None = None) -> "Axes":
    named, options = _named(drawn), _options(drawn)
    for i, (name, color) in enumerate(zip(drawn.names, _colors(drawn), strict=True)):
        ax.plot(drawn.t, drawn.mean[:, i], color=color, label=name, **options)
    if named:
        _draw_bands(drawn, ax)
        _draw_data(drawn, ax, given)
    _finish(ax, drawn.nodes, drawn.what or "solution", legend=named)
    return ax


def _label(quantity: str, drawn: Curves) -> str:
    """What an axis shows, and of which derivative; in two lines, as panels are not high."""
    return f"{quantity},\n{drawn.what}" if drawn.what else quantity


def _draw_data(drawn: Curves, ax: "Axes", given: Given | None) -> None:
    """The data that a posterior was conditioned on, if they are values of its components."""
    if given is None or given.u is None:
        return
    style: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 4.0}
    values = np.asarray(given.u)[:, drawn.shown]
    for i, color in enumerate(_colors(drawn)):
        ax.plot(np.asarray(given.t), values[:, i], color=color, markeredgecolor="white", **style)
    ax.plot([], [], color=_GREY, label="data", **style)


def _draw_bands(drawn: Curves, ax: "Axes") -> None:
    """Bands of 95 %. Those that are wide compared with the solution do not set the axis."""
    low, high = drawn.mean - _BAND * drawn.std, drawn.mean + _BAND * drawn.std
    style: dict[str, Any] = {"alpha": 0.25, "linewidth": 0.0}
    before = ax.dataLim.frozen()
    for i, color in enumerate(_colors(drawn)):
        ax.fill_between(drawn.t, low[:, i], high[:, i], color=color, **style)
    ax.fill_between([], [], [], color=_GREY, label="95 % band", **style)
    ax.dataLim.set(before)
    shown = _within_reach(drawn.mean, np.stack([low, high]))
    if shown.size:
        ends = drawn.t[[0, -1]]
        ax.update_datalim(np.stack([ends, [shown.min(), shown.max()]], axis=1))
    ax.autoscale_view()


def _within_reach(mean: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Edges of bands, not farther from all means than a part of their range."""
    edges, mean = edges[np.isfinite(edges)], mean[np.isfinite(mean)]
    extent = np.ptp(mean) if mean.size else 0.0
    if extent == 0.0:  # nothing but the band to see
        return edges
    return np.clip(edges, mean.min() - _BESIDE * extent, mean.max() + _BESIDE * extent)


def _leads_across(sizes: np.ndarray) -> np.ndarray:
    """Which steps lead across a switch, and are no longer than rounding: no control shrinks so."""
    following = np.append(sizes[1:], sizes[-1:])
    return sizes < _ACROSS * following


def _draw_std(drawn: Curves, ax: "Axes", *, alone: bool = False) -> "Axes":
    """Standard deviations; ``alone``, without a panel above that names the components."""
    error, options, named = drawn.error, _options(drawn), alone and _named(drawn)
    for i, (name, color) in enumerate(zip(drawn.names, _colors(drawn), strict=True)):
        label = name if named else None
        ax.plot(drawn.t, _positive(drawn.std[:, i]), color=color, label=label, **options)
        if error is not None:
            ax.plot(drawn.t, _positive(error[:, i]), ":", color=color, linewidth=0.9)
    if error is not None:
        ax.plot([], [], color=_GREY, linewidth=1.5, label="standard\ndeviation")
        ax.plot([], [], ":", color=_GREY, linewidth=0.9, label="true error")
    label = _label("standard deviation" if error is None else "error", drawn)
    _finish(ax, drawn.nodes, label, log=True, legend=named or error is not None)
    if error is not None:  # where one changes its sign its logarithm has no bottom
        end_below(ax, drawn.std)
    return ax


def end_below(ax: "Axes", std: np.ndarray) -> None:
    """Let a logarithmic axis end a little below the standard deviations."""
    positive = std[std > 0.0]
    if positive.size:
        floor = np.quantile(positive, 0.02) * 10.0**-_DECADES_BELOW
        ax.set_ylim(bottom=max(ax.get_ylim()[0], floor))


def _evenly(drawn: Curves) -> np.ndarray:
    """Indices of points that are spread evenly along a curve in the plane."""
    extent = np.ptp(drawn.mean, axis=0) if drawn.t.size else np.ones(2)
    steps = np.diff(drawn.mean / np.where(extent > 0.0, extent, 1.0), axis=0)
    length = np.concatenate([[0.0], np.cumsum(np.hypot(*steps.T))])[: drawn.t.size]
    if not np.all(np.isfinite(length)) or not length.size:
        return np.zeros(0, int)
    return np.unique(np.searchsorted(length, np.linspace(0.0, length[-1], _ELLIPSES)))


def _correlation(posterior: Posterior, drawn: Curves, some: np.ndarray) -> np.ndarray:
    """Correlation of the two components drawn, at some of the times."""
    if posterior.method.equation.order > 1 and some.size:
        state = posterior.state(None if drawn.at_nodes else drawn.t[some])
        cov = np.asarray(state.cov)[some if drawn.at_nodes else slice(None)]
        size = np.sqrt(np.prod(np.diagonal(cov, axis1=-2, axis2=-1)[:, drawn.shown], axis=-1))
        r = cov[:, drawn.shown[0], drawn.shown[1]] / np.where(size > 0.0, size, 1.0)
        return np.clip(r, -1.0, 1.0)
    if not isinstance(posterior.method.structure, Dense) or not some.size:
        return np.zeros(some.size)
    if drawn.at_nodes:
        columns = np.asarray(posterior.marginals.columns)[some]
    else:
        columns = np.asarray(posterior(drawn.t[some]).columns)
    a, b = (columns[..., k] for k in drawn.shown)
    size = np.sqrt(np.sum(a * a, axis=-1) * np.sum(b * b, axis=-1))
    return np.clip(np.sum(a * b, axis=-1) / np.where(size > 0.0, size, 1.0), -1.0, 1.0)


def enlargement(std: np.ndarray, extent: np.ndarray) -> float:
    """The round number that makes the largest ellipse visible; one if it is already."""
    radius = _ELLIPSE * np.max(std / np.where(extent > 0.0, extent, 1.0), initial=0.0)
    if not np.isfinite(radius) or radius == 0.0 or radius >= _SMALLEST_ELLIPSE:
        return 1.0
    largest = _LARGEST_ELLIPSE / radius
    power = 10.0 ** np.floor(np.log10(largest))
    return float(max(factor * power for factor in (1, 2, 5) if factor * power <= largest))


def _readable(number: float) -> str:
    return f"{number:,.0f}" if 1.0 <= number < 1e9 else f"{number:.0e}"


def _positive(values: np.ndarray) -> np.ndarray:
    """What a logarithmic axis can show; zeros become gaps."""
    return np.where(values > 0.0, values, np.nan)


def _finish(ax: "Axes", nodes: np.ndarray, label: str, *, log: bool = False, legend: bool) -> None:
    """Axes, labels and grid that all panels over time have in common."""
    if log:
        ax.set_yscale("log")
    if nodes.size > 1:
        low, high = float(nodes.min()), float(nodes.max())
        if steps_grow(nodes):
            ax.set_xscale("log")
            low = low or float(nodes[1])
        ax.set_xlim(low, high)
    decorate(ax, "$t$", label, legend=legend)


def decorate(ax: "Axes", x_label: str, y_label: str, *, legend: bool) -> None:
    """Labels, a grid, a legend."""
    ax.set_xlabel(x_label)
    ax.set_ylabel(y_label)
    ax.grid(True, color="0.88", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    if legend:
        _name_lines(ax)
    _keep_labels(ax)


def _name_lines(ax: "Axes") -> None:
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
