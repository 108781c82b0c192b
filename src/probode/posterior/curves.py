"""What a figure shows: which components of a posterior, at which times. No drawing in it."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from probode.posterior.paths import NodePath
from probode.posterior.posterior import Posterior, component_names, one_solve

Reference = Callable[[float], Any]

MOST_LINES = 200
BAND = 1.959963984540054
"""Half width of the central 95 % of a Gaussian, in standard deviations."""
_BESIDE = 0.5
"""Part of the solution's range by which bands may widen the axis, up and down."""
_USUALLY, STILL_SEEN, OUT_OF_SIGHT = 0.95, 3.0, 1e3
"""Of a solve that ended too early: what holds for this part of the time, and in units of its size
then what is still drawn, and what is so large that the rest would be a line."""
_TIMES = 500
_GROWTH = 1e6
"""If the steps grow by this factor, and hardly ever shrink, the time axis is logarithmic."""


class Curves(NamedTuple):
    """The components to draw, at the times to draw them; arrays of shape ``(times, lines)``."""

    nodes: np.ndarray
    """Times of the steps (or ``save_at``)."""
    t: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    error: np.ndarray | None
    shown: np.ndarray
    """Which components of ``y`` these are, ..."""
    d: int
    """... of how many."""
    names: list[str]
    what: str = ""
    """What is drawn, if not the solution itself: a derivative of it, in words."""

    @property
    def at_nodes(self) -> bool:
        """Whether they are drawn at the nodes only."""
        return self.t is self.nodes


def curves(
    posterior: Posterior,
    names: Sequence[str] | None = None,
    reference: Reference | None = None,
    *,
    components: Sequence[int] | None = None,
    most: int = MOST_LINES,
    k: int | None = 0,
) -> Curves:
    """Evaluate a posterior, or its ``k``-th derivative, for drawing.

    With ``None`` the whole state: of an equation of higher order values, then velocities.
    """
    posterior = one_solve(posterior, "a figure")
    nodes = np.asarray(posterior.t)
    t = nodes
    if isinstance(posterior.path, NodePath) and nodes.size > 1:
        # Between its steps a filter only predicts, with errors that are corrected at the next.
        t = few(nodes, _TIMES) if posterior.path.smoothed is None else drawing_times(nodes)
    at = None if t is nodes else t
    marginals: Any = posterior.state(at) if k is None else posterior.derivative(at, k)
    d = int(np.prod(posterior.shape))
    d *= posterior.method.equation.order if k is None else 1
    mean, std = (np.reshape(x, (t.size, d)) for x in (marginals.mean, marginals.std))
    if names is None:
        derivatives = range(posterior.method.equation.order) if k is None else (k,)
        names = [name for j in derivatives for name in _default_names(posterior, j)]
    elif isinstance(names, str) or len(names) != d:
        raise ValueError(f"names must be {d} strings, one per component, got {names!r}.")
    error = None if reference is None else _error(t, mean, reference)
    shown = few(np.arange(d), most) if components is None else _chosen(components, d)
    return Curves(
        nodes=nodes,
        t=t,
        mean=mean[:, shown],
        std=std[:, shown],
        error=None if error is None else error[:, shown],
        shown=shown,
        d=d,
        names=[str(names[i]) for i in shown],
        what=_in_words(k, posterior.method.equation.order) if k else "",
    )


def _in_words(k: int, order: int) -> str:
    """The ``k``-th derivative: of an equation of second order values, velocities, accelerations."""
    if order == 2 and k <= 2:
        return ("velocity", "acceleration")[k - 1]
    return f"{('first', 'second', 'third')[k - 1] if k <= 3 else f'{k}th'} derivative"


def _chosen(components: Sequence[int], d: int) -> np.ndarray:
    chosen = np.atleast_1d(np.asarray(components))
    if chosen.ndim != 1 or not np.issubdtype(chosen.dtype, np.integer):
        raise TypeError(f"components must be integers, got {components!r}.")
    if not chosen.size or np.any((chosen < -d) | (chosen >= d)):
        raise ValueError(
            f"components must be between 0 and {d - 1}, as y has {d} of them, got {components!r}."
        )
    return chosen % d


