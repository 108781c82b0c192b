"""How often are parameters found? Published success rates of fits, with ours beside them.

    python -m benchmarks.fitting [--runs 60] [--only NAME ...] [--methods NAME ...] [--seed 1]

Estimates: new data and a new start in every run; initial values and noise unknown (Tronarp, Bosch,
Hennig: Fenrir, 2022). Rates: one set of data, how many starts lead to the true parameters (Beck et
al.: Diffusion tempering, 2024). Starts are drawn as in these papers' published scripts. Where those
have data every 0.01, ours are thinned, and their variance with them: as much is known as there.

- ``plain``: least squares (Gaussian likelihood of the mean), adaptive steps at 1e-4;
- ``fenrir``: the same with the calibrated uncertainty of the solver; ``5 starts``: the best of so
  many;
- ``shooting``: ``fit(..., search="shooting")`` from one start, with that likelihood at the end (for
  the neuron with the plain one: calibration takes long with more than 300 numbers);
- ``posterior mean``: the same, and then the mean of the posterior (flat between the bounds) by NUTS
  instead of its maximum;
- ``learned``: Fenrir as published, with constant steps and the diffusion a parameter;
- ``tempered``: constant steps, the diffusion lowered in five stages by factors of 100, from where
  the noise of one step is as large as the data; calibrated at the end.

- ``from the truth``: ``plain`` from the true parameters, the most that a search can reach.

Methods that take long have fewer runs (``SHARES``). How shooting is set was chosen with seed 0 (at
most the first 40 runs or starts of each problem): other seeds are new data, and new starts.
"""

import argparse
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp

from probode import EK1, PIControl, fit

ORDER, TOLERANCE = 3, 1e-4
METHODS = ("plain", "shooting", "fenrir", "5 starts", "learned", "tempered")
SLOW = ("learned", "tempered")
SHARES = {"fenrir": 0.25, "5 starts": 0.25, "learned": 0.1, "tempered": 0.1, "posterior mean": 0.25}
"""Of the runs."""
STARTS = 5
DRAWS, MEAN = 100, "posterior mean"


class Problem(NamedTuple):
    """A model, where its data come from, and what was published."""

    name: str
    function: Callable[..., Any]
    true: dict[str, float]
    bounds: tuple[float, float] | dict[str, tuple[float, float]]
    y0: Any
    times: np.ndarray
    observed: list[int]
    noise: float
    step: float
    """Of those with constant steps."""
    draw: Callable[[np.random.Generator], dict[str, Any]]
    """A start."""
    published: str
    methods: tuple[str, ...] = METHODS
    kind: str = "fenrir"
    """The likelihood at the end of shooting."""
    share: float = 1.0
    """Of the runs."""
    start_of: Callable[..., Any] | None = None
    """The initial value as a function of parameters, where it is unknown."""
    unknown: Callable[..., dict[str, Any]] | None = None
    """Parameters of the initial value with their bounds, from the data."""

    def parameters(self) -> dict[str, tuple[float, float, float]]:
        """Starts (of no importance: all are given) and bounds."""
        bounds = (
            self.bounds if isinstance(self.bounds, dict) else dict.fromkeys(self.true, self.bounds)
        )
        return {k: (0.5 * (bounds[k][0] + bounds[k][1]), *bounds[k]) for k in self.true}

    def exact(self) -> np.ndarray:
        """What is observed of the solution at the true parameters."""
        made = solve_ivp(
            lambda t, y: np.asarray(self.function(t, y, self.true, np)),
            (0.0, self.times[-1]),
            self.y0,
            t_eval=self.times,
            method="LSODA",
            rtol=1e-10,
            atol=1e-12,
        )
        assert made.success
        return made.y[self.observed].T


def predators(t: Any, y: Any, p: Any, xp: Any = jnp) -> Any:
    """Lotka-Volterra."""
    return xp.stack([(p["a"] - p["b"] * y[1]) * y[0], (p["d"] * y[0] - p["c"]) * y[1]])


