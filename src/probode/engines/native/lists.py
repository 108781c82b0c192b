"""A whole solve as lists of operations: its vector field, and how it begins.

Derivatives at the start and the first step are a program of their own
(:func:`probode.filter.loop.begin`), which takes XLA longer to get to than to run. Where the vector
field is listed, the start is too.
"""

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from probode.engines.native.layout import begin, layout_of
from probode.engines.native.library import address, load
from probode.engines.native.tape import Signature, Tape, field_tape, join, listed, longest_excess
from probode.filter.control import Control
from probode.filter.start import Initialization, RungeKuttaStart
from probode.filter.step import Method
from probode.programs.field import Field

_LONGEST_START = 50.0
"""Steps, in which the lists may take that much longer than XLA's code, for a start: half of what
the call of XLA's code takes, or more where a step does."""

_MOST_OPERATIONS = 30_000
"""Operations of a start that are written down before giving up."""


class Lists(NamedTuple):
    """Programs as operations, and the numbers that they read besides ``t`` and ``y``."""

    field: Tape
    field_numbers: Any
    start: Tape | None
    """From ``(t0, y0)`` to the vector of the solve; ``None``: too long to be listed."""
    start_numbers: Any

    def begin(self, t0: Any, y0: Any, state: np.ndarray) -> None:
        """Write the vector of a solve before its first step."""
        library, start = load(), self.start
        assert library is not None and start is not None
        at = np.concatenate([np.ravel(t0), np.ravel(y0)]).astype(float)
        program = start.given(self.start_numbers)
        library.probode_evaluate(*program, ctypes.c_int(np.size(y0)), address(at), address(state))

    def run(self, settings: np.ndarray, state: np.ndarray, rows: np.ndarray) -> None:
        """Take the steps of a chunk: changes the state, writes the rows."""
        library = load()
        assert library is not None
        memory = (address(x) for x in (settings, state, rows))
        library.probode_run(*memory, *self.field.given(self.field_numbers))

    def end(
        self, method: Method, settings: Array, t0: Array, y0: Array, first: Callable[[], Array]
    ) -> Array:
        """The vector of a solve at its end, inside a program of XLA's.

        ``first`` is asked for the vector at the beginning if the start is not listed.
        """
        layout = layout_of(method)
        memory = [jax.ShapeDtypeStruct((size,), float) for size in (layout.state, layout.row)]
        field = self.field.code, self.field_numbers
        if self.start is None:
            run = jax.ffi.ffi_call("probode_xla_run", memory, input_output_aliases={1: 0})
            return run(settings, first(), *field)[0]
        at = jnp.concatenate([jnp.ravel(t0), y0])
        solve = jax.ffi.ffi_call("probode_xla_solve", memory)
        return solve(settings, at, self.start.code, self.start_numbers, *field)[0]


def lists_of(
    method: Method, initialization: Initialization, field: Field, control: Control, t1: Any
) -> Lists | None:
    """A solve in lists; ``None`` if XLA is better at its vector field."""
    parameters = (field, control, t1)
    tapes = _tapes(method, initialization, Signature.of(parameters))
    if tapes is None:
        return None
    given = join(jax.tree.leaves(parameters))
    numbers = join([given[: tapes.field_numbers], tapes.field.constants])
    start = tapes.start
    return Lists(
        tapes.field, numbers, start, None if start is None else join([given, start.constants])
    )


class _Tapes(NamedTuple):
    """The same for all solves of a signature."""

    field: Tape
    field_numbers: int
    """How many of the parameters' numbers are the vector field's: the first ones."""
    start: Tape | None


@lru_cache(maxsize=256)
def _tapes(method: Method, initialization: Initialization, signature: Signature) -> _Tapes | None:
    tree = signature.tree.children()[0]
    own = Signature(tree, signature.shapes[: tree.num_leaves])
    field = field_tape(method.jacobian, own, method.jacobian)
    if field is None:
        return None
    if isinstance(initialization, RungeKuttaStart):  # a loop: long to write out, short to compile
        return _Tapes(field, sum(own.sizes), None)

    def program(parameters: Any, t0: Array, y0: Array) -> Array:
        field, control, t1 = parameters
        return begin(method, initialization, field, control, t0, t1, y0)

    longest = _LONGEST_START * longest_excess(method.jacobian, method.structure.d)
    start = listed(program, signature, layout_of(method).reads, longest, _MOST_OPERATIONS)
    return _Tapes(field, sum(own.sizes), start)
