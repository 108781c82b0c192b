"""Figures of fits: data, solution with band, residuals; profiles. They need Matplotlib."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import chi2

from probode.inference.at_data import Seen
from probode.inference.prediction import Prediction, predict
from probode.posterior.axes import PALETTE, decorate, new_axes, pyplot, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from probode.inference.profile import Profile
    from probode.inference.result import Fit

_BAND = 1.959963984540054
"""Half width of the central 95 % of a Gaussian, in standard deviations."""
_TIMES = 200
_GREY = "0.35"


def figure(fit: "Fit", names: Sequence[str] | None, title: str | None) -> "Figure":
    """Two panels for each data set: data and band, residuals in units of their noise."""
    plt = pyplot()  # before any work, in case it is missing
    t1 = fit.objective.statement.t1
    starts = [float(np.asarray(one.t)[0]) for one in fit._posteriors]
    sets = fit._seen
    predictions = [
        _prediction(fit, s, np.linspace(start, t1, _TIMES)) for s, start in enumerate(starts)
    ]
    count, m = len(sets), sets[0].u.shape[1]
    labels = list(names) if names is not None else [f"u{i + 1}" for i in range(m)]
    if len(labels) != m:
        raise ValueError(f"names must have one entry for each of {m} values, got {names!r}.")
    with styled():
        drawing, axes = plt.subplots(
            2,
            count,
            sharex=True,
            sharey="row",
            squeeze=False,
            figsize=(8.0 if count == 1 else min(4.0 * count, 16.0), 5.0),
            height_ratios=[3.0, 1.3],
            layout="constrained",
        )
        for k, (one, prediction) in enumerate(zip(sets, predictions, strict=True)):
            upper, lower = axes[:, k]
            last = k == count - 1
            _draw_data(upper, one, prediction, labels, legend=last)
            _draw_residuals(lower, one, labels)
            if count > 1:
                upper.set_title(fit._subjects[k])
        for ax in axes.ravel():
            ax.label_outer()
        drawing.align_ylabels(axes[:, 0])
        if title is not None:
            if count > 1:
                drawing.suptitle(title)
            else:
                axes[0, 0].set_title(title, pad=10.0)
    return drawing


def _prediction(fit: "Fit", s: int, t: np.ndarray) -> Prediction:
    """Of what was measured, with all its uncertainty that is known."""
    return predict(
        fit.objective, fit.z, fit._spread, s, fit._posteriors[s], t, fit.observed(s), 0, 0
    )


def _colors(m: int) -> list[str]:
    return [PALETTE[i % len(PALETTE)] for i in range(m)]


def _draw_data(
    ax: "Axes", one: Seen, prediction: Prediction, labels: list[str], *, legend: bool
) -> None:
    matches = len(one.expected) == one.u.shape[1]
    both = (prediction.mean, prediction.std)
    mean, std = (x.reshape(len(prediction.t), -1)[:, one.expected] for x in both)
    colors = _colors(one.u.shape[1])
    for i, color in enumerate(colors):
        if matches:
            low, high = mean[:, i] - _BAND * std[:, i], mean[:, i] + _BAND * std[:, i]
            ax.fill_between(prediction.t, low, high, color=color, alpha=0.25, linewidth=0.0)
            ax.plot(prediction.t, mean[:, i], color=color, linewidth=1.5)
        noise = one.noise[:, i]
        ax.errorbar(
            one.t,
            one.u[:, i],
            yerr=noise if np.any(np.isfinite(noise)) else None,
            fmt="o",
            color=color,
            markersize=4.0,
            elinewidth=1.0,
            capsize=0.0,
            label=labels[i],
        )
    ax.plot([], [], color=_GREY, linewidth=1.5, label="fit")
    ax.fill_between([], [], [], color=_GREY, alpha=0.25, linewidth=0.0, label="95 % band")
    decorate(ax, "$t$", "data and fit", legend=legend)


def _draw_residuals(ax: "Axes", one: Seen, labels: list[str]) -> None:
    """In units of the noise, where there is one."""
    total = np.sqrt(one.noise**2 + one.solver**2)
    known = np.any(np.isfinite(total))
    values = one.residuals / total if known else one.residuals
    ax.axhline(0.0, color=_GREY, linewidth=0.8)
    if known:
        ax.axhspan(-_BAND, _BAND, color="0.93", linewidth=0.0, zorder=0.0)
    m = values.shape[1]
    gap = np.min(np.diff(np.unique(one.t)), initial=np.inf)
    gap = gap if np.isfinite(gap) else 0.0
    for i, color in enumerate(_colors(m)):
        shift = 0.12 * gap * (i - 0.5 * (m - 1))  # side by side, not one upon the other
        ax.vlines(one.t + shift, 0.0, values[:, i], color=color, linewidth=1.0)
        ax.plot(one.t + shift, values[:, i], "o", color=color, markersize=3.5)
    size = float(np.nanmax(np.abs(values), initial=2.5 if known else 0.0))
    if size > 0.0:
        ax.set_ylim(-1.15 * size, 1.15 * size)
    decorate(ax, "$t$", "residual / noise" if known else "residual", legend=False)


def plot_profile(profile: "Profile", ax: "Axes | None") -> "Axes":
    """Log likelihood over the values of the parameter, relative to its maximum."""
    pyplot()
    ax = new_axes(ax, (6.4, 3.6))
    best = float(np.max(profile.log_likelihoods, initial=-np.inf))
    below = profile.log_likelihoods - best
    drop = 0.5 * float(chi2.ppf(profile.level, 1))
    ax.plot(profile.values, below, "o-", color=PALETTE[0], markersize=3.5, linewidth=1.5)
    ax.axhline(
        -drop, color=_GREY, linewidth=0.8, linestyle="--", label=f"{profile.level:.0%} level"
    )
    inside = [end for end in profile.interval if np.isfinite(end)]
    if len(inside) == 2:
        ax.axvspan(*inside, color=PALETTE[0], alpha=0.12, linewidth=0.0, label="interval")
    ax.axvline(profile.estimate, color=PALETTE[1], linewidth=1.2, label="estimate")
    decorate(ax, profile.name, "log likelihood − maximum", legend=True)
    return ax
