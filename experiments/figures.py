"""How figures look and how they are written: for light pages, for dark ones, and for print."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probode.posterior import plotting

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

_DPI = 120


@dataclass(frozen=True)
class Style:
    """Colours of a figure. ``palette`` after Okabe and Ito, told apart by colour-blind readers."""

    paper: str
    ink: str
    faint: str
    band: str
    palette: tuple[str, ...]
    orders: tuple[str, ...]
    """Orders one to five: a scale whose lightness tells them apart as well."""


LIGHT = Style(
    paper="#ffffff",
    ink="#1c1e21",
    faint="#d9dce1",
    band="#009E73",
    palette=("#0072B2", "#D55E00", "#7a4fa3", "#000000"),
    orders=("#c9a500", "#5fae5a", "#1f918c", "#33638d", "#440f57"),
)
DARK = Style(
    paper="#15171b",
    ink="#e4e6ea",
    faint="#3a3f47",
    band="#00b98a",
    palette=("#56B4E9", "#F2A041", "#c7a3e6", "#ffffff"),
    orders=("#fbe45b", "#8fd35c", "#35b8a4", "#6a9de0", "#c98ae8"),
)
MARKERS = ("o", "s", "^", "D", "v")


@dataclass(frozen=True)
class Figure:
    """A figure of the report.

    Attributes
    ----------
    key, experiment
        Name of its files, and whose results it shows.
    title
        One line above it.
    caption
        Two lines below it, with figures from the results.
    draw
        Makes the drawing in a style.
    """

    key: str
    experiment: str
    title: str
    caption: Callable[[Sequence[dict[str, Any]]], tuple[str, str]]
    draw: Callable[[Sequence[dict[str, Any]], Style], "Drawing"]


@dataclass(frozen=True)
class Drawn:
    """A figure as it was written: its place in the report and its two images (PNG)."""

    figure: Figure
    caption: tuple[str, str]
    light: bytes
    dark: bytes


@contextmanager
def dressed(style: Style) -> Iterator[Any]:
    """Pyplot with the colours of a style."""
    plt = plotting.pyplot()
    plt.switch_backend("agg")
    settings = {
        "figure.facecolor": style.paper,
        "savefig.facecolor": style.paper,
        "axes.facecolor": style.paper,
        "axes.edgecolor": style.ink,
        "axes.labelcolor": style.ink,
        "axes.titlecolor": style.ink,
        "text.color": style.ink,
        "xtick.color": style.ink,
        "ytick.color": style.ink,
        "grid.color": style.faint,
        "grid.linewidth": 0.6,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.facecolor": style.paper,
        "legend.edgecolor": "none",
        "legend.framealpha": 0.85,
        "font.size": 10.5,
        "axes.titlesize": 11.5,
        "lines.linewidth": 1.5,
        "pdf.fonttype": 42,
    }
    with plt.rc_context(settings):
        yield plt


def plain_ticks(axis: Any) -> None:
    """Ticks of a logarithmic axis that covers little more than a decade: 1, 2, 5, 10, ..."""
    ticker = plotting.pyplot().matplotlib.ticker
    axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(ticker.FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_minor_formatter(ticker.NullFormatter())


def write(figure: Figure, records: Sequence[dict[str, Any]], folder: Path) -> Drawn:
    """Draw a figure twice; write it as PNG and PDF (both light) and keep the dark one."""
    folder.mkdir(parents=True, exist_ok=True)
    images = []
    for style in (LIGHT, DARK):
        with dressed(style) as plt:
            drawing = figure.draw(records, style)
            try:
                buffer = BytesIO()
                drawing.savefig(buffer, format="png", dpi=_DPI)
                images.append(buffer.getvalue())
                if style is LIGHT:
                    drawing.savefig(folder / f"{figure.key}.pdf")
            finally:
                plt.close(drawing)
    (folder / f"{figure.key}.png").write_bytes(images[0])
    return Drawn(figure, figure.caption(records), *images)
