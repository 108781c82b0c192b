"""Figures of single solutions: Lotka-Volterra, Van der Pol, the structure of bands."""

from typing import TYPE_CHECKING

import numpy as np

from experiments import lotka_volterra, structure, van_der_pol
from experiments.claims import Records
from experiments.claims_solutions import model_name, start_name
from experiments.figures import Figure, Style
from probode.posterior import plotting

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

_BAND = 1.96


def _draw_lotka_volterra(records: Records, style: Style) -> "Drawing":
    plt = plotting.pyplot()
    (record,) = records
    curves = {name: np.array(values) for name, values in record["curves"].items()}
    t, names = curves["t"], ("prey", "predators")
    drawing = plt.figure(figsize=(12, 5.2), layout="constrained")
    grid = drawing.add_gridspec(2, 2, width_ratios=(1, 1.15))
    left = drawing.add_subplot(grid[:, 0])
    for i, name in enumerate(names):
        left.plot(t, curves["mean"][:, i], color=style.palette[i])
        peak = int(np.argmax(curves["mean"][:, i]))
        place = (t[peak], curves["mean"][peak, i])
        left.annotate(
            name, place, (4, 4), textcoords="offset points", color=style.palette[i], weight="bold"
        )
    left.set(xlabel="t", ylabel="posterior mean", title="Solution", ylim=(0, None))
    for i, name in enumerate(names):
        axes = drawing.add_subplot(grid[i, 1])
        size = 10.0 ** np.floor(np.log10(curves["std"][:, i].max()))
        for sample in curves["samples"]:
            axes.plot(t, sample[:, i] / size, color=style.palette[i], lw=0.8, alpha=0.55)
        width = _BAND * curves["std"][:, i] / size
        axes.fill_between(t, -width, width, color=style.palette[i], alpha=0.13, lw=0)
        axes.plot(t, curves["error"][:, i] / size, color=style.ink, lw=2.2)
        axes.set_ylabel(f"error of {name}\n(units of {size:.0e})")
        if i == 0:
            axes.set_title("True error (bold), sampled errors (thin), 95 % band (shaded)")
            axes.tick_params(labelbottom=False)
        else:
            axes.set_xlabel("t")
    return drawing


def _caption_lotka_volterra(records: Records) -> tuple[str, str]:
    (r,) = records
    return (
        f"EKS1, IWP({r['order']}), {r['diffusion']} diffusion, atol {r['atol']:g}, rtol "
        f"{r['rtol']:g}: {r['steps']} steps. The widest band is "
        f"{100 * r['band_to_range']:.2g} % of the solution's range.",
        f"Rank correlation of |error| with the band: {r['pattern']:.2f}, of sampled errors "
        f"{np.median(r['sample_patterns']):.2f} (median). χ² = {r['chi2']:.2g} (2 expected).",
    )


def _draw_van_der_pol(records: Records, style: Style) -> "Drawing":
    plt = plotting.pyplot()
    runs = [record for record in records if record["kind"] == "adaptive"]
    drawing, rows = plt.subplots(
        len(runs), 3, figsize=(14, 3.6 * len(runs)), layout="constrained", squeeze=False
    )
    for run, (left, middle, right) in zip(runs, rows, strict=True):
        curves = {name: np.array(values) for name, values in run["curves"].items()}
        t = curves["t"]
        for i, name in enumerate(("position", "velocity")):
            color = style.palette[i]
            left.plot(curves["mean_t"], curves["mean"][:, i], color=color, label=name)
            middle.semilogy(t, curves["error"][:, i], color=color, lw=1.1, label=f"error, {name}")
            std = np.where(curves["std"][:, i] > 0, curves["std"][:, i], np.nan)
            middle.semilogy(t, std, color=color, lw=1.1, ls=(0, (4, 2)), label=f"std, {name}")
        left.set(ylim=(-7, 7), ylabel=f"start {start_name(run['y0'])}")
        middle.set(ylim=(1e-10, 1e7))
        right.fill_between(
            curves["step_t"], curves["step_low"], curves["step_high"], color=style.ink, lw=0.8
        )
        right.set(yscale="log", ylim=(1e-10, 1e-1))
        note = f"{run['steps']} iterations, {run['rejected']} rejected"
        right.text(0.02, 0.03, note, transform=right.transAxes, fontsize=9.5)
    rows[0, 0].set_title("Posterior mean (within ±7)")
    rows[0, 1].set_title("Error and posterior standard deviation")
    rows[0, 2].set_title("Accepted step sizes")
    rows[0, 0].legend(loc="lower left", ncols=2, fontsize=9.5)
    rows[0, 1].legend(loc="lower right", ncols=2, fontsize=9)
    for axes in rows[-1]:
        axes.set_xlabel("t")
    return drawing


