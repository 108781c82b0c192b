"""Ensembles in vector lanes: many members of one problem solved side by side.

The step is written on scalars, each of which is an array over the members. Small matrices are
unrolled while tracing, and known zeros cost nothing. The same code runs on the CPU in blocks of
lanes and on a GPU as one kernel that keeps a member's whole solve in registers.
"""

from probode.engines.lanes.engine import seconds_of, solve_lanes, supports
from probode.engines.lanes.records import LaneResults, Members
from probode.programs.unroll import Unsupported

__all__ = ["LaneResults", "Members", "Unsupported", "seconds_of", "solve_lanes", "supports"]
