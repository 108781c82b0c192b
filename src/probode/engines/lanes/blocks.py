"""The CPU's driver: blocks of lanes, refilled as members finish (:mod:`.refill`).

A chunk of members is one compiled call. It steps a block of lanes until an eighth of them has
finished, writes their results, puts the next members of the chunk into their place, and goes on.
The loop over the steps is marked for XLA to be compiled as one function, without its bookkeeping
between kernels, which for small blocks costs more than they do.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from probode.base.jax_inside import in_one_piece
from probode.base.status import Status
from probode.engines.lanes.layout import Given, Layout
from probode.engines.lanes.refill import Places, solve_refilled
from probode.engines.lanes.step import advance, running

LANES = 64
"""Members side by side. Fewer use the vector units less well, more do not fit into the cache."""


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
    rows = jnp.asarray(layout.rows_of(wanted))
    block = in_one_piece(lambda *args: run_block(layout, given, *args))

    def harvest(state: Array, mine: Array, who: Array, results: Array) -> Any:
        done = state[layout.at("status")][0] != Status.RUNNING.value
        return state, done, results.at[jnp.where(done, who, capacity)].set(state[rows].T)

    def step(state: Array, mine: Array, places: Places) -> Array:
        return block(state, mine, common, limit, places.least(jnp, lanes // 8 + 1))

    results = jnp.zeros((capacity + 1, len(rows)))
    vacant = layout.vacant(layout.rows)
    return solve_refilled(lanes, count, states, own, vacant, results, harvest, step)[:capacity]
