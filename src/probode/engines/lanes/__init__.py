"""Ensembles in vector lanes: many members of one problem solved side by side, by XLA.

The step is written on scalars, each of which is an array over the members. Small matrices are
unrolled while tracing, and known zeros cost nothing. On a CPU it is what there is without native
kernels (:mod:`probode.engines.abreast` does the same with them), on a GPU the faster way to ends.
"""

from probode.engines.lanes.engine import solve_lanes, supports
from probode.engines.lanes.records import LaneResults, Members
from probode.programs.unroll import Unsupported

__all__ = ["LaneResults", "Members", "Unsupported", "solve_lanes", "supports"]