def _default_names(posterior: Posterior, k: int) -> list[str]:
    letter = ("y", r"\dot{y}", r"\ddot{y}")[k] if k < 3 else f"y^{{({k})}}"

    def name(index: list[str]) -> str:
        alone = np.prod(posterior.shape) == 1
        return letter if alone or not index else f"{letter}_{{{','.join(index)}}}"

    math = component_names(posterior, name, r"\mathrm{{{part}}}\,{name}")
    return [f"${text}$" for text in math]


def few(values: np.ndarray, n: int) -> np.ndarray:
    """At most ``n`` of the values, the first and the last among them."""
    places = np.linspace(0, values.size - 1, min(values.size, n))
    return values[places.round().astype(int)]


def drawing_times(nodes: np.ndarray) -> np.ndarray:
    """Times to draw at: half of them spread over the interval, half over the steps.

    The latter keep layers that are thin in comparison to the interval, the former long steps. In
    steps of a few roundings (across a switch) there is nothing to see.
    """
    half, steps = _TIMES // 2, np.abs(np.diff(nodes))
    wide = np.append(True, steps > 1e3 * np.spacing(np.max(np.abs(nodes))))
    whole, nodes = nodes, nodes[wide] if np.count_nonzero(wide) > 1 else nodes
    places = np.linspace(0, nodes.size - 1, half)
    over_steps = np.interp(places, np.arange(nodes.size), nodes)
    if steps_grow(nodes):
        over_time = np.geomspace(nodes[0] or nodes[1], nodes[-1], half)
    else:
        over_time = np.linspace(nodes[0], nodes[-1], half)
    times = np.unique(np.concatenate([over_steps, over_time]))
    times = np.clip(np.append(times, whole[[0, -1]]), whole.min(), whole.max())
    times = np.unique(times)
    return times if whole[-1] >= whole[0] else times[::-1]


def _error(t: np.ndarray, mean: np.ndarray, reference: Reference) -> np.ndarray:
    values = [np.asarray(reference(float(time)), float).reshape(-1) for time in t]
    sizes = sorted({value.size for value in values})
    if sizes != [mean.shape[1]]:
        raise ValueError(
            f"reference must return {mean.shape[1]} components, as many as y has, got {sizes}."
        )
    return np.abs(np.array(values) - mean)


def steps_grow(nodes: np.ndarray) -> bool:
    """Whether the steps grow over many decades: the case for a logarithmic time axis."""
    # The last step may have been cut short by the end of the interval.
    steps = np.diff(nodes)[:-1]
    if nodes[0] < 0.0 or steps.size < 2 or steps[0] < 0.0:
        return False
    largest = np.maximum.accumulate(steps)
    return bool(largest[-1] > _GROWTH * steps[0] and np.all(steps > 0.1 * largest))


def within_reach(mean: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Edges of bands, not farther from all means than a part of their range."""
    edges, mean = edges[np.isfinite(edges)], mean[np.isfinite(mean)]
    extent = np.ptp(mean) if mean.size else 0.0
    if extent == 0.0:  # nothing but the band to see
        return edges
    return np.clip(edges, mean.min() - _BESIDE * extent, mean.max() + _BESIDE * extent)


def usual_size(t: np.ndarray, values: np.ndarray) -> float | None:
    """How large values are most of the time, if they grow out of sight at some time."""
    sizes, evenly = np.max(np.abs(values), axis=1), np.linspace(0.0, 1.0, 200)
    if t.size < 2 or t[-1] == t[0]:
        return None
    share = (t - t[0]) / (t[-1] - t[0])
    usual = float(np.quantile(np.interp(evenly, share, sizes), _USUALLY))
    return usual if OUT_OF_SIGHT * usual < np.max(sizes) else None