def neuron(t: Any, y: Any, p: Any, xp: Any = jnp) -> Any:
    """FitzHugh-Nagumo."""
    v, r = y
    return xp.stack([p["c"] * (v - v**3 / 3.0 + r), -(v - p["a"] + p["b"] * r) / p["c"]])


def epidemic(t: Any, y: Any, p: Any, xp: Any = jnp) -> Any:
    """Susceptible, exposed (who infect), infectious, recovered."""
    infected = p["beta"] * y[0] * y[1]
    sick, well = p["gamma"] * y[1], p["rate"] * y[2]
    return xp.stack([-infected, infected - sick, sick - well, well])


def pendulum(t: Any, y: Any, p: Any, xp: Any = jnp) -> Any:
    """Angle and velocity."""
    return xp.stack([y[1], -9.81 / p["length"] * xp.sin(y[0])])


CURRENT = 210e-6 / (15.3e-3 / 184.0)
"""210 pA on the soma of 15.3 ms and 184 MΩ, in µA/cm²."""


def _gates(v: Any, xp: Any) -> list[tuple[Any, Any]]:
    """Rates of opening and closing of the gates m, h, n (Pospischil et al. 2008), ``V_T = -60``."""
    u = v + 60.0

    def linear(x: Any, width: float) -> Any:  # x / (exp(x / width) - 1)
        z = x / width
        small = xp.abs(z) < 1e-6
        return xp.where(small, width - 0.5 * x, x / xp.expm1(xp.where(small, 1.0, z)))

    return [
        (0.32 * linear(13.0 - u, 4.0), 0.28 * linear(u - 40.0, 5.0)),
        (0.128 * xp.exp((17.0 - u) / 18.0), 4.0 / (1.0 + xp.exp((40.0 - u) / 5.0))),
        (0.032 * linear(15.0 - u, 5.0), 0.5 * xp.exp((10.0 - u) / 40.0)),
    ]


def spikes(t: Any, y: Any, p: Any, xp: Any = jnp) -> Any:
    """Hodgkin-Huxley: sodium, potassium, leak, a constant current."""
    v, m, h, n = y
    leak = p.get("gl", 0.1)
    currents = p["gNa"] * m**3 * h * (53.0 - v) + p["gK"] * n**4 * (-107.0 - v) + leak * (-70.0 - v)
    slopes = [a * (1.0 - x) - b * x for x, (a, b) in zip((m, h, n), _gates(v, xp), strict=True)]
    return xp.stack([currents + CURRENT, *slopes])


def two_compartments(t: Any, y: Any, p: Any, xp: Any = jnp) -> Any:
    """Two of them, half as large, joined by 1 mS/cm²; the current flows into the first."""
    halves = []
    for i, (own, other) in enumerate(((y[:4], y[4:]), (y[4:], y[:4])), 1):
        one = spikes(t, own, {name: p[f"{name}{i}"] for name in ("gNa", "gK", "gl")}, xp)
        more = (CURRENT if i == 1 else -CURRENT) + other[0] - own[0]
        halves += [one[:1] + more, one[1:]]
    return xp.concatenate(halves)


def resting(v: float = -70.0) -> np.ndarray:
    """All gates in equilibrium."""
    return np.array([v, *(a / (a + b) for a, b in _gates(np.float64(v), np))])


def _start_of(p: Any) -> Any:
    return p["y0"]


def _epidemic_start(p: Any) -> Any:
    e, i = p["e0"], p["i0"]
    return jnp.stack([1.0 - e - i, e, i, jnp.zeros_like(i)])


def _positive(u: np.ndarray) -> dict[str, Any]:
    return {"y0": (np.clip(u[0], 0.01, 99.0), np.zeros(2), np.full(2, 100.0))}


def _any(u: np.ndarray) -> dict[str, Any]:
    return {"y0": np.array(u[0])}


