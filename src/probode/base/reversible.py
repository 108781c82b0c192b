"""Loops of unknown length, differentiated in reverse in bounded memory.

JAX transposes loops of known length only. A ``while_loop`` is replaced by one with the same values
and a reverse pass of its own: on the way forward some of its states are kept, at a distance that
doubles when there is no room left; backwards, the iterations between two of them are repeated, and
transposed from the last to the first.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from probode.base.jax_inside import Closed, apply, called, equations, programs_in, walk

_MEMORY = 2**26
"""Bytes for the states that are kept, unless these would be fewer than ``_FEWEST``."""
_FEWEST, _MOST = 64, 512
"""Fewest and most states that are kept. Half of the fewest suffices for 2^31 iterations."""


def run_reversibly(program: Closed, inputs: Sequence[Any]) -> list[Any]:
    """Evaluate a program so that its loops have derivatives in reverse mode."""
    return walk(
        program.jaxpr, program.consts, inputs, lambda value, _: value, _applied, lambda _: None
    )


def _applied(equation: Any, values: list[Any]) -> Sequence[Any]:
    """Evaluate an equation whose loops of unknown length have derivatives in reverse mode."""
    name, params = equation.primitive.name, equation.params
    if name == "while":
        return while_loop(params, values)
    inner = None if name.startswith("custom") else called(equation)
    if (inner is None and name not in ("cond", "scan")) or not _has_loops(params):
        return apply(equation, values)
    if inner is not None:
        return run_reversibly(inner, values)
    if name == "cond":
        branches = [partial(_run, branch) for branch in params["branches"]]
        return list(jax.lax.switch(values[0], branches, *values[1:]))
    first, second = params["num_consts"], params["num_consts"] + params["num_carry"]

    def body(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        found = _run(params["jaxpr"], *values[:first], *carry, *x)
        return found[: second - first], found[second - first :]

    carry, rows = jax.lax.scan(
        body,
        values[first:second],
        values[second:],
        length=params["length"],
        reverse=params["reverse"],
    )
    return [*carry, *rows]


def _has_loops(params: dict[str, Any]) -> bool:
    """Whether there is a loop of unknown length in a program among these parameters."""
    return any(
        equation.primitive.name == "while"
        for program in programs_in(params)
        for equation in equations(program.jaxpr)
    )


def while_loop(params: dict[str, Any], values: Sequence[Any]) -> list[Any]:
    """Evaluate JAX's operation of that name, with these parameters."""
    first, second = params["cond_nconsts"], params["body_nconsts"]
    loop = _Loop(partial(_run, params["cond_jaxpr"]), partial(_run, params["body_jaxpr"]), first)

    @jax.custom_vjp
    def evaluate(given: list[Any], state: list[Any]) -> list[Any]:
        return loop.end(given, state)

    def forward(given: list[Any], state: list[Any]) -> Any:
        kept = loop.recorded(given, state)
        return kept.state, (given, kept)

    def backward(known: tuple[list[Any], _Kept], cotangents: list[Any]) -> Any:
        return loop.transposed(*known, cotangents)

    evaluate.defvjp(forward, backward)
    values = [jnp.asarray(value) for value in values]
    return list(evaluate(values[: first + second], values[first + second :]))


def _run(closed: Any, *values: Any) -> list[Any]:
    return run_reversibly(Closed(getattr(closed, "jaxpr", closed), closed.consts), values)


class _Kept(NamedTuple):
    """A loop during its forward pass, or at its end, and some of its earlier states."""

    state: list[Any]
    done: Array
    """Iterations done."""
    distance: Array
    """Number of iterations from one kept state to the next."""
    stack: list[Any]
    """States kept, ``stack[i]`` after ``i · distance`` iterations; the last row is not used."""


