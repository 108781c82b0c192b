"""``solve_ensemble``: many initial value problems of one vector field in one call."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, overload

import numpy as np

from probode.base.errors import check_choice
from probode.base.said import logger
from probode.base.waiting import doing
from probode.ensemble.chunks import chunk_size, chunks_of, run_here
from probode.ensemble.cluster import check_client, run_on_cluster, threads_of
from probode.ensemble.collected import Collected, check_memory
from probode.ensemble.constraint import check_starts, read_box, read_invariants
from probode.ensemble.engines import ENGINES, choose, places
from probode.ensemble.fingerprint import fingerprint
from probode.ensemble.function import bind_member, traceable
from probode.ensemble.problem import Family, member, read_family, takes_pair, usable
from probode.ensemble.progress import members_bar
from probode.ensemble.reduced import Reduced, Reducing, read_reductions, reduce_data
from probode.ensemble.reductions import Reduction
from probode.ensemble.result import Ensemble
from probode.ensemble.settings import Settings
from probode.ensemble.store import Store, check_writable, open_store
from probode.ensemble.uncertain import draw_inputs
from probode.filter.control import PControl, PIControl
from probode.filter.given import check_limits
from probode.filter.solvers import EK1, Solver
from probode.global_error.schemes import MODES
from probode.model.equation import as_equation
from probode.model.mass_matrix import MassMatrix

DEFAULT_MEMORY = 2**30
MAX_STEPS = 100_000


@overload
def solve_ensemble(
    fun: Callable[..., Any],
    t_span: Any,
    y0: Any,
    args: Any = (),
    *,
    save_at: Any = None,
    solver: Solver = EK1(),
    control: PControl = PIControl(),
    rtol: Any = None,
    atol: Any = None,
    smooth: bool = True,
    covariance: bool = False,
    calibration: str = "defect",
    max_steps: int = MAX_STEPS,
    jac: Any = None,
    engine: str = "auto",
    core_dims: tuple[str, ...] = (),
    draws: int = 256,
    cubature: int | None = None,
    seed: int = 0,
    memory: int = DEFAULT_MEMORY,
    store: str | os.PathLike[str] | None = None,
    reduce: None = None,
    resume: bool = True,
    client: Any = None,
    devices: Any = None,
    progress: bool | str = False,
    invariants: Any = None,
    bounds: Any = None,
) -> Ensemble: ...


@overload
def solve_ensemble(
    fun: Callable[..., Any],
    t_span: Any,
    y0: Any,
    args: Any = (),
    *,
    save_at: Any = None,
    solver: Solver = EK1(),
    control: PControl = PIControl(),
    rtol: Any = None,
    atol: Any = None,
    smooth: bool = True,
    covariance: bool = False,
    calibration: str = "defect",
    max_steps: int = MAX_STEPS,
    jac: Any = None,
    engine: str = "auto",
    core_dims: tuple[str, ...] = (),
    draws: int = 256,
    cubature: int | None = None,
    seed: int = 0,
    memory: int = DEFAULT_MEMORY,
    store: str | os.PathLike[str] | None = None,
    reduce: Any,
    resume: bool = True,
    client: Any = None,
    devices: Any = None,
    progress: bool | str = False,
    invariants: Any = None,
    bounds: Any = None,
) -> Reduced: ...


@doing("preparing the solve, or its result")
def solve_ensemble(
    fun: Callable[..., Any],
    t_span: Any,
    y0: Any,
    args: Any = (),
    *,
    save_at: Any = None,
    solver: Solver = EK1(),
    control: PControl = PIControl(),
    rtol: Any = None,
    atol: Any = None,
    smooth: bool = True,
    covariance: bool = False,
    calibration: str = "defect",
    max_steps: int = MAX_STEPS,
    jac: Any = None,
    engine: str = "auto",
    core_dims: tuple[str, ...] = (),
    draws: int = 256,
    cubature: int | None = None,
    seed: int = 0,
    memory: int = DEFAULT_MEMORY,
    store: str | os.PathLike[str] | None = None,
    reduce: Any = None,
    resume: bool = True,
    client: Any = None,
    devices: Any = None,
    progress: bool | str = False,
    invariants: Any = None,
    bounds: Any = None,
) -> Ensemble | Reduced:
    """Solve ``y' = f(t, y)`` for many initial values, parameters, intervals or tolerances.

    What varies has one axis more, in front, than :func:`probode.solve` takes; see ``y0``, ``args``
    and the others. ``probode.Sweep(values, dim)`` gives such an axis a name: inputs along the same
    dimension go together, different dimensions make all combinations. ``probode.Shared(array)`` is
    the same for all members. xarray's arrays vary along their dimensions (except ``"state"``,
    ``"time"`` and ``core_dims``), pandas's Series and DataFrames along their index. The result
    keeps names and labels.

    Parameters
    ----------
    fun
        ``f(t, y, *args)`` for a single member, with JAX or NumPy inside; or an equation such as
        ``probode.SecondOrder(f)``, ``probode.MassMatrix(f, M)`` or ``probode.Implicit(F)`` (which
        the engine ``"vmapped"`` solves).
    t_span
        ``(t0, t1)``, each a number or ``(B,)``; or an array ``(B, 2)``.
    y0
        ``(B, d)``, or ``(d,)`` for all members. Of second order a tuple of two such, ``(y0, v0)``;
        means, standard deviations and samples then are of both, ``(B, T, 2, d)``. Of ``Implicit``
        ``y0``, or a tuple ``(y0, yp0)`` with guesses of the slopes.
    args
        Parameters of ``fun``: in trees of any form, arrays ``(B, ...)`` vary, numbers are shared. A
        DataFrame is one parameter per column.
    save_at
        Times at which to keep the solution: a number, ``(T,)``, or ``(B, T)``; by default the end.
    solver, control, smooth, jac
        As in :func:`probode.solve`.
    rtol, atol
        Tolerances, ``(B,)`` or ``(B, d)`` where they vary; by default those of ``control``.
    covariance
        Whether to keep the covariances ``(B, T, d, d)``.
    calibration
        ``"defect"`` or ``"defect-fast"``: standard deviations of the size of the global error, as
        in ``solve_ivp``; see :meth:`Ensemble.diagnose`. ``"model"``: those of the model, which are
        not, and take a third to a half less time.
    max_steps
        Bound for the attempted steps of a member: one that needs more is marked as failed.
    engine
        ``"kernels"`` (members of small systems side by side: in the vectors of all cores, nothing
        compiled, or in the threads of a GPU), ``"lanes"`` (the same by XLA, with the model's error
        bars), ``"vmapped"`` (everything), or ``"auto"``: the fastest that can. Results agree up to
        rounding; ``engine`` and ``engine_reason`` say which it was, and why.
    core_dims
        Further dimensions of xarray's arrays that belong to one member.
    draws, cubature, seed
        For uncertain inputs (``y0`` or parameters that are :class:`probode.Normal` or frozen
        distributions of SciPy's, which vary along ``"draw"``): the number of random draws and
        their seed, or the degree of a cubature, 3 or 5 (``2n`` or ``2n² + 1`` draws for ``n``
        uncertain numbers). See :meth:`Ensemble.moments`.
    memory
        Bytes that the members at work may take, with their results.
    store
        A folder for the results (Zarr, which xarray opens), written chunk by chunk: an ensemble of
        any size takes no more than ``memory``.
    reduce
        Statistics over the members instead of the members themselves, in memory that does not grow
        with their number: reductions such as ``probode.reductions.Mean()`` or ``Quantiles([0.05,
        0.95])``, a function of a :class:`probode.reductions.Chunk` (its values are added up; see
        :class:`probode.reductions.Function`), or a list or dictionary of these. With a ``store``
        the members are kept there, and reduced once all are.
    resume
        Whether to go on with a ``store`` that exists and was begun with the same settings: what is
        written already is not computed again. Nothing is ever overwritten.
    client
        A ``distributed.Client``: the members are solved by the workers of its cluster, which write
        to the ``store`` themselves (it must be a folder that they all see).
    devices
        JAX devices to use; by default all of this process.
    progress
        Whether to show members done and time left: ``True`` on a terminal, ``"always"``.
    invariants, bounds
        What all solutions keep to, as in :func:`probode.solve` (by the engine ``"vmapped"``).
        Values that differ between the members, such as an energy, are taken from ``args``.

    Returns
    -------
    Ensemble
        Always, also when members failed: see ``status``, ``failed`` and ``message``. With
        ``reduce`` a :class:`probode.ensemble.Reduced`: the statistics by name, and how many members
        failed and were left out.

    Examples
    --------
    >>> import numpy as np
    >>> import probode
    >>> rates = np.array([0.5, 1.0, 2.0])
    >>> decay = probode.solve_ensemble(lambda t, y, r: -r * y, (0, 1), [1.0], (rates,))
    >>> decay.mean.shape, bool(np.allclose(decay.mean[:, 0, 0], np.exp(-rates), rtol=1e-5))
    ((3, 1, 1), True)
    """
    equation = as_equation(fun)
    reductions = None if reduce is None else read_reductions(reduce)
    settings = read_settings(
        solver, control, smooth, covariance, calibration, max_steps, jac, engine
    )
    equation = equation.suited(solver.jacobian, solver.initialization.name)
    starts = 2 if takes_pair(y0, equation) else equation.order
    y0, args, weights = draw_inputs(y0, args, draws, cubature, seed, starts)
    if reductions is not None and weights is not None:
        raise ValueError(
            "reduce counts all members alike, but the draws of a cubature have weights: leave out "
            "reduce and call moments() of the ensemble, or leave out cubature for random draws."
        )
    family = read_family(t_span, y0, args, save_at, rtol, atol, control, core_dims, equation)
    if isinstance(equation, MassMatrix):
        equation, jac = equation.as_implicit(jac)
    settings = replace(
        settings,
        jac=jac,
        equation=equation.form,
        invariants=read_invariants(invariants),
        bounds=read_box(bounds, family, equation),
    )
    function: Any = equation.function
    if equation.order > 1:
        equation.check_arguments(member(family.members(np.zeros(1, int)), 0)[2])
    solved = run(
        *(function, family, settings),
        memory=memory,
        store=store,
        resume=resume,
        client=client,
        devices=devices,
        progress=progress,
        reductions=reductions,
    )
    return solved if isinstance(solved, Reduced) else replace(solved, weights=weights)


def read_settings(
    solver: Any,
    control: Any,
    smooth: bool,
    covariance: bool,
    calibration: str,
    max_steps: Any,
    jac: Any,
    engine: str,
) -> Settings:
    """What all members have in common, checked."""
    if not isinstance(solver, Solver):
        raise TypeError(f"solver must be EK0(...), EK1(...) or DiagonalEK1(...), got {solver!r}.")
    if not solver.smooths:
        raise ValueError(
            f"{solver.name} is for one large problem at a time: call solve for each member, or use "
            "EK0 or EK1, which solve many small ones together."
        )
    if not isinstance(control, PControl):
        raise TypeError(
            f"control must be PIControl(rtol, atol) or PControl(rtol, atol), got {control!r}."
        )
    check_choice("calibration", calibration, ("model", *MODES))
    check_choice("engine", engine, ENGINES)
    limit = check_limits(max_steps, None)
    if limit is None:
        raise ValueError("max_steps must be a positive integer, got None.")
    return Settings(
        solver, control, bool(smooth), bool(covariance), calibration, limit, jac, engine
    )


def check_memory_given(memory: Any) -> None:
    """Raise unless it is a number of bytes."""
    if not isinstance(memory, int | float | np.integer | np.floating):
        raise TypeError(f"memory must be a number of bytes such as 2**30, got {memory!r}.")
    if not memory > 0:
        raise ValueError(f"memory must be a positive number of bytes, got {memory!r}.")


def run(
    fun: Callable[..., Any],
    family: Family,
    settings: Settings,
    *,
    memory: int = DEFAULT_MEMORY,
    store: str | os.PathLike[str] | None = None,
    resume: bool = True,
    client: Any = None,
    devices: Any = None,
    progress: bool | str = False,
    reductions: dict[str, Reduction] | None = None,
) -> Any:
    """Solve a family of problems: an :class:`Ensemble`, or a :class:`Reduced` of it."""
    check_memory_given(memory)
    if client is not None:
        check_client(client)
    if store is not None:
        check_writable(store)
    some = family.members(np.arange(min(family.count, 1024)))
    vector_field = traceable(fun, some)
    field = bind_member(vector_field, some, settings, int(np.argmax(usable(some))))
    check_starts(family, settings, field)
    where = places(devices)
    # Decided once: for all chunks, for the workers of a cluster, for members that are run again.
    chosen = choose(vector_field, some, settings, field, where[0], family.count)
    logger.info("ensemble of %d members by the engine %r: %s", family.count, *chosen)
    settings = replace(settings, engine=chosen.engine, reason=chosen.reason)
    threads = len(where) if client is None else threads_of(client)
    on_card = client is None and settings.engine == "kernels" and where[0].platform != "cpu"
    card, collected = (where[0] if on_card else None), store is None and reductions is None
    size = chunk_size(family, settings, memory, threads, card, collected)
    sink: Collected | Store | Reducing
    if store is None:
        if reductions is None:
            check_memory(family, settings)
            sink = Collected(family, settings)
        else:
            sink = Reducing(family, reductions)
        chunks = list(chunks_of(family.count, size))
    else:
        marks = fingerprint(field, family, settings)
        sink = open_store(store, resume, family, settings, marks, size)
        chunks = sink.missing()
    done = family.count - sum(stop - start for start, stop in chunks)
    with members_bar(progress, family.count, done, settings.engine) as update:
        if client is None:
            run_here(vector_field, family, settings, chunks, where, sink, update)
        else:
            run_on_cluster(client, fun, family, settings, chunks, sink, update)
    if isinstance(sink, Reducing):
        return sink.finish()
    if reductions is not None:
        return reduce_data(family, sink, reductions)
    return Ensemble(fun, family, settings, sink)
