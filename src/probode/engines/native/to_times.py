"""The filter's means at given times, with derivatives by parameters, inside a program of XLA's.

One call of the kernels takes all steps (which end at these times) and carries the derivatives along
(``src/sensitivities.hpp``): those of :attr:`Method.frozen` gains.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from probode.engines.native.engine import NATIVE
from probode.engines.native.layout import begin, layout_of, settings
from probode.engines.native.tape import Signature, Tape, field_tape, join, listed
from probode.filter import loop
from probode.filter.control import Control
from probode.filter.start import Initialization, TaylorStart
from probode.filter.step import Method
from probode.programs.field import Field

_LONGEST = 5_000.0
"""Nanoseconds that lists may take more than XLA's code: a step in JAX takes as long."""
_LONGEST_START = 200_000.0
_MOST_OPERATIONS = 30_000


class Given(NamedTuple):
    """What a solve is of, as arrays; steps end at the times."""

    field: Field
    control: Control
    t0: Array
    y0: Array
    times: Array


class Asked(NamedTuple):
    """What is to be computed: part of the program."""

    method: Method
    initialization: Initialization
    max_steps: int
    transport: Any = None
    """With which scheme errors are transported, for a posterior at the times: its ``table(d)`` as
    the kernels read it, and the kind of ``jacobian`` that it needs. ``None``: means only."""
    moving: tuple[int, ...] = ()
    """Leaves of the field, and then ``y0``, by which derivatives are wanted."""

    @property
    def reads(self) -> int:
        """How many numbers are kept at a time."""
        return self.method.equation.order * self.method.structure.d


def directions(asked: Asked, field: Any, y0: Any) -> int:
    """How many numbers the derivatives are by."""
    leaves = [*jax.tree.leaves(field), y0]
    return sum(int(np.prod(np.shape(leaves[i]))) for i in asked.moving)


def supports(method: Method, control: Control) -> bool:
    """Whether the kernels take such steps; the vector field has to be listed, too."""
    ours = type(method.equation).__name__ in ("FirstOrder", "SecondOrder")
    plain = control.without_stops()  # these kernels take steps across switches
    return ours and method.error == "residual" and NATIVE.supports(method, plain, "end")


class Parts(NamedTuple):
    """What the kernels give, taken apart."""

    means: Array
    """``(K, reads)``: what ``f`` takes."""
    slopes: Array
    """``(K, P, reads)``: its derivatives."""
    reached: Array
    """How many times were reached."""
    state: Array
    """The vector of the solve at its end (for a posterior only, as what follows)."""
    scales: Array
    """``(K, 3 d + 1)``: smoothed mean, error of the filter's, misfit, squares of errors around."""
    extent: Array
    joint: Array
    """``(blocks, K columns, K columns)``: the covariance of all of them."""


def parts(asked: Asked, every: Array, count: int) -> Parts:
    """What is in the vector of :func:`to_times`."""
    reads, structure = asked.reads, asked.method.structure
    if asked.transport is None:
        rows = every[1:].reshape(count, -1, reads)
        nothing = jnp.zeros((0,))
        return Parts(rows[:, 0], rows[:, 1:], every[0], *[nothing] * 4)
    layout = layout_of(asked.method)
    state, rest = every[1 : 1 + layout.state], every[1 + layout.state :]
    joint = count * (structure.d if structure.name == "dense" else 1)
    blocks = structure.d if structure.name == "block-diagonal" else 1
    covariance = rest[rest.shape[0] - blocks * joint**2 :].reshape(blocks, joint, joint)
    rest = rest[: rest.shape[0] - blocks * joint**2]
    rows, extent = rest[:-reads].reshape(count, -1), rest[-reads:]
    scales = rows[:, rows.shape[1] - 3 * reads - 1 :]
    rows = rows[:, : rows.shape[1] - 3 * reads - 1].reshape(count, -1, reads)
    return Parts(rows[:, 0], rows[:, 1:], every[0], state, scales, extent, covariance)


def size_of(asked: Asked, given: Given) -> int:
    """How many numbers that is."""
    method, count = asked.method, given.times.shape[0]
    numbers = 1 + count * asked.reads * (1 + directions(asked, given.field, given.y0))
    if asked.transport is None:
        return numbers
    structure, d = method.structure, method.structure.d
    joint = count * (d if structure.name == "dense" else 1)
    blocks = d if structure.name == "block-diagonal" else 1
    return numbers + layout_of(method).state + count * (3 * d + 1) + d + blocks * joint**2


def can_be_listed(asked: Asked, given: Given) -> bool:
    """Whether the kernels can evaluate all that they need."""
    field, control, t0, _, times = given
    parameters = field, control.without_stops(), control.next_stop(t0, times[-1])
    tapes = _tapes(asked, Signature.of(parameters), control.crossings is not None)
    return tapes is not None


