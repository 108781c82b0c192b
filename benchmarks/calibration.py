"""Are the error bars true? Coverage and chi² of posteriors against accurate references.

    python -m benchmarks.calibration [--quick] [--out out]

Problems x methods x orders x tolerances. Every run is judged at its own nodes twice: with the
standard deviations of the model (one of four diffusions), and calibrated by defect transport.

- chi²/d: mean of (error/std)² over components, averaged over time, and at the final time. One is
  perfect, above is overconfident, below is underconfident.
- coverage: part of all node values within the 50, 90, 95, 99 % bands.

References are EK1(8) at rtol 1e-12 (stiff problems: EK1(6) at 1e-11), checked against a second
solution: the closed form where there is one, DOP853 on non-stiff problems, else EK1(5). Runs whose
error is less than 20 times their difference, at the end or at more than a fifth of the nodes, are
skipped and listed, as are runs that need too many steps.

Writes calibration.csv and calibration.png.
"""

import argparse
import csv
import itertools
import statistics
import time
import warnings
from pathlib import Path

import jax
import numpy as np
from scipy.integrate import solve_ivp as scipy_solve
from scipy.stats import norm

import probode
from probode import problems
from probode.calibration import interpolant
from probode.calibration.scales import window_mean

MOST_STEPS = 30_000
ABSOLUTE = 1e-3
"""Absolute tolerances, relative to rtol."""
BANDS = (0.5, 0.9, 0.95, 0.99)
ZOO = [
    *("lotka-volterra", "logistic", "fitzhugh-nagumo", "brusselator", "rigid-body", "seir"),
    *("linear-oscillator", "exponential-decay", "henon-heiles", "three-body", "lorenz"),
    *("van-der-pol-bari", "hires", "rober", "orego", "prothero-robinson"),
    *("pleiades", "neural", "van-der-pol", "reaction-diffusion"),
]
PARAMETERS = {"reaction-diffusion": {"n": 10}}
QUICK = ["lotka-volterra", "logistic", "brusselator", "hires", "prothero-robinson", "lorenz"]


class Reference:
    """An accurate solution, and how accurate it is."""

    def __init__(self, problem):
        self.problem = problem
        # On stiff problems high orders at such tolerances drown in rounding.
        self.posterior = tight(problem, 6, 1e-11) if problem.stiff else tight(problem, 8, 1e-12)
        if not bool(self.posterior.success):
            raise RuntimeError("the reference did not reach the end")
        self._second = self._other()

    def _other(self):
        problem = self.problem
        if problem.exact is not None:
            return problem.exact
        if problem.stiff:
            other = tight(problem, 5, 2e-11)
            return lambda t: hermite(other, t)
        with jax.enable_x64(True):
            field = jax.jit(problem.vector_field)
            args = [np.asarray(a) for a in problem.args]

            def f(t, y):
                with jax.enable_x64(True):
                    return np.asarray(field(t, y, *args))

            solution = scipy_solve(
                f, problem.t_span, problem.y0, "DOP853", dense_output=True, rtol=2.3e-14, atol=1e-15
            )
        return lambda t: solution.sol(t).T

    def __call__(self, t):
        """The solution, and how far the second one is from it."""
        value = hermite(self.posterior, t)
        return value, np.abs(value - self._second(t))


def tight(problem, order, rtol):
    control = probode.PIControl(rtol=rtol, atol=ABSOLUTE * rtol)
    return probode.solve(
        *(problem.vector_field, problem.t_span, problem.y0, problem.args),
        solver=probode.EK1(order),
        control=control,
        max_steps=400_000,
    )


def hermite(posterior, t):
    """Values between close nodes, from values and three derivatives at both."""
    nodes, means = posterior.t, posterior.path.means
    i = np.clip(np.searchsorted(nodes, t) - 1, 0, len(nodes) - 2)
    h = nodes[i + 1] - nodes[i]
    w = interpolant.data(np, 3, means[i], means[i + 1], h)
    rows = interpolant.value_rows(np, 3, (t - nodes[i]) / h)
    return means[i, 0] + np.einsum("tw,twd->td", rows, w)


