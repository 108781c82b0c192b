"""What a solve returns: values at any time, samples, events; plots, tables, files."""

from probode.posterior.outcome import Gaussian, Problem, Stats
from probode.posterior.posterior import Posterior

__all__ = ["Gaussian", "Posterior", "Problem", "Stats"]
