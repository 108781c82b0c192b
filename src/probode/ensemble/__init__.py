"""Ensembles: many members of one problem, from a laptop to a cluster."""

from probode.ensemble.inputs import Shared, Sweep
from probode.ensemble.moments import Moments
from probode.ensemble.reduced import Reduced
from probode.ensemble.result import Ensemble
from probode.ensemble.solve import solve_ensemble
from probode.ensemble.uncertain import Normal

__all__ = ["Ensemble", "Moments", "Normal", "Reduced", "Shared", "Sweep", "solve_ensemble"]