def _few(u: np.ndarray) -> dict[str, Any]:
    return {"e0": (0.01, 0.0, 1.0), "i0": (0.01, 0.0, 1.0)}


def _absolute_normal(*names: str) -> Callable[[np.random.Generator], dict[str, Any]]:
    return lambda rng: {name: abs(rng.normal()) for name in names}


def _epidemic_draw(rng: np.random.Generator) -> dict[str, Any]:
    small = {name: abs(0.01 * rng.normal()) for name in ("e0", "i0")}
    return small | {name: rng.uniform() for name in ("beta", "gamma", "rate")}


def estimates() -> list[Problem]:
    """With initial values and noise unknown."""
    rates = {"a": 2.0, "b": 1.0, "c": 4.0, "d": 1.0}
    fast = {"a": 0.2, "b": 0.2, "c": 3.0}
    sick = {"beta": 0.5, "gamma": 0.2, "rate": 1.0 / 21.0}
    found = [
        Problem(
            "Lotka-Volterra", predators, rates, (0.0, 100.0), [5.0, 3.0],
            np.linspace(0.0, 2.0, 21), [0, 1], 0.1, 0.05, _absolute_normal(*rates),
            "medians 2.011, 1.005, 4.006, 1.002", start_of=_start_of, unknown=_positive,
        )
    ]  # fmt: skip
    for variance, published in (
        (0.005, "medians 0.204, 0.190, 2.993; Fenrir 97 %, least squares 89 %, ODIN 54 %"),
        (0.05, "Fenrir 63 %, least squares 46 %, ODIN 11 %"),
    ):
        found.append(
            Problem(
                f"FitzHugh-Nagumo {variance:g}", neuron, fast, (0.0, 100.0), [-1.0, 1.0],
                np.linspace(0.0, 10.0, 20), [0, 1], variance**0.5, 0.05, _absolute_normal(*fast),
                published, (*METHODS, "from the truth", *([MEAN] if variance == 0.05 else [])),
                start_of=_start_of, unknown=_any,
            )
        )  # fmt: skip
    found.append(
        Problem(
            "SEIR", epidemic, sick, (0.0, 1.0), [1.0 - 5e-5, 4e-5, 1e-5, 0.0],
            np.arange(30.0, 101.0), [2, 3], 5e-4**0.5, 0.5, _epidemic_draw,
            "medians 0.501, 0.199, 0.0475", ("plain", "shooting", "fenrir", "5 starts"),
            start_of=_epidemic_start, unknown=_few,
        )
    )  # fmt: skip
    return found


def _uniform(bounds: dict[str, tuple[float, float]]) -> Callable[..., dict[str, Any]]:
    return lambda rng: {name: rng.uniform(*between) for name, between in bounds.items()}


