"""Fitting models to data: likelihoods that know how wrong the solver is, fits, samplers."""

from probode.inference.fitting import fit
from probode.inference.likelihood import log_likelihood
from probode.inference.parameters import Parameter
from probode.inference.result import Fit

__all__ = ["Fit", "Parameter", "fit", "log_likelihood"]
