"""A posterior in the plane of two components: the curve, and ellipses that hold 95 %."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from probode.model.structure import Dense
from probode.posterior.axes import PALETTE, decorate, line_options, new_axes, pyplot
from probode.posterior.curves import Curves, curves
from probode.posterior.paths import NodePath
from probode.posterior.posterior import Posterior, one_solve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ELLIPSE = 2.447746830680816
"""Radius of the central 95 % of a Gaussian in the plane, in standard deviations."""
_ELLIPSES = 24
_SMALLEST_ELLIPSE, _LARGEST_ELLIPSE = 0.02, 0.1
"""Radii, as part of the drawing, below which ellipses are enlarged, and up to which."""


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
    ax.plot(x, y, color=PALETTE[0], **{**line_options(drawn), **line})
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
