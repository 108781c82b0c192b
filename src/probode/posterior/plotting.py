"""Figures of a posterior: solution and band, errors, samples, step sizes, phase plane, calibration.

Needs Matplotlib (``pip install probode[plot]``), which is imported when a figure is drawn.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from probode.posterior.axes import (
    GREY,
    MOST_MARKERS,
    PALETTE,
    colors,
    end_below,
    line_options,
    name_lines,
    named,
    new_axes,
    over_time,
    positive,
    pyplot,
    styled,
)
from probode.posterior.conditioned import Given
from probode.posterior.curves import (
    BAND,
    OUT_OF_SIGHT,
    STILL_SEEN,
    Curves,
    Reference,
    curves,
    usual_size,
    within_reach,
)
from probode.posterior.marks import mark_events, plot_calibration
from probode.posterior.paths import NodePath
from probode.posterior.phase import enlargement, plot_phase
from probode.posterior.posterior import Posterior, one_solve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "PALETTE",
    "enlargement",
    "figure",
    "mark_events",
    "plot_calibration",
    "plot_phase",
    "plot_samples",
    "plot_solution",
    "plot_std",
    "plot_steps",
]

MOST_SAMPLED = 3
_ACROSS = 1e-6
"""Part of the next step below which one is not chosen by a control."""


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
    with styled():
        drawing, axes = plt.subplots(
            len(heights),
            sharex=True,
            figsize=(8.0, sum(heights)),
            height_ratios=heights,
            layout="constrained",
        )
        _draw_solution(drawn, axes[0], posterior.given if k == 0 else None)
        _draw_std(drawn, axes[1])
        _say_if_stopped(posterior, drawn, *axes[:2])
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
    _draw_solution(drawn, ax, posterior.given if k == 0 else None)
    _say_if_stopped(posterior, drawn, ax)
    return ax


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
    options: dict[str, Any] = {"color": GREY, "linewidth": 1.2}
    if sizes.size <= MOST_MARKERS:
        options |= {"marker": "o", "markersize": 3.0}
    count = f"{sizes.size} accepted\n{int(posterior.stats.rejected)} rejected"
    if posterior.given is not None:
        count = "between nodes\nand data"
    drawn = np.append(sizes, sizes[-1:] if sizes.size else np.nan)
    drawn[_leads_across(drawn)] = np.nan
    ax = new_axes(ax)
    ax.step(nodes, positive(drawn), where="post", label=count, **options)
    over_time(ax, nodes, "step size", log=True, legend=True)
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
    for i, (name, color) in enumerate(zip(drawn.names, colors(drawn), strict=True)):
        lines = ax.plot(drawn.t, samples[:, :, i].T, color=color, linewidth=0.7, alpha=0.8)
        lines[0].set_label(name)
    _draw_bands(drawn, ax)
    if deviations:
        ax.axhline(0.0, color=GREY, linewidth=0.8)
    label = _label("sample − mean" if deviations else "samples", drawn)
    over_time(ax, drawn.nodes, label, legend=named(drawn))
    return ax


def _draw_solution(drawn: Curves, ax: "Axes", given: Given | None = None) -> "Axes":
    few, options = named(drawn), line_options(drawn)
    for i, (name, color) in enumerate(zip(drawn.names, colors(drawn), strict=True)):
        label = name if few or i in (0, drawn.shown.size - 1) else None
        ax.plot(drawn.t, drawn.mean[:, i], color=color, label=label, **options)
    if few:
        _draw_bands(drawn, ax)
        _draw_data(drawn, ax, given)
    over_time(ax, drawn.nodes, drawn.what or "solution", legend=True)
    return ax


def _say_if_stopped(posterior: Posterior, drawn: Curves, *axes: "Axes") -> None:
    """Mark where a solve ended too early; what grows out of sight there does not set the axes."""
    if bool(posterior.success) or drawn.t.size < 2:
        return
    axes[0].axvline(drawn.nodes[-1], color=GREY, linestyle="--", linewidth=1.0, label="stopped")
    name_lines(axes[0])
    for ax, values in zip(axes, (drawn.mean, drawn.std), strict=False):
        usual = usual_size(drawn.t, values)
        if usual is None:
            continue
        if ax.get_yscale() == "log":
            ax.set_ylim(top=OUT_OF_SIGHT * usual)
        else:
            seen = np.clip(values, -STILL_SEEN * usual, STILL_SEEN * usual)
            room = 0.05 * np.ptp(seen)
            ax.set_ylim(seen.min() - room, seen.max() + room)


def _label(quantity: str, drawn: Curves) -> str:
    """What an axis shows, and of which derivative; in two lines, as panels are not high."""
    return f"{quantity},\n{drawn.what}" if drawn.what else quantity


def _draw_data(drawn: Curves, ax: "Axes", given: Given | None) -> None:
    """The data that a posterior was conditioned on, if they are values of its components."""
    if given is None or given.u is None:
        return
    style: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 4.0}
    values = np.asarray(given.u)[:, drawn.shown]
    for i, color in enumerate(colors(drawn)):
        ax.plot(np.asarray(given.t), values[:, i], color=color, markeredgecolor="white", **style)
    ax.plot([], [], color=GREY, label="data", **style)


def _draw_bands(drawn: Curves, ax: "Axes") -> None:
    """Bands of 95 %. Those that are wide compared with the solution do not set the axis."""
    low, high = drawn.mean - BAND * drawn.std, drawn.mean + BAND * drawn.std
    style: dict[str, Any] = {"alpha": 0.25, "linewidth": 0.0}
    before = ax.dataLim.frozen()
    for i, color in enumerate(colors(drawn)):
        ax.fill_between(drawn.t, low[:, i], high[:, i], color=color, **style)
    ax.fill_between([], [], [], color=GREY, label="95 % band", **style)
    ax.dataLim.set(before)
    shown = within_reach(drawn.mean, np.stack([low, high]))
    if shown.size:
        ends = drawn.t[[0, -1]]
        ax.update_datalim(np.stack([ends, [shown.min(), shown.max()]], axis=1))
    ax.autoscale_view()


def _leads_across(sizes: np.ndarray) -> np.ndarray:
    """Which steps lead across a switch, and are no longer than rounding: no control shrinks so."""
    following = np.append(sizes[1:], sizes[-1:])
    return sizes < _ACROSS * following


def _draw_std(drawn: Curves, ax: "Axes", *, alone: bool = False) -> "Axes":
    """Standard deviations; ``alone``, without a panel above that names the components."""
    error, options = drawn.error, line_options(drawn)
    names = alone and named(drawn)
    for i, (name, color) in enumerate(zip(drawn.names, colors(drawn), strict=True)):
        label = name if names else None
        ax.plot(drawn.t, positive(drawn.std[:, i]), color=color, label=label, **options)
        if error is not None:
            ax.plot(drawn.t, positive(error[:, i]), ":", color=color, linewidth=0.9)
    if error is not None:
        ax.plot([], [], color=GREY, linewidth=1.5, label="standard\ndeviation")
        ax.plot([], [], ":", color=GREY, linewidth=0.9, label="true error")
    label = _label("standard deviation" if error is None else "error", drawn)
    over_time(ax, drawn.nodes, label, log=True, legend=names or error is not None)
    if error is not None:  # where one changes its sign its logarithm has no bottom
        end_below(ax, drawn.std)
    return ax
