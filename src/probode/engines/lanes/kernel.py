"""The GPU's driver: one kernel, in which a thread keeps the whole solve of its member in registers.

A block of lanes steps until the last of its members has finished; the card then gives its place to
the next block. Blocks are as small as the hardware allows, so that few lanes wait for others. Only
ends, with the model's error bars: for small stiff systems that is several times as fast as
:mod:`probode.engines.abreast`, which does all the rest on cards.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from probode.base.jax_inside import pallas
from probode.engines.lanes.layout import Given, Layout
from probode.engines.lanes.step import advance, running
from probode.programs.unroll.entries import multiplies

LANES = 32
"""Members of a block: one warp."""


def run_kernel(
    layout: Layout,
    given: Given,
    wanted: tuple[str, ...],
    states: Float[Array, "rows B"],
    own: Float[Array, "own B"],
    common: Float[Array, " common"],
    limit: Float[Array, ""],
    *,
    lanes: int = LANES,
    interpret: bool = False,
) -> Float[Array, "out B"]:
    """Solve all members to their end; return the rows ``wanted`` of their final states.

    The number of members is a multiple of ``lanes``. ``interpret`` runs the kernel without a GPU.
    """
    count = states.shape[1]
    rows = layout.rows_of(wanted)

    def kernel(state_ref: Any, own_ref: Any, common_ref: Any, limit_ref: Any, out_ref: Any) -> None:
        mine = [own_ref[i, :] for i in range(own_ref.shape[0])]
        shared = [common_ref[i] for i in range(common.shape[0])]
        member, bound = layout.member(given, mine, shared), limit_ref[0]

        def proceed(rows: tuple[Array, ...]) -> Array:
            busy = running(layout.unpack(rows))
            return jnp.max(busy.astype(jnp.int32)) > 0

        def body(rows: tuple[Array, ...]) -> tuple[Array, ...]:
            lane = layout.unpack(rows)
            token = multiplies.set(True)
            stepped = advance(layout.method, member, lane, running(lane), bound)
            multiplies.reset(token)
            return tuple(layout.pack(stepped.lane))

        state = tuple(state_ref[i, :] for i in range(layout.rows))
        state = jax.lax.while_loop(proceed, body, state)
        for place, i in enumerate(rows):
            out_ref[place, :] = state[i]

    found = pallas(None if interpret else max(1, lanes // 32))
    assert found is not None, "the engine looks first"
    pl, options = found

    def column(height: int) -> Any:
        return pl.BlockSpec((height, lanes), lambda i: (0, i))

    def everywhere(size: int) -> Any:
        return pl.BlockSpec((size,), lambda i: (0,))

    return pl.pallas_call(
        kernel,
        grid=(count // lanes,),
        in_specs=[
            column(layout.rows),
            column(own.shape[0]),
            everywhere(common.shape[0]),
            everywhere(1),
        ],
        out_specs=column(len(rows)),
        out_shape=jax.ShapeDtypeStruct((len(rows), count), states.dtype),
        interpret=interpret,
        **options,
    )(states, own, common, limit.reshape(1))


def solve_all(
    task: Any,
    limit: Array,
    leaves: Sequence[Array],
    t0: Float[Array, " C"],
    t1: Float[Array, " C"],
    y0: Float[Array, "C d"],
    common: Float[Array, " common"],
    *,
    lanes: int = LANES,
    interpret: bool = False,
) -> Float[Array, "C out"]:
    """Start all members and solve them, a row of the result for each."""
    layout, given = task.layout, task.given
    states, own = layout.begin(task.initialization, given, leaves, t0, t1, y0)
    limit = jnp.asarray(limit, float)
    options: dict[str, Any] = {"lanes": lanes, "interpret": interpret}
    return run_kernel(layout, given, task.wanted, states, own, common, limit, **options).T
