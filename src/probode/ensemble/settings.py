"""How the members of an ensemble are solved: all that they have in common."""

from dataclasses import dataclass
from typing import Any

from probode.filter.control import PControl
from probode.filter.solvers import Solver
from probode.model.equation import FIRST_ORDER, Equation
from probode.model.invariant import Bounds


@dataclass(frozen=True, eq=False)
class Settings:
    """What :func:`probode.solve_ensemble` was told, besides the members."""

    solver: Solver
    control: PControl
    """Its tolerances are replaced by those of the members."""
    smooth: bool
    covariance: bool
    calibration: str
    max_steps: int
    jac: Any
    engine: str = "auto"
    """Which engine solves the members; ``"auto"``: not decided yet."""
    reason: str = ""
    """Why that engine, in words."""
    equation: Equation = FIRST_ORDER
    """What is solved, without its function."""
    invariants: tuple[Any, ...] | None = None
    """Functions that are zero along each solution."""
    bounds: Bounds | None = None

    @property
    def is_held(self) -> bool:
        """Whether members are held to anything besides their equation."""
        return self.invariants is not None or self.bounds is not None