class _Loop(NamedTuple):
    """``while condition(*given[:asked], *state): state = body(*given[asked:], *state)``.

    A loop over several problems has one condition for each, and ends when the last one is false.
    """

    condition: Callable[..., list[Any]]
    body: Callable[..., list[Any]]
    asked: int

    def end(self, given: list[Any], state: list[Any]) -> list[Any]:
        """Return the last state."""
        iterate = partial(self.iterate, given, first=self.begun(given, state))
        return list(jax.lax.while_loop(partial(self.going, given), iterate, state))

    def going(self, given: list[Any], state: list[Any]) -> Array:
        """Whether there is another iteration."""
        return jnp.any(self.condition(*given[: self.asked], *state)[0])

    def iterate(self, given: list[Any], state: list[Any], first: list[Any]) -> list[Any]:
        """Return the next state.

        If a problem is finished, the iteration starts from its ``first`` state and its result is
        ignored: derivatives at the end may be infinite, and zero times infinity is not zero.
        """
        one = self.condition(*given[: self.asked], *state)[0]
        if one.ndim == 0:
            return self.body(*given[self.asked :], *state)
        found = self.body(*given[self.asked :], *_where(one, state, first))
        return _where(one, found, state)

    def begun(self, given: list[Any], state: list[Any]) -> list[Any]:
        """Return a state of every problem that is not its last: its first, or another problem's."""
        one = self.condition(*given[: self.asked], *state)[0]
        if one.ndim == 0:
            return state
        another = jnp.argmax(one)
        return _where(one, state, [x.reshape(-1, *x.shape[one.ndim :])[another] for x in state])

    def recorded(self, given: list[Any], state: list[Any]) -> _Kept:
        """Return the last state, and the earlier states from which the reverse pass starts.

        Half of the stack is filled. When it is, every other state is dropped.
        """
        rows = _rows(state)
        half = rows // 2
        empty = [jnp.zeros((rows + 1, *x.shape), x.dtype) for x in state]
        zero, first = jnp.zeros((), int), self.begun(given, state)

        def going(kept: _Kept) -> Array:
            return self.going(given, kept.state)

        def room(kept: _Kept) -> Array:
            return going(kept) & (kept.done < half * kept.distance)

        def iterate(kept: _Kept) -> _Kept:
            state, done, distance, stack = kept
            row = jnp.where(done % distance == 0, done // distance, rows)
            stack = _written(stack, row, state)
            return _Kept(self.iterate(given, state, first), done + 1, distance, stack)

        def fill(kept: _Kept) -> _Kept:
            kept = jax.lax.while_loop(room, iterate, kept)
            return jax.lax.cond(going(kept), spread, lambda kept: kept, kept)

        def spread(kept: _Kept) -> _Kept:
            stack = [x.at[: half // 2].set(x[:half:2]) for x in kept.stack]
            return kept._replace(distance=2 * kept.distance, stack=stack)

        return jax.lax.while_loop(going, fill, _Kept(state, zero, zero + 1, empty))

    def transposed(
        self, given: list[Any], kept: _Kept, cotangents: list[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Pull cotangents of the last state back to what is given and to the first.

        The state on top of the stack is the latest known one before the iteration to be transposed
        next. If there is room for all states between the two, they are computed; otherwise only
        the one in the middle is.
        """
        real, moving = _real(kept.state), _real(given)
        rows = kept.stack[0].shape[0] - 1
        first = self.begun(given, [x[0] for x in kept.stack])
        positions = jnp.arange(rows + 1) * kept.distance
        # A sum over all iterations would lose digits in single precision.
        sums = [jnp.zeros_like(given[i], dtype=_wide(given[i].dtype)) for i in moving]
        cotangents = [cotangents[i] for i in real]
        top = (kept.done - 1) // kept.distance
        back = _Back(kept.done - 1, top, positions, kept.stack, cotangents, sums)

        def to_there(back: _Back) -> _Back:
            begin = back.positions[back.top]
            gap, free = back.target - begin, rows - 1 - back.top
            every = gap <= free
            there = jnp.where(every, back.target, begin + gap // 2)

            def iterate(now: Any) -> Any:
                state, at, top, positions, stack = now
                state, at = self.iterate(given, state, first), at + 1
                keeps = every | (at == there)
                top = top + keeps
                row = jnp.where(keeps, top, rows)
                return state, at, top, positions.at[row].set(at), _written(stack, row, state)

            state = [x[back.top] for x in back.stack]
            begun = (state, begin, back.top, back.positions, back.stack)
            found = jax.lax.while_loop(lambda now: now[1] < there, iterate, begun)
            back = back._replace(top=found[2], positions=found[3], stack=found[4])
            return jax.lax.while_loop(is_there, once, back)

        def is_there(back: _Back) -> Array:
            return (back.target >= 0) & (back.positions[back.top] == back.target)

        def once(back: _Back) -> _Back:
            state = [x[back.top] for x in back.stack]

            def moved(some: list[Any], values: list[Any]) -> list[Any]:
                found = self.iterate(_with(given, moving, some), _with(state, real, values), first)
                return [found[i] for i in real]

            _, pull = jax.vjp(moved, [given[i] for i in moving], [state[i] for i in real])
            more, cotangents = pull(back.cotangents)
            return back._replace(
                target=back.target - 1,
                top=jnp.maximum(back.top - 1, 0),
                cotangents=cotangents,
                sums=[a + b for a, b in zip(back.sums, more, strict=True)],
            )

        back = jax.lax.while_loop(lambda back: back.target >= 0, to_there, back)
        by_given = [s.astype(given[i].dtype) for i, s in zip(moving, back.sums, strict=True)]
        return _among(given, moving, by_given), _among(kept.state, real, back.cotangents)


class _Back(NamedTuple):
    """A loop during its reverse pass."""

    target: Array
    """Index of the iteration that is transposed next."""
    top: Array
    positions: Array
    stack: list[Any]
    cotangents: list[Any]
    """Cotangents of the state after that iteration."""
    sums: list[Any]
    """Cotangents of the constants of the loop, summed over the iterations done so far."""


def _rows(state: list[Any]) -> int:
    size = sum(x.size * x.dtype.itemsize for x in state)
    return int(np.clip(_MEMORY // max(size, 1), _FEWEST, _MOST)) // 4 * 4


def _where(one: Array, state: list[Any], others: list[Any]) -> list[Any]:
    """Choose the states of some of the problems, and others in the places of the rest."""
    return [
        jnp.where(one.reshape(*one.shape, *[1] * (x.ndim - one.ndim)), x, other)
        for x, other in zip(state, others, strict=True)
    ]


def _wide(dtype: Any) -> Any:
    return jnp.promote_types(dtype, jnp.float64)


def _real(values: list[Any]) -> list[int]:
    """Return the places of the values that have derivatives."""
    return [i for i, x in enumerate(values) if jnp.issubdtype(x.dtype, jnp.inexact)]


def _with(values: list[Any], places: list[int], others: list[Any]) -> list[Any]:
    found = list(values)
    for i, other in zip(places, others, strict=True):
        found[i] = other
    return found


def _among(values: list[Any], places: list[int], found: list[Any]) -> list[Any]:
    """Spread cotangents over all values; ``None`` where there is none."""
    return _with([None] * len(values), places, found)


def _written(stack: list[Any], row: Array, state: list[Any]) -> list[Any]:
    return [xs.at[row].set(x) for xs, x in zip(stack, state, strict=True)]
