"""Are posteriors of parameters right? Simulation-based calibration of likelihoods.

    python -m benchmarks.simulation_based_calibration [--sets 200] [--processes 2] [--out FOLDER]

Parameters are drawn from a prior, data made from the exact solution with noise, and the posterior
of the parameters sampled (NUTS). If the likelihood is right, the rank of the true parameter among
the draws is uniform (Talts et al. 2018). A solver at a loose tolerance makes ``plain`` posteriors
narrow and off; ``fenrir`` knows how wrong the solver is: an uncertainty of that size (``defect``),
or the estimated error taken off (``corrected``).

For each parameter: the p-value of a chi-squared test of the ranks in ten bins, the mean of
``(mean - truth) / sd`` and its root mean square (0 and 1 are right), and how many of 90 % intervals
hold the truth. Needs ``pip install 'probode[infer]'``.
"""

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

DRAWS, WARMUP, KEPT = 300, 200, 99
BINS = 10
SLICE = 4
"""Data sets that a process takes at a time."""


class Model(NamedTuple):
    """A model with a lognormal prior."""

    name: str
    function: Any
    start: np.ndarray
    end: float
    median: np.ndarray
    spread: float
    noise: float
    solvers: dict[float, Any]
    """By tolerance: of low order at the loose one, which shows errors best."""

    @property
    def times(self) -> np.ndarray:
        """Those of the data."""
        return np.linspace(0.0, self.end, 26)[1:]


def models() -> list[Model]:
    """Lotka-Volterra and FitzHugh-Nagumo."""
    import jax.numpy as jnp

    from probode import EK0, EK1

    fine = EK0(5, evaluations=2)

    def predators(t: Any, y: Any, r: Any) -> Any:
        return jnp.stack([(r[0] - r[1] * y[1]) * y[0], (r[3] * y[0] - r[2]) * y[1]])

    def neuron(t: Any, y: Any, r: Any) -> Any:
        return jnp.stack(
            [r[2] * (y[0] - y[0] ** 3 / 3.0 + y[1]), -(y[0] - r[0] + r[1] * y[1]) / r[2]]
        )

    return [
        Model(
            "Lotka-Volterra", predators, np.array([3.0, 1.0]), 12.0,
            np.array([1.0, 0.5, 1.2, 0.4]), 0.1, 0.02, {1e-2: EK0(2), 1e-6: fine},
        ),
        Model(
            "FitzHugh-Nagumo", neuron, np.array([-1.0, 1.0]), 20.0,
            np.array([0.2, 0.2, 3.0]), 0.1, 0.02, {1e-2: EK1(2), 1e-6: fine},
        ),
    ]  # fmt: skip


CONFIGURATIONS = [
    *((1e-2, method) for method in ("plain", "defect", "corrected")),
    *((1e-6, method) for method in ("plain", "corrected")),
]
"""Tolerances, and ``plain`` or how ``fenrir`` is calibrated."""


@lru_cache(maxsize=16)
def sampler(which: int, tolerance: float, kind: str) -> Callable[..., Any]:
    """Draws from a posterior, compiled once in a process: a function of key, data and start."""
    import blackjax
    import jax
    import jax.numpy as jnp

    from probode import Observations, PIControl, log_likelihood

    model = models()[which]

    def log_posterior(u: Any, x: Any) -> Any:
        likelihood = log_likelihood(
            model.function,
            (0.0, model.end),
            model.start,
            (model.median * jnp.exp(model.spread * x),),
            Observations(model.times, u, model.noise),
            method="plain" if kind == "plain" else "fenrir",
            calibration=None if kind == "plain" else kind,
            solver=model.solvers[tolerance],
            control=PIControl(tolerance, tolerance),
            max_steps=20_000,
        )
        return likelihood - 0.5 * jnp.sum(x**2)

    def run(key: Any, u: Any, start: Any) -> Any:
        density = partial(log_posterior, u)
        warm, sampling = jax.random.split(key)
        adaptation = blackjax.window_adaptation(blackjax.nuts, density, max_num_doublings=6)
        (state, parameters), _ = adaptation.run(warm, start, WARMUP)
        step = blackjax.nuts(density, **parameters).step

        def once(state: Any, key: Any) -> Any:
            state, info = step(key, state)
            return state, (state.position, info.num_integration_steps)

        return jax.lax.scan(once, state, jax.random.split(sampling, DRAWS))[1]

    return jax.jit(run)


