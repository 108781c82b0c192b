"""Which engine solves the members: the one place that knows them all.

Three engines take the same members and give the same results: :mod:`probode.ensemble.one_by_one`,
the native kernels (members side by side, in vectors or the threads of a GPU);
:mod:`probode.engines.lanes`, the same by XLA, where there are no kernels; and
:mod:`probode.ensemble.vmapped`, the library's own loop on a batch, for all the rest.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from threading import Event
from typing import Any, NamedTuple

import jax
import numpy as np

from probode.base.precision import double_precision
from probode.base.said import first_time
from probode.base.status import Status
from probode.base.turns import in_turns
from probode.engines import lanes
from probode.engines.fallback import guarded_jacobian, logger, may_lack_derivatives
from probode.engines.lanes.records import LaneResults, Members
from probode.engines.native.tape import why_not_listed
from probode.ensemble import one_by_one
from probode.ensemble.function import bind_member
from probode.ensemble.one_by_one import blank_results, solve_one_by_one
from probode.ensemble.problem import part, usable
from probode.ensemble.settings import Settings
from probode.ensemble.vmapped import solve_vmapped
from probode.filter.start import RungeKuttaStart
from probode.model.equation import FirstOrder
from probode.programs.field import Field
from probode.programs.program import timing

ENGINES = ("auto", "lanes", "kernels", "vmapped")


def solve_members(
    vector_field: Callable[..., Any],
    members: Members,
    settings: Settings,
    *,
    device: Any = None,
    on_progress: Callable[[int], Any] | None = None,
    stop: Event | None = None,
) -> LaneResults:
    """Solve all members on one device, with the fastest engine that can.

    ``on_progress`` is told how many members have finished since it was told last. Members that
    have not when ``stop`` is set are marked as interrupted. Members that stopped where ``f`` is
    finite but a derivative is not are solved once more without it (see
    :mod:`probode.engines.fallback`).
    """
    how = {"device": device, "stop": stop}
    found = _solve_members(vector_field, members, settings, on_progress=on_progress, **how)
    found = _marked(found)
    failed = np.isin(found.status, _NOT_FINITE)
    if failed.any():
        failed &= usable(members)
    which = np.flatnonzero(failed)
    if len(which) == 0:
        return found
    if not may_lack_derivatives(bind_member(vector_field, members, settings, which[0])):
        return found
    without = replace(settings, jac=guarded_jacobian(vector_field, settings.jac, members.reads))
    if members.slope is None:  # of implicit equations there are no Runge-Kutta steps
        solver = replace(settings.solver, initialization=RungeKuttaStart())
        without = replace(without, solver=solver)
    again = _marked(_solve_members(vector_field, part(members, which), without, **how))
    better = ~np.isin(again.status, _NOT_FINITE)
    if better.any():
        logger.warning(
            "derivatives of f are not finite for %d members, though f is: they were %ssolved with "
            "zeros for entries of the Jacobian that are not finite.",
            better.sum(),
            "begun by Runge-Kutta steps, and " if members.slope is None else "",
        )
    for field in fields(LaneResults):
        value = getattr(found, field.name)
        if value is not None:
            value[which[better]] = getattr(again, field.name)[better]
    return found


_SUMMED = 2**14
"""Members whose values are added up at a time."""

_NOT_FINITE = (Status.NOT_FINITE.value, Status.START_NOT_FINITE.value)


def _marked(found: LaneResults) -> LaneResults:
    """Results in which who reached the end has finite values: whoever has not is marked.

    A step is judged before its update: one whose update overflows is found out in the next, of
    which there is none after the last.
    """
    with np.errstate(all="ignore"):  # a sum is not finite where a value is not, and seldom else
        every = found.mean.reshape(len(found.status), -1)
        sums, ones = np.empty(len(every)), np.ones(every.shape[1])

        def add(first: int, last: int) -> None:
            np.matmul(every[first:last], ones, out=sums[first:last])

        in_turns(add, len(every), least=_SUMMED, most=_SUMMED)
    silent = np.flatnonzero((found.status == Status.SUCCESS.value) & ~np.isfinite(sums))
    silent = silent[~np.isfinite(found.mean[silent]).all(axis=(1, 2))]
    if len(silent) == 0:
        return found
    status = found.status.copy()
    status[silent] = Status.NOT_FINITE.value
    return replace(found, status=status)


def _solve_members(
    vector_field: Callable[..., Any],
    members: Members,
    settings: Settings,
    *,
    device: Any,
    stop: Event | None,
    on_progress: Callable[[int], Any] | None = None,
) -> LaneResults:
    # A worker of a cluster may have another kind of device than the one who chose the engine.
    if settings.engine == "lanes" and usable(members).any() and _suits(members, settings, device):
        try:
            return _solve_lanes(vector_field, members, settings, device, on_progress, stop)
        except lanes.Unsupported as what:
            logger.info("members are solved by the engine 'vmapped': %s", what)
    if settings.engine == "kernels":
        try:
            return solve_one_by_one(
                *(vector_field, members, settings),
                device=_card(device),
                on_progress=on_progress,
                stop=stop,
            )
        except one_by_one.Lacking as what:  # known only now: memory, or derivatives left out
            logger.warning("members are solved by the engine 'vmapped': the kernels lack %s", what)
    return solve_vmapped(
        vector_field, members, settings, device=device, on_progress=on_progress, stop=stop
    )[0]


class Choice(NamedTuple):
    """An engine, and why it was taken."""

    engine: str
    reason: str


def choose(
    vector_field: Callable[..., Any],
    members: Members,
    settings: Settings,
    field: Field,
    device: Any = None,
    count: int | None = None,
) -> Choice:
    """The engine for an ensemble with members such as these; ``field`` is that of one of them.

    ``count`` is their number, if the time to compile is to be considered.
    """
    asked, other = settings.engine, None
    if type(settings.equation) is not FirstOrder:
        other = f"is for y' = f(t, y), got {type(settings.equation).__name__}"
    elif settings.is_held:
        other = "takes neither invariants nor bounds"
    if other is not None:
        if asked in ("lanes", "kernels"):
            raise ValueError(f"engine={asked!r} {other}: engine='auto' takes another one.")
        return Choice("vmapped", f"lanes and kernels {other.replace('is for', 'are for', 1)}")
    if asked == "vmapped":
        return Choice("vmapped", "asked for")
    lacking = _kernels_lack(members, settings, field, device, count)
    if asked == "kernels" and lacking is None:
        return Choice("kernels", "asked for")
    switches = timing(field.program).switches
    if asked == "lanes" and switches:
        raise ValueError(
            "engine='lanes' cannot solve this ensemble: f switches in time, and this engine "
            "cannot restart a solve at a switch. Use engine='auto'."
        )
    if asked == "lanes" and _suits(members, settings, device):  # however long it compiles
        return Choice("lanes", "asked for")
    if asked in ("lanes", "kernels"):
        why = f" (the kernels lack {lacking})" if asked == "kernels" else ""
        raise ValueError(
            f"engine={asked!r} cannot solve this ensemble{why}: it is for small systems, solved by "
            "classes of this library (none that inherit from them), and lanes for the model's "
            "error bars. engine='auto' takes another one where needed."
        )
    if lacking is not None and not switches and _suits(members, settings, device, count):
        return Choice("lanes", f"many members of a small system; the kernels lack {lacking}")
    if lacking is not None:
        suited = "" if settings.calibration == "model" else ", lanes calibrated error bars"
        others = replace(settings, calibration="model")
        if suited and not switches and _suits(members, others, device, count):
            _say_what_bars_cost()
        return Choice("vmapped", f"the kernels lack {lacking}{suited}")
    if _card(device) is not None:
        return Choice("kernels", "members side by side, a thread of the card for each")
    if switches:
        return Choice("kernels", "members one after the other: steps end where f switches in time")
    return Choice("kernels", "members side by side in vectors, nothing to compile")


def _say_what_bars_cost() -> None:
    if first_time("bars of members"):
        logger.warning(
            "the kernels cannot solve these members here, and lanes have no calibrated error bars: "
            "they are solved in a batch, which takes many times as long. "
            'calibration="model" takes lanes, and their std is the model\'s own.'
        )


def _kernels_lack(
    members: Members, settings: Settings, field: Field, device: Any, count: int | None = None
) -> str | None:
    """What keeps the kernels from solving each member, in words; ``None``: nothing."""
    lacking = one_by_one.lacks(members, settings, field, count or members.count, _card(device))
    if lacking is None or "list of the operations" not in lacking:
        return lacking
    with double_precision():
        why = why_not_listed(settings.solver.method(field.d).jacobian, field)
    return lacking if why is None else f"{lacking} ({why})"


def _card(device: Any) -> Any:
    """The device, if it is not the CPU."""
    device = device or jax.devices()[0]
    return None if device.platform == "cpu" else device


def _suits(
    members: Members, settings: Settings, device: Any = None, count: int | None = None
) -> bool:
    """Whether lanes can solve such members, and are the faster engine."""
    if settings.calibration != "model":
        return False
    sizes = [
        np.size(leaf) if axis is None else np.size(leaf[0])
        for leaf, axis in zip(jax.tree.leaves(members.args), members.axes, strict=True)
    ]
    return bool(
        lanes.supports(
            *(settings.solver, settings.control, members.d),
            count=count,
            only_end=members.only_end,
            smooth=settings.smooth,
            numbers=sum(sizes),
            platform=None if device is None else device.platform,
        )
    )


class _Stopped(Exception):
    pass


def _solve_lanes(
    vector_field: Callable[..., Any],
    members: Members,
    settings: Settings,
    device: Any,
    on_progress: Callable[[int], Any] | None,
    stop: Event | None,
) -> LaneResults:
    """The members that can be begun, on lanes; the others are marked."""
    fits = usable(members)
    told = 0

    def tell(done: int) -> None:
        nonlocal told
        if stop is not None and stop.is_set():
            raise _Stopped
        if on_progress is not None:
            on_progress(done - told)
        told = done

    try:
        found = lanes.solve_lanes(
            vector_field,
            members if fits.all() else part(members, np.flatnonzero(fits)),
            solver=settings.solver,
            control=settings.control,
            smooth=settings.smooth,
            covariance=settings.covariance,
            jac=settings.jac,
            max_steps=settings.max_steps,
            device=device,
            on_progress=tell,
        )
    except _Stopped:
        found = None
    if found is not None and fits.all():
        return found
    code = np.where(fits, Status.INTERRUPTED.value, Status.START_NOT_FINITE.value)
    return blank_results(members, settings, code) if found is None else _spread(found, fits, code)


def _spread(found: LaneResults, fits: np.ndarray, status: np.ndarray) -> LaneResults:
    """The results of the members that fit in the places of all."""

    def place(name: str) -> Any:
        value = getattr(found, name)
        if value is None:
            return None
        blank = np.nan if value.dtype.kind == "f" else 0
        full = np.full((len(fits), *value.shape[1:]), blank, value.dtype)
        if name == "status":
            full[:] = status
        full[fits] = value
        return full

    return LaneResults(*(place(field.name) for field in fields(LaneResults)))


def places(devices: Any = None) -> list[Any]:
    """The JAX devices to solve on, a chunk at a time each: by default all of this process."""
    try:
        chosen = list(jax.local_devices() if devices is None else devices)
    except TypeError:
        chosen = [devices]
    wrong = [one for one in chosen if not hasattr(one, "platform")]
    if wrong:
        raise TypeError(
            "devices must be devices of JAX such as jax.devices() or jax.devices('cpu'), got "
            f"{devices!r}."
        )
    if not chosen:
        raise ValueError("devices must name at least one device, got none.")
    return chosen