def rates() -> list[Problem]:
    """From many starts, with the same data; initial values and noise known."""
    length = {"length": (0.1, 10.0)}
    four = dict.fromkeys("abcd", (1e-3, 5.0))
    channels = {"gNa": (0.5, 80.0), "gK": (1e-4, 15.0), "gl": (1e-4, 0.6)}
    two = {name: channels[name] for name in ("gNa", "gK")}
    true = {"gNa": 25.0, "gK": 7.0, "gl": 0.1}

    both = {f"{name}{i}": channels[name] for i in (1, 2) for name in channels}
    six = dict(zip(both, (25.0, 7.0, 0.09, 20.0, 10.0, 0.11), strict=True))

    def thinned(spacing: float) -> float:
        return float(np.sqrt(0.1 * 0.01 / spacing))

    fast = ("plain", "shooting", "fenrir")
    return [
        Problem(
            "pendulum", pendulum, {"length": 3.0}, length, [np.pi / 4.0, 0.0],
            np.linspace(0.0, 10.0, 101), [1], thinned(0.1), 0.05, _uniform(length),
            "Fenrir 99 %, least squares 32 %, tempered 100 %", (*fast, *SLOW),
        ),
        Problem(
            "Lotka-Volterra", predators, {"a": 1.5, "b": 1.0, "c": 3.0, "d": 1.0}, four, [1.0, 1.0],
            np.linspace(0.0, 20.0, 101), [0], thinned(0.2), 0.05, _uniform(four),
            "Fenrir 23 %, least squares 24 %, tempered 43 %", (*fast, *SLOW),
        ),
        Problem(
            "Hodgkin-Huxley 2", spikes, {k: true[k] for k in two}, two, resting(),
            np.linspace(0.0, 80.0, 321), [0], thinned(0.25), 0.0125, _uniform(two),
            "Fenrir 75 %, least squares 72 %, tempered 100 %", fast[:2], "plain",
        ),
        Problem(
            "Hodgkin-Huxley 3", spikes, true, channels, resting(),
            np.linspace(0.0, 80.0, 321), [0], thinned(0.25), 0.0125, _uniform(channels),
            "Fenrir 51 %, least squares 3 %, tempered 99 %", fast[:2], "plain",
        ),
        Problem(
            "Hodgkin-Huxley 6", two_compartments, six, both, np.tile(resting(), 2),
            np.linspace(0.0, 80.0, 321), [0, 4], thinned(0.25), 0.0125, _uniform(both),
            "Fenrir 50 %, least squares 0, tempered 88 %", fast[:2], "plain", 0.25,
        ),
    ]  # fmt: skip


def swing() -> Problem:
    """The pendulum of Fenrir's paper: 161 starts, noise unknown."""
    return Problem(
        "pendulum 161", pendulum, {"length": 1.0}, (0.0, 100.0), [0.0, np.pi / 2.0],
        np.linspace(0.0, 10.0, 101), [1], 0.1, 0.05, lambda rng: {},
        "Fenrir 118 of 161 (73 %), least squares 29", ("plain", "shooting", "fenrir", *SLOW),
        unknown=lambda u: {},
    )  # fmt: skip


def options(problem: Problem, method: str, u: np.ndarray) -> tuple[dict[str, Any], dict[str, Any]]:
    """What to pass to fit, and parameters besides those of the problem."""
    if method not in SLOW:
        led = method in ("shooting", MEAN)
        kind = (
            problem.kind if led else "plain" if method in ("plain", "from the truth") else "fenrir"
        )
        search = "shooting" if led else "direct"
        control = PIControl(TOLERANCE, TOLERANCE)
        return {"method": kind, "solver": EK1(ORDER), "control": control, "search": search}, {}
    h = problem.step
    constant = PIControl(1e3, 1e3, first_step=h, max_step=h)
    given = {"method": "fenrir", "solver": EK1(ORDER, "fixed"), "control": constant}
    top = float(np.mean(np.var(u, axis=0))) / h ** (2 * ORDER + 1)
    if method == "learned":
        return {**given, "diffusion": "size"}, {"size": (top, 0.0)}
    return {**given, "temper": top * 100.0 ** -np.arange(6)}, {}


def search(problem: Problem, method: str, u: np.ndarray, starts: list[dict[str, Any]]) -> Any:
    """One fit from some starts."""
    given, more = options(problem, method, u)
    parameters: dict[str, Any] = {**problem.parameters(), **more}
    noise: Any = problem.noise
    if problem.unknown is not None:
        parameters |= {**problem.unknown(u), "noise": (1.0, 0.01, 10.0)}
        noise = "noise"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return fit(
            problem.function,
            (problem.times, u),
            parameters,
            y0=problem.start_of or np.asarray(problem.y0, float),
            t_span=(0.0, problem.times[-1]),
            noise=noise,
            observe=lambda t, y: y[np.array(problem.observed)],
            starts=starts,
            max_iterations=100,
            max_steps=20_000,
            **given,
        )


def within(problem: Problem, found: dict[str, Any], share: float) -> bool:
    """Whether all parameters are that near to the truth."""
    return all(abs(found[name] / x - 1.0) < share for name, x in problem.true.items())


