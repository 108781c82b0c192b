"""What an ensemble's results depend on, in short: to tell whether a stored one is the same."""

from typing import Any

import numpy as np

from probode.base.digest import digest
from probode.ensemble.constraint import constraint_of
from probode.ensemble.inputs import Named
from probode.ensemble.problem import Family
from probode.ensemble.settings import Settings
from probode.model.equation import FirstOrder
from probode.programs.field import Field


def fingerprint(field: Field, family: Family, settings: Settings) -> dict[str, str]:
    """By name, all that a result depends on; the same in every process.

    Functions count by what they compute: their traced program, and the arrays it refers to.
    """
    jacobian = field.jacobian_program
    # Stores of older versions know of equations of first order only.
    other = type(settings.equation) is not FirstOrder
    control = {
        k: v for k, v in vars(settings.control).items() if k not in ("rtol", "atol", "crossings")
    }
    return {
        "fun": _digest(field.program.fingerprint(), *field.constants),
        "jac": "none"
        if jacobian is None
        else _digest(jacobian.fingerprint(), *field.jacobian_constants),
        "solver": repr(settings.solver),
        "control": f"{type(settings.control).__name__}({control})",
        "smooth": str(settings.smooth),
        "covariance": str(settings.covariance),
        "calibration": settings.calibration,
        "max_steps": str(settings.max_steps),
        "members": str(family.axes.sizes),
        "t_span": _digest(family.t0, family.t1),
        "y0": _digest(family.y0, *(() if family.slope is None else (family.slope,))),
        "args": _digest(str(family.tree), *family.leaves),
        "save_at": _digest(family.save_at),
        "rtol": _digest(family.rtol),
        "atol": _digest(family.atol),
        **({"equation": repr(settings.equation)} if other else {}),
        **_held(family, settings),
    }


def _held(family: Family, settings: Settings) -> dict[str, str]:
    held = constraint_of(family.members(np.zeros(1, int)), settings, 0)
    g, box = (None, None) if held is None else (held.invariants, held.bounds)
    found = {} if g is None else {"invariants": _digest(g.program.fingerprint(), *g.constants)}
    return found if box is None else {**found, "bounds": _digest(box.low, box.high)}


def _digest(*parts: Any) -> str:
    """With the dimensions of what is named."""
    flat: list[Any] = []
    for part in parts:
        if isinstance(part, Named):
            flat.append(repr((part.dims, part.values.dtype.str, part.values.shape)))
            flat.append(np.ascontiguousarray(part.values).tobytes())
        else:
            flat.append(part)
    return digest(*flat)
