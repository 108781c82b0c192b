"""Steps of EK1 at equal error, judged by the residual (the paper's rule) or the correction of y.

    python -m benchmarks.stiff_steps [--problems rober-1e5 hires] [--orders 3 5] [--sets stiff]

Each problem is solved at tolerances from 1 to 1e-9 (``atol`` in the table of problems below). The
error is the root mean square, over 40 times and all components, of ``error / (atol / rtol + |y|)``,
of the smoothed mean. Steps are attempted ones; between two tolerances they are interpolated, both
in logarithms. A step judged by the correction has two evaluations of ``f`` and of its Jacobian, one
judged by the residual has one of each. The reference is EK1(6) by corrections at a tolerance of
1e-11; how far EK1(5) at 1e-10 is from it is printed with the problem, and errors below ten times
that are left out.
"""

import argparse
from typing import Any, NamedTuple

import numpy as np

from benchmarks import held_out
from probode import EK1, PIControl, problems, solve

LEVELS = tuple(10.0**-k for k in range(1, 10))
TOLERANCES = tuple(10.0 ** (-k / 2) for k in range(19))
MOST_STEPS = 60_000


class Case(NamedTuple):
    """A problem, until when, and its ``atol / rtol``."""

    problem: Any
    t1: float
    absolute: float
    logarithmic: bool = False
    """Whether the times to compare at are."""

    @property
    def times(self) -> np.ndarray:
        """Where errors are taken."""
        t0 = float(self.problem.t_span[0])
        if self.logarithmic:
            return np.geomspace(1e-2, self.t1, 40)
        return np.linspace(t0, self.t1, 41)[1:]

    def solve(self, order: int, error: str, tolerance: float, most: int = MOST_STEPS) -> Any:
        """With so many steps at most."""
        one = self.problem
        return solve(
            one.vector_field,
            (one.t_span[0], self.t1),
            one.y0,
            one.args,
            solver=EK1(order, error=error),
            control=PIControl(tolerance, tolerance * self.absolute),
            max_steps=most,
        )


def cases() -> dict[str, dict[str, Case]]:
    """By set."""

    def case(name: str, absolute: float = 1e-3, t1: float | None = None, **rest: Any) -> Case:
        held = name in held_out.names()
        one = held_out.get(name) if held else problems.get(name, **rest)
        logarithmic = name == "rober"
        return Case(one, float(one.t_span[1]) if t1 is None else t1, absolute, logarithmic)

    stiff = {
        "hires": case("hires", 1e-4),
        "rober-1e5": case("rober", 1e-6, 1e5),
        "rober-1e11": case("rober", 1e-6, 1e11),
        "van-der-pol-1e3": case("van-der-pol-bari"),
        "van-der-pol-1e6": case("van-der-pol"),
        "orego": case("orego"),
        "akzo-nobel": case("akzo-nobel", 1e-4),
    }
    plain = {
        name: case(name)
        for name in ("lotka-volterra", "fitzhugh-nagumo", "lorenz", "three-body", "brusselator")
    }
    return {"stiff": stiff, "non-stiff": plain}


def error_of(case: Case, found: Any, reference: np.ndarray) -> float:
    """Of a solve that has reached the end; else infinite."""
    if not found.success:
        return np.inf
    y = np.asarray(found(case.times).mean).reshape(reference.shape)
    scaled = (y - reference) / (case.absolute + np.abs(reference))
    return float(np.sqrt(np.mean(scaled**2)))


def at_levels(points: list[tuple[float, int]], least: float) -> list[float]:
    """Steps for each of the errors, or NaN where none was as small or as large."""
    usable = sorted((e, n) for e, n in points if np.isfinite(e) and e > least)
    if len(usable) < 2:
        return [np.nan] * len(LEVELS)
    errors, steps = np.log10(np.array(usable)).T
    found = np.interp(np.log10(LEVELS), errors, steps, np.nan, np.nan)
    return list(10.0**found)


def report(name: str, case: Case, order: int) -> None:
    """Print a block: the steps at equal error, then those of three tolerances."""
    final = [case.solve(q, "correction", tol, 10**7) for q, tol in ((6, 1e-11), (5, 1e-10))]
    reference = np.asarray(final[0](case.times).mean)
    known = error_of(case, final[1], reference)
    print(f"{name}, EK1({order}); the reference is known to {known:.0e}", flush=True)
    for error in ("residual", "correction"):
        points, told = [], []
        for tolerance in TOLERANCES:
            found = case.solve(order, error, tolerance)
            size, steps = error_of(case, found, reference), int(found.stats.steps)
            points.append((size, steps))
            if tolerance in (1e-2, 1e-4, 1e-6):
                told.append(f"{steps} ({int(found.stats.rejected)}) {size:.0e}")
            if steps >= MOST_STEPS and tolerance < 1e-3:
                break  # tighter ones take more
        cells = [f"{n:6.0f}" if np.isfinite(n) else "     -" for n in at_levels(points, 10 * known)]
        print(f"  {error:10s}{''.join(cells)}   1e-2, -4, -6: {'; '.join(told)}", flush=True)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="*", default=["stiff", "non-stiff"])
    parser.add_argument("--problems", nargs="*", default=None)
    parser.add_argument("--orders", nargs="*", type=int, default=[2, 3, 5, 8])
    arguments = parser.parse_args()
    head = "".join(f"{level:6.0e}" for level in LEVELS)
    print(f"steps at an error of{'':2s}{head}   steps (rejected) error at rtol")
    for kind in arguments.sets:
        for name, case in cases()[kind].items():
            if arguments.problems is None or name in arguments.problems:
                for order in arguments.orders:
                    report(name, case, order)


if __name__ == "__main__":
    main()