def simulated(which: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """The parameters of a data set (in units of the prior), and the data."""
    from probode import EK1, PIControl, solve

    model = models()[which]
    random = np.random.default_rng([which, number])
    x = random.normal(size=len(model.median))
    exact = solve(
        model.function,
        (0.0, model.end),
        model.start,
        (model.median * np.exp(model.spread * x),),
        solver=EK1(8),
        control=PIControl(1e-10, 1e-10),
        save_at=model.times,
    )
    assert exact.success
    return x, np.asarray(exact.mean) + model.noise * random.normal(size=(len(model.times), 2))


def sample(job: tuple[int, float, str, list[int]]) -> list[dict[str, Any]]:
    """The posteriors of some data sets."""
    which, tolerance, method, sets = job
    import jax

    jax.config.update("jax_enable_x64", True)
    found = []
    for number in sets:
        x, u = simulated(which, number)
        begin = time.perf_counter()
        # From the truth: what is tested is the posterior, not how it is found.
        run = sampler(which, tolerance, method)
        draws, work = (np.asarray(y) for y in run(jax.random.key(number), u, x))
        thinned = draws[np.linspace(0, DRAWS - 1, KEPT).astype(int)]
        found.append(
            {
                "model": models()[which].name,
                "tolerance": tolerance,
                "method": method,
                "set": number,
                "ranks": (thinned < x).sum(axis=0).tolist(),
                "z": ((draws.mean(axis=0) - x) / draws.std(axis=0)).tolist(),
                "sd": draws.std(axis=0).tolist(),
                "seconds": time.perf_counter() - begin,
                "gradients": int(np.sum(work)),
            }
        )
    return found


def summary(rows: list[dict[str, Any]]) -> str:
    """A table of all configurations."""
    from scipy.stats import chisquare

    lines = [
        "| model | rtol | method | sets | p of uniform ranks | mean of z | rms of z | in 90 % | "
        "sd | ms a gradient |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for model in dict.fromkeys(row["model"] for row in rows):
        for tolerance, method in CONFIGURATIONS:
            mine = [
                row
                for row in rows
                if (row["model"], row["tolerance"], row["method"]) == (model, tolerance, method)
            ]
            if not mine:
                continue
            ranks, z, sd = (np.array([row[key] for row in mine]) for key in ("ranks", "z", "sd"))
            values = [
                chisquare(np.histogram(r, BINS, (-0.5, KEPT + 0.5))[0]).pvalue for r in ranks.T
            ]
            inside = np.mean((ranks >= 5) & (ranks <= KEPT - 5))
            cost = np.median([row["seconds"] / row["gradients"] for row in mine])
            cells = [
                str(len(mine)),
                " ".join(f"{p:.2g}" for p in values),
                " ".join(f"{x:+.2f}" for x in z.mean(axis=0)),
                " ".join(f"{x:.2f}" for x in np.sqrt((z**2).mean(axis=0))),
                f"{inside:.0%}",
                " ".join(f"{x:.2g}" for x in sd.mean(axis=0)),
                f"{1e3 * cost:.2f}",
            ]
            lines.append(f"| {model} | {tolerance:.0e} | {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def figure(rows: list[dict[str, Any]], path: Path) -> None:
    """Histograms of the ranks of all parameters, plain beside fenrir."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(row["model"] for row in rows))
    there = {(row["model"], row["tolerance"], row["method"]) for row in rows}
    shown = [one for one in CONFIGURATIONS if all((name, *one) in there for name in names)]
    fig, axes = plt.subplots(
        len(names),
        len(shown),
        figsize=(2.6 * len(shown), 2.6 * len(names)),
        sharex=True,
        sharey="row",
        squeeze=False,
    )
    for line, model in zip(axes, names, strict=True):
        for ax, (tolerance, method) in zip(line, shown, strict=True):
            mine = [
                row["ranks"]
                for row in rows
                if (row["model"], row["tolerance"], row["method"]) == (model, tolerance, method)
            ]
            ranks = np.array(mine).reshape(-1)
            expected = len(ranks) / BINS
            color = "#c44e52" if method == "plain" else "#4c72b0"
            ax.hist(ranks, BINS, range=(-0.5, KEPT + 0.5), color=color, alpha=0.8)
            ax.axhline(expected, color="black", lw=1)
            band = 2.6 * np.sqrt(expected * (1.0 - 1.0 / BINS))
            ax.axhspan(expected - band, expected + band, color="black", alpha=0.12, lw=0)
            ax.set_title(f"{method}, rtol {tolerance:.0e}", fontsize=10)
            for side in ("top", "right"):
                ax.spines[side].set_visible(False)
        line[0].set_ylabel(f"{model}\nparameters")
    for ax in axes[-1]:
        ax.set_xlabel("rank of the truth")
    fig.tight_layout()
    fig.savefig(path, dpi=130)


def main() -> None:
    """Run, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", type=int, default=200)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--draw", action="store_true", help="only draw what --out has already")
    parser.add_argument("--models", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--out", type=Path, default=Path("out/sbc"))
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    if chosen.draw:
        rows = json.loads((chosen.out / "ranks.json").read_text())
        print(summary(rows))
        figure(rows, chosen.out / "simulation_based_calibration.png")
        return
    slices = [list(range(chosen.sets))[i : i + SLICE] for i in range(0, chosen.sets, SLICE)]
    jobs = [
        (which, *configuration, part)
        for configuration in CONFIGURATIONS
        for which in chosen.models
        for part in slices
    ]
    context = multiprocessing.get_context("spawn")
    with context.Pool(chosen.processes) as pool:
        for done in pool.imap_unordered(sample, jobs):
            rows += done
            (chosen.out / "ranks.json").write_text(json.dumps(rows))
    print(summary(rows))
    try:
        figure(rows, chosen.out / "simulation_based_calibration.png")
    except ImportError:
        print("no figure: install matplotlib, then --draw")


if __name__ == "__main__":
    main()
