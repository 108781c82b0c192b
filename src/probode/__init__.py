"""Probabilistic ODE solvers: a posterior over the solution, with error bars."""

import importlib
from typing import TYPE_CHECKING, Any

from probode.base.compile import use_compilation_cache
from probode.base.moved import install
from probode.base.status import Status
from probode.filter.control import PControl, PIControl
from probode.filter.solvers import EK0, EK1, DiagonalEK1, SparseEK1
from probode.filter.start import DiffuseStart, RungeKuttaStart, TaylorStart
from probode.model.diffusion import Diffusion, DynamicDiffusion, FixedDiffusion
from probode.model.distributions import HalfCauchy, HalfNormal, LogNormal, Normal, Uniform
from probode.model.doses import Doses, doses
from probode.model.equation import Equation, FirstOrder
from probode.model.implicit import Implicit
from probode.model.ioup import IOUP
from probode.model.mass_matrix import MassMatrix
from probode.model.matern import Matern
from probode.model.observations import Observations
from probode.model.prior import IWP, Prior
from probode.model.second_order import SecondOrder
from probode.posterior.posterior import Gaussian, Posterior, Stats
from probode.programs import inputs
from probode.solve import solve

if TYPE_CHECKING:
    from probode.ensemble import Ensemble, Shared, Sweep, solve_ensemble
    from probode.ensemble import reductions as reductions
    from probode.inference import Fit, Parameter, fit, log_likelihood
    from probode.ivp import scipy as scipy
    from probode.ivp.actions import Restart
    from probode.ivp.checkpoint import Checkpoint
    from probode.ivp.front_door import solve_ivp
    from probode.ivp.periodic import Periodic
    from probode.ivp.steady import Steady
    from probode.posterior import plotting as plotting
    from probode.posterior.pieces import PiecewisePosterior

__version__ = "0.1.0"

install()  # modules under names they had before

__all__ = [
    "EK0",
    "EK1",
    "IOUP",
    "IWP",
    "Checkpoint",
    "DiagonalEK1",
    "DiffuseStart",
    "Diffusion",
    "Doses",
    "DynamicDiffusion",
    "Ensemble",
    "Equation",
    "FirstOrder",
    "Fit",
    "FixedDiffusion",
    "Gaussian",
    "HalfCauchy",
    "HalfNormal",
    "Implicit",
    "LogNormal",
    "MassMatrix",
    "Matern",
    "Normal",
    "Observations",
    "PControl",
    "PIControl",
    "Parameter",
    "Periodic",
    "PiecewisePosterior",
    "Posterior",
    "Prior",
    "Restart",
    "RungeKuttaStart",
    "SecondOrder",
    "Shared",
    "SparseEK1",
    "Stats",
    "Status",
    "Steady",
    "Sweep",
    "TaylorStart",
    "Uniform",
    "doses",
    "fit",
    "inputs",
    "log_likelihood",
    "solve",
    "solve_ensemble",
    "solve_ivp",
    "use_compilation_cache",
]

_LAZY = ("plotting", "problems", "reductions", "scipy")
_OF_SOLVE_IVP = ("Checkpoint", "Periodic", "Steady")
_ENSEMBLE = ("Ensemble", "Shared", "Sweep", "solve_ensemble")
_INFERENCE = ("Fit", "Parameter", "fit", "log_likelihood")


def __getattr__(name: str) -> Any:
    """What not everybody needs is imported when first used: SciPy's optimisers, matplotlib."""
    if name == "solve_ivp":
        return importlib.import_module("probode.ivp.front_door").solve_ivp
    if name in _OF_SOLVE_IVP:
        return getattr(importlib.import_module(f"probode.ivp.{name.lower()}"), name)
    if name == "Restart":
        return importlib.import_module("probode.ivp.actions").Restart
    if name == "PiecewisePosterior":
        return importlib.import_module("probode.posterior.pieces").PiecewisePosterior
    if name in _ENSEMBLE:
        return getattr(importlib.import_module("probode.ensemble"), name)
    if name in _INFERENCE:
        return getattr(importlib.import_module("probode.inference"), name)
    if name in _LAZY:
        return importlib.import_module(f"probode.{name}")
    raise AttributeError(f"module 'probode' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Everything public, imported already or not: what completion offers."""
    return sorted({*__all__, *_LAZY, "__version__", "__doc__", "__all__"})
