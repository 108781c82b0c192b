"""Which engine solves the members: the one place that knows them all.

Three engines take the same members and give the same results: :mod:`probode.engines.lanes`, members
side by side in vector lanes or on a GPU, for many members of small systems and the model's own
error bars; :mod:`probode.ensemble.one_by_one`, each by the native kernels, for fewer of them:
nothing is compiled; and :mod:`probode.ensemble.vmapped`, the library's own loop on a batch, for all
the rest.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from threading import Event
from typing import Any

import jax
import numpy as np

from probode.base.status import Status
from probode.engines import lanes
from probode.engines.fallback import guarded_jacobian, logger, may_lack_derivatives
from probode.engines.lanes.records import LaneResults, Members
from probode.ensemble import one_by_one
from probode.ensemble.function import bind_member
from probode.ensemble.one_by_one import solve_one_by_one
from probode.ensemble.problem import part, usable
from probode.ensemble.settings import Settings
from probode.ensemble.vmapped import solve_vmapped
from probode.filter.start import RungeKuttaStart
from probode.model.equation import FirstOrder
from probode.programs.field import Field

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
    failed = np.isin(found.status, _NOT_FINITE) & usable(members)
    if not failed.any():
        return found
    which = np.flatnonzero(failed)
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


_NOT_FINITE = (Status.NOT_FINITE.value, Status.START_NOT_FINITE.value)


def _marked(found: LaneResults) -> LaneResults:
    """Results in which who reached the end has finite values: whoever has not is marked.

    A step is judged before its update: one whose update overflows is found out in the next, of
    which there is none after the last.
    """
    whole = np.isfinite(found.mean).all(axis=(1, 2))
    silent = (found.status == Status.SUCCESS.value) & ~whole
    if not silent.any():
        return found
    return replace(found, status=np.where(silent, Status.NOT_FINITE.value, found.status))


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
        except lanes.Unsupported:
            pass  # a vector field without a form on lanes
    if settings.engine == "kernels":
        return solve_one_by_one(vector_field, members, settings, on_progress=on_progress, stop=stop)
    return solve_vmapped(
        vector_field, members, settings, device=device, on_progress=on_progress, stop=stop
    )[0]


def choose(
    members: Members,
    settings: Settings,
    field: Field,
    device: Any = None,
    count: int | None = None,
) -> str:
    """The engine for an ensemble with members such as these; ``field`` is that of one of them.

    ``count`` is their number, if the time to compile is to be considered.
    """
    asked = settings.engine
    if type(settings.equation) is not FirstOrder:
        if asked in ("lanes", "kernels"):
            raise ValueError(
                f"engine={asked!r} is for y' = f(t, y), got {type(settings.equation).__name__}: "
                "engine='auto' takes another one."
            )
        return "vmapped"
    if settings.is_held:
        if asked in ("lanes", "kernels"):
            raise ValueError(
                f"engine={asked!r} takes neither invariants nor bounds: engine='auto' takes "
                "another one."
            )
        return "vmapped"
    if asked == "auto" and _suits(members, settings, device, count):
        return "lanes"
    if asked == "lanes" and _suits(members, settings, device):  # however long it compiles
        return "lanes"
    if asked in ("auto", "kernels") and _suits_kernels(members, settings, field, device):
        return "kernels"
    if asked in ("lanes", "kernels"):
        raise ValueError(
            f"engine={asked!r} cannot solve this ensemble: it is for small systems, with the "
            "model's error bars, solved by classes of this library (none that inherit from them). "
            "engine='auto' takes another one where needed."
        )
    return "vmapped"


def _suits_kernels(members: Members, settings: Settings, field: Field, device: Any) -> bool:
    """Whether each member can be one call of the kernels."""
    on_cpu = (device or jax.devices()[0]).platform == "cpu"
    return on_cpu and one_by_one.lacks(members, settings, field) is None


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
    return _blank(members, settings, code) if found is None else _spread(found, fits, code)


def _blank(members: Members, settings: Settings, status: np.ndarray) -> LaneResults:
    """Results of members of which nothing is known."""
    count, times, d = members.count, members.times.shape[1], members.d
    nothing = np.full((count, times, d), np.nan)
    cov = np.full((count, times, d, d), np.nan) if settings.covariance else None
    return LaneResults(nothing, nothing, cov, status, *np.zeros((5, count), int))


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
    chosen = list(jax.local_devices() if devices is None else devices)
    if not chosen:
        raise ValueError("devices must name at least one device, got none.")
    return chosen
