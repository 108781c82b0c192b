"""The kernels as an engine: see :class:`probode.engines.protocol.Engine`."""

import numpy as np

from probode.base.limits import Limits
from probode.base.status import Status
from probode.engines.fallback import Fallback
from probode.engines.in_python import Driven
from probode.engines.kept import Kept
from probode.engines.monitor import Monitor, collect
from probode.engines.native import driver
from probode.engines.native.interpolate import interpolate_all
from probode.engines.native.library import available
from probode.engines.native.traced import solve_to_end
from probode.engines.protocol import UNLIMITED, Carry, Engine, Given, Inputs, Steps
from probode.filter.control import ConstantStep, Control, GridSteps, PControl, PIControl
from probode.filter.loop import Rows, Solve
from probode.filter.step import Method
from probode.model.structure import Dense

_DENSE_LIMIT = 1500
"""Above this size of a dense state LAPACK's blocked decompositions are faster.

At 600 the kernels take a sixth of the time (update by covariances, whitened smoother), at 1200 a
half.
"""

_INTERPOLATION_LIMIT = 1000
"""The same for dense output.

The kernel takes a fifth of the time up to 170, five sixths at 900; at 1200 it takes a sixth more.
"""

_CONTROLS = (PControl, PIControl, ConstantStep, GridSteps)


def _knows(method: Method, largest: int) -> bool:
    return method.is_ours and method.structure.factor_shape[-1] <= largest and available()


class Native:
    """They look at the clock themselves: the first chunk may have any number of attempts."""

    name = "native"

    def supports(self, method: Method, control: Control, wanted: str = "steps") -> bool:
        """The library's own models, up to a size; not the solution at given times."""
        known = wanted in ("steps", "end") and type(control) in _CONTROLS
        known = known and control.crossings is None  # only in JAX
        known = known and not method.diffusion.needs_innovation
        known = known and (method.evaluations == 1 or not isinstance(method.structure, Dense))
        known = known and (method.error == "residual" or method.equation.order == 1)
        return known and _knows(method, _DENSE_LIMIT)

    def interpolates(self, method: Method) -> bool:
        """The library's own models, up to another size."""
        return _knows(method, _INTERPOLATION_LIMIT)

    def traced(self, given: Fallback, rows: int, limits: Limits) -> Steps:
        """Steps with a vector field that is listed, or evaluated by XLA.

        Other steps follow from where the inputs have changed.
        """
        method = given.inputs.method
        steps = driver.traceable_steps(given, rows, limits)

        def begun(t: float, y0: np.ndarray) -> Solve:
            anew = self.traced(given.after(t, y0), rows, limits)
            return anew.fill(anew.begun, 0, 1)[0].solve

        def fill(carry: Carry, attempts: int, wanted: int) -> tuple[Carry, Rows]:
            nonlocal steps
            crossed = None if carry.form is None else given.across(carry.solve, begun)
            if crossed is not None:
                return driver.packed_step(method, *crossed)
            if carry.form is None and given.restarts.beyond(given.inputs.t0) is not None:
                attempts = 0  # begin only: what follows is a step across
            following, made = steps(carry, attempts, wanted)
            if given.starts_again(following.solve):
                steps = driver.traceable_steps(given, rows, limits)
                return fill(carry, attempts, wanted)
            if given.goes_on(following.solve):
                steps = driver.traceable_steps(given, rows, limits)
                following = driver.revived(method, following)
            if carry.form is None and given.carried is not None:  # what is kept of the start, too
                return driver.packed_step(method, *given.begun_uncertain(following.solve))
            return following, made

        return Steps(driver.NOT_BEGUN, fill, UNLIMITED, driver.freeze, driver.thawing(method))

    def driven(self, given: Driven, rows: int, limits: Limits) -> Steps:
        """Steps with a vector field that only Python can evaluate."""
        method, begun, t1 = given.inputs.method, given.begun, given.inputs.t1
        steps = driver.python_steps(given, rows, limits)

        def fill(carry: Carry, attempts: int, wanted: int) -> tuple[Carry, Rows]:
            crossed = given.across(carry.solve, given.anew)
            if crossed is not None:
                return driver.packed_step(method, *crossed)
            return steps(carry, attempts, wanted)

        first = given.first(given.inputs.t0, t1, begun.start, begun.h)
        begun_by = driver.packed(method, first)
        return Steps(begun_by, fill, UNLIMITED, driver.freeze, driver.thawing(method))

    def run(self, given: Given, monitor: Monitor, keep: bool = True) -> tuple[Solve, Status, Kept]:
        """Solve and keep every step, or none."""
        return collect(self, given, monitor, keep)

    def end(self, inputs: Inputs) -> Solve:
        """Inside a trace, if it is not batched or differentiated: else JAX takes the steps."""
        return solve_to_end(inputs)

    join = staticmethod(driver.join_rows)
    smooth = staticmethod(driver.smooth_rows)
    interpolate = staticmethod(interpolate_all)


NATIVE: Engine = Native()
