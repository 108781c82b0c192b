"""The CPU's driver: blocks of lanes, refilled from a queue as members finish.

A chunk of members is one compiled call. It steps a block of lanes until some have finished, writes
their results, puts the next members of the chunk into their place, and goes on: the cost follows
the mean number of steps, not the largest. The loop over the steps is marked for XLA to be compiled
as one function, without its bookkeeping between kernels, which for small blocks costs more than
they do.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from probode.base.jax_inside import in_one_piece
from probode.base.status import Status
from probode.engines.lanes.layout import Given, Layout
from probode.engines.lanes.step import advance, running

LANES = 64
"""Members side by side. Fewer use the vector units less well, more do not fit into the cache."""

_FINISHED = float(Status.SUCCESS.value)


def run_block(
    layout: Layout,
    given: Given,
    state: Float[Array, "rows L"],
    own: Float[Array, "own L"],
    common: Float[Array, " common"],
    limit: Array,
    least: Array,
) -> Float[Array, "rows L"]:
    """Step the lanes until no more than ``least`` are running.

    Lanes that have made ``limit`` attempts stop with that status.
    """
    member = layout.member(given, list(own), list(common))

    def proceed(rows: tuple[Array, ...]) -> Array:
        return jnp.sum(running(layout.unpack(rows))) > least

    def body(rows: tuple[Array, ...]) -> tuple[Array, ...]:
        lane = layout.unpack(rows)
        return tuple(layout.pack(advance(layout.method, member, lane, running(lane), limit).lane))

    return jnp.stack(jax.lax.while_loop(proceed, body, tuple(state)))


def give_places(
    done: Array, lanes: tuple[Array, ...], states: Array, own: Array, count: Array
) -> tuple[Array, ...]:
    """The places of members that are done to those that wait: ``(state, own, who, following)``.

    ``states`` and ``own`` have a row for each member of the chunk, and a last one for nobody.
    """
    state, mine, who, following = lanes
    turn = following + jnp.cumsum(done) - 1
    new = jnp.where(turn < count, turn, states.shape[0] - 1)
    return (
        jnp.where(done, states[new].T, state),
        jnp.where(done, own[new].T, mine),
        jnp.where(done, new, who),
        jnp.minimum(following + jnp.sum(done), count),
    )


def solve_chunk(
    layout: Layout,
    given: Given,
    initialization: Any,
    wanted: tuple[str, ...],
    limit: Array,
    count: Array,
    leaves: Sequence[Array],
    t0: Float[Array, " C"],
    t1: Float[Array, " C"],
    y0: Float[Array, "C d"],
    common: Float[Array, " common"],
) -> Float[Array, "C out"]:
    """Solve the first ``count`` members of a chunk to their end.

    Returns the rows ``wanted`` of their final states, a row of the result for each member.
    """
    capacity, lanes = y0.shape[0], min(LANES, y0.shape[0])
    states, own = layout.begin(initialization, given, leaves, t0, t1, y0)
    # A column for lanes without a member: finished, and written to no one's place.
    nobody = jnp.zeros((layout.rows, 1)).at[layout.at("status")].set(_FINISHED)
    states = jnp.concatenate([states, nobody], axis=1).T
    own = jnp.concatenate([own, own[:, -1:]], axis=1).T
    rows = jnp.concatenate([jnp.arange(layout.rows)[layout.at(name)] for name in wanted])
    block = in_one_piece(lambda *args: run_block(layout, given, *args))

    def refill(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        state, mine, who, following, results = carry
        done = state[layout.at("status")][0] != Status.RUNNING.value
        results = results.at[jnp.where(done, who, capacity)].set(state[rows].T)
        places = give_places(done, (state, mine, who, following), states, own, count)
        return *places, results

    def body(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        state, mine, who, following, results = refill(carry)
        # While members are waiting, an eighth of the lanes may fall idle before the next turn.
        least = jnp.where(following < count, lanes - 1 - lanes // 8, 0)
        return block(state, mine, common, limit, least), mine, who, following, results

    def proceed(carry: tuple[Array, ...]) -> Array:
        busy = jnp.any(carry[0][layout.at("status")][0] == Status.RUNNING.value)
        return busy | (carry[3] < count)

    idle = jnp.full((lanes,), capacity)
    carry: tuple[Array, ...] = (
        jnp.repeat(states[capacity][:, None], lanes, axis=1),
        jnp.repeat(own[capacity][:, None], lanes, axis=1),
        idle,
        jnp.zeros((), idle.dtype),
        jnp.zeros((capacity + 1, len(rows))),
    )
    return refill(jax.lax.while_loop(proceed, body, carry))[-1][:capacity]
