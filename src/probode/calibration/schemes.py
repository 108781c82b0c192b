"""Which transport suits which solver."""

from functools import lru_cache

from probode.calibration.interpolant import contact
from probode.calibration.newton import Newton
from probode.calibration.stages import Collocation
from probode.calibration.sweeps import Sweeps
from probode.errors import check_choice
from probode.step import Method

Scheme = Newton | Sweeps

MODES = ("defect", "defect-fast")


@lru_cache(maxsize=64)
def scheme_for(method: Method, smoothed: bool, mode: str) -> Scheme:
    """The transport of a solver: implicit where the solver is, Jacobian-free where it is.

    ``"defect"``: Radau IIA with four stages and a correction (8 ``f`` and a Jacobian a step), or
    two sweeps of Gauss with three stages (6 ``f``). ``"defect-fast"``: three stages, linearised or
    one sweep (3 ``f``).
    """
    check_choice("mode", mode, MODES)
    k = contact(method.prior.order, smoothed)
    fast = mode == "defect-fast"
    if method.jacobian == "full":
        return Newton(Collocation("radau", 3 if fast else 4), k, 0 if fast else 1)
    if method.jacobian == "diagonal":
        return Sweeps(Collocation("radau", 3 if fast else 4), k, 1 if fast else 2, diagonal=True)
    return Sweeps(Collocation("gauss", 3), k, 1 if fast else 2)
