"""Figures to look into with the mouse: values and error bars under the cursor, parts enlarged.

Needs Plotly (``pip install probode[interactive]``), which is imported when a figure is drawn.
"""

import re
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from probode.posterior.axes import MOST_MARKERS, PALETTE, named, positive
from probode.posterior.curves import (
    BAND,
    OUT_OF_SIGHT,
    STILL_SEEN,
    Curves,
    Reference,
    curves,
    steps_grow,
    usual_size,
    within_reach,
)
from probode.posterior.posterior import Posterior

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_GREY = "#595959"
_ROOM = 0.05
"""Part of the drawn range that is left free above and below."""
_SIZE = 560
"""Height in pixels; the width is that of the page."""
_VALUE = "t = %{x:.6g}<br>%{y:.8g} ± %{customdata:.2g}"
_STD = "t = %{x:.6g}<br>std %{y:.3g}"
_ERROR = "t = %{x:.6g}<br>error %{y:.3g}"
_EVENT = "t = %{x:.8g}%{customdata}"


def figure(
    posterior: Any,
    *,
    names: Sequence[str] | None = None,
    reference: Reference | None = None,
    title: str | None = None,
    k: int = 0,
) -> "Figure":
    """Draw the solution with its band, and below it standard deviations.

    The arguments are those of :func:`probode.posterior.plotting.figure`.
    """
    plotly = _plotly()
    pieces = getattr(posterior, "pieces", (posterior,))
    every = [curves(piece, names, reference, k=k) for piece in pieces]
    drawing = plotly.subplots.make_subplots(
        2, 1, shared_xaxes=True, row_heights=[0.62, 0.38], vertical_spacing=0.05
    )
    for first, piece, drawn in zip([True] + [False] * len(every), pieces, every, strict=False):
        _draw(plotly.graph_objects, drawing, drawn, first)
        _draw_data(plotly.graph_objects, drawing, piece, drawn)
    success, nodes = bool(posterior.success), np.concatenate([drawn.nodes for drawn in every])
    if not success:
        drawing.add_vline(float(nodes[-1]), line_dash="dash", line_color=_GREY)
    drawing.update_yaxes(
        title_text=every[0].what or "solution", range=_range(every, success), row=1
    )
    below = "standard deviation" if reference is None else "error"
    drawing.update_yaxes(
        title_text=below, type="log", tickformat=".0e", range=_below_sight(every, success), row=2
    )
    drawing.update_xaxes(title_text="t", row=2)
    if nodes.size > 1:
        low, high = float(nodes.min()), float(nodes.max())
        if len(every) == 1 and steps_grow(nodes):
            low, high = np.log10(low or nodes[1]), np.log10(high)
            drawing.update_xaxes(type="log", exponentformat="power")
        drawing.update_xaxes(range=[low, high])
    drawing.update_layout(
        title=title,
        template="plotly_white",
        height=_SIZE,
        hovermode="closest",
        margin={"l": 70, "r": 20, "t": 50 if title else 25, "b": 50},
    )
    return drawing


def mark_events(drawing: "Figure", times: Sequence[Any], stds: Any) -> "Figure":
    """Mark the times at which events occurred, where the solution then is; return the figure.

    ``times`` and ``stds`` are ``t_events`` and ``t_events_std`` of what ``solve_ivp`` returned.
    """
    objects = _plotly().graph_objects
    lines = [trace for trace in drawing.data if (trace.meta or "") == "mean"]
    low, high = drawing.layout.yaxis.range
    for i, at in enumerate(times):
        at, color = np.ravel(at), PALETTE[(len(PALETTE) - 1 - i) % len(PALETTE)]
        if not at.size:
            continue
        name = f"event{f' {i + 1}' if len(times) > 1 else ''} ({at.size})"
        spread = [""] * at.size
        if stds is not None and stds[i] is not None:
            spread = [f" ± {one:.2g}" for one in np.ravel(stds[i])]
        group = {"legendgroup": name, "name": name}
        drawing.add_trace(
            objects.Scatter(
                x=np.repeat(at, 3),
                y=np.tile([low, high, np.nan], at.size),
                mode="lines",
                line={"color": color, "dash": "dot", "width": 1.2},
                hoverinfo="skip",
                **group,
            ),
            row=1,
            col=1,
        )
        for line in lines:
            here = (at >= np.min(line.x)) & (at <= np.max(line.x))
            order = np.argsort(line.x)
            drawing.add_trace(
                objects.Scatter(
                    x=at[here],
                    y=np.interp(at[here], np.asarray(line.x)[order], np.asarray(line.y)[order]),
                    mode="markers",
                    marker={"color": color, "size": 8, "symbol": "diamond"},
                    customdata=[one for one, is_here in zip(spread, here, strict=True) if is_here],
                    hovertemplate=_EVENT,
                    showlegend=False,
                    **group,
                ),
                row=1,
                col=1,
            )
    return drawing


def _plotly() -> ModuleType:
    """Import Plotly, or say how to get it."""
    try:
        import plotly
        import plotly.graph_objects
        import plotly.subplots
    except ImportError as error:
        raise ImportError(
            "interactive figures need Plotly: pip install probode[interactive] "
            "(plot() draws with Matplotlib)"
        ) from error
    return plotly


