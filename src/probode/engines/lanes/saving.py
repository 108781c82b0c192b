"""Save points on lanes: fixed-point smoothing (:mod:`probode.filter.saving`) in refilled blocks.

Lanes step until many of them have passed a save point (or finished); these are then recorded
together, and the loop goes on. A record holds the filtering state there and the kernel back to the
record before. The last one of a member is the end of its solve. A second loop runs backwards over
the records.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from probode.base.jax_inside import in_one_piece
from probode.base.record import record
from probode.base.status import Status
from probode.engines.lanes.blocks import LANES
from probode.engines.lanes.layout import Given, Layout
from probode.engines.lanes.refill import Places, solve_refilled
from probode.engines.lanes.step import Lane, Member, advance, running
from probode.filter.loop import Solve
from probode.filter.saving import Saving, catch_up, pass_point
from probode.filter.smooth import Kernel, identity_kernel
from probode.filter.step import Method, State
from probode.programs.unroll import entries as e
from probode.programs.unroll.entries import Entry, Lanes, scalar
from probode.programs.unroll.interpret import lift


@record
class Watch:
    """What a lane remembers of its save points, besides its solve. Lanes."""

    point: State
    kernel: Kernel | None
    count: Any
    """Records so far."""
    coming: Any
    """The next save point; infinitely far away if there is none."""


def _template(method: Method, smooth: bool) -> Watch:
    """A :class:`Watch` of truth values: which entries can differ from zero."""
    structure = method.structure
    mean, full = np.full((structure.n, structure.d), True), np.full(structure.factor_shape, True)
    factor, number = np.triu(full), np.full((), True)
    state: Any = State(number, number, mean, factor)  # type: ignore[arg-type]
    kernel: Any = Kernel(mean, mean, full, factor, number, number)  # type: ignore[arg-type]
    return Watch(state, kernel if smooth else None, number, number)


@dataclass(frozen=True)
class Rows:
    """Lanes as rows of a matrix and back, for a tree whose template says which entries are zero."""

    template: Any

    @property
    def count(self) -> int:
        """Number of rows."""
        return sum(int(np.sum(leaf)) for leaf in jax.tree.leaves(self.template))

    def unpack(self, rows: Sequence[Any]) -> Any:
        """The tree, from rows."""
        source = iter(rows)

        def lanes(present: np.ndarray) -> Lanes:
            entries = [next(source) if one else 0.0 for one in present.reshape(-1)]
            return Lanes(present.shape, entries)

        return jax.tree.map(lanes, self.template)

    def pack(self, tree: Any) -> list[Array]:
        """The rows of a tree."""
        leaves, template = jax.tree.leaves(tree), jax.tree.leaves(self.template)
        entries = [
            x
            for leaf, present in zip(leaves, template, strict=True)
            for x, one in zip(leaf.entries, present.reshape(-1), strict=True)
            if one
        ]
        like = next(x for x in entries if not e.constant(x))
        return [e.full(x, like, like) for x in entries]


def _passed(member: Member, watch: Watch, lane: Lane) -> Entry:
    """Whether a save point lies behind that was not recorded yet."""
    behind = e.sub(lane.t[()], watch.coming[()])
    backwards = e.greater(member.t0[()], member.t1[()])
    return jax.lax.ge(e.choose(backwards, e.neg(behind), behind), jnp.zeros(behind.shape))


def _saving(lane: Lane, watch: Watch) -> Saving:
    """The lanes as the library's functions want them."""
    state = State(lane.t, lane.h, lane.mean, lane.factor)
    nothing: Any = None
    solve = Solve(state, lane.scale, nothing, nothing, nothing, nothing, nothing)
    return Saving(solve, watch.point, watch.kernel, nothing, nothing, watch.count)


def _choose(condition: Entry, yes: Any, no: Any) -> Any:
    def one(a: Lanes, b: Lanes) -> Lanes:
        pairs = zip(a.entries, b.entries, strict=True)
        return Lanes(a.shape, [e.choose(condition, x, y) for x, y in pairs])

    return jax.tree.map(one, yes, no)


