"""Programs on small arrays written out: every entry a scalar of its own, known numbers folded in.

:mod:`probode.lanes` runs such programs with arrays over the members of an ensemble as scalars,
:mod:`probode.native` turns them into lists of operations for its kernels.
"""

from probode.unroll.entries import Lanes, Symbol, Unsupported
from probode.unroll.interpret import as_lanes, lift, run

__all__ = ["Lanes", "Symbol", "Unsupported", "as_lanes", "lift", "run"]