def _caption_van_der_pol(records: Records) -> tuple[str, str]:
    runs = [record for record in records if record["kind"] == "adaptive"]
    (fixed,) = (record for record in records if record["kind"] == "fixed-step")
    ratio = runs[0]["largest_step"] / runs[0]["smallest_step"]
    ends = " and ".join(f"{r['final_error']:.2g} (χ² {r['final_chi2']:.0e})" for r in runs)
    return (
        f"EKS1, IWP(3), atol 1e-6, rtol 1e-3. Steps span a factor of {ratio:.0e}; a fixed step of "
        f"{fixed['step']:g} would take {fixed['hours']:.1f} hours.",
        f"Errors at the end: {ends}. A jump that comes too late or too early is an error of the "
        "size of the solution, whatever the standard deviations (dashed) say.",
    )


def _draw_structure(records: Records, style: Style) -> "Drawing":
    plt = plotting.pyplot()
    drawing, rows = plt.subplots(
        2, len(records), figsize=(13.5, 6), layout="constrained", sharex=True, sharey="row"
    )
    for column, record in enumerate(records):
        curves = {name: np.array(values) for name, values in record["curves"].items()}
        for i in range(2):
            axes, size = rows[i, column], 1e-8
            width = _BAND * curves["std"][:, i] / size
            color = style.palette[i]
            axes.fill_between(curves["t"], -width, width, color=color, alpha=0.35, lw=0)
            axes.plot(curves["t"], curves["error"][:, i] / size, color=style.ink, lw=1.2)
            note = f"correlation {record['structure'][i]:.2f}"
            axes.text(0.02, 0.95, note, transform=axes.transAxes, va="top", fontsize=10)
            limit = 1.3 * max(
                np.quantile(np.abs(np.array(r["curves"][k])[:, i]), 0.995) / size * w
                for r in records
                for k, w in (("error", 1.0), ("std", _BAND))
            )
            axes.set_ylim(-limit, limit)
        rows[0, column].set_title(f"{model_name(record)}: χ² = {record['chi2']:.2g}")
        rows[1, column].set_xlabel("t")
    for i in range(2):
        rows[i, 0].set_ylabel(f"y{i + 1}: error and band (1e-8)")
    return drawing


def _caption_structure(records: Records) -> tuple[str, str]:
    by_name = {model_name(record): record for record in records}
    ratio = by_name["EKS0 dynamic-mv"]["band_ratio"]
    return (
        "FitzHugh-Nagumo, IWP(3), atol 1e-10, rtol 1e-7: true error (line) and 95 % band (shaded). "
        "The scalar model gives both components one band.",
        f"The multivariate model makes that of y1 {ratio:.0f} times as wide as that of y2; in each "
        "panel the rank correlation of |error| with the band.",
    )


FIGURES = (
    Figure(
        "lotka-volterra",
        lotka_volterra.NAME,
        "Lotka-Volterra: true and sampled errors",
        _caption_lotka_volterra,
        _draw_lotka_volterra,
    ),
    Figure(
        "van-der-pol",
        van_der_pol.NAME,
        "Stiff Van der Pol, μ = 1e6",
        _caption_van_der_pol,
        _draw_van_der_pol,
    ),
    Figure(
        "structure",
        structure.NAME,
        "Three uncertainty models on FitzHugh-Nagumo",
        _caption_structure,
        _draw_structure,
    ),
)
