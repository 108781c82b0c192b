"""Driving the native kernels from compiled loops, or from Python with what only it can evaluate."""

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from probode.base.compile import compiled, turn
from probode.base.limits import Limits
from probode.base.precision import on_host
from probode.base.status import Status
from probode.engines.kept import capacity
from probode.engines.native.layout import Layout, begin, layout_of, pack, settings
from probode.engines.native.library import address, load
from probode.engines.native.lists import lists_of
from probode.engines.native.memory import take
from probode.engines.native.tape import evaluate
from probode.engines.protocol import Carry, Fill, Given
from probode.filter.control import Control
from probode.filter.loop import Rows, Solve
from probode.filter.smooth import Marginals
from probode.filter.start import Initialization
from probode.filter.step import Method
from probode.model.gaussian import pack as triangle
from probode.model.linearize import diagonals
from probode.programs.field import Field

CHUNK_SECONDS = 0.2
"""How long a chunk of steps may take at most: the kernel looks at the clock itself."""
_LARGE = 2**19
"""Numbers in a solve from which on XLA is called for each evaluation, not for a chunk of steps.

A step takes milliseconds then. A chunk's results are new memory, whose pages cost as much again.
"""


NOT_BEGUN = Carry(SimpleNamespace(status=Status.RUNNING.value, counts=SimpleNamespace(attempted=0)))
"""All that can be said of a solve before its first chunk. Later its own form is a vector."""


def traceable_steps(to_do: Given, rows: int, limits: Limits) -> Fill:
    """Chunks of at most ``rows`` steps with a traced vector field: listed, or compiled.

    With ``rows`` zero no step is kept: memory for the current state only, which large solves change
    where it is. A chunk ends where a step across begins.
    """
    # Stops are for the steps: the start knows the first of them as the end.
    method, initialization, field, control, t0, t1, y0 = to_do.inputs
    end = control.next_stop(t0, to_do.until(t0))
    plain = control.without_stops()
    layout, inputs = layout_of(method), (field, plain, t0, end, y0)
    lists = lists_of(method, initialization, field, plain, end)
    room = _Room(layout, rows)

    def evaluated(t: float, y: np.ndarray) -> tuple[Array, Array]:
        found: tuple[Array, Array] = _evaluated(method.jacobian, field, t, y)
        return found

    def fill(carry: Carry, attempts: int, wanted: int) -> tuple[Carry, Rows]:
        until = to_do.until(t0 if carry.form is None else carry.solve.state.t)
        given = _settings(to_do, until, rows, carry, attempts, wanted, limits)
        if lists is not None:
            state, buffer = np.empty(layout.state), take((rows + 1) * layout.row)
            if carry.form is not None:
                state[:] = carry.form
            elif lists.start is not None:
                lists.begin(t0, y0, state)
            else:
                state[:] = _begin(method, initialization, *inputs)
            lists.run(given, state, buffer)
            return _after(layout, state, buffer, until != t1)
        begun = carry.form is not None
        if layout.state > _LARGE:
            state = (
                room.state(carry) if begun else np.array(_begin(method, initialization, *inputs))
            )
            buffer = room.rows()
            with turn(alone=field.calls_libraries):
                _drive(layout, given, state, buffer, evaluated)
            return _after(layout, state, buffer, until != t1)
        vector = carry.form if begun else np.zeros(layout.state)
        with turn(alone=field.calls_libraries):
            outcome = _steps(method, initialization, rows, *inputs, given, begun, vector)
            state, buffer = (np.asarray(x) for x in outcome)
        return _after(layout, state, buffer, until != t1)

    return fill


