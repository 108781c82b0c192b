"""SciPy's contract on top: ``solve_ivp``, and the solvers as ``OdeSolver`` classes."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probode.ivp.front_door import CONTROLS, METHODS, solve_ivp

__all__ = ["CONTROLS", "METHODS", "solve_ivp"]


def __getattr__(name: str) -> Any:
    """Imported when first used: ``probode.ivp.scipy`` does without."""
    if name in __all__:
        return getattr(importlib.import_module("probode.ivp.front_door"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
