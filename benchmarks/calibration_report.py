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
        print(
            f"| {method} {diffusion}, {scale} | {len(trusted)} | {part(map(good, trusted))} | "
            f"{part(1 / 3 <= r['chi2'] <= 3 for r in trusted)} | "
            f"{part(0.1 <= r['chi2_final'] <= 10 for r in trusted)} | "
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
    """Nominal against observed coverage: on the diagonal, error bars mean what they say."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 5), layout="constrained")
    levels = np.array(LEVELS)
    axes.plot([0, 100], [0, 100], color="0.6", linewidth=1, linestyle="--")
    axes.annotate("as promised", (70, 70), rotation=38, color="0.4", ha="center", va="bottom")
    rows = [r for r in rows if r["set"] != "stress"]
    curves = {
        "defect transport (this library)": lambda r: r["scale"] == "defect" and not r["flags"],
        "model, dynamic diffusion": lambda r: r["scale"] == "model" and r["diffusion"] == "dynamic",
        "model, fixed diffusion": lambda r: r["scale"] == "model" and r["diffusion"] == "fixed",
    }
    for (label, chosen), color in zip(curves.items(), ("C0", "C1", "C3"), strict=True):
        mine = [r for r in rows if chosen(r)]
        if not mine:
            continue
        table = 100 * np.array([[r[f"cover{p}"] for p in levels] for r in mine])
        low, middle, high = np.quantile(table, [0.1, 0.5, 0.9], axis=0)
        axes.fill_between(levels, low, high, color=color, alpha=0.15)
        axes.plot(levels, middle, "o-", color=color, label=f"{label}: median and 80 % of runs")
    axes.set(xlim=(45, 101), ylim=(-2, 102), xlabel="nominal coverage of the band, %")
    axes.set(ylabel="values inside the band, %", title="Do error bars hold what they promise?")
    axes.legend(loc="lower right", fontsize=8)
    figure.savefig(path, dpi=150)
