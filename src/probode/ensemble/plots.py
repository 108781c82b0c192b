"""Pictures of ensembles: curves and maps over the sweep dimensions."""

from typing import TYPE_CHECKING, Any

import numpy as np

from probode.posterior.export import library

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from probode.ensemble.result import Ensemble

_CURVES = 100
"""Members whose curves are drawn; more would hide each other."""


def figure(ensemble: "Ensemble", component: int, time: int, title: str | None) -> "Figure":
    """See :meth:`Ensemble.plot`."""
    pyplot = library("matplotlib.pyplot", "plot")
    dimensions = len(ensemble.dims)
    if dimensions not in (1, 2):
        raise ValueError(
            f"plot draws ensembles along one or two dimensions, this one has {ensemble.dims}: "
            "take a part of it first, for example ensemble[0]."
        )
    d = int(np.prod(ensemble.family.shape, dtype=int))
    if not -d <= component < d:
        raise ValueError(f"component must be between 0 and {d - 1}, got {component}.")
    drawn, axes = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    table = (*ensemble.shape, ensemble.family.times, d)
    mean = ensemble.mean.reshape(table)[..., component]
    std = ensemble.std.reshape(table)[..., component]
    name = f"y{component % d + 1}"
    if dimensions == 1:
        _curves(drawn, axes[0], ensemble, mean, name)
        _map_over_time(drawn, axes[1], ensemble, std, f"standard deviation of {name}")
    else:
        when = f"at t = {ensemble.t[time]:g}" if ensemble.t.ndim == 1 else "at one save point"
        _map(drawn, axes[0], ensemble, mean[..., time], f"mean of {name} {when}", log=False)
        _map(drawn, axes[1], ensemble, std[..., time], f"standard deviation of {name} {when}")
    if title is not None:
        drawn.suptitle(title)
    return drawn


def _labels(ensemble: "Ensemble", dim: str) -> np.ndarray:
    """Where members are drawn along a dimension: its labels, if these are numbers in order."""
    labels = ensemble.coords.get(dim)
    size = ensemble.family.axes.sizes[dim]
    if labels is None or labels.dtype.kind not in "biuf" or not _in_order(labels):
        return np.arange(size)
    return labels


def _in_order(values: np.ndarray) -> bool:
    steps = np.diff(values)
    return bool(np.all(steps > 0) or np.all(steps < 0))


def _curves(drawn: "Figure", ax: "Axes", ensemble: "Ensemble", mean: np.ndarray, name: str) -> None:
    cm = library("matplotlib.cm", "plot")
    colors = library("matplotlib.colors", "plot")
    (dim,) = ensemble.dims
    labels = _labels(ensemble, dim)
    scale = cm.ScalarMappable(colors.Normalize(labels.min(), labels.max()), "viridis")
    chosen = np.unique(np.linspace(0, len(labels) - 1, min(_CURVES, len(labels))).astype(int))
    times = np.broadcast_to(ensemble.t, mean.shape)
    for i in chosen:
        ax.plot(times[i], mean[i], color=scale.to_rgba(labels[i]), linewidth=0.8)
    ax.set(xlabel="t", ylabel=f"mean of {name}")
    drawn.colorbar(scale, ax=ax, label=dim)


def _map_over_time(
    drawn: "Figure", ax: "Axes", ensemble: "Ensemble", values: np.ndarray, label: str
) -> None:
    (dim,) = ensemble.dims
    times = ensemble.t
    across = times if times.ndim == 1 else np.arange(values.shape[1])
    _mesh(drawn, ax, across, _labels(ensemble, dim), values, label, log=True)
    ax.set(xlabel="t" if times.ndim == 1 else "save point", ylabel=dim)


def _map(
    drawn: "Figure",
    ax: "Axes",
    ensemble: "Ensemble",
    values: np.ndarray,
    label: str,
    log: bool = True,
) -> None:
    first, second = ensemble.dims
    _mesh(drawn, ax, _labels(ensemble, second), _labels(ensemble, first), values, label, log=log)
    ax.set(xlabel=second, ylabel=first)


def _mesh(
    drawn: "Figure", ax: "Axes", x: Any, y: Any, values: np.ndarray, label: str, log: bool
) -> None:
    """A map; members that failed are left blank, exact values (zero) too on a log scale."""
    colors = library("matplotlib.colors", "plot")
    shown = np.where(values > 0, values, np.nan) if log else values
    known = shown[np.isfinite(shown)]
    norm = None
    if log and known.size:
        norm = colors.LogNorm(known.min(), known.max())
    single = 1 in values.shape
    mesh = (
        ax.pcolormesh(shown, norm=norm)
        if single
        else ax.pcolormesh(x, y, shown, norm=norm, shading="nearest")
    )
    drawn.colorbar(mesh, ax=ax, label=label)
