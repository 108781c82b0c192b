"""A posterior in pieces as a thing to look at and to store: figures with gaps, tables."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from probode.posterior.views import Views

_SAMPLED_TIMES = 200


class PieceViews(Views):
    """What a solution with jumps looks like: that of all pieces together."""

    def plot(
        self: Any,
        *,
        ax: Any = None,
        names: Any = None,
        reference: Any = None,
        title: Any = None,
        k: int = 0,
    ) -> Any:
        """Draw what :meth:`Posterior.plot` draws, with gaps at the jumps."""
        from probode.posterior import plotting

        if ax is not None and reference is not None:
            return self.first.plot(ax=ax, reference=reference)  # says why not
        figure, axes = None, [ax]
        if ax is None:
            heights = [3.0, 2.4, 1.6]
            size = (8.0, sum(heights))
            figure, axes = plotting.pyplot().subplots(
                3, sharex=True, figsize=size, height_ratios=heights, layout="constrained"
            )
            self.plot_error(reference, ax=axes[1], names=names, k=k)
            self.plot_steps(ax=axes[2])
        for piece in self.pieces:
            plotting.plot_solution(piece, axes[0], names=names, k=k)
        if title is not None:
            axes[0].set_title(title)
        self._finished(axes[0])
        for one in axes if figure is not None else []:
            one.label_outer()
        return ax if figure is None else figure

    def plot_error(
        self: Any, reference: Any = None, *, ax: Any = None, names: Any = None, k: int = 0
    ) -> Any:
        """Draw standard deviations and, with a ``reference`` ``t -> y``, true errors; log scale."""
        from probode.posterior import plotting

        ax = plotting.new_axes(ax)
        for piece in self.pieces:
            plotting.plot_std(piece, ax, names=names, reference=reference, k=k)
        every = [np.ravel(piece.derivative(k=k).std) for piece in self.pieces]
        plotting.end_below(
            ax, np.concatenate(every)
        )  # right after a start they are next to nothing
        return self._finished(ax)

    def plot_steps(self: Any, *, ax: Any = None) -> Any:
        """Draw the lengths of the accepted steps on a logarithmic scale."""
        from probode.posterior import plotting

        ax = plotting.new_axes(ax)
        for piece in self.pieces:
            plotting.plot_steps(piece, ax)
        self._finished(ax)
        if ax.get_legend() is not None:  # it counts the steps of pieces
            ax.get_legend().remove()
        return ax

    def plot_samples(
        self: Any,
        n: int = 20,
        *,
        seed: Any = 0,
        ax: Any = None,
        deviations: bool = True,
        components: Any = None,
        names: Any = None,
        k: int = 0,
    ) -> Any:
        """Draw joint samples as :meth:`Posterior.plot_samples` does, with gaps at the jumps."""
        from probode.posterior import plotting
        from probode.posterior.curves import curves, few

        ax, most = plotting.new_axes(ax), plotting.MOST_SAMPLED
        # Enough for all pieces together: between times that are too close, rounding adds up.
        count = max(_SAMPLED_TIMES // len(self.pieces), 25)
        drawn = []
        for piece in self.pieces:
            whole = curves(piece, names, components=components, most=most, k=k)
            some = few(np.arange(whole.t.size), count)
            parts = {name: getattr(whole, name)[some] for name in ("t", "mean", "std")}
            drawn.append(whole._replace(**parts))
        samples = self.drawn(n, seed, [one.t for one in drawn], k)
        for one, rows in zip(drawn, samples, strict=True):
            plotting.draw_samples(one, rows.reshape(n, one.t.size, one.d), ax, deviations)
        return self._finished(ax)

    def plot_phase(
        self: Any, i: int = 0, j: int = 1, *, ax: Any = None, enlarge: Any = None, names: Any = None
    ) -> Any:
        """Draw component ``j`` over component ``i`` as :meth:`Posterior.plot_phase` does.

        Each piece has a start and an end.
        """
        from probode.posterior import plotting
        from probode.posterior.curves import curves

        if enlarge is None:
            drawn = [curves(piece, names, components=(i, j), k=None) for piece in self.pieces]
            mean, std = (
                np.concatenate([getattr(x, name) for x in drawn]) for name in ("mean", "std")
            )
            enlarge = plotting.enlargement(std, np.ptp(mean, axis=0))
        ax = plotting.new_axes(ax, (6.4, 4.4))
        for piece in self.pieces:
            plotting.plot_phase(piece, i, j, ax, enlarge=enlarge, names=names)
        return _named_once(ax)

    def _finished(self: Any, ax: Any) -> Any:
        """The axes of all pieces: each line once in the legend, and the whole interval."""
        _named_once(ax)
        low, high = sorted((float(self.t[0]), float(self.t[-1])))
        ax.set_xscale("linear")  # steps that grow in one piece begin anew in the next
        ax.set_xlim(low, high)
        return ax

    def to_dataframe(self: Any, *, t: Any = None, names: Sequence[str] | None = None) -> Any:
        """A pandas DataFrame over ``time``, as :meth:`Posterior.to_dataframe`; jumps twice."""
        from probode.posterior.export import library

        pandas = library("pandas")
        rows = self._cut(t)
        frames = [piece.to_dataframe(t=times, names=names) for piece, times in rows]
        return pandas.concat(frames)

    def to_xarray(self: Any, samples: int = 0, *, seed: Any = 0, t: Any = None) -> Any:
        """An xarray Dataset over ``time``, as :meth:`Posterior.to_xarray`; jumps twice."""
        from probode.posterior.export import library

        xarray = library("xarray")
        sets = [piece.to_xarray(t=times) for piece, times in self._cut(t)]
        made = xarray.concat(sets, "time", data_vars="minimal", combine_attrs="drop_conflicts")
        if samples:
            drawn = self.sample(samples, seed=seed, t=t).reshape(samples, made.sizes["time"], -1)
            made = made.assign(samples=(("sample", "time", "state"), drawn))
        return made.assign_attrs(status=self.status.name, message=self.message)

    def to_netcdf(self: Any, path: Any, samples: int = 0, *, seed: Any = 0, t: Any = None) -> None:
        """Write what :meth:`to_xarray` returns into a netCDF file."""
        self.to_xarray(samples, seed=seed, t=t).to_netcdf(path)


def _named_once(ax: Any) -> Any:
    """Each line once in the legend."""
    handles, labels = ax.get_legend_handles_labels()
    if labels:
        once = dict(zip(labels, handles, strict=True))
        ax.legend(list(once.values()), list(once))
    return ax
