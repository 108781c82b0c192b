"""Solving an ensemble in lanes: whether that is possible and pays, and the call itself."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np

from probode.base.blas import one_blas_thread
from probode.base.compile import compiler_options
from probode.base.jax_inside import LESS_OPTIMISATION, known_options, pallas
from probode.base.limits import cores
from probode.base.on_disk import KeptProgram
from probode.base.precision import double_precision
from probode.engines.lanes import blocks, saving
from probode.engines.lanes.problem import Problem, Task
from probode.engines.lanes.records import LaneResults, Members
from probode.engines.lanes.update import Cut
from probode.filter.control import PControl, PIControl
from probode.filter.solvers import Solver
from probode.filter.step import Method

LARGEST_WORK = {"cpu": 260, "gpu": 260}
"""Entries of the matrices of a step, above which unrolling takes minutes to compile."""

SMOOTHING_WORK = 40
"""The same with smoothed save points, which decompose several matrices a step."""

FEWEST_MEMBERS, FEWEST_SMOOTHED = 2000, 10_000
"""Below this number of members, compiling takes longer than another engine takes altogether."""

MOST_NUMBERS = 256
"""A vector field that is given more numbers (parameters, constants) is for another engine."""

_CPU_CHUNKS = (blocks.LANES, 8 * blocks.LANES, 64 * blocks.LANES)
_GPU_CHUNKS = (2**10, 2**14, 2**17, 2**20)
_RECORD_BYTES = 2**26
"""Memory for the records of a chunk."""


def work(method: Method) -> int:
    """Entries of the matrices that one step decomposes."""
    cut = Cut.of(method)
    return cut.blocks * 2 * cut.size * (cut.size + cut.width)


def supports(
    solver: Solver,
    control: Any,
    d: int,
    *,
    count: int | None = None,
    only_end: bool = True,
    smooth: bool = True,
    numbers: int = 0,
    platform: str | None = None,
) -> bool:
    """Whether lanes can solve with these settings, and are the faster engine.

    Parameters
    ----------
    solver, control
        As for :func:`probode.solve`.
    d
        Dimension of the state.
    count
        Number of members, if the time to compile is to be considered.
    only_end
        Whether the final time is the only one wanted.
    smooth
        Whether save points are to be smoothed.
    numbers
        How many numbers the vector field is given: parameters and what it closes over.
    platform
        ``"cpu"`` or ``"gpu"``; by default JAX's own choice.
    """
    platform = platform or jax.default_backend()
    smoothed = smooth and not only_end
    if type(control) not in (PControl, PIControl) or numbers > MOST_NUMBERS:
        return False
    method = solver.method(d)
    if not method.is_ours or method.diffusion.needs_innovation or method.equation.order > 1:
        return False
    if method.error != "residual":
        return False
    if count is not None and count < (FEWEST_SMOOTHED if smoothed else FEWEST_MEMBERS):
        return False
    if not only_end and platform != "cpu":
        return False
    largest = SMOOTHING_WORK if smoothed else LARGEST_WORK.get(platform, 0)
    return work(method) <= largest


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
        Whether to return covariances as well as standard deviations.
    jac
        As for :func:`probode.solve`.
    max_steps
        Bound for the attempted steps of each member.
    device
        A JAX device; by default the first of the default backend.
    on_progress
        Called with the number of members solved so far.

    Raises
    ------
    Unsupported
        If the vector field has no form on lanes (a loop until convergence, an index that depends on
        the state). A batched solve of the ordinary kind takes any traceable function.
    """
    device = device or jax.devices()[0]
    with double_precision(), one_blas_thread(), jax.default_device(device):
        problem = Problem.of(vector_field, members, solver, control, smooth, jac, covariance)
        limit = np.inf if max_steps is None else float(max_steps)
        on_gpu = device.platform == "gpu" and pallas(1) is not None
        workers = 1 if on_gpu else cores()
        capacity = _capacity(problem, on_gpu, workers)
        run = (_compiled_kernel if on_gpu else _compiled_blocks)(problem.task)

        def one(chunk: slice) -> tuple[np.ndarray, np.ndarray]:
            size = chunk.stop - chunk.start
            with double_precision(), jax.default_device(device):
                counts, marginals = run(limit, size, *problem.part(chunk, capacity))
                return np.asarray(counts)[:size], np.asarray(marginals)[:size]

        starts = range(0, members.count, capacity)
        chunks = [slice(i, min(i + capacity, members.count)) for i in starts]
        solved = list(_in_order(one, chunks, workers, on_progress))
        counts, marginals = map(np.concatenate, zip(*solved, strict=True))
        return problem.results(counts, marginals)


def _capacity(problem: Problem, on_gpu: bool, workers: int) -> int:
    """Members of a chunk: one of a few sizes, so that little is compiled again."""
    sizes = _GPU_CHUNKS if on_gpu else _CPU_CHUNKS
    count = problem.members.count
    fitting = next((size for size in sizes if count <= size * workers), sizes[-1])
    recorder = problem.task.recorder
    if recorder is not None:
        bytes_each = 8 * recorder.record.count * (problem.members.save_at.shape[-1] + 1)
        allowed = [size for size in sizes if size * bytes_each <= _RECORD_BYTES]
        fitting = min(fitting, max(allowed, default=sizes[0]))
    return fitting


@lru_cache(maxsize=1)
def _cpu_options() -> dict[str, Any] | None:
    """The library's options for the CPU, and less optimisation: half the time, the same code."""
    options = compiler_options()
    return None if options is None else {**options, **known_options(LESS_OPTIMISATION)}


@lru_cache(maxsize=64)
def _compiled_blocks(task: Task) -> Callable[..., Any]:
    if task.recorder is not None:
        save = partial(saving.solve_chunk, task.recorder, task.initialization, task.wanted)
        return KeptProgram.of(save, _cpu_options())
    end = partial(blocks.solve_chunk, task.layout, task.given, task.initialization, task.wanted)
    return KeptProgram.of(lambda *inputs: task.marginals(end(*inputs)), _cpu_options())


@lru_cache(maxsize=64)
def _compiled_kernel(task: Task, interpret: bool = False) -> Callable[..., Any]:
    from probode.engines.lanes import kernel  # Pallas takes half a second to import

    def run(limit: Any, count: Any, *inputs: Any) -> Any:
        return task.marginals(kernel.solve_all(task, limit, *inputs, interpret=interpret))

    return jax.jit(run)


def _in_order(
    one: Callable[[slice], Any],
    chunks: list[slice],
    workers: int,
    on_progress: Callable[[int], Any] | None,
) -> Iterator[Any]:
    """Results of all chunks, computed by several threads: compiled code holds no lock."""
    with ThreadPoolExecutor(min(workers, len(chunks))) as pool:
        for chunk, result in zip(chunks, pool.map(one, chunks), strict=True):
            if on_progress is not None:
                on_progress(chunk.stop)
            yield result