def _draw(objects: Any, drawing: "Figure", drawn: Curves, first: bool) -> None:
    """Means with bands in the first row, standard deviations in the second; NaN is a gap."""
    markers = drawn.at_nodes and drawn.t.size <= MOST_MARKERS
    mode, few = "lines+markers" if markers else "lines", named(drawn)
    edge: dict[str, Any] = {"line": {"width": 0}, "hoverinfo": "skip", "mode": "lines"}
    for i, (name, color) in enumerate(zip(map(_plain, drawn.names), _colors(drawn), strict=True)):
        mean, std = drawn.mean[:, i], drawn.std[:, i]
        line = {"line": {"color": color, "width": 2 if few else 1}, "mode": mode}
        traces: list[tuple[int, dict[str, Any]]] = []
        if few:
            traces.append((1, {"y": mean - BAND * std, **edge}))
            filled = {"fill": "tonexty", "fillcolor": _faint(color)}
            traces.append((1, {"y": mean + BAND * std, **edge, **filled}))
        shown = {"customdata": std, "meta": "mean", "hovertemplate": _VALUE, "showlegend": first}
        traces.append((1, {"y": mean, **line, **shown}))
        traces.append((2, {"y": positive(std), **line, "hovertemplate": _STD}))
        if drawn.error is not None:
            dotted = {"mode": "lines", "line": {"color": color, "width": 1, "dash": "dot"}}
            error = {"y": positive(drawn.error[:, i]), "hovertemplate": _ERROR}
            traces.append((2, {**dotted, **error}))
        for row, options in traces:
            own = {"x": drawn.t, "name": name, "legendgroup": name, "showlegend": False}
            drawing.add_trace(objects.Scatter(own | options), row=row, col=1)


def _draw_data(objects: Any, drawing: "Figure", posterior: Posterior, drawn: Curves) -> None:
    """The data that a posterior was conditioned on, if they are values of its components."""
    given = posterior.given
    if given is None or given.u is None or drawn.what:
        return
    values = np.asarray(given.u)[:, drawn.shown]
    for i, (name, color) in enumerate(zip(map(_plain, drawn.names), _colors(drawn), strict=True)):
        dots = objects.Scatter(
            x=np.asarray(given.t),
            y=values[:, i],
            mode="markers",
            marker={"color": color, "size": 7, "line": {"color": "white", "width": 1}},
            name=name,
            legendgroup=name,
            showlegend=False,
            hovertemplate="t = %{x:.6g}<br>datum %{y:.6g}",
        )
        drawing.add_trace(dots, row=1, col=1)


def _range(every: Sequence[Curves], success: bool) -> list[float]:
    """What the axis of the solution shows: no band, and no end, that makes all else a line."""
    shown = []
    for drawn in every:
        values = drawn.mean + BAND * drawn.std * np.array([0.0, -1.0, 1.0])[:, None, None]
        usual = None if success else usual_size(drawn.t, drawn.mean)
        if usual is not None:
            values = np.clip(drawn.mean, -STILL_SEEN * usual, STILL_SEEN * usual)[None]
        shown.append(within_reach(values[0], values))
    seen = np.concatenate(shown)
    if not seen.size:
        return [-1.0, 1.0]
    room = _ROOM * np.ptp(seen) or 0.5 * abs(seen[0]) or 1.0
    return [float(seen.min() - room), float(seen.max() + room)]


def _below_sight(every: Sequence[Curves], success: bool) -> list[float] | None:
    """Logarithms of the ends of the axis of standard deviations, where a solve grew out of sight.

    ``None``: Plotly chooses them.
    """
    last = every[-1]
    usual = None if success else usual_size(last.t, last.std)
    if usual is None:
        return None
    lowest = np.nanmin(positive(last.std))
    return [float(np.log10(lowest)), float(np.log10(OUT_OF_SIGHT * usual))]


_WORDS = (
    (r"\\mathrm\{(\w+)\}\\,", r"\1 "),
    (r"\\dot\{y\}", "y′"),
    (r"\\ddot\{y\}", "y″"),
    (r"_\{([^}]*)\}", r"<sub>\1</sub>"),
    (r"\^\{([^}]*)\}", r"<sup>\1</sup>"),
)
"""How names are written that Matplotlib would set as formulas."""


def _plain(name: str) -> str:
    """A name as HTML."""
    if not (name.startswith("$") and name.endswith("$")):
        return name
    name = name.strip("$")
    for pattern, written in _WORDS:
        name = re.sub(pattern, written, name)
    return name


def _colors(drawn: Curves) -> list[str]:
    """A colour for each line; of few components each keeps its own in all figures."""
    if drawn.d <= len(PALETTE):
        return [PALETTE[i] for i in drawn.shown]
    if named(drawn):
        return list(PALETTE[: drawn.shown.size])
    from plotly.colors import sample_colorscale

    return list(sample_colorscale("Viridis", np.linspace(0.0, 0.9, drawn.shown.size).tolist()))


def _faint(color: str) -> str:
    """A colour that what is behind shines through."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, 0.25)"