@dataclass(frozen=True)
class Recorder:
    """The two phases of a block: stepping, and recording."""

    layout: Layout
    given: Given
    smooth: bool
    covariance: bool = False
    """Whether covariances are handed out, or standard deviations only."""

    @property
    def watch(self) -> Rows:
        """Rows of the :class:`Watch`."""
        return Rows(_template(self.layout.method, self.smooth))

    @property
    def record(self) -> Rows:
        """Rows of a record: a state, and the kernel that leads back from it."""
        template = _template(self.layout.method, self.smooth)
        return Rows((template.point, template.kernel))

    def _split(self, rows: Sequence[Array]) -> tuple[Lane, Watch]:
        lane = self.layout.unpack(rows[: self.layout.rows])
        return lane, self.watch.unpack(rows[self.layout.rows :])

    def _join(self, lane: Lane, watch: Watch) -> tuple[Array, ...]:
        return (*self.layout.pack(lane), *self.watch.pack(watch))

    def step(
        self, state: Array, own: Array, common: Array, limit: Array, least: Array
    ) -> Float[Array, "rows L"]:
        """Step until at most ``least`` lanes are still on their way to a save point."""
        method = self.layout.method
        member = self.layout.member(self.given, list(own), list(common))

        def underway(lane: Lane, watch: Watch) -> Array:
            return running(lane) & ~_passed(member, watch, lane)

        def proceed(rows: tuple[Array, ...]) -> Array:
            return jnp.sum(underway(*self._split(rows))) > least

        def body(rows: tuple[Array, ...]) -> tuple[Array, ...]:
            lane, watch = self._split(rows)
            active = underway(lane, watch)
            caught = lift(lambda saving: catch_up(method, saving), _saving(lane, watch))
            new = replace(watch, point=caught.point, kernel=caught.kernel)
            watch = _choose(active, new, watch)
            return self._join(advance(method, member, lane, active, limit).lane, watch)

        return jnp.stack(jax.lax.while_loop(proceed, body, tuple(state)))

    def note(
        self, state: Array, own: Array, common: Array
    ) -> tuple[Float[Array, "rows L"], Float[Array, "record L"], Array, Array]:
        """Lanes after what lies behind them was recorded, the record, who has one, who finished.

        A lane that has nothing left to record but its end records that.
        """
        method = self.layout.method
        member = self.layout.member(self.given, list(own), list(common))
        lane, watch = self._split(tuple(state))
        passed = _passed(member, watch, lane)
        time = scalar(e.choose(passed, watch.coming[()], lane.t[()]))

        def save(saving: Saving, t: Array) -> tuple[State, Kernel | None, Kernel | None]:
            inside, reaching = pass_point(method, saving, t)
            anew = identity_kernel(method, inside) if self.smooth else None
            return replace(inside, t=t), reaching, anew

        inside, reaching, anew = lift(save, _saving(lane, watch), time)
        count = scalar(e.add(watch.count[()], 1.0))
        after = _choose(passed, Watch(inside, anew, count, watch.coming), watch)
        record = jnp.stack(self.record.pack((inside, reaching)))
        ended = ~running(lane)
        return jnp.stack(self._join(lane, after)), record, passed | ended, ended & ~passed


def begin_watch(recorder: Recorder, states: Array, first: Array) -> Float[Array, "rows B"]:
    """The rows of members before their first step, with their first save points."""
    layout, method = recorder.layout, recorder.layout.method
    lane = layout.unpack(list(states))
    state = State(lane.t, lane.h, lane.mean, lane.factor)
    kernel = None
    if recorder.smooth:
        kernel = lift(lambda state: identity_kernel(method, state), state)
    watch = Watch(state, kernel, scalar(0.0), scalar(first))
    return jnp.stack(recorder._join(lane, watch))