def judgeable(error, uncertainty):
    """Where the reference is 20 times more exact than the errors around (a tenth of the nodes)."""
    around = np.sqrt(window_mean(np, error**2, max(1, len(error) // 10)))
    return 20 * uncertainty <= around


def judge(error, std, clear):
    """chi²/d in the mean and at the end, and coverage, where the reference is ``clear``."""
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = np.where(error == 0.0, 0.0, error / std)
    scaled, clear = scaled[1:], clear[1:]
    final = float(np.mean(scaled[-1] ** 2))
    scaled = scaled[clear]
    covered = [float(np.mean(np.abs(scaled) <= norm.ppf((1 + p) / 2))) for p in BANDS]
    return [float(np.mean(scaled**2)), final, *covered]


def run(problem, reference, solver, rtol, mode, repeats):
    """Rows of results for one solve, or the reason why there are none."""
    control = probode.PIControl(rtol=rtol, atol=ABSOLUTE * rtol)

    def solve():
        return probode.solve(
            *(problem.vector_field, problem.t_span, problem.y0, problem.args),
            solver=solver,
            control=control,
            max_steps=MOST_STEPS,
        )

    posterior = solve()
    if not bool(posterior.success):
        return posterior.message
    calibrated = posterior.calibrate(mode)
    took, calibrating = [], []
    for _ in range(repeats):
        start = time.perf_counter()
        posterior = solve()
        middle = time.perf_counter()
        calibrated = posterior.calibrate(mode)
        took.append(middle - start)
        calibrating.append(time.perf_counter() - middle)
    value, uncertainty = reference(posterior.t)
    error = posterior.mean - value
    clear = judgeable(error, uncertainty)
    if np.any(np.mean(clear, axis=0) < 0.8) or not np.all(clear[-1]):
        return "error too small to be judged"
    size = np.sqrt(np.mean(error**2, axis=0))
    estimate = calibrated.global_error()
    off = np.linalg.norm((estimate - error) / size) / np.linalg.norm(error / size)
    diagnosis = calibrated.diagnose()
    common = {
        "accepted": int(posterior.stats.accepted),
        "error": float(np.max(size / np.maximum(np.abs(value).max(0), 1e-300))),
        "estimate_off": float(off),
        "f_per_step": calibrated.stats.calibration_f_evaluations / posterior.stats.accepted,
        "j_per_step": calibrated.stats.calibration_jacobian_evaluations / posterior.stats.accepted,
        "extra_time": statistics.median(calibrating) / statistics.median(took) if took else "",
        "flags": " ".join(diagnosis.flags),
        **diagnosis.numbers,
    }
    names = ("chi2", "chi2_final", *(f"cover{100 * p:.0f}" for p in BANDS))
    rows = []
    for scale, std in (("model", posterior.std), (mode, calibrated.std)):
        judged = dict(zip(names, judge(error, std, clear), strict=True))
        rows.append({"scale": scale, **judged, **common})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="six problems, few orders")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--problems", nargs="*", default=None)
    parser.add_argument("--orders", nargs="*", type=int, default=None)
    parser.add_argument("--rtol", nargs="*", type=float, default=None)
    parser.add_argument("--methods", nargs="*", default=["EK1", "EK0"])
    parser.add_argument("--diffusions", nargs="*", default=None, help="default: all that fit")
    parser.add_argument("--mode", default="defect", choices=["defect", "defect-fast"])
    parser.add_argument("--time", type=int, default=0, help="repeat each run to measure its time")
    arguments = parser.parse_args()
    names = arguments.problems or (QUICK if arguments.quick else ZOO)
    quick = arguments.quick
    tolerances = arguments.rtol or ([1e-3, 1e-6] if quick else [10.0**-k for k in range(3, 11)])
    orders = arguments.orders or ([3, 5] if quick else list(range(2, 9)))
    wanted = arguments.diffusions or (["dynamic"] if quick else None)
    diffusions = {
        "EK1": ("dynamic", "fixed"),
        "EK0": ("dynamic", "dynamic-mv", "fixed", "fixed-mv"),
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows, skipped = [], []
    for name in names:
        problem = problems.get(name, **PARAMETERS.get(name, {}))
        try:
            reference = Reference(problem)
        except RuntimeError as error:
            skipped.append((name, str(error)))
            continue
        for kind in arguments.methods:
            if kind == "EK0" and problem.stiff:
                continue
            kinds = [d for d in diffusions[kind] if wanted is None or d in wanted]
            fitting = [q for q in orders if kind == "EK1" or q <= 5]
            for diffusion, q in itertools.product(kinds, fitting):
                solver = getattr(probode, kind)(q, diffusion)
                for rtol in tolerances:
                    label = {"problem": name, "method": kind, "order": q, "rtol": rtol}
                    label["diffusion"] = diffusion
                    found = run(problem, reference, solver, rtol, arguments.mode, arguments.time)
                    if isinstance(found, str):
                        skipped.append((*label.values(), found))
                    else:
                        rows += [{**label, **row} for row in found]
        print(f"{name}: {sum(row['problem'] == name for row in rows) // 2} runs", flush=True)
        if rows:
            write(arguments.out / "calibration.csv", rows)
        jax.clear_caches()
    report(rows, skipped)
    draw(rows, arguments.out / "calibration.png")


def write(path, rows):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def part(values):
    values = list(values)
    return f"{100 * sum(values) / max(len(values), 1):5.1f} %"


def report(rows, skipped):
    """The figures of merit, and everything that is not among them."""
    groups = {}
    for row in rows:
        label = row["diffusion"] if row["scale"] == "model" else row["scale"]
        groups.setdefault((row["method"], label), []).append(row)
    print(f"\n{'':22} {'runs':>5} {'chi² in':>8} {'chi² in':>8} {'final in':>9}  mean coverage of")
    print(f"{'':22} {'':>5} {'[.1,10]':>8} {'[1/3,3]':>8} {'[.1,10]':>9}  50 / 90 / 95 / 99 %")
    for (method, label), members in sorted(groups.items()):
        trusted = [r for r in members if r["scale"] == "model" or not r["flags"]]
        cover = [100 * np.mean([r[f"cover{p}"] for r in trusted]) for p in (50, 90, 95, 99)]
        print(
            f"{method:4} {label:17} {len(trusted):5} "
            f"{part(0.1 <= r['chi2'] <= 10 for r in trusted):>8} "
            f"{part(1 / 3 <= r['chi2'] <= 3 for r in trusted):>8} "
            f"{part(0.1 <= r['chi2_final'] <= 10 for r in trusted):>9}  "
            + " / ".join(f"{c:.0f}" for c in cover)
        )
    ours = [row for row in rows if row["scale"] != "model"]
    trusted = [r for r in ours if not r["flags"]]
    bad = [r for r in ours if not 0.1 <= r["chi2"] <= 10]
    good = [r for r in ours if 0.1 <= r["chi2"] <= 10]
    print(f"\n95 % bands cover 90..100 % in {part(r['cover95'] >= 0.9 for r in trusted)} of runs")
    print(f"flagged: {part(bool(r['flags']) for r in bad)} of {len(bad)} bad runs,")
    print(f"         {part(bool(r['flags']) for r in good)} of {len(good)} good ones")
    off = [r["estimate_off"] for r in trusted]
    print(f"estimate off by {np.median(off):.1e} (median), {np.quantile(off, 0.95):.1e} (95 %)")
    for method in ("EK1", "EK0"):
        mine = [r for r in ours if r["method"] == method]
        if mine:
            f, j = (max(r[k] for r in mine) for k in ("f_per_step", "j_per_step"))
            times = [r["extra_time"] for r in mine if r["extra_time"] != ""]
            extra = f", {100 * np.median(times):.0f} % more time (median)" if times else ""
            mean = np.mean([r["f_per_step"] for r in mine])
            print(f"{method}: {mean:.2f} f per step (at most {f:.2f}), {j:.2f} Jacobians{extra}")
    print("\nnot flagged, and outside [0.1, 10]:")
    for r in bad:
        if not r["flags"]:
            print(
                "  ", *(r[k] for k in ("problem", "method", "order", "rtol", "diffusion")), end=" "
            )
            print(f"chi² {r['chi2']:.2g}, estimate off by {r['estimate_off']:.1e}")
    print("not judged:")
    for reason, members in itertools.groupby(sorted(skipped, key=lambda s: s[-1]), lambda s: s[-1]):
        which = list(members)
        places = sorted({str(w[0]) for w in which})
        print(f"  {len(which)} runs, {reason}: {', '.join(places)}")


def draw(rows, path):
    """Nominal against observed coverage: on the diagonal, error bars mean what they say."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 5), layout="constrained")
    levels = np.array([50, 90, 95, 99])
    axes.plot([0, 100], [0, 100], color="0.6", linewidth=1, linestyle="--")
    axes.annotate("as promised", (70, 70), rotation=38, color="0.4", ha="center", va="bottom")
    curves = {
        "defect transport (this library)": lambda r: r["scale"] != "model" and not r["flags"],
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


if __name__ == "__main__":
    warnings.simplefilter("ignore", RuntimeWarning)
    main()
