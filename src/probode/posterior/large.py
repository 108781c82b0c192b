"""Posteriors of large stiff systems (SparseEK1): what their engine needs, and what comes of it."""

from dataclasses import replace
from typing import Any

import numpy as np

from probode.engines.monitor import Monitor
from probode.engines.protocol import Given
from probode.engines.two_pole.engine import OUTSIDE, Large
from probode.engines.two_pole.saving import solve_saving
from probode.engines.two_pole.system import Asked, system_of
from probode.filter.loop import Solve
from probode.filter.smooth import Marginals
from probode.global_error import two_pole, two_pole_bars
from probode.global_error.between import evaluator
from probode.global_error.diagnosis import Looked
from probode.model.equation import Equation, FirstOrder
from probode.model.gaussian import norm
from probode.model.mass_matrix import MassMatrix
from probode.posterior.paths import NodePath, SavedPath
from probode.posterior.posterior import Posterior
from probode.programs.kinks import kinked


def read(
    equation: Equation, jac: Any, args: tuple[Any, ...], shape: tuple[int, ...] = (-1,)
) -> tuple[Equation, Asked]:
    """``y' = f`` and what else there is of ``M y' = f``; with the user's Jacobian, as it is.

    It takes ``y`` in its ``shape``.
    """
    mass = None
    if isinstance(equation, MassMatrix):
        mass, equation = equation.mass, FirstOrder(equation.function)
    if type(equation) is not FirstOrder:
        raise ValueError(
            f"SparseEK1 solves y' = f(t, y) and M y' = f(t, y), got {type(equation).__name__}: "
            "write it as one of these, or use EK1."
        )
    if callable(jac):
        function = jac

        def jac(t: float, y: np.ndarray) -> Any:
            return function(t, y.reshape(shape), *args)

    return equation, Asked(jac=jac, mass=mass)


def equip(
    given: Given,
    solver: Any,
    mode: str,
    asked: Asked,
    times: Any = None,
    traced: bool = False,
    begins: Any = None,
    stored: bool = False,
) -> None:
    """With the system, and what carries its error along if there are to be error bars.

    ``times`` are those at which the solution is kept, if it is nowhere else; ``begins`` is the
    error of the start, if that is not exact; ``stored``: whether the solve goes to disk.
    """
    inputs = given.inputs
    if traced:
        raise ValueError(OUTSIDE)
    t0, y0 = float(inputs.t0), np.array(inputs.y0, float).reshape(-1)
    asked = asked._replace(linear=solver.linear, preconditioner=solver.preconditioner)
    system = system_of(inputs.field, t0, y0, solver.order, asked)
    follower = None
    if mode != "model":
        watch = None
        if times is not None:
            watch = two_pole_bars.AtTimes(np.asarray(times), t0, y0, system.xp)
        follower = two_pole.Transport.start(system, t0, y0, watch, begins)
    given.large = Large(system, follower, stored)


def saved_path(given: Given, times: Any, monitor: Monitor) -> tuple[SavedPath, Solve, Any]:
    """The solution at chosen times, in memory for these alone."""
    kept, status, follower = solve_saving(given, np.asarray(times), monitor)
    given.large = given.large._replace(follower=follower)
    marginals = Marginals(kept.saved.mean, kept.saved.factor)
    return SavedPath(kept.saved, marginals, kept), kept.solve, np.asarray(status.value)


def calibrated(posterior: Posterior, given: Given, mode: str) -> Posterior:
    """With the error bars that were asked for: the estimate has gone along with the steps."""
    done = given.large.follower
    if mode == "model" or done is None:
        return posterior
    found, columns = posterior.path.select(posterior.method, 0)
    mean, std = np.asarray(found), np.asarray(norm(columns))
    if isinstance(posterior.path, NodePath):
        made = two_pole_bars.calibration(mode, done.finished(), mean, std)
        field = given.inputs.field
        if given.large.system.mass is None and len(mean) > 1 and kinked(field):
            curve = np.asarray(posterior.t), np.asarray(posterior.path.means)[:, :2]
            kinks = two_pole_bars.crossed(made, evaluator(field)[0], *curve, std)
            looked: Any = np.array(Looked(True, 0, kinks=kinks), float)
            made = replace(made, looked=looked)
    else:
        made = done.watch.calibration(mode, done, mean, std)
    return posterior.with_calibration(made).with_looked()
