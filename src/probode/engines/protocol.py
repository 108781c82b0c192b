"""What an engine is: who takes the steps of a solve.

Who evaluates ``f`` is another matter, and combines with any engine: a program (:class:`Given` is
then a :class:`probode.engines.fallback.Fallback`) or Python
(:class:`probode.engines.in_python.Driven`). :mod:`probode.engines.choice` says which engine it is.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from probode.base.durable import Damaged
from probode.base.limits import Limits
from probode.base.status import Status
from probode.filter import restart
from probode.filter.control import Control
from probode.filter.loop import Rows, Solve
from probode.filter.restart import NO_RESTARTS, Restarts
from probode.filter.smooth import Marginals
from probode.filter.start import Initialization
from probode.filter.step import Method

if TYPE_CHECKING:
    from probode.engines.fallback import Fallback
    from probode.engines.in_python import Driven
    from probode.engines.kept import Kept
    from probode.engines.monitor import Monitor

UNLIMITED = 2**30
FIRST_ATTEMPTS = 4
"""Attempts before looking at the clock for the first time."""


class Carry(NamedTuple):
    """A solve between two chunks of steps."""

    solve: Any
    form: Any = None
    """The same in the engine's own form, if it has one: all that it goes on from."""


Fill = Callable[[Carry, int, int], tuple[Carry, Rows]]
"""``(carry, attempts, wanted)`` to the solve after a chunk of steps, and their rows.

At most ``wanted`` steps in ``attempts`` attempts. The rows are NumPy's, with packed factors; row 0
is where the steps began. From the same carry come the same steps, as often as they are wanted.
"""


class Steps(NamedTuple):
    """All steps of a solve, to be taken chunk by chunk."""

    begun: Carry
    fill: Fill
    attempts: int = FIRST_ATTEMPTS
    """Of the first chunk; an engine that looks at the clock by itself needs no bound."""
    freeze: Callable[[Carry], list[np.ndarray]] | None = None
    """A solve between two chunks as arrays; by default all that it is made of."""
    thaw: Callable[[list[np.ndarray]], Carry] | None = None
    """The inverse."""

    def frozen(self, carry: Carry) -> list[np.ndarray]:
        """A solve between two chunks as arrays, from which :meth:`thawed` makes it again."""
        if self.freeze is not None:
            return self.freeze(carry)
        return [np.array(leaf) for leaf in jax.tree.leaves(carry)]

    def thawed(self, arrays: list[np.ndarray]) -> Carry:
        """A solve between two chunks."""
        if self.thaw is not None:
            return self.thaw(arrays)
        leaves, tree = jax.tree.flatten(self.begun)
        if len(leaves) != len(arrays):
            raise Damaged("the checkpoint holds another kind of solve: it was left as it is.")
        made = [
            jnp.asarray(x) if isinstance(leaf, jax.Array) else x
            for leaf, x in zip(leaves, arrays, strict=True)
        ]
        found: Carry = jax.tree.unflatten(tree, made)
        return found


class Inputs(NamedTuple):
    """What :func:`probode.filter.loop.begin` needs."""

    method: Method
    initialization: Initialization
    field: Any
    control: Control
    t0: Any
    t1: Any
    y0: Any


class Given:
    """A solve to be taken, by whichever engine; its classes differ in how ``f`` is evaluated."""

    def __init__(self, inputs: Inputs, restarts: Restarts = NO_RESTARTS) -> None:
        self.inputs, self.restarts = inputs, restarts
        self.notes: list[str] = []
        """What was done otherwise than asked for, in words."""
        self.large: Any = None
        """What an engine for large systems needs besides, see :mod:`probode.engines.two_pole`."""
        self.carried: list[np.ndarray] | None = None
        """Columns of a factor of the covariance of what it begins with, if that is not exact."""

    def steps_by(self, engine: "Engine", rows: int, limits: Limits) -> Steps:
        """Its steps, at most ``rows`` in a chunk; with none, no step is kept."""
        raise NotImplementedError

    def linearised(self, t: float, y: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """``f`` and what the method uses of its Jacobian."""
        raise NotImplementedError

    def learned(self) -> dict[str, Any]:
        """What has become known on the way, as plain data."""
        return {"notes": list(self.notes)}

    def learn(self, learned: dict[str, Any]) -> None:
        """What was known when a solve stopped, before it goes on."""
        self.notes[:] = learned["notes"]

    def until(self, t: Any) -> Any:
        """Where the steps from ``t`` on end: at the first step across, or at the end."""
        t1 = self.inputs.t1
        return self.restarts.until(t, t1) if len(self.restarts.before) else t1

    def begun_uncertain(self, solve: Solve) -> tuple[Rows, Solve]:
        """A solve that has begun, as uncertain as its start is, and its only row."""
        assert self.carried is not None
        solve = restart.uncertain(self.inputs.method, solve, self.carried)
        rows: Any = jax.tree.map(lambda x: np.asarray(x)[None], Rows.of(solve))
        return rows, solve

    def across(
        self, solve: Solve, begun: Callable[[float, np.ndarray], Solve]
    ) -> tuple[Rows, Solve] | None:
        """The step across a switch, if the solve is right before one; ``begun`` starts anew."""
        beyond, method = self.restarts.beyond(solve.state.t), self.inputs.method
        if beyond is None:
            return None
        if self.carried is not None and float(solve.state.t) == float(self.inputs.t0):
            solve = restart.uncertain(method, solve, self.carried)
        y, jacobian = restart.landing(method, solve, *beyond, self.linearised)
        anew = jax.tree.map(np.asarray, begun(beyond[0], y))
        return restart.across(method, solve, anew, jacobian)


class Engine(Protocol):
    """Who takes the steps, and smooths and interpolates what came of them."""

    name: str
    """As in ``posterior.engine``."""

    def supports(self, method: Method, control: Control, wanted: str = "steps") -> bool:
        """Whether it runs this model, by the model's own formulas.

        ``wanted`` are all ``"steps"``, the ``"end"`` alone, the solution at given ``"times"``, or
        (inside a trace) the steps of a ``"grid"``.
        """

    def interpolates(self, method: Method) -> bool:
        """Whether it has dense output of such a model."""

    def traced(self, given: "Fallback", rows: int, limits: Limits) -> Steps:
        """Steps with a vector field that is a program."""

    def driven(self, given: "Driven", rows: int, limits: Limits) -> Steps:
        """Steps with a vector field that only Python can evaluate."""

    def run(
        self, given: Given, monitor: "Monitor", keep: bool = True
    ) -> "tuple[Solve, Status, Kept]":
        """Solve and keep every step, or none."""

    def end(self, inputs: Inputs) -> Solve:
        """The solve when it has ended, inside a trace."""

    def join(self, method: Method, chunks: list[Rows]) -> Rows:
        """Rows of all chunks, which are taken out of the list: no row is held twice.

        Row 0 of a chunk repeats the last of the one before.
        """

    def smooth(
        self, method: Method, rows: Rows, last: Marginals, limits: Limits
    ) -> Marginals | None:
        """Rows of its own smoothed, given the ``last`` one smoothed; ``None``: not in time."""

    def interpolate(
        self,
        method: Method,
        rows: Rows,
        smoothed: Marginals | None,
        right: np.ndarray,
        t: np.ndarray,
        k: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Means and factor columns of the ``k``-th derivative at any times ``t``.

        ``right`` says at which node the step ends that a time is in.
        """
