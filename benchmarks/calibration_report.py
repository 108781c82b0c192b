"""What the calibration benchmark found: figures of merit, everything outside of them, a figure."""

import itertools

import numpy as np

LEVELS = (50, 90, 95, 99)


def good(row):
    """Whether the error bars have the size of the errors."""
    return 0.1 <= row["chi2"] <= 10


def part(values):
    """As a percentage."""
    values = list(values)
    return f"{100 * sum(values) / len(values):.1f} %" if values else "-"


def report(rows, skipped):
    """Print the figures of merit of each set, and what is not among them."""
    for kind in dict.fromkeys(row["set"] for row in rows):
        mine = [row for row in rows if row["set"] == kind]
        print(f"\n=== {kind}: {len({r['problem'] for r in mine})} problems")
        _table(mine)
        for mode in dict.fromkeys(r["scale"] for r in mine if r["scale"] != "model"):
            _verdicts(mode, [r for r in mine if r["scale"] == mode])
    print("\nnot judged:")
    for reason, members in itertools.groupby(sorted(skipped, key=lambda s: s[-1]), lambda s: s[-1]):
        which = list(members)
        places = sorted({str(w[1]) for w in which})
        print(f"  {len(which)} runs, {reason}: {', '.join(places)}")


def _table(rows):
    groups = {}
    for row in rows:
        groups.setdefault((row["scale"], row["method"], row["diffusion"]), []).append(row)
    print(
        "| standard deviations | runs | chi²/d in [0.1, 10] | in [1/3, 3] | at the end in "
        "[0.1, 10] | 50 / 90 / 95 / 99 % bands cover |\n|---|---|---|---|---|---|"
    )
    for (scale, method, diffusion), members in sorted(groups.items()):
        trusted = [r for r in members if scale == "model" or not r["flags"]]
        if not trusted:
            continue
        cover = [100 * np.mean([r[f"cover{p}"] for r in trusted]) for p in LEVELS]
        ends = [r["chi2_final"] for r in trusted if np.isfinite(r["chi2_final"])]
        print(
            f"| {method} {diffusion}, {scale} | {len(trusted)} | {part(map(good, trusted))} | "
            f"{part(1 / 3 <= r['chi2'] <= 3 for r in trusted)} | "
            f"{part(0.1 <= x <= 10 for x in ends)} | "
            + " / ".join(f"{c:.0f}" for c in cover)
            + " % |"
        )


def _verdicts(mode, rows):
    trusted = [r for r in rows if not r["flags"]]
    bad = [r for r in rows if not good(r)]
    fine = [r for r in rows if good(r)]
    print(f"\n{mode}: 95 % bands cover 90..100 % in {part(r['cover95'] >= 0.9 for r in trusted)}")
    print(f"flagged: {part(bool(r['flags']) for r in bad)} of {len(bad)} bad runs, ", end="")
    print(f"{part(bool(r['flags']) for r in fine)} of {len(fine)} good ones")
    wrong = [r for r in rows if not r["estimate_off"] <= 0.5]
    right = [r for r in rows if r["estimate_off"] <= 0.5]
    print(
        f"         {part(bool(r['flags']) for r in wrong)} of {len(wrong)} estimates off by more ",
        end="",
    )
    print(f"than half, {part(bool(r['flags']) for r in right)} of {len(right)} others")
    off = [r["estimate_off"] for r in trusted]
    if off:
        print(f"estimate off by {np.median(off):.1e} (median), {np.quantile(off, 0.95):.1e} (95 %)")
    for method in dict.fromkeys(r["method"] for r in rows):
        mine = [r for r in rows if r["method"] == method]
        f, j = ([r[k] for r in mine] for k in ("f_per_step", "j_per_step"))
        print(
            f"{method}: {np.mean(f):.2f} f per step (at most {max(f):.2f}), "
            f"{np.mean(j):.2f} Jacobians (at most {max(j):.2f})"
        )
    for title, members in (
        ("bad, not flagged", [r for r in bad if not r["flags"]]),
        ("good, but flagged", [r for r in fine if r["flags"]]),
    ):
        if members:
            print(f"{title}:")
        for r in members:
            which = [str(r[k]) for k in ("problem", "method", "order", "rtol", "diffusion")]
            print(
                f"   {' '.join(which)}: chi² {r['chi2']:.2g}, estimate off by "
                f"{r['estimate_off']:.1e} {r['flags']}"
            )


def draw(rows, path):
    """What bands promise, and what they hold: the model's beside calibrated ones."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [r for r in rows if r["set"] != "stress"]
    model = [r for r in rows if r["scale"] == "model"]
    ours = [r for r in rows if r["scale"] == "defect" and not r["flags"]]
    panels = {
        "The model's own error bars": [
            ("dynamic diffusion", "C1", [r for r in model if r["diffusion"] == "dynamic"]),
            ("fixed diffusion", "C3", [r for r in model if r["diffusion"] == "fixed"]),
        ],
        "Calibrated by defect transport": [
            ("problems of the library", "C0", [r for r in ours if r["set"] == "zoo"]),
            ("held-out problems", "C2", [r for r in ours if r["set"] == "held-out"]),
        ],
    }
    figure, all_axes = plt.subplots(1, 2, figsize=(8, 4.0), sharey=True, layout="constrained")
    for axes, (title, groups) in zip(all_axes, panels.items(), strict=True):
        for place, level in enumerate(LEVELS):
            axes.plot([place - 0.4, place + 0.4], [level, level], color="0.2", linewidth=2)
        for shift, (label, color, members) in zip((-0.15, 0.15), groups, strict=True):
            if not members:
                continue
            table = 100 * np.array([[r[f"cover{p}"] for p in LEVELS] for r in members])
            low, middle, high = np.quantile(table, [0.1, 0.5, 0.9], axis=0)
            places = np.arange(len(LEVELS)) + shift
            axes.vlines(places, low, high, color=color, linewidth=7, alpha=0.35)
            axes.plot(places, middle, "o", color=color, label=f"{label} ({len(members)} runs)")
        axes.set_xticks(range(len(LEVELS)), [f"{level} %" for level in LEVELS])
        axes.set(title=title, xlabel="a band that promises to hold", ylim=(0, 103))
        # Below the panel: bars may reach all over it.
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), frameon=False, fontsize=8)
    all_axes[0].set_ylabel("holds this much of the truth, %")
    figure.supxlabel(
        "Lines: as promised. Dots: median over runs. Bars: four of five runs.", fontsize=9
    )
    figure.savefig(path, dpi=120, bbox_inches="tight")
