"""Where the numbers of a member lie: a column of a matrix for its state, one for what is given.

A matrix has a row for each number and a column for each member. Entries of a factor that are known
to be zero have no row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from probode.base.status import Status
from probode.engines.lanes.step import Lane, Member
from probode.engines.lanes.update import Cut
from probode.filter.control import PControl
from probode.filter.loop import begin
from probode.filter.start import Initialization
from probode.filter.step import Method
from probode.programs.field import Field
from probode.programs.unroll.entries import Lanes, scalar


@dataclass(frozen=True)
class Given:
    """How what is given of the members is laid out (static): for each leaf, whether it is shared.

    ``tree`` is the structure of ``(field, control)``, ``leaves`` their shapes, types and whether
    they are shared by all members.
    """

    tree: Any
    leaves: tuple[tuple[tuple[int, ...], Any, bool], ...]

    @staticmethod
    def of(field: Field, control: PControl, shared: Sequence[bool]) -> "Given":
        """The layout of a field and a control; ``shared`` has an entry for each of their leaves.

        Leaves that are not shared have a leading axis over the members.
        """
        leaves, tree = jax.tree.flatten((field, control))
        described = (
            (np.shape(leaf)[0 if all_have_it else 1 :], np.asarray(leaf).dtype, all_have_it)
            for leaf, all_have_it in zip(leaves, shared, strict=True)
        )
        return Given(tree, tuple(described))

    @property
    def axes(self) -> list[int | None]:
        """The axis over the members of each leaf, as ``jax.vmap`` wants it."""
        return [None if shared else 0 for _, _, shared in self.leaves]

    def numbers(self, which: bool) -> int:
        """How many numbers are shared, or are not."""
        return sum(int(np.prod(shape)) for shape, _, shared in self.leaves if shared == which)

    def unpack(self, own: Sequence[Any], common: Sequence[Any], like: Any) -> tuple[Any, Any]:
        """Field and control on lanes, from rows over the members and shared numbers."""
        sources = {False: iter(own), True: iter(common)}

        def entry(shared: bool, dtype: Any) -> Any:
            number = next(sources[shared])
            wide = jnp.broadcast_to(number, like.shape) if shared else number
            return wide if wide.dtype == dtype else lax.convert_element_type(wide, dtype)

        leaves = [
            Lanes(shape, [entry(shared, dtype) for _ in range(int(np.prod(shape)))])
            for shape, dtype, shared in self.leaves
        ]
        return jax.tree.unflatten(self.tree, leaves)


@dataclass(frozen=True)
class Layout:
    """The rows of a member's state."""

    method: Method
    keeps_scale: bool = False

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each part of the state, in order."""
        method = self.method
        n, d = method.structure.n, method.structure.d
        per_component = (d,) if method.diffusion.multivariate else ()
        parts: dict[str, tuple[int, ...]] = {name.name: () for name in fields(Lane)}
        parts["mean"] = (n, d)
        parts["factor"] = method.structure.factor_shape
        parts["squares"] = per_component if method.diffusion.fixed else (0,)
        varies = method.diffusion.varies_by_component
        keeps = self.keeps_scale or method.diffusion.remembers
        parts["scale"] = ((d,) if varies else ()) if keeps else (0,)
        return parts

    def kept(self, name: str) -> list[bool]:
        """Which numbers of a part have a row."""
        if name == "factor":
            return Cut.of(self.method).pattern()
        return [True] * int(np.prod(self.shapes[name]))

    @property
    def rows(self) -> int:
        """Numbers of a state."""
        return sum(sum(self.kept(name)) for name in self.shapes)

    def unpack(self, rows: Sequence[Any]) -> Lane:
        """A state on lanes, from its rows."""
        source = iter(rows)
        parts = {
            name: Lanes(shape, [next(source) if kept else 0.0 for kept in self.kept(name)])
            for name, shape in self.shapes.items()
        }
        return Lane(**parts)

    def pack(self, lane: Lane) -> list[Any]:
        """The rows of a state."""
        like = lane.t[()]
        return [
            x if isinstance(x, jax.Array) else jnp.full(like.shape, x)
            for name in self.shapes
            for x, kept in zip(getattr(lane, name).entries, self.kept(name), strict=True)
            if kept
        ]

    def at(self, name: str) -> slice:
        """The rows of one part."""
        start = 0
        for part in self.shapes:
            size = sum(self.kept(part))
            if part == name:
                return slice(start, start + size)
            start += size
        raise KeyError(name)

    def rows_of(self, names: Sequence[str]) -> list[int]:
        """The numbers of the rows of some parts."""
        return [i for name in names for i in range(self.rows)[self.at(name)]]

    def vacant(self, rows: int) -> Float[Array, " rows"]:
        """The rows of a lane without a member: it has finished."""
        return jnp.ones(rows).at[self.at("status")].set(Status.SUCCESS.value)

    def begin(
        self,
        initialization: Initialization,
        given: Given,
        leaves: Sequence[Array],
        t0: Float[Array, " C"],
        t1: Float[Array, " C"],
        y0: Float[Array, "C d"],
    ) -> tuple[Float[Array, "rows C"], Float[Array, "own C"]]:
        """States before the first step, and what is given, by the library's own :func:`begin`."""
        method = self.method

        def one(leaves: Any, t0: Array, t1: Array, y0: Array) -> tuple[Array, Array]:
            field, control = jax.tree.unflatten(given.tree, leaves)
            solve = begin(method, initialization, field, control, t0, t1, y0)
            zero = jnp.zeros(())
            values = {
                "t": t0,
                "h": solve.state.h,
                "mean": solve.state.mean,
                "factor": solve.state.factor,
                "step": solve.control.h,
                "log_error": zero,
                "rejected": zero,
                "attempted": zero,
                "accepted": zero,
                "status": solve.status.astype(float),
                "squares": jnp.zeros(self.shapes["squares"]),
                "scale": jnp.zeros(self.shapes["scale"]),
            }
            state = [values[name].reshape(-1)[np.flatnonzero(self.kept(name))] for name in values]
            own = [
                leaf.astype(float).reshape(-1)
                for leaf, (_, _, shared) in zip(leaves, given.leaves, strict=True)
                if not shared
            ]
            ends = jnp.stack([t0, t1, solve.reference])
            return jnp.concatenate(state), jnp.concatenate([ends, *own])

        axes = (given.axes, 0, 0, 0)
        return jax.vmap(one, in_axes=axes, out_axes=1)(list(leaves), t0, t1, y0)

    def member(self, given: Given, own: Sequence[Any], common: Sequence[Any]) -> Member:
        """What is given of the members, on lanes."""
        field, control = given.unpack(own[3:], common, own[0])
        reference = own[2] if self.method.diffusion.fixed else 1.0
        return Member(scalar(own[0]), scalar(own[1]), field, control, scalar(reference))