def solve_chunk(
    recorder: Recorder,
    initialization: Any,
    wanted: tuple[str, ...],
    limit: Array,
    count: Array,
    leaves: Sequence[Array],
    t0: Float[Array, " C"],
    t1: Float[Array, " C"],
    y0: Float[Array, "C d"],
    common: Float[Array, " common"],
    save_at: Float[Array, "C T"],
) -> tuple[Float[Array, "C out"], Float[Array, "C T values"]]:
    """Solve the first ``count`` members of a chunk: parts of their final states, and marginals."""
    layout = recorder.layout
    capacity, lanes, size = y0.shape[0], min(LANES, y0.shape[0]), save_at.shape[1]
    states, own = layout.begin(initialization, recorder.given, leaves, t0, t1, y0)
    states = begin_watch(recorder, states, save_at[:, 0])
    far = jnp.where(t1 < t0, -jnp.inf, jnp.inf)
    times = jnp.concatenate([save_at, far[:, None]], axis=1)
    times = jnp.concatenate([times, jnp.full((1, size + 1), jnp.inf)])
    vacant = layout.vacant(states.shape[0]).at[-1].set(jnp.inf)
    rows = jnp.asarray(layout.rows_of(wanted))
    block = in_one_piece(recorder.step)

    def harvest(
        state: Array, mine: Array, who: Array, results: tuple[Array, Array]
    ) -> tuple[Array, Array, tuple[Array, Array]]:
        """Record what was passed."""
        finals, records = results
        after, noted, ready, finished = recorder.note(state, mine, common)
        at = jnp.where(ready, who, capacity)
        number = state[-2].astype(int)
        records = records.at[at, jnp.where(ready, number, 0)].set(noted.T)
        # The next save point of a lane is known by its number.
        coming = times[who, after[-2].astype(int)]
        state = jnp.where(ready, after.at[-1].set(coming), state)
        finals = finals.at[jnp.where(finished, who, capacity)].set(
            jnp.concatenate([state[rows], number[None].astype(float)]).T
        )
        return state, finished, (finals, records)

    def step(state: Array, mine: Array, places: Places) -> Array:
        """Half of the lanes may wait for the others before the next turn."""
        alive = jnp.sum(state[layout.at("status")][0] == Status.RUNNING.value)
        return block(state, mine, common, limit, alive // 2)

    room = (
        jnp.zeros((capacity + 1, len(rows) + 1)),
        jnp.zeros((capacity + 1, size + 1, recorder.record.count)),
    )
    found = solve_refilled(lanes, count, states, own, vacant, room, harvest, step)
    finals, records = (rows[:capacity] for rows in found)
    return finals[:, :-1], look_back(recorder, records, finals[:, -1], lanes)


def look_back(
    recorder: Recorder, records: Float[Array, "C K record"], reached: Array, lanes: int
) -> Float[Array, "C T values"]:
    """Marginals at the save points, from the end; NaN beyond it.

    ``values`` holds ``d`` means, and ``d`` standard deviations or ``d²`` covariances.
    """
    method, form = recorder.layout.method, recorder.record
    states = Rows(form.template[0])
    blocks = records.reshape(-1, lanes, *records.shape[1:]).transpose(0, 2, 3, 1)

    def values(state: State) -> list[Array]:
        def marginal(state: State) -> tuple[Array, Array]:
            columns = method.structure.select(state.factor, 0)
            scale = method.prior.coordinate(state.h, 0)
            return state.mean[0], method.structure.covariance(columns * scale)

        mean, covariance = lift(marginal, state)
        spread = covariance.entries
        if not recorder.covariance:
            spread = [e.root(covariance[k, k]) for k in range(method.structure.d)]
        return [e.full(x, state.t[()], state.t[()]) for x in (*mean.entries, *spread)]

    def block(inputs: tuple[Array, Array]) -> Array:
        rows, reached = inputs

        def back(right: tuple[Array, ...], k: Array) -> tuple[tuple[Array, ...], Array]:
            here, following = form.unpack(list(rows[k])), form.unpack(list(rows[k + 1]))
            filtered = here[0]
            # The record after the last save point is the end: what lies beyond is not touched.
            end = reached == k + 1
            after = _choose(end, following[0], states.unpack(right))
            left = filtered
            if recorder.smooth:
                left = lift(
                    lambda kernel, after, t: kernel.marginalize(method, after, t),
                    following[1],
                    after,
                    filtered.t,
                )
            known = reached > k
            marginal = jnp.stack([jnp.where(known, x, jnp.nan) for x in values(left)])
            return tuple(states.pack(_choose(known, left, after))), marginal

        size = rows.shape[0] - 1
        start = tuple(states.pack(form.unpack(list(rows[0]))[0]))
        return jax.lax.scan(back, start, jnp.arange(size), reverse=True)[1]

    marginals = jax.lax.map(block, (blocks, reached.reshape(-1, lanes)))
    return marginals.transpose(0, 3, 1, 2).reshape(records.shape[0], records.shape[1] - 1, -1)