def estimate(problem: Problem, method: str, runs: int, seed: int) -> str:
    """Medians, and how often all parameters are within half of the truth."""
    exact, rows, good = problem.exact(), [], 0
    for run in range(runs):
        rng = np.random.default_rng([run, 1, seed] if seed else [run, 1])
        u = exact + problem.noise * rng.normal(size=exact.shape)
        starts = [problem.draw(rng) for _ in range(STARTS if method == "5 starts" else 1)]
        if method == "from the truth":
            starts = [dict(problem.true)]
        try:
            made = search(problem, method, u, starts)
        except ValueError:  # no solution at any start
            continue
        found = made.estimates if method != MEAN else _mean(made)
        rows.append([found[name] for name in problem.true])
        good += within(problem, found, 0.5)
    medians = ", ".join(f"{x:.3g}" for x in np.median(rows, axis=0)) if rows else "-"
    return f"{good} of {runs} ({good / runs:.0%}) | {medians}"


def _mean(made: Any) -> dict[str, float]:
    """Of the posterior."""
    drawn = made.sample(DRAWS, warmup=DRAWS, chains=1, progress=False).posterior
    return {name: float(drawn[name].mean()) for name in drawn if drawn[name].ndim == 2}


def rate(
    problem: Problem, method: str, starts: list[dict[str, Any]], share: float, seed: int
) -> str:
    """How many starts lead to the truth."""
    exact = problem.exact()
    u = exact + problem.noise * np.random.default_rng(seed).normal(size=exact.shape)
    found = search(problem, method, u, starts).starts
    best = max(one["value"] for one in found)
    top = max(found, key=lambda one: one["value"])["estimates"]
    good = sum(within(problem, one["estimates"], share) for one in found)
    error = max(abs(top[name] / x - 1.0) for name, x in problem.true.items())
    return f"{good} of {len(starts)} ({good / len(starts):.0%}) | {best:.1f}, {error:.1%}"


def drawn(problem: Problem, count: int, seed: int) -> list[dict[str, Any]]:
    """Seeded starts."""
    rng = np.random.default_rng([1, seed] if seed else 1)
    return [problem.draw(rng) for _ in range(count)]


def rows_of(
    problems: Iterable[Problem], given: Any, make: Callable[[Problem, str, int], str]
) -> None:
    """Lines of a table, as they come."""
    for problem in problems:
        if given.only and not any(name.lower() in problem.name.lower() for name in given.only):
            continue
        for method in problem.methods:
            if given.methods and method not in given.methods:
                continue
            begun = time.perf_counter()
            share = problem.share * SHARES.get(method, 1.0)
            made = make(problem, method, max(round(share * given.runs), 1))
            spent = time.perf_counter() - begun
            print(
                f"| {problem.name} | {method} | {made} | {spent:.0f} | {problem.published} |",
                flush=True,
            )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--only", nargs="*", default=[], help="parts of the names of problems")
    parser.add_argument("--methods", nargs="*", default=[], help="names of methods")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    seed = given.seed

    def spaced(problem: Problem, method: str, count: int) -> str:
        every = max(161 // count, 1)
        starts = [{"length": x} for x in 10.0 ** np.linspace(-2.0, 2.0, 161)[::every]]
        starts = [{"length": min(one["length"], 99.9)} for one in starts]
        return rate(problem, method, starts, 0.05, seed)

    print("| problem | method | all within 50 % | medians | s | published |")
    print("|---|---|---|---|---|---|")
    rows_of(estimates(), given, lambda p, m, n: estimate(p, m, n, seed))
    print("\n| problem | method | within 5 % | best: log likelihood, error | s | published |")
    print("|---|---|---|---|---|---|")
    rows_of([swing()], given, spaced)
    rows_of(rates(), given, lambda p, m, n: rate(p, m, drawn(p, n, seed), 0.05, seed))


if __name__ == "__main__":
    main()