def to_times(asked: Asked, given: Given) -> Array | None:
    """All of :class:`Parts` as one vector; ``None``: XLA is better at it."""
    method = asked.method
    field, control, t0, y0, times = given
    # The start knows the first stop as the end.
    end, plain = times[-1], control.without_stops()
    parameters = field, plain, control.next_stop(t0, end)
    tapes = _tapes(asked, Signature.of(parameters), control.crossings is not None)
    if tapes is None:
        return None
    numbers = join(jax.tree.leaves(parameters))
    own = join(jax.tree.leaves(field))
    at = jnp.concatenate([jnp.ravel(t0), y0, np.array([float(layout_of(method).state)])])
    if tapes.start is None:
        begun = _begun(asked, parameters, t0, y0)
        start = np.zeros(0, np.int32), np.zeros(0)
    else:
        begun = jnp.zeros(0)
        start = tapes.start.code, join([numbers, tapes.start.constants])
    crossed: Any = np.zeros(0)
    if control.crossings is not None:  # the end of a start is the last of its numbers
        one = control.crossings
        place = np.array([float(numbers.shape[0] - 1)])
        crossed = join([place, one.before, one.after, one.share])
    scheme: Any = np.zeros(0)
    along = [np.zeros(0, np.int32), np.zeros(0)] * 2
    if asked.transport is not None:
        assert tapes.along is not None
        scheme = asked.transport.table(method.structure.d)
        along = [x for tape in tapes.along for x in (tape.code, join([own, tape.constants]))]
    size = size_of(asked, given)
    call = jax.ffi.ffi_call("probode_xla_times", jax.ShapeDtypeStruct((size,), float))
    chosen = settings(method, control, end, False, 2.0**53, float(asked.max_steps), jnp.inf)
    return call(
        chosen,
        at,
        *start,
        begun,
        tapes.field.code,
        join([own, tapes.field.constants]),
        tapes.slopes.code,
        join([own, tapes.slopes.constants]),
        crossed,
        times,
        scheme,
        *along,
    )


class _Tapes(NamedTuple):
    field: Tape
    slopes: Tape
    start: Tape | None
    along: tuple[Tape, Tape] | None
    """``f``, and ``f`` with the Jacobian that the transport needs."""


@lru_cache(maxsize=256)
def _tapes(asked: Asked, signature: Signature, crosses: bool) -> _Tapes | None:
    """All lists; ``crosses`` says that a solve starts anew on its way."""
    method = asked.method
    own_tree = signature.tree.children()[0]
    own = Signature(own_tree, signature.shapes[: own_tree.num_leaves])
    field = field_tape(method.jacobian, own, method.jacobian)
    if field is None:
        return None
    reads = layout_of(method).reads

    def slopes(field: Field, t: Array, y: Array) -> tuple[Array, Array]:
        return _slopes(asked, field, t, y)

    found = listed(slopes, own, reads, _LONGEST, _MOST_OPERATIONS)
    if found is None:
        return None
    start = None
    if isinstance(asked.initialization, TaylorStart):
        begins, count = asked, own_tree.num_leaves
        if crosses and asked.moving:  # by the value that it starts anew from, too
            begins = asked._replace(moving=(*(i for i in asked.moving if i < count), count))

        def program(parameters: Any, t0: Array, y0: Array) -> Array:
            return _begun(begins, parameters, t0, y0)

        start = listed(program, signature, reads, _LONGEST_START, _MOST_OPERATIONS)
    if crosses and start is None:
        return None
    along = None
    if asked.transport is not None:
        kind = asked.transport.jacobian
        value, jacobian = field_tape("none", own, kind), field_tape(kind, own, kind)
        if value is None or jacobian is None:
            return None
        along = value, jacobian
    return _Tapes(field, found, start, along)


def _slopes(asked: Asked, field: Field, t: Array, y: Array) -> tuple[Array, Array]:
    """``∂f/∂(y, ..., y^(k-1))`` and ``∂f/∂θ``, the latter ``(d, P)``."""
    leaves, tree = jax.tree.flatten(field)
    moving = [i for i in asked.moving if i < len(leaves)]

    def at(y: Array, *values: Array) -> Array:
        changed = list(leaves)
        for i, value in zip(moving, values, strict=True):
            changed[i] = value
        return jax.tree.unflatten(tree, changed)(t, y)

    given = (y, *(jnp.asarray(leaves[i]) for i in moving))
    parts = [_columns(at, given, i) for i in range(len(given))]
    rest = len(asked.moving) - len(moving)  # the start: f does not depend on it
    parts += [jnp.zeros((parts[0].shape[0], y.size))] * rest
    return parts[0], jnp.concatenate([jnp.zeros((parts[0].shape[0], 0)), *parts[1:]], axis=1)


def _columns(function: Any, given: tuple[Array, ...], i: int) -> Array:
    """The Jacobian of ``function`` by its argument ``i``, flattened."""
    size = given[i].size

    def product(direction: Array) -> Array:
        tangents = [jnp.zeros_like(x) for x in given]
        tangents[i] = direction.reshape(given[i].shape).astype(given[i].dtype)
        return jax.jvp(function, given, tuple(tangents))[1]

    return jax.vmap(product, out_axes=1)(jnp.eye(size))


def _begun(asked: Asked, parameters: Any, t0: Array, y0: Array) -> Array:
    """The vector of a solve before its first step, and the derivatives of its mean."""
    method = asked.method
    field, control, end = parameters
    state = begin(method, asked.initialization, field, control, t0, end, y0)
    if not asked.moving:
        return state
    leaves, tree = jax.tree.flatten(field)
    every = [*leaves, y0]

    def mean(*values: Array) -> Array:
        changed = list(every)
        for i, value in zip(asked.moving, values, strict=True):
            changed[i] = value
        made = jax.tree.unflatten(tree, changed[:-1])
        return loop.begin(
            method, asked.initialization, made, control, t0, end, changed[-1]
        ).state.mean.reshape(-1)

    given = tuple(jnp.asarray(every[i]) for i in asked.moving)
    parts = [_columns(mean, given, i) for i in range(len(given))]
    n, d = method.structure.n, method.structure.d
    slopes = jnp.concatenate(parts, axis=1).reshape(n, d, -1)
    return jnp.concatenate([state, jnp.swapaxes(slopes, 1, 2).reshape(-1)])
