"""Which engine takes the steps: asked once by each front door, and only here.

The first that supports the model; JAX supports all of them. Nothing of a user's is ever replaced
to suit an engine.
"""

from probode.engines.in_jax import JAX
from probode.engines.native.engine import NATIVE
from probode.engines.protocol import Engine
from probode.engines.two_pole.engine import TWO_POLE
from probode.filter.control import Control
from probode.filter.step import Method

ENGINES: tuple[Engine, ...] = (TWO_POLE, NATIVE, JAX)
"""The fastest first, the one that runs everything last."""


def engine_for(method: Method, control: Control, wanted: str = "steps") -> Engine:
    """Who takes the steps; for ``wanted`` see :meth:`Engine.supports`."""
    return next(engine for engine in ENGINES if engine.supports(method, control, wanted))


def name_in_trace(engine: Engine) -> str:
    """What can be said inside a trace: batched or differentiated later, it is JAX that runs it."""
    return " or ".join(dict.fromkeys((engine.name, JAX.name)))


def interpolator_for(method: Method) -> Engine:
    """Who computes dense output, whoever took the steps: a posterior may come from a file."""
    return next(engine for engine in ENGINES if engine.interpolates(method))
