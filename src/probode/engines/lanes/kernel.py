"""The GPU's driver: one kernel, in which a thread keeps the whole solve of its member in registers.

A block of lanes steps until the last of its members has finished; the card then gives its place to
the next block. Blocks are as small as the hardware allows, so that few lanes wait for others. With
save points a block goes from one to the next together: what its threads write down has the same
place for all of them.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from probode.base.jax_inside import pallas
from probode.engines.lanes.layout import Given, Layout
from probode.engines.lanes.saving import Recorder, begin_watch, look_back
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


def run_saving_kernel(
    recorder: Recorder,
    wanted: tuple[str, ...],
    states: Float[Array, "rows B"],
    own: Float[Array, "own B"],
    common: Float[Array, " common"],
    times: Float[Array, "K B"],
    limit: Float[Array, ""],
    *,
    lanes: int = LANES,
    interpret: bool = False,
) -> tuple[Float[Array, "out B"], Float[Array, "K record B"]]:
    """Solve all members; the rows ``wanted`` and how many save points were passed, and records.

    ``states`` are those of :func:`.saving.begin_watch`; the last of the ``times`` lies beyond all,
    where members record their ends. As on the CPU (:mod:`.saving`), which looks back over records.
    """
    count, layout, size = states.shape[1], recorder.layout, recorder.record.count
    rows = layout.rows_of(wanted)

    def kernel(
        state_ref: Any,
        own_ref: Any,
        common_ref: Any,
        times_ref: Any,
        limit_ref: Any,
        out_ref: Any,
        record_ref: Any,
    ) -> None:
        mine = [own_ref[i, :] for i in range(own_ref.shape[0])]
        shared = [common_ref[i] for i in range(common.shape[0])]
        member, bound = layout.member(recorder.given, mine, shared), limit_ref[0]

        def any_of(condition: Array) -> Array:
            return jnp.max(condition.astype(jnp.int32))

        def to_next(k: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
            state = (*state[:-1], times_ref[k, :])
            token = multiplies.set(True)
            state = recorder.stepped(member, state, bound, 0, any_of)
            after, record, passed, _ = recorder.noted(member, state)
            multiplies.reset(token)
            for i, row in enumerate(record):
                record_ref[k, i, :] = row
            return tuple(jnp.where(passed, a, b) for a, b in zip(after, state, strict=True))

        state = tuple(state_ref[i, :] for i in range(states.shape[0]))
        state = jax.lax.fori_loop(0, times.shape[0], to_next, state)
        for place, i in enumerate(rows):
            out_ref[place, :] = state[i]
        out_ref[len(rows), :] = state[-2]

    found = pallas(None if interpret else max(1, lanes // 32))
    assert found is not None, "the engine looks first"
    pl, options = found

    def columns(*heights: int) -> Any:
        return pl.BlockSpec((*heights, lanes), lambda i: (*[0] * len(heights), i))

    def everywhere(size: int) -> Any:
        return pl.BlockSpec((size,), lambda i: (0,))

    shapes = (len(rows) + 1, count), (times.shape[0], size, count)
    found_rows, records = pl.pallas_call(
        kernel,
        grid=(count // lanes,),
        in_specs=[
            columns(states.shape[0]),
            columns(own.shape[0]),
            everywhere(common.shape[0]),
            columns(times.shape[0]),
            everywhere(1),
        ],
        out_specs=[columns(len(rows) + 1), columns(times.shape[0], size)],
        out_shape=[jax.ShapeDtypeStruct(shape, states.dtype) for shape in shapes],
        interpret=interpret,
        **options,
    )(states, own, common, times, limit.reshape(1))
    return found_rows, records


def solve_saving(
    task: Any,
    limit: Array,
    leaves: Sequence[Array],
    t0: Float[Array, " C"],
    t1: Float[Array, " C"],
    y0: Float[Array, "C d"],
    common: Float[Array, " common"],
    save_at: Float[Array, "C T"],
    *,
    lanes: int = LANES,
    interpret: bool = False,
) -> tuple[Float[Array, "C out"], Float[Array, "C T values"]]:
    """Start all members and solve them: parts of their final states, and marginals."""
    recorder = task.recorder
    states, own = recorder.layout.begin(task.initialization, recorder.given, leaves, t0, t1, y0)
    states = begin_watch(recorder, states, save_at[:, 0])
    far = jnp.where(t1 < t0, -jnp.inf, jnp.inf)
    times = jnp.concatenate([save_at, far[:, None]], axis=1).T
    limit = jnp.asarray(limit, float)
    finals, records = run_saving_kernel(
        *(recorder, task.wanted, states, own, common, times, limit),
        lanes=lanes,
        interpret=interpret,
    )
    marginals = look_back(recorder, records.transpose(2, 0, 1), finals[-1], lanes)
    return finals[:-1].T, marginals


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
