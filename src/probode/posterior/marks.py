"""Figures beside the solution: errors in units of their bars, and marks of events."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from probode.posterior.axes import (
    GREY,
    PALETTE,
    colors,
    line_options,
    name_lines,
    named,
    new_axes,
    over_time,
    pyplot,
)
from probode.posterior.curves import BAND, Reference, curves, few
from probode.posterior.posterior import Posterior, one_solve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_TIMES = 500
_FARTHEST = 6.0
"""Standard deviations up to which errors are drawn."""
_MOST_EVENTS = 200
_WIDE = 2e-3
"""Part of the time axis from which on the standard deviation of an event is drawn as a band."""


def plot_calibration(
    posterior: Posterior,
    reference: Reference | None = None,
    ax: "Axes | None" = None,
    *,
    names: Sequence[str] | None = None,
) -> "Axes":
    """Draw ``(mean - solution) / std`` at the steps, with the band of 95 %; return the axes.

    Parameters
    ----------
    posterior, names
        As for :func:`figure`.
    reference
        The true solution ``t -> y``; by default errors are those that were estimated.
    ax
        Where to draw; by default a new figure.
    """
    pyplot()
    if hasattr(posterior, "pieces"):
        raise NotImplementedError(
            "plot_calibration draws a solution without jumps: draw a piece of this one, "
            "posterior.pieces[i].plot_calibration()."
        )
    posterior = one_solve(posterior, "a figure")
    drawn = curves(posterior, names)
    nodes = np.asarray(posterior.t)
    some = few(np.arange(nodes.size), _MOST_TIMES)
    mean, std = (np.reshape(x, (nodes.size, -1))[some] for x in (posterior.mean, posterior.std))
    if reference is None:
        error = np.reshape(posterior.global_error(), (nodes.size, -1))[some]
    else:
        error = mean - [np.ravel(np.asarray(reference(float(t)), float)) for t in nodes[some]]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(std > 0.0, error / std, np.nan)[:, drawn.shown]
    inside = np.abs(ratio[np.isfinite(ratio)]) <= BAND
    ax = new_axes(ax)
    options = {**line_options(drawn), "marker": ".", "linewidth": 0.8}
    for i, (name, color) in enumerate(zip(drawn.names, colors(drawn), strict=True)):
        label = name if named(drawn) else None
        ax.plot(nodes[some], ratio[:, i], color=color, label=label, **options)
    share = f"95 % band:\n{100 * inside.mean():.0f} % inside" if inside.size else "95 % band"
    ax.axhspan(-BAND, BAND, color=GREY, alpha=0.12, linewidth=0.0, label=share)
    largest = np.max(np.abs(ratio[np.isfinite(ratio)]), initial=BAND)
    reach = 1.1 * min(largest, _FARTHEST)
    ax.set_ylim(-max(reach, 1.2 * BAND), max(reach, 1.2 * BAND))
    what = "estimated error" if reference is None else "error"
    over_time(ax, nodes, f"{what} /\nstandard deviation", legend=True)
    if posterior.calibration is not None:
        ax.set_title(posterior.diagnose().verdict.splitlines()[0], fontsize=9.0)
    return ax


def mark_events(ax: "Axes", times: Sequence[Any], stds: Sequence[Any] | None = None) -> "Axes":
    """Draw a line at each event, in one colour for each function; return the axes.

    Parameters
    ----------
    ax
        Axes over time.
    times, stds
        ``t_events`` and ``t_events_std`` of what ``solve_ivp`` returned: for each function the
        times, and their standard deviations. Those that can be seen are drawn as bands.
    """
    low, high = ax.get_xlim()
    for i, at in enumerate(times):
        color, at = PALETTE[(len(PALETTE) - 1 - i) % len(PALETTE)], np.ravel(at)
        name = f"event{f' {i + 1}' if len(times) > 1 else ''}"
        spread = np.zeros(at.size) if stds is None or stds[i] is None else np.ravel(stds[i])
        for k in few(np.arange(at.size), _MOST_EVENTS) if at.size else ():
            label = f"{name} ({at.size})" if k == 0 else None
            ax.axvline(at[k], color=color, linestyle=":", linewidth=1.2, label=label)
            if BAND * spread[k] > _WIDE * abs(high - low):
                edges = at[k] - BAND * spread[k], at[k] + BAND * spread[k]
                ax.axvspan(*edges, color=color, alpha=0.2, linewidth=0.0)
    ax.set_xlim(low, high)
    if any(np.size(at) for at in times):
        name_lines(ax)
    return ax
