"""Probabilistic ODE solvers: a posterior over the solution, with error bars."""

from probode.control import PControl, PIControl
from probode.diffusion import DynamicDiffusion, FixedDiffusion
from probode.initial import DiffuseStart, RungeKuttaStart, TaylorStart
from probode.posterior import Gaussian, Posterior, Stats
from probode.prior import IWP
from probode.solve import solve
from probode.solvers import EK0, EK1, DiagonalEK1
from probode.status import Status

__version__ = "0.1.0"

__all__ = [
    "EK0",
    "EK1",
    "IWP",
    "DiagonalEK1",
    "DiffuseStart",
    "DynamicDiffusion",
    "FixedDiffusion",
    "Gaussian",
    "PControl",
    "PIControl",
    "Posterior",
    "RungeKuttaStart",
    "Stats",
    "Status",
    "TaylorStart",
    "solve",
]
