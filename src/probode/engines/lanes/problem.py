"""An ensemble, bound to its vector field and laid out; results from the rows of final states."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from probode.base.record import unchecked
from probode.base.status import Status
from probode.engines.lanes.layout import Given, Layout
from probode.engines.lanes.records import LaneResults, Members
from probode.engines.lanes.saving import Recorder
from probode.filter import loop
from probode.filter.control import PControl
from probode.filter.solvers import Solver
from probode.filter.start import Initialization
from probode.programs.field import Field, bind


@dataclass(frozen=True)
class Task:
    """What is compiled for: everything static about an ensemble."""

    layout: Layout
    given: Given
    initialization: Initialization
    recorder: Recorder | None
    """How save points are recorded; ``None`` if the final time is the only one."""
    covariance: bool = False
    """Whether covariances are handed out, or standard deviations only: far fewer numbers."""

    @property
    def counts(self) -> tuple[str, ...]:
        """The parts of a final state that are handed out as they are."""
        return ("status", "attempted", "accepted", "squares")

    @property
    def wanted(self) -> tuple[str, ...]:
        """The parts of a final state that results are made of."""
        return self.counts if self.recorder is not None else (*self.counts, "mean", "factor", "h")

    def marginals(self, finals: Float[Array, "C out"]) -> tuple[Array, Array]:
        """Counts, and ``y`` with its deviations at the end, from the wanted parts of final states.

        Members that did not reach the end have NaN there.
        """
        method = self.layout.method
        structure, count = method.structure, finals.shape[0]
        parts: dict[str, Array] = {}
        start = 0
        for name in self.wanted:
            kept = self.layout.kept(name)
            full = jnp.zeros((count, len(kept)))
            rows = finals[:, start : start + sum(kept)]
            parts[name] = full.at[:, np.flatnonzero(kept)].set(rows)
            start += sum(kept)
        factor = parts["factor"].reshape(count, *structure.factor_shape)
        columns = structure.select(factor, 0)
        scale = method.prior.coordinate(parts["h"], 0)
        columns = columns * scale.reshape(count, *[1] * (columns.ndim - 1))
        cov = structure.covariance(columns)
        if not self.covariance:
            cov = jnp.sqrt(jnp.diagonal(cov, axis1=-2, axis2=-1))
        values = jnp.concatenate([parts["mean"][:, : structure.d], cov.reshape(count, -1)], axis=1)
        reached = parts["status"] == Status.SUCCESS.value
        counts = jnp.concatenate([parts[name] for name in self.counts], axis=1)
        return counts, jnp.where(reached, values, jnp.nan)[:, None]


@dataclass(frozen=True)
class Problem:
    """An ensemble in the form that compiled programs take."""

    members: Members
    task: Task
    leaves: list[np.ndarray]
    common: np.ndarray
    start_evaluations: int

    @staticmethod
    def of(
        vector_field: Callable[..., Any],
        members: Members,
        solver: Solver,
        control: PControl,
        smooth: bool = True,
        jac: Any = None,
        covariance: bool = False,
    ) -> "Problem":
        """Trace the vector field with the first member's parameters, and lay everything out."""
        leaves, tree = jax.tree.flatten(members.args)
        own = [x if axis is None else x[0] for x, axis in zip(leaves, members.axes, strict=True)]
        t0: Any = members.t0[0]
        y0 = members.y0[0].reshape(members.shape or (members.d,))
        diagonal = solver.jacobian == "diagonal"
        first = jax.tree.unflatten(tree, own)
        field = bind(vector_field, t0, y0, first, jac, diagonal=diagonal)
        field, differ = _with_members(field, leaves, members.axes)
        flat = replace(control, rtol=1.0, atol=1.0).flat((members.d,))
        tolerances = {"rtol": np.asarray(members.rtol), "atol": np.asarray(members.atol)}
        flat = unchecked(type(flat), {**vars(flat), **tolerances})
        shared = [True] * len(jax.tree.leaves((field.constants, field.jacobian_constants)))
        shared += [not one for one in differ]
        names = [one.name for one in fields(flat) if getattr(flat, one.name) is not None]
        shared += [name not in tolerances for name in names]

        data = [np.asarray(leaf) for leaf in jax.tree.leaves((field, flat))]
        common = [x.reshape(-1) for x, one in zip(data, shared, strict=True) if one]
        given = Given.of(field, flat, shared)
        saves = not members.only_end
        layout = Layout(solver.method(members.d), keeps_scale=saves)
        recorder = Recorder(layout, given, smooth, covariance) if saves else None
        return Problem(
            members,
            Task(layout, given, solver.initialization, recorder, covariance),
            data,
            np.concatenate([np.zeros(0), *common]).astype(float),
            loop.start_evaluations(solver.initialization, control, solver.order),
        )

    def part(self, members: slice, capacity: int) -> list[Any]:
        """The inputs of some members, the last repeated up to ``capacity``."""
        index = np.minimum(np.arange(members.start, members.start + capacity), members.stop - 1)
        leaves = [
            leaf if shared else leaf[index]
            for leaf, (_, _, shared) in zip(self.leaves, self.task.given.leaves, strict=True)
        ]
        every = self.members
        inputs = [leaves, every.t0[index], every.t1[index], every.y0[index], self.common]
        return inputs if self.task.recorder is None else [*inputs, every.times[index]]

    def results(self, counts: np.ndarray, marginals: np.ndarray) -> LaneResults:
        """What an engine returns, from counts and the marginals at the save points."""
        method, d = self.task.layout.method, self.members.d
        status, attempted, accepted = counts[:, :3].astype(int).T
        mean, spread, cov = marginals[..., :d], marginals[..., d:], None
        scale: Any = 1.0
        if method.diffusion.fixed:
            per_step = 1 if method.diffusion.multivariate else d
            squares = counts[:, 3:] / np.maximum(per_step * accepted, 1)[:, None]
            scale = np.broadcast_to(np.sqrt(squares), (len(counts), d))[:, None]
        if self.task.covariance:
            cov = spread.reshape(*spread.shape[:-1], d, d)
            if method.diffusion.fixed:
                cov = cov * (scale[..., None] * scale[..., None, :])
            std = np.sqrt(np.diagonal(cov, axis1=-2, axis2=-1))
        else:
            std = spread * scale if method.diffusion.fixed else spread
        return LaneResults(
            mean=mean,
            std=std,
            cov=cov,
            status=status,
            steps=attempted,
            accepted=accepted,
            rejected=attempted - accepted,
            f_evaluations=method.f_evaluations(attempted, accepted) + self.start_evaluations,
            jacobian_evaluations=attempted * (method.jacobian != "none"),
        )


def _with_members(
    field: Field, leaves: list[Any], axes: tuple[int | None, ...]
) -> tuple[Field, list[bool]]:
    """The field with the parameters of all members, and which of them differ between members."""
    numeric = [
        (leaf, axis)
        for leaf, axis in zip(leaves, axes, strict=True)
        if isinstance(leaf, bool | int | float | np.ndarray | np.generic | jax.Array)
    ]
    if len(numeric) != len(field.args):  # whole numbers that are part of the program
        numeric = [pair for pair in numeric if not isinstance(pair[0], int | np.integer | np.bool_)]
    data = [np.asarray(leaf) for leaf, _ in numeric]
    return replace(field, args=data), [axis == 0 for _, axis in numeric]