def python_steps(to_do: Given, rows: int, limits: Limits) -> Fill:
    """Chunks of steps with a vector field that only Python can evaluate."""
    method, t1, (function, jacobian) = to_do.inputs.method, to_do.inputs.t1, to_do.inputs.field
    layout = layout_of(method)
    room = _Room(layout, rows)

    def evaluated(t: float, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        slope = function(t, y)
        value = _NO_JACOBIAN if jacobian is None else jacobian(t, y, slope)
        return slope, value if method.jacobian == "full" else diagonals(value)

    def fill(carry: Carry, attempts: int, wanted: int) -> tuple[Carry, Rows]:
        vector, buffer = room.state(carry), room.rows()
        until = to_do.until(carry.solve.state.t)
        given = _settings(to_do, until, rows, carry, attempts, wanted, limits)
        _drive(layout, given, vector, buffer, evaluated)
        return _after(layout, vector, buffer, until != t1)

    return fill


_NO_JACOBIAN = np.zeros(0)


class _Room:
    """Memory of a chunk: a copy of the state before it, and room for so many rows.

    Of large solves that keep nothing always the same.
    """

    def __init__(self, layout: Layout, rows: int) -> None:
        self._count = (rows + 1) * layout.row
        self._same = take(layout.row) if rows == 0 and layout.state > _LARGE else None

    def state(self, carry: Carry) -> np.ndarray:
        """To be changed."""
        vector: np.ndarray = carry.form.copy() if self._same is None else carry.form
        return vector

    def rows(self) -> np.ndarray:
        """To be written."""
        return take(self._count) if self._same is None else self._same


def _drive(
    layout: Layout,
    given: np.ndarray,
    state: np.ndarray,
    rows: np.ndarray,
    evaluated: Callable[[float, np.ndarray], tuple[Any, Any]],
) -> None:
    """Evaluate and step until the kernel says stop; the state and the rows are changed in place."""
    library = load()
    assert library is not None
    advance, memory = library.probode_advance, [address(x) for x in (given, state, rows)]
    y = state[1 : 1 + layout.reads]
    go = library.probode_open(*memory)
    while go:
        slope, jacobian = (np.ascontiguousarray(x, float) for x in evaluated(float(state[0]), y))
        go = advance(*memory, address(slope.reshape(layout.d)), address(jacobian))


def _settings(
    to_do: Given, until: Any, rows: int, carry: Carry, attempts: int, wanted: int, limits: Limits
) -> np.ndarray:
    """Those of a chunk."""
    method, control = to_do.inputs.method, to_do.inputs.control
    keep = min(wanted, rows) if rows else wanted
    last, seconds = int(carry.solve.counts.attempted) + attempts, limits.share(CHUNK_SECONDS)
    return settings(method, control, until, rows > 0, keep, last, seconds)


def _after(
    layout: Layout, vector: np.ndarray, buffer: np.ndarray, goes_on: bool
) -> tuple[Carry, Rows]:
    steps = layout.steps(vector)
    if goes_on and int(layout.solve(vector).status) == Status.SUCCESS:
        vector = vector.copy()
        layout.revive(vector)
    return Carry(layout.solve(vector), vector), layout.rows(buffer, steps)


def packed(method: Method, solve: Solve) -> Carry:
    """A solve that was begun elsewhere."""
    vector = np.array((pack if on_host(solve.status) else _pack)(method, solve))
    return Carry(layout_of(method).solve(vector), vector)


def freeze(carry: Carry) -> list[np.ndarray]:
    """Its own form holds all of it."""
    return [carry.form]


def thawing(method: Method) -> Callable[[list[np.ndarray]], Carry]:
    """The inverse."""
    return lambda arrays: Carry(layout_of(method).solve(arrays[0]), arrays[0])


def packed_step(method: Method, rows: Rows, following: Solve) -> tuple[Carry, Rows]:
    """A step that was made elsewhere: two rows (one: no step), and the solve after it."""
    layout = layout_of(method)
    return packed(method, following), layout.rows(layout.buffer(rows), rows.steps)


def revived(method: Method, carry: Carry) -> Carry:
    """A solve that has stopped, set to go on with steps as long as the last one."""
    layout, vector = layout_of(method), carry.form.copy()
    layout.revive(vector)
    return Carry(layout.solve(vector), vector)


def join_rows(method: Method, chunks: list[Rows]) -> Rows:
    """All rows in one piece of memory; row 0 of a chunk repeats the last of the one before.

    Chunks are taken out of the list one by one: what was copied need not be held any longer.
    """
    layout, count = layout_of(method), sum(rows.steps for rows in chunks)
    if len(chunks) == 1 and 2 * (count + 1) > capacity(method):  # most of its memory is used
        return chunks.pop()
    out, at = take((count + 1) * layout.row).reshape(-1, layout.row), 1
    out[0] = layout.table(chunks[0])[0]
    while chunks:
        rows = chunks.pop(0)
        end = at + rows.steps
        out[at:end] = layout.table(rows)[1:]
        at = end
    return layout.rows(out, count)


def smooth_rows(method: Method, rows: Rows, last: Marginals, limits: Limits) -> Marginals | None:
    """Smooth joined rows, given the last one smoothed; into one piece of memory.

    With a time limit in pieces, between which the clock is looked at; ``None``: not in time.
    """
    library, layout = load(), layout_of(method)
    assert library is not None
    given, end = layout.without_control, rows.steps
    out = take((end + 1) * layout.marginal).reshape(end + 1, layout.marginal)
    out[end] = np.concatenate([np.ravel(last.mean), np.ravel(triangle(np.asarray(last.factor)))])
    table = layout.table(rows)
    piece = end if limits.left == np.inf else 1
    while end > 0:
        if limits.expired():
            return None
        count, before = min(piece, end), limits.elapsed
        end -= count
        library.probode_smooth(
            address(given), address(table[end:]), ctypes.c_long(count), address(out[end:])
        )
        took = max(limits.elapsed - before, 1e-6)
        piece = int(count * max(1.0, min(32.0, limits.share(CHUNK_SECONDS) / took)))
    return layout.marginals(out)


_pack = compiled()(pack)
_begin = compiled(1)(begin)
_evaluated = compiled(0)(evaluate)


@compiled(1, 2, alone=False)
def _steps(
    method: Method,
    initialization: Initialization,
    most: int,
    field: Field,
    control: Control,
    t0: Array,
    t1: Array,
    y0: Array,
    given: Array,
    begun: Array,
    state: Array,
) -> tuple[Array, Array]:
    """A chunk of steps, the first of which begins the solve: one program for all chunks."""

    def first() -> Array:
        return begin(method, initialization, field, control, t0, t1, y0)

    state = jax.lax.cond(begun, lambda: state, first)
    return step_until_stopped(method, most, field, given, state)


def step_until_stopped(
    method: Method, most: int, field: Field, given: Array, state: Array
) -> tuple[Array, Array]:
    """Evaluate and step until the kernel says stop. Returns the state and the rows, as vectors."""
    layout = layout_of(method)
    memory = (
        jax.ShapeDtypeStruct((layout.state,), jnp.float64),
        jax.ShapeDtypeStruct(((most + 1) * layout.row,), jnp.float64),
    )
    # Aliases: the state and the rows are changed where they are.
    out = (*memory, jax.ShapeDtypeStruct((), jnp.bool_))
    open_chunk = jax.ffi.ffi_call("probode_xla_open", out, input_output_aliases={1: 0})
    advance = jax.ffi.ffi_call("probode_xla_advance", out, input_output_aliases={1: 0, 2: 1})

    def body(carry: Any) -> Any:
        state, rows, _ = carry
        f, jacobian = evaluate(method.jacobian, field, state[0], state[1 : 1 + layout.reads])
        return advance(given, state, rows, f, jacobian)

    state, rows, _ = jax.lax.while_loop(lambda carry: carry[2], body, open_chunk(given, state))
    return state, rows
