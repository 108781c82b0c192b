"""A posterior as a thing to look at and to store: plots, tables, files, text."""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame
    from plotly.graph_objects import Figure as Interactive
    from xarray import Dataset

    from probode.posterior.summary import Summary


class Views:
    """What a posterior looks like, and how it is kept.

    The libraries for it are imported when they are used: not everybody has them.
    """

    def plot(
        self: Any,
        *,
        ax: "Axes | None" = None,
        names: Sequence[str] | None = None,
        reference: Callable[[float], Any] | None = None,
        title: str | None = None,
        k: int = 0,
    ) -> "Figure | Axes":
        """Draw the solution with its band, and below it standard deviations and step sizes.

        On the scale of the solution a good band is invisible: the second panel shows it.

        Parameters
        ----------
        ax
            Draw the solution only, into these axes.
        names
            One name per component of ``y`` (flattened in C order).
        reference
            The true solution ``t -> y``: its distance is drawn with the standard deviations.
        title
            Title of the figure.
        k
            Which derivative to draw: of an equation of second order, 1 are velocities.

        Returns
        -------
        Figure or Axes
            The figure, or ``ax`` if that was given.
        """
        from probode.posterior import plotting

        if ax is None:
            return plotting.figure(self, names=names, reference=reference, title=title, k=k)
        if reference is not None:
            raise ValueError(
                "reference is drawn beside the standard deviations, ax takes the solution only: "
                "leave ax out, or draw the error with plot_error(reference, ax=...)."
            )
        return plotting.plot_solution(self, ax, names=names, title=title, k=k)

    def plot_interactive(
        self: Any,
        *,
        names: Sequence[str] | None = None,
        reference: Callable[[float], Any] | None = None,
        title: str | None = None,
        k: int = 0,
    ) -> "Interactive":
        """The figure of :meth:`plot` to look into: values and error bars under the mouse.

        A click on a name in the legend hides that component, dragging enlarges a part, a double
        click shows all again. Needs Plotly: ``pip install probode[interactive]``.

        Parameters
        ----------
        names, reference, title, k
            As for :meth:`plot`.

        Returns
        -------
        plotly.graph_objects.Figure
            Shown by itself in notebooks, elsewhere in the browser by ``show()``;
            ``write_html("solution.html")`` makes a page of it.
        """
        from probode.posterior import interactive

        return interactive.figure(self, names=names, reference=reference, title=title, k=k)

    def plot_error(
        self: Any,
        reference: Callable[[float], Any] | None = None,
        *,
        ax: "Axes | None" = None,
        names: Sequence[str] | None = None,
        k: int = 0,
    ) -> "Axes":
        """Draw standard deviations and, with a ``reference`` ``t -> y``, true errors; log scale."""
        from probode.posterior import plotting

        return plotting.plot_std(self, ax, names=names, reference=reference, k=k)

    def plot_samples(
        self: Any,
        n: int = 20,
        *,
        seed: Any = 0,
        ax: "Axes | None" = None,
        deviations: bool = True,
        components: Sequence[int] | None = None,
        names: Sequence[str] | None = None,
        k: int = 0,
    ) -> "Axes":
        """Draw sampled trajectories: what they differ from the mean by, with a band of 95 %.

        ``deviations=False`` draws the trajectories themselves, which at good tolerances coincide.
        ``components`` are indices into ``y`` (flattened in C order); ``k`` is as in
        :meth:`Posterior.sample`.
        """
        from probode.posterior import plotting

        return plotting.plot_samples(
            *(self, ax),
            n=n,
            seed=seed,
            deviations=deviations,
            components=components,
            names=names,
            k=k,
        )

    def plot_steps(self: Any, *, ax: "Axes | None" = None) -> "Axes":
        """Draw the lengths of the accepted steps on a logarithmic scale."""
        from probode.posterior import plotting

        return plotting.plot_steps(self, ax)

    def plot_phase(
        self: Any,
        i: int = 0,
        j: int = 1,
        *,
        ax: "Axes | None" = None,
        enlarge: float | None = None,
        names: Sequence[str] | None = None,
    ) -> "Axes":
        """Draw component ``j`` over component ``i``, with ellipses that hold 95 %.

        Of an equation of second order these are values and, after them, velocities: of a number
        ``y`` it is the phase portrait. Ellipses too small to be seen are enlarged by a round
        number, which the legend states; ``enlarge=1`` draws them as they are.
        """
        from probode.posterior import plotting

        return plotting.plot_phase(self, i, j, ax, enlarge=enlarge, names=names)

    def plot_calibration(
        self: Any,
        reference: Callable[[float], Any] | None = None,
        *,
        ax: "Axes | None" = None,
        names: Sequence[str] | None = None,
    ) -> "Axes":
        """Draw errors in units of the error bars: 95 % of them should lie between ±1.96.

        The errors are those from a ``reference`` ``t -> y`` or, without one, the estimates of
        :meth:`global_error`. Lines that stay far inside belong to bars that are too wide, lines
        that leave the band to bars that are too narrow. The title is the verdict of
        :meth:`diagnose`.
        """
        from probode.posterior import plotting

        return plotting.plot_calibration(self, reference, ax, names=names)

    def summary(self: Any) -> "Summary":
        """The numbers that one looks for first; printed, a table with a row for each component.

        Final value with its standard deviation, smallest and largest value, the largest standard
        deviation and when that is; how the solve ended, whether the error bars can be trusted, and
        what it took.
        """
        from probode.posterior import summary

        return summary.summary(self)

    def to_xarray(self: Any, samples: int = 0, *, seed: Any = 0, t: Any = None) -> "Dataset":
        """An xarray Dataset of ``y`` (the mean) and ``y_std`` over ``time`` and ``state``.

        Parameters
        ----------
        samples
            Number of joint samples to draw: the variable ``samples``.
        seed
            An integer, or a JAX random key.
        t
            Times; by default ``posterior.t``.

        Returns
        -------
        Dataset
            ``state`` counts the components of ``y`` flattened in C order; an equation of second
            order has ``dy`` and ``dy_std``, the velocities, as well. The attributes say how
            the solution was computed, at what cost, and how the solve ended.
        """
        from probode.posterior import export

        return export.to_xarray(self, samples, seed=seed, t=t)

    def to_netcdf(
        self: Any, path: str | os.PathLike[str], samples: int = 0, *, seed: Any = 0, t: Any = None
    ) -> None:
        """Write what :meth:`to_xarray` returns into a netCDF file."""
        from probode.posterior import export

        export.to_netcdf(self, path, samples, seed=seed, t=t)

    def to_dataframe(
        self: Any, *, t: Any = None, names: Sequence[str] | None = None
    ) -> "DataFrame":
        """A pandas DataFrame over ``time`` with columns ``y1``, ``y1_std``, ``y2``, ...

        For an equation of second order ``dy1``, ``dy1_std``, ..., the velocities, follow.
        """
        from probode.posterior import export

        return export.to_dataframe(self, t=t, names=names)

    def save(self: Any, path: str | os.PathLike[str]) -> None:
        """Write everything into a file (NumPy's ``.npz``), for :meth:`load`."""
        from probode.posterior import export

        export.save(self, path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Any:
        """Read a posterior that :meth:`save` has written: the same, bit for bit.

        Reading executes nothing that the file contains.
        """
        from probode.posterior import export

        return export.load(path)

    def __repr__(self: Any) -> str:
        from probode.posterior import display

        return display.text(self)

    def _repr_html_(self: Any) -> str | None:
        from probode.posterior import display

        return display.html(self)
