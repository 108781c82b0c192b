"""Solving an ensemble in lanes: whether that is possible and pays, and the call itself."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from probode.control import PControl, PIControl
from probode.diffusion import FixedDiffusion
from probode.engine import one_blas_thread
from probode.initial import Initialization
from probode.lanes.blocks import LANES, solve_chunk
from probode.lanes.interpret import Unsupported
from probode.lanes.layout import Given, Layout
from probode.lanes.records import LaneResults, Members
from probode.lanes.update import Cut
from probode.precision import double_precision
from probode.problem import Field, bind
from probode.solvers import Solver
from probode.step import Method

CHUNK = 4096
"""Members of one compiled call."""

LARGEST_WORK = 400
"""Entries of the matrix that a step decomposes, above which unrolling does not pay on the CPU."""

MOST_NUMBERS = 256
"""Parameters of a vector field, each a number, above which they are no lanes."""


def work(solver: Solver, d: int) -> int:
    """Entries of the matrices that one step decomposes."""
    cut = Cut.of(solver.method(d))
    return cut.blocks * 2 * cut.size * (cut.size + cut.width)


def supports(solver: Solver, control: Any, d: int, parameters: int = 0) -> bool:
    """Whether lanes can solve with these settings, and are the faster engine on this machine.

    ``d`` is the dimension of the state, ``parameters`` how many numbers the vector field is given.
    """
    if type(control) not in (PControl, PIControl):
        return False
    if isinstance(solver.diffusion, FixedDiffusion) and solver.diffusion.needs_innovation:
        return False
    if parameters > MOST_NUMBERS:
        return False
    return work(solver, d) <= LARGEST_WORK


@dataclass(frozen=True)
class Task:
    """What is compiled for: everything static about an ensemble."""

    layout: Layout
    given: Given
    initialization: Initialization


def solve_lanes(
    vector_field: Callable[..., Any],
    members: Members,
    *,
    solver: Solver,
    control: PControl,
    smooth: bool = True,
    covariance: bool = False,
    jac: Any = None,
    max_steps: int | None = None,
    device: Any = None,
    on_progress: Callable[[int], Any] | None = None,
) -> LaneResults:
    """Solve all members; results are those of :func:`probode.solve` with ``save_at``.

    Parameters
    ----------
    vector_field
        ``f(t, y, *args)`` of one member.
    members
        What differs between the members, and what they share.
    solver, control
        As for :func:`probode.solve`; the tolerances are those of ``members``.
    smooth
        Condition on the whole solve or on the past only.
    covariance
        Whether to return covariances beside standard deviations.
    jac
        As for :func:`probode.solve`.
    max_steps
        Bound for the attempted steps of each member.
    device
        A JAX device; by default the first of the default backend.
    on_progress
        Called with the number of members solved so far, from the thread that calls this function.

    Raises
    ------
    Unsupported
        If the vector field has no form on lanes (a loop until convergence, an index that depends on
        the state): the engine behind lanes takes any traceable function.
    """
    with double_precision(), one_blas_thread():
        problem = Problem.of(vector_field, members, solver, control, jac)
        limit = np.inf if max_steps is None else float(max_steps)
        results = problem.solve(limit, on_progress)
    return results


@dataclass(frozen=True)
class Problem:
    """An ensemble, bound and laid out."""

    solver: Solver
    method: Method
    members: Members
    task: Task
    leaves: list[np.ndarray]
    common: np.ndarray
    start_evaluations: int

    @staticmethod
    def of(
        vector_field: Callable[..., Any], members: Members, solver: Solver, control: PControl, jac: Any
    ) -> "Problem":
        """Trace the vector field with the first member's parameters, and lay everything out."""
        leaves, tree = jax.tree.flatten(members.args)
        first = jax.tree.unflatten(
            tree,
            [x if axis is None else x[0] for x, axis in zip(leaves, members.axes, strict=True)],
        )
        y0 = members.y0[0].reshape(members.shape or (members.d,))
        diagonal = solver.jacobian == "diagonal"
        field = bind(vector_field, np.asarray(members.t0[0]), y0, first, jac, diagonal=diagonal)
        field, batched = _with_members(field, leaves, members.axes)
        shared = [True] * len(jax.tree.leaves((field.constants, field.jacobian_constants)))
        shared += [not one for one in batched]
        flat = control.flat((members.d,))
        flat = replace_tolerances(flat, members.rtol, members.atol)
        for name in (one.name for one in fields(flat)):
            if getattr(flat, name) is not None:
                shared.append(name not in ("rtol", "atol"))
        method = solver.method(members.d)
        given = Given.of(field, flat, shared)
        data = [np.asarray(leaf) for leaf in jax.tree.leaves((field, flat))]
        common = [x.reshape(-1) for x, one in zip(data, shared, strict=True) if one]
        return Problem(
            solver,
            method,
            members,
            Task(Layout(method), given, solver.initialization),
            data,
            np.concatenate([np.zeros(0), *common]).astype(float),
            solver.initialization.evaluations(solver.order) + control.start_evaluations(),
        )

    def part(self, members: slice, capacity: int) -> list[Any]:
        """The inputs of some members, repeated up to ``capacity``."""
        index = np.minimum(np.arange(members.start, members.start + capacity), members.stop - 1)
        leaves = [
            leaf if shared else leaf[index]
            for leaf, (_, _, shared) in zip(self.leaves, self.task.given.leaves, strict=True)
        ]
        all_of = self.members
        return [leaves, all_of.t0[index], all_of.t1[index], all_of.y0[index]]

    def solve(self, limit: float, on_progress: Callable[[int], Any] | None) -> LaneResults:
        """Chunk by chunk, on all cores."""
        count, layout = self.members.count, self.task.layout
        workers = max(os.cpu_count() or 1, 1)
        capacity = _capacity(count, workers)
        names = ("mean", "factor", "h", "status", "attempted", "accepted")
        run = _compiled(self.task, names)

        def one(chunk: slice) -> np.ndarray:
            with double_precision():
                size = chunk.stop - chunk.start
                inputs = self.part(chunk, capacity)
                return np.asarray(run(*inputs, self.common, limit, size))[:size]

        chunks = [slice(i, min(i + capacity, count)) for i in range(0, count, capacity)]
        rows = np.concatenate(list(_in_order(one, chunks, workers, on_progress)))
        parts = _named(layout, names, rows)
        return self._results(parts)

    def _results(self, parts: dict[str, np.ndarray]) -> LaneResults:
        structure, prior = self.method.structure, self.method.prior
        count, d = self.members.count, self.members.d
        scale = prior.coordinate(parts["h"], 0)
        factor = parts["factor"].reshape(count, *structure.factor_shape)
        columns = structure.select(factor, 0)
        columns = columns * scale.reshape(count, *[1] * (columns.ndim - 1))
        reached = parts["status"] == 0
        mean = np.where(reached[:, None], parts["mean"].reshape(count, -1, d)[:, 0], np.nan)
        std = np.where(reached[:, None], np.sqrt(structure.variance(columns)), np.nan)
        steps, accepted = (parts[name].astype(int) for name in ("attempted", "accepted"))
        return LaneResults(
            mean=mean[:, None],
            std=std[:, None],
            cov=None,
            status=parts["status"].astype(int),
            steps=steps,
            accepted=accepted,
            rejected=steps - accepted,
            f_evaluations=steps + self.start_evaluations,
            jacobian_evaluations=steps * (self.method.jacobian != "none"),
        )


