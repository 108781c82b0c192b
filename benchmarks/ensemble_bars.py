"""Are the error bars of ensembles of the size of the errors? Twelve sweeps, several solvers.

    python -m benchmarks.ensemble_bars [--members 24] [--only NAME ...]

Each member is set against SciPy at tight tolerances (Radau where the problem is stiff, else
DOP853): at thirteen save points, smoothed and filtered, and at the end alone. A member counts as
right where its mean of ``(error / std)²`` lies in [1/3, 3]; beside it, how many errors lie in the
bands that should hold 50, 90, 95 and 99 % of them.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.integrate import solve_ivp
from scipy.stats import norm

import probode
from probode import EK0, EK1, DiagonalEK1

POINTS, BANDS = 13, (0.5, 0.9, 0.95, 0.99)
MODES: dict[str, dict[str, Any]] = {"smoothed": {}, "filtered": {"smooth": False}, "ends": {}}
PLAIN = (EK1(2), EK1(3), EK1(5), EK0(2), EK0(3), EK0(5), EK0(4, evaluations=2), DiagonalEK1(3))
STIFF = (EK1(2), EK1(3), EK1(5))


class Sweep(NamedTuple):
    """A problem, and what varies from member to member: the last argument, or the start, too."""

    f: Callable[..., Any]
    end: float
    start: Callable[[np.ndarray], Any]
    low: float
    high: float
    stiff: bool = False

    def values(self, members: int) -> np.ndarray:
        return np.linspace(self.low, self.high, members)


def lorenz_96(t, y, force):
    return (np.roll(y, -1) - np.roll(y, 2)) * np.roll(y, 1) - y + force


def brusselator(t, y, b):
    return np.array([1.0 + y[0] ** 2 * y[1] - (b + 1.0) * y[0], b * y[0] - y[0] ** 2 * y[1]])


def epidemic(t, y, rate):
    met = rate * y[0] * y[1]
    return np.array([-met, met - 0.2 * y[1], 0.2 * y[1]])


def goodwin(t, y, k):
    made = k / (1.0 + y[2] ** 9)
    return np.array([made - 0.2 * y[0], 0.2 * (y[0] - y[1]), 0.2 * (y[1] - y[2])])


def food_chain(t, y, a):
    eaten = a * y[0] * y[1] / (1.0 + y[0])
    hunted = 0.8 * y[1] * y[2]
    return np.array([y[0] * (1.0 - y[0]) - eaten, eaten - hunted - 0.3 * y[1], hunted - 0.2 * y[2]])


def double_pendulum(t, y, mass):
    a, b, u, v = y
    c, s, total = np.cos(a - b), np.sin(a - b), 1.0 + mass
    below = total - c * c
    first = -s * (u * u * c + v * v) - 9.81 * (total * np.sin(a) - np.sin(b) * c)
    second = s * (total * u * u + v * v * c) + 9.81 * total * (np.sin(a) * c - np.sin(b))
    return np.array([u, v, first / below, second / below])


def kepler(t, y, e):
    cube = (y[0] ** 2 + y[1] ** 2) ** 1.5
    return np.array([y[2], y[3], -y[0] / cube, -y[1] / cube])


FLOWS = np.array(
    [
        [-2.0, 0.5, 0.3, 0.0, 0.0],
        [0.8, -0.5, 0.0, 0.0, 0.0],
        [0.6, 0.0, -0.3, 0.1, 0.0],
        [0.0, 0.0, 0.0, -0.1, 0.05],
        [0.4, 0.0, 0.0, 0.0, -0.05],
    ]
)


def compartments(t, y, k):
    return FLOWS @ y + k * np.exp(-k * t) * np.array([1.0, 0, 0, 0, 0])


def van_der_pol(t, y, mu):
    return np.array([y[1], mu * (1.0 - y[0] ** 2) * y[1] - y[0]])


def oregonator(t, y, k):
    first = 77.27 * (y[1] + y[0] * (1.0 - 8.375e-6 * y[0] - y[1]))
    return np.array([first, (y[2] - (1.0 + y[0]) * y[1]) / 77.27, k * (y[0] - y[2])])


def towards_a_cosine(t, y, rate):
    first = -rate * (y[0] - np.cos(t)) - np.sin(t)
    return np.array([first, y[0] - 2.0 * y[1], y[1] - y[2]])


def hires(t, y, k):
    a, b, c, d, e, f, g, h = y
    joined = k * f * h - 1.81 * g
    return np.array(
        [
            -1.71 * a + 0.43 * b + 8.32 * c + 0.0007,
            1.71 * a - 8.75 * b,
            -10.03 * c + 0.43 * d + 0.035 * e,
            8.32 * b + 1.71 * c - 1.12 * d,
            -1.745 * e + 0.43 * f + 0.43 * g,
            0.69 * d + 1.71 * e - 0.43 * f + 0.69 * g - k * f * h,
            joined,
            -joined,
        ]
    )


def perihelion(e):
    return np.stack([1.0 - e, 0.0 * e, 0.0 * e, np.sqrt((1.0 + e) / (1.0 - e))], axis=1)


SWEEPS = {
    "Lorenz 96": Sweep(lorenz_96, 2.0, lambda v: [8.0, 8.5, 7.5, 9.0, 8.2, 7.0], 6.0, 9.0),
    "Brusselator": Sweep(brusselator, 10.0, lambda v: [1.5, 3.0], 2.5, 3.5),
    "epidemic": Sweep(epidemic, 30.0, lambda v: [0.99, 0.01, 0.0], 0.5, 2.0),
    "Goodwin": Sweep(goodwin, 60.0, lambda v: [0.1, 0.2, 2.5], 1.0, 3.0),
    "food chain": Sweep(food_chain, 40.0, lambda v: [0.7, 0.3, 0.2], 1.5, 3.0),
    "double pendulum": Sweep(double_pendulum, 4.0, lambda v: [1.2, 1.0, 0.0, 0.0], 0.5, 1.5),
    "Kepler": Sweep(kepler, 20.0, perihelion, 0.0, 0.6),
    "compartments": Sweep(compartments, 24.0, lambda v: [0.0] * 5, 0.3, 2.0),
    "Van der Pol": Sweep(van_der_pol, 200.0, lambda v: [2.0, 0.0], 100.0, 300.0, True),
    "Oregonator": Sweep(oregonator, 200.0, lambda v: [1.0, 2.0, 3.0], 0.13, 0.19, True),
    "to a cosine": Sweep(towards_a_cosine, 5.0, lambda v: [1.0, 0.5, 0.0], 1e2, 1e5, True),
    "HIRES": Sweep(hires, 100.0, lambda v: [1.0] + 6 * [0.0] + [0.0057], 200.0, 300.0, True),
}


def reference(sweep: Sweep, values: np.ndarray, times: np.ndarray) -> np.ndarray:
    """By SciPy, member by member."""
    starts = np.broadcast_to(sweep.start(values), (len(values), np.shape(sweep.start(values))[-1]))
    options = {"rtol": 1e-12 if sweep.stiff else 3e-14, "atol": 1e-14, "t_eval": times}
    method = "Radau" if sweep.stiff else "DOP853"
    each = [
        solve_ivp(sweep.f, (0.0, sweep.end), y0, method, args=(value,), **options).y.T
        for y0, value in zip(starts, values, strict=True)
    ]
    return np.stack(each)


def ratios(found: Any, exact: np.ndarray) -> np.ndarray:
    """Errors in standard deviations, where there are any; a row for each member."""
    known = found.std > 0.0
    scaled = np.where(known, (found.mean - exact) / np.where(known, found.std, 1.0), np.nan)
    return scaled.reshape(len(scaled), -1)


def judged(rows: list[np.ndarray]) -> str:
    """Cells of a table."""
    chi2 = np.concatenate([np.nanmean(row**2, axis=1) for row in rows])
    sizes = np.abs(np.concatenate([row[np.isfinite(row)] for row in rows]))
    inside = [np.mean(sizes < norm.ppf(0.5 + 0.5 * band)) for band in BANDS]
    shares = np.mean((chi2 > 1 / 3) & (chi2 < 3)), np.mean(chi2 <= 1 / 3), np.mean(chi2 >= 3)
    return " | ".join(f"{100 * share:.1f}" for share in (*shares, *inside))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--members", type=int, default=24)
    parser.add_argument("--only", nargs="+", default=list(SWEEPS), choices=list(SWEEPS))
    options = parser.parse_args()
    all_rows: dict[str, list[np.ndarray]] = defaultdict(list)
    print("| problem | kept | right, % | too wide | too small | 50 % | 90 % | 95 % | 99 % |")
    print("|" + "---|" * 9)
    for name in options.only:
        sweep = SWEEPS[name]
        values, times = sweep.values(options.members), np.linspace(0.0, sweep.end, POINTS)
        exact = reference(sweep, values, times)
        for mode, chosen in MODES.items():
            at, truth = (None, exact[:, -1:]) if mode == "ends" else (times, exact)
            rows = []
            for solver in STIFF if sweep.stiff else PLAIN:
                for rtol in (1e-3, 1e-5):
                    found = probode.solve_ensemble(
                        *(sweep.f, (0.0, sweep.end), sweep.start(values), (values,)),
                        save_at=at,
                        solver=solver,
                        rtol=rtol,
                        atol=1e-3 * rtol,
                        **chosen,
                    )
                    rows.append(ratios(found, truth))
            all_rows[mode] += rows
            print(f"| {name} | {mode} | {judged(rows)} |", flush=True)
    for mode, rows in all_rows.items():
        print(f"| all | {mode} | {judged(rows)} |")


if __name__ == "__main__":
    main()
