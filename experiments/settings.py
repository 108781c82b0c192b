"""How much of the paper is run: everything, or a coarse subset of it in two minutes."""

from dataclasses import dataclass

EXPERIMENTS = ("lotka-volterra", "van-der-pol", "calibration", "structure", "dormand-prince")
"""In the order of the paper."""

PROBLEMS = ("fitzhugh-nagumo", "lotka-volterra", "logistic", "brusselator")
"""The problems of the comparisons; the first is the main text's for calibration."""

FIRST_STEP = 1e-3
"""Length of the first step in every experiment, as in the paper's."""

TIME_LIMIT = 900.0
"""Seconds after which one solve of a comparison is given up.

Far beyond what the bound on steps takes, so that a busy machine changes no result.
"""

METHODS = (
    ("EK0", "fixed"),
    ("EK0", "fixed-mv"),
    ("EK0", "dynamic"),
    ("EK0", "dynamic-mv"),
    ("EK1", "fixed"),
    ("EK1", "dynamic"),
)
"""Solvers and diffusion models. Multivariate ones are derived for EK0 only: the Jacobian of EK1
couples the components."""


@dataclass(frozen=True)
class Extent:
    """What a run covers.

    Attributes
    ----------
    orders, decades
        Orders of the prior, and tolerances of the calibration experiment: decade ``k`` stands for
        ``atol = 10^-(4+k)``, ``rtol = 10^-(1+k)`` (Lotka-Volterra one decade tighter).
    comparison_decades
        Tolerances against Dormand-Prince: ``atol = 10^-(7+k)``, ``rtol = 10^-(2+k)``.
    max_steps
        Attempted steps after which a solve is given up and shown as failed.
    explicit_steps
        The same for EK0 on the stiff problem.
    radau_rtol
        Relative tolerance of the stiff problem's reference.
    repetitions
        Measurements of a time, of which the shortest counts.
    """

    name: str
    orders: tuple[int, ...]
    decades: tuple[int, ...]
    comparison_decades: tuple[int, ...]
    max_steps: int
    explicit_steps: int
    radau_rtol: float
    repetitions: int


FULL = Extent("full", (1, 2, 3, 4, 5), tuple(range(10)), tuple(range(11)), 10**6, 10**6, 1e-11, 5)
QUICK = Extent("quick", (3, 5), (0, 2, 4, 6), (0, 2, 4, 6, 8), 10**5, 10**5, 1e-8, 3)


def calibration_tolerances(problem: str, decade: int) -> tuple[float, float]:
    """``(atol, rtol)`` of the calibration experiment."""
    k = decade + (problem == "lotka-volterra")
    return float(f"1e-{4 + k}"), float(f"1e-{1 + k}")


def comparison_tolerances(decade: int) -> tuple[float, float]:
    """``(atol, rtol)`` of the comparison with Dormand-Prince."""
    return float(f"1e-{7 + decade}"), float(f"1e-{2 + decade}")