def replace_tolerances(control: PControl, rtol: Any, atol: Any) -> PControl:
    """The same control with other tolerances, unchecked."""
    made: PControl = object.__new__(type(control))
    made.__dict__.update({**control.__dict__, "rtol": np.asarray(rtol), "atol": np.asarray(atol)})
    return made


def _with_members(
    field: Field, leaves: list[Any], axes: tuple[int | None, ...]
) -> tuple[Field, list[bool]]:
    """The field with the parameters of all members, and which of them differ between members."""
    numeric = [
        (leaf, axis) for leaf, axis in zip(leaves, axes, strict=True) if not isinstance(leaf, str)
    ]
    if len(numeric) != len(field.args):  # whole numbers that are part of the program
        numeric = [
            (leaf, axis)
            for leaf, axis in numeric
            if not isinstance(leaf, int | np.integer | np.bool_)
        ]
    data = [np.asarray(leaf) for leaf, _ in numeric]
    return replace(field, args=data), [axis == 0 for _, axis in numeric]


def _capacity(count: int, workers: int) -> int:
    """Members of a chunk: one of a few sizes, so that little is compiled anew."""
    for size in (LANES, 8 * LANES):
        if count <= size * workers:
            return size
    return CHUNK


@lru_cache(maxsize=64)
def _compiled(task: Task, names: tuple[str, ...]) -> Callable[..., Any]:
    def run(*inputs: Any) -> Any:
        return solve_chunk(task.layout, task.given, task.initialization, names, *inputs)

    return jax.jit(run)


def _in_order(
    one: Callable[[slice], np.ndarray],
    chunks: list[slice],
    workers: int,
    on_progress: Callable[[int], Any] | None,
) -> Iterator[np.ndarray]:
    """Results of all chunks, computed by several threads (compiled code holds no lock)."""
    with ThreadPoolExecutor(min(workers, len(chunks))) as pool:
        for chunk, result in zip(chunks, pool.map(one, chunks), strict=True):
            if on_progress is not None:
                on_progress(chunk.stop)
            yield result


def _named(layout: Layout, names: tuple[str, ...], rows: np.ndarray) -> dict[str, np.ndarray]:
    """Parts of the states by name, with their zeros, flat."""
    parts: dict[str, np.ndarray] = {}
    start = 0
    for name in names:
        kept = np.flatnonzero(layout.kept(name))
        full = np.zeros((rows.shape[0], len(layout.kept(name))))
        full[:, kept] = rows[:, start : start + len(kept)]
        start += len(kept)
        parts[name] = full if layout.shapes[name] else full[:, 0]
    return parts


__all__ = ["Unsupported", "jnp", "solve_lanes", "supports"]
