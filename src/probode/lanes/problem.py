"""An ensemble, bound to its vector field and laid out; results from the rows of final states."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import numpy as np

from probode.control import PControl
from probode.initial import Initialization
from probode.lanes.layout import Given, Layout
from probode.lanes.records import LaneResults, Members
from probode.lanes.saving import Recorder
from probode.problem import Field, bind
from probode.record import unchecked
from probode.solvers import Solver
from probode.status import Status


@dataclass(frozen=True)
class Task:
    """What is compiled for: everything static about an ensemble."""

    layout: Layout
    given: Given
    initialization: Initialization
    recorder: Recorder | None
    """How save points are recorded; ``None`` if the final time is the only one."""

    @property
    def wanted(self) -> tuple[str, ...]:
        """The parts of a final state that results are made of."""
        counts = ("status", "attempted", "accepted", "squares")
        return counts if self.recorder is not None else ("mean", "factor", "h", *counts)


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
        recorder = Recorder(layout, given, smooth) if saves else None
        return Problem(
            members,
            Task(layout, given, solver.initialization, recorder),
            data,
            np.concatenate([np.zeros(0), *common]).astype(float),
            solver.initialization.evaluations(solver.order) + control.start_evaluations(),
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

    def results(
        self, finals: np.ndarray, marginals: np.ndarray | None, covariance: bool
    ) -> LaneResults:
        """Means, covariances and counts, from the rows of final states and the save points'."""
        layout, d = self.task.layout, self.members.d
        method = layout.method
        parts = _named(layout, self.task.wanted, finals)
        mean, cov = self._end(parts) if marginals is None else _split(marginals, d)
        steps, accepted = (parts[name].astype(int) for name in ("attempted", "accepted"))
        if method.diffusion.fixed:
            squares = parts["squares"].reshape(len(finals), -1)
            parts_of = 1 if method.diffusion.multivariate else d
            scale = np.sqrt(squares / np.maximum(parts_of * accepted, 1)[:, None])
            cov = cov * (scale[:, None, :, None] * scale[:, None, None, :])
        return LaneResults(
            mean=mean,
            std=np.sqrt(np.diagonal(cov, axis1=-2, axis2=-1)),
            cov=cov if covariance else None,
            status=parts["status"].astype(int),
            steps=steps,
            accepted=accepted,
            rejected=steps - accepted,
            f_evaluations=steps + self.start_evaluations,
            jacobian_evaluations=steps * (method.jacobian != "none"),
        )

    def _end(self, parts: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """The marginal at the final time, of members that reached it."""
        structure, prior = self.task.layout.method.structure, self.task.layout.method.prior
        count, d = len(parts["h"]), self.members.d
        factor: Any = parts["factor"].reshape(count, *structure.factor_shape)
        h: Any = parts["h"]
        columns, scale = structure.select(factor, 0), prior.coordinate(h, 0)
        columns = columns * scale.reshape(count, *[1] * (columns.ndim - 1))
        reached = parts["status"] == Status.SUCCESS.value
        mean = parts["mean"].reshape(count, -1, d)[:, 0]
        mean = np.where(reached[:, None], mean, np.nan)
        cov = np.where(reached[:, None, None], structure.covariance(columns), np.nan)
        return mean[:, None], cov[:, None]


def _split(marginals: np.ndarray, d: int) -> tuple[np.ndarray, np.ndarray]:
    mean, cov = marginals[..., :d], marginals[..., d:]
    return mean, cov.reshape(*cov.shape[:-1], d, d)


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


def _named(layout: Layout, names: tuple[str, ...], rows: np.ndarray) -> dict[str, np.ndarray]:
    """Parts of the states by name, flat, with their zeros."""
    parts: dict[str, np.ndarray] = {}
    start = 0
    for name in names:
        kept = np.flatnonzero(layout.kept(name))
        full = np.zeros((rows.shape[0], len(layout.kept(name))))
        full[:, kept] = rows[:, start : start + len(kept)]
        start += len(kept)
        parts[name] = full if layout.shapes[name] else full[:, 0]
    return parts
