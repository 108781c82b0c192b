"""Programs on small arrays written out: every entry a scalar of its own, known numbers folded in.

:mod:`probode.engines.lanes` runs such programs with arrays over the members of an ensemble as
scalars, :mod:`probode.engines.native` turns them into lists of operations for its kernels.
"""

from probode.programs.unroll.entries import Lanes, Symbol, Unsupported
from probode.programs.unroll.interpret import as_lanes, lift, run

__all__ = ["Lanes", "Symbol", "Unsupported", "as_lanes", "lift", "run"]
