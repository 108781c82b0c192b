"""An ensemble as a thing to look at and to hand on: text, tables, plots."""

import html
from typing import TYPE_CHECKING, Any

import numpy as np

from probode.base.status import Status

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from xarray import Dataset


class Views:
    """What an ensemble looks like. Libraries for it are imported when they are used."""

    def to_xarray(self: Any) -> "Dataset":
        """An xarray Dataset: ``mean`` and ``std`` over the sweep dimensions, time and state.

        ``status`` and the counts are over the sweep dimensions; ``state`` counts the components of
        ``y`` flattened in C order. Save points that differ between members are the variable ``t``.
        """
        from probode.ensemble.export import to_xarray

        return to_xarray(self)

    def to_netcdf(self: Any, path: Any) -> None:
        """Write :meth:`to_xarray` into a netCDF file (``pip install probode[export]``)."""
        from probode.ensemble.export import to_netcdf

        to_netcdf(self, path)

    def plot(
        self: Any, component: int = 0, *, time: int = -1, title: str | None = None
    ) -> "Figure":
        """Draw one component (of ``y`` flattened in C order): its means, and how sure they are.

        Along one dimension: the means over time, coloured by the dimension, and a map of standard
        deviations over dimension and time. Along two: maps of the mean and of the standard
        deviation at one save point, by default the last.
        """
        from probode.ensemble.plots import figure

        return figure(self, component, time, title)

    def __repr__(self: Any) -> str:
        return "\n".join(f"{name}: {value}" if name else value for name, value in _rows(self))

    def _repr_html_(self: Any) -> str:
        rows = _rows(self)
        cells = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
            f"<td style='text-align:left'>{html.escape(value)}</td></tr>"
            for name, value in rows[1:]
        )
        return f"<strong>{html.escape(rows[0][1])}</strong><table>{cells}</table>"


def _rows(ensemble: Any) -> list[tuple[str, str]]:
    """A summary, line by line."""
    sizes = ", ".join(f"{dim}: {size}" for dim, size in ensemble.family.axes.sizes.items())
    settings, steps, status = ensemble.settings, ensemble.steps, ensemble.status
    rows = [
        ("", f"Ensemble of {ensemble.size} members ({sizes or 'one'})"),
        (
            "solver",
            f"{settings.solver.name}, {settings.solver.diffusion.name} diffusion, "
            f"{'smoother' if settings.smooth else 'filter'}, calibration {settings.calibration}",
        ),
        ("saved", f"{ensemble.family.times} times, y of shape {ensemble.family.shape}"),
        (
            "steps",
            f"mean {np.mean(steps):.1f}, from {np.min(steps)} to {np.max(steps)} "
            f"({np.sum(ensemble.rejected) / max(np.sum(steps), 1):.0%} rejected)",
        ),
        ("engine", f"{ensemble.engine} ({ensemble.engine_reason})"),
    ]
    codes, counts = np.unique(status, return_counts=True)
    ended = ", ".join(
        f"{count} {Status(int(code)).name}" for code, count in zip(codes, counts, strict=True)
    )
    return [*rows, ("status", ended)]
