"""Doses, inputs, switches and resets: true errors against error bars, beside SciPy by hand.

For each model, method and tolerance: steps, the largest error of all nodes (in units of the scale
of its component), and chi²/d, the mean of ``(error / bar)²`` over nodes and components. Beside
them, steps and error at the end of SciPy's RK45 in a loop by hand, and the lines that both take::

    python -m benchmarks.hybrid [--quick] [--figure FILE.png]

The true solution follows from SciPy's DOP853 to 1e-13, piece by piece; that of the ball from its
closed form between bounces, in fifty digits. Near an event a node is compared with the true piece
of the same number, also where that has not begun yet, or is over: bars are those of one side.
"""

import argparse
import warnings
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp as scipy_solve_ivp

from benchmarks.hybrid_problems import PROBLEMS, Begun, Problem, ball

METHODS, TOLERANCES = ("EK0", "EK1"), (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
EXACT = 1e-13
SURE = 1e-11
"""Bars below this part of the scale are not judged: the true solution has an error, too."""


def main() -> None:
    """Run all, print a table, and what part of the runs has bars of the true size."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hybrid")
    parser.add_argument("--quick", action="store_true", help="two tolerances only")
    parser.add_argument("--figure", help="draw the six solutions into this file, and nothing else")
    options = parser.parse_args()
    if options.figure:
        figure(options.figure)
        return
    tolerances = TOLERANCES[::3] if options.quick else TOLERANCES
    print(
        "| model | rtol | steps EK0, EK1 | largest error EK0, EK1 | chi²/d EK0, EK1 "
        "| RK45 by hand: steps, error at the end | EK1's there |"
    )
    print("|---|---|---|---|---|---|---|")
    ratios = []
    for problem in PROBLEMS:
        starts = true_pieces(problem)
        ends = problem.by_hand("DOP853", EXACT).y
        for rtol in tolerances:
            rows = [judged(problem, starts, method, rtol) for method in METHODS]
            ratios += [chi for _, _, chi, _ in rows if np.isfinite(chi)]
            hand = problem.by_hand("RK45", rtol)
            off = [largest((y - ends)[None], problem) for y in (hand.y, rows[-1][3])]
            cells = (
                f"{problem.title} | {rtol:.0e} | {rows[0][0]}, {rows[1][0]}",
                f"{rows[0][1]:.1e}, {rows[1][1]:.1e} | {rows[0][2]:.2f}, {rows[1][2]:.2f}",
                f"{hand.steps}, {off[0]:.1e} | {off[1]:.1e}",
            )
            print(f"| {' | '.join(cells)} |", flush=True)
    print("\n| model | lines with probode | by hand |\n|---|---|---|")
    for problem in PROBLEMS:
        print("| {} | {} | {} |".format(problem.title, *problem.lines))
    inside = np.mean([1 / 3 <= ratio <= 3.0 for ratio in ratios])
    print(
        f"\nchi²/d in [1/3, 3] for {100 * inside:.0f} % of {len(ratios)} runs, from "
        f"{min(ratios):.2f} to {max(ratios):.2f}, median {np.median(ratios):.2f}. (nan: not "
        "judged, the true solution has such errors, too.)"
    )


def judged(
    problem: Problem, starts: list[Begun], method: str, rtol: float
) -> tuple[int, float, float, Any]:
    """Steps, the largest error, chi²/d and the last state of a run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = problem.ours(method, rtol)
    posterior = result.posterior
    pieces = getattr(posterior, "pieces", (posterior,))
    if len(pieces) == len(starts):
        exact = [
            at(start, np.asarray(piece.t)) for start, piece in zip(starts, pieces, strict=True)
        ]
    else:
        exact = [by_time(starts, np.asarray(piece.t)) for piece in pieces]
    error = np.concatenate([np.asarray(p.mean) - y for p, y in zip(pieces, exact, strict=True)])
    std = np.concatenate([np.asarray(piece.std) for piece in pieces])
    known = std > SURE * problem.scale
    chi = float(np.mean((error[known] / std[known]) ** 2)) if np.any(known) else np.nan
    return int(posterior.stats.accepted), largest(error, problem), chi, result.y[:, -1]


def largest(error: np.ndarray, problem: Problem) -> float:
    """In units of the scales."""
    return float(np.max(np.abs(error) / problem.scale))


# The true solution --------------------------------------------------------------------------------


def true_pieces(problem: Problem) -> list[Begun]:
    """Where the true pieces begin; of the ball, from its closed form."""
    pieces = problem.by_hand("DOP853", EXACT).pieces
    return flights(len(pieces)) if pieces[0].f is ball else pieces


def at(start: Any, t: np.ndarray) -> np.ndarray:
    """A piece at some times, also before it begins and after its end."""
    if not isinstance(start, Begun):
        found: np.ndarray = start(t)
        return found
    found = np.empty((len(t), len(start.y)))
    for some, end in ((t >= start.t, t.max()), (t < start.t, t.min())):
        times = np.unique(t[some])[:: 1 if end >= start.t else -1]
        if len(times) == 0 or end == start.t:
            found[some] = start.y
            continue
        solved = scipy_solve_ivp(
            *(start.f, (start.t, end), start.y, "DOP853", times), rtol=EXACT, atol=1e-16
        )
        order = np.argsort(times)
        found[some] = solved.y.T[order][np.searchsorted(times[order], t[some])]
    return found


def by_time(starts: list[Begun], t: np.ndarray) -> np.ndarray:
    """A solution without jumps: the piece that each time falls into."""
    which = np.clip(np.searchsorted([s.t for s in starts], t, side="right") - 1, 0, None)
    found = np.empty((len(t), len(starts[0].y)))
    for i in np.unique(which):
        found[which == i] = at(starts[i], t[which == i])
    return found


def flights(bounces: int) -> list[Any]:
    """The ball between two bounces, as functions of time."""
    import mpmath as mp

    g, k, back = (mp.mpf(x) for x in (9.81, 0.3, 0.98))

    def flight(t0: Any, y0: Any, v0: Any) -> tuple[Any, Any]:
        def height(t: Any) -> Any:
            return y0 - (v0 + g / k) * mp.expm1(-k * (t - t0)) / k - g / k * (t - t0)

        def speed(t: Any) -> Any:
            return (v0 + g / k) * mp.exp(-k * (t - t0)) - g / k

        return height, speed

    def values(height: Any, speed: Any) -> Any:
        def found(t: np.ndarray) -> np.ndarray:
            with mp.workdps(50):
                return np.array([[float(f(mp.mpf(x))) for f in (height, speed)] for x in t])

        return found

    pieces = []
    with mp.workdps(50):
        t, y, v = mp.mpf(0), mp.mpf(1), mp.mpf(0)
        for _ in range(bounces):
            height, speed = flight(t, y, v)
            pieces.append(values(height, speed))
            t = mp.findroot(height, t + (v + mp.sqrt(v * v + 2 * g * y)) / g)
            y, v = mp.mpf(0), -back * speed(t)
    return pieces


def figure(path: str) -> None:
    """The six solutions, with gaps where they jump, and below each its error bars."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    drawn, axes = plt.subplots(
        4, 3, figsize=(13, 9), layout="constrained", height_ratios=[3, 2] * 2
    )
    for i, problem in enumerate(PROBLEMS):
        posterior = problem.ours("EK1", 1e-5).posterior
        above, below = axes[2 * (i // 3) : 2 * (i // 3) + 2, i % 3]
        posterior.plot(ax=above)
        posterior.plot_error(ax=below)
        above.set_title(problem.title)
        if below.get_legend() is not None:
            below.get_legend().remove()
    drawn.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
