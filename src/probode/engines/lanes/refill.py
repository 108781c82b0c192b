"""Refilling: lanes whose members have finished are given to members that wait.

So a batch costs the mean number of steps of its members, not the largest. This is the account of
it, for whoever steps the lanes: who is in which lane, who is next, when to stop for an exchange.
Written for NumPy (a batch driven from Python) and JAX (an exchange inside of a compiled program).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from probode.base.record import record, static


@record
class Places:
    """The lanes of a batch, and the members in the order in which they are begun."""

    who: Int[Array, " L"]
    """The member in each lane; ``nobody``, if it is vacant."""
    following: Any
    """The member that is next."""
    count: Any
    """How many members there are."""
    nobody: int = static()
    """At least their number."""

    @staticmethod
    def vacant(xp: Any, lanes: int, count: Any, nobody: int) -> "Places":
        """Before anyone has begun."""
        who = xp.full((lanes,), nobody)
        return Places(who, xp.zeros((), who.dtype), count, nobody)

    @property
    def taken(self) -> Any:
        """Which lanes have a member."""
        return self.who < self.nobody

    @property
    def waiting(self) -> Any:
        """Whether anyone waits."""
        return self.following < self.count

    @property
    def open(self) -> Any:
        """Whether there is anything left to do."""
        return self.taken.any() | self.waiting

    def give(self, xp: Any, free: Any) -> "Places":
        """The lanes that are ``free`` to those that wait, one after the other."""
        turn = self.following + xp.cumsum(free) - 1
        new = xp.where(turn < self.count, turn, self.nobody)
        following = xp.minimum(self.following + free.sum(), self.count)
        return replace(self, who=xp.where(free, new, self.who), following=following)

    def least(self, xp: Any, idle: int) -> Any:
        """Lanes that go on stepping: while anyone waits, ``idle`` at rest end a round.

        After that it ends with the last member.
        """
        return xp.where(self.waiting, max(len(self.who) - idle, 0), 0)


def solve_refilled(
    lanes: int,
    count: Array,
    states: Float[Array, "rows C"],
    own: Float[Array, "own C"],
    vacant: Float[Array, " rows"],
    results: Any,
    harvest: Callable[..., tuple[Array, Array, Any]],
    step: Callable[[Array, Array, Places], Array],
) -> Any:
    """Solve the first ``count`` of ``C`` members inside of a compiled program; give the results.

    ``harvest(state, own, who, results)`` writes down what the lanes at rest have found, and says
    who of them has finished: ``(state, finished, results)``. Results have room for a member ``C``,
    who is nobody. ``step(state, own, places)`` steps the lanes up to the next exchange.
    """
    nobody = states.shape[1]
    states = jnp.concatenate([states, vacant[:, None]], axis=1).T
    own = jnp.concatenate([own, own[:, -1:]], axis=1).T

    def turn(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        places, state, mine, results = carry
        state, finished, results = harvest(state, mine, places.who, results)
        places = places.give(jnp, finished)
        state = jnp.where(finished, states[places.who].T, state)
        mine = jnp.where(finished, own[places.who].T, mine)
        return places, step(state, mine, places), mine, results

    empty = jnp.full((lanes,), nobody)
    start = Places.vacant(jnp, lanes, count, nobody), states[empty].T, own[empty].T, results
    return jax.lax.while_loop(lambda carry: carry[0].open, turn, start)[-1]
