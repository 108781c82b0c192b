"""Native kernels: a step of the filter, the smoother, and dense output, each as one operation.

A step on a small system is some thirty operations on matrices of a few rows; launching them costs
more than doing them. Where the kernels were built (they are optional) and the solve runs on the CPU
outside of any transformation, one call does all of a step but the evaluation of the vector field.
The formulas are those of :mod:`probode.filter.step` and :mod:`probode.filter.smooth`, and the
results equal up to rounding; ``PROBODE_NATIVE=0`` in the environment, or :func:`disabled`, turns
the kernels off.
"""

from probode.engines.native.library import available, disabled

__all__ = ["available", "disabled"]
