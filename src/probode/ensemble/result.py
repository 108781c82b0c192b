"""What :func:`probode.solve_ensemble` returns: the posteriors of all members."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from probode.base.errors import whole_number
from probode.base.record import unchecked
from probode.base.status import Status
from probode.ensemble.constraint import portable_invariants, traced_invariants
from probode.ensemble.diagnosis import EnsembleDiagnosis, diagnosis_of
from probode.ensemble.function import portable, traceable
from probode.ensemble.moments import DRAW, Moments, moments
from probode.ensemble.problem import Family, member
from probode.ensemble.reduced import Reduced, read_reductions, reduce_data
from probode.ensemble.settings import Settings
from probode.ensemble.views import Views
from probode.ensemble.vmapped import solve_vmapped
from probode.model.equation import FirstOrder
from probode.posterior.posterior import Posterior
from probode.solve import solve

_SAMPLED_BYTES = 2**28


@dataclass(frozen=True, eq=False)
class Ensemble(Views):
    """Posteriors of the members of an ensemble, at the save points.

    Arrays have the members in front: ``(B, ...)`` for plain inputs, one axis for each named
    dimension otherwise (``dims``, ``coords``). Then come the save points and the shape of ``y0``:
    of an equation of second order ``(2, *shape)``, values and velocities.
    ``ensemble[i]`` is a part of it, indexed along the members as NumPy does.

    Examples
    --------
    >>> import numpy as np
    >>> import probode
    >>> rates = np.array([1.0, 2.0, 3.0])
    >>> ensemble = probode.solve_ensemble(
    ...     lambda t, y, rate: -rate * y, (0, 1), [1.0], (rates,), save_at=[0.5, 1.0]
    ... )
    >>> ensemble.mean.shape  # members, times, components
    (3, 2, 1)
    >>> int(ensemble.failed.size)
    0
    """

    fun: Callable[..., Any]
    family: Family
    settings: Settings
    data: Mapping[str, Any]
    """Variables with the members flattened in C order: in memory, or in a store."""
    weights: np.ndarray | None = None
    """Of the draws of uncertain inputs (along ``"draw"``), where they differ."""

    __repr__ = Views.__repr__  # a dataclass would write its own

    def __getstate__(self) -> dict[str, Any]:
        members = self.family.members(np.zeros(1, int))
        fun, settings = portable(self.fun, members, self.settings)
        settings = portable_invariants(settings, members)
        return {**vars(self), "fun": fun, "settings": settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def __deepcopy__(self, memo: Any) -> "Ensemble":
        return replace(self, data={name: np.array(x[...]) for name, x in self.data.items()})

    def __copy__(self) -> "Ensemble":
        return replace(self)

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the dimensions that the members run along."""
        return self.family.axes.dims

    @property
    def coords(self) -> dict[str, np.ndarray]:
        """Labels along the dimensions, where there are any."""
        return dict(self.family.axes.coords)

    @property
    def shape(self) -> tuple[int, ...]:
        """Members along each dimension."""
        return self.family.axes.shape

    @property
    def size(self) -> int:
        """Number of members."""
        return self.family.count

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a single member has no length.")
        return self.shape[0]

    @property
    def t(self) -> np.ndarray:
        """Save points: ``(T,)``, or ``(B, T)`` where they differ."""
        times = self.family.save_at
        if not times.dims:
            return self.family.members(np.zeros(1, int)).times[0].copy()
        every = self.family.members(np.arange(self.size)).times
        return every.reshape(*self.shape, -1)

    @property
    def mean(self) -> np.ndarray:
        """Posterior means ``(B, T, *shape)``; NaN at times that a member did not reach."""
        return self._values("mean", self.family.shape)

    @property
    def std(self) -> np.ndarray:
        """Posterior standard deviations ``(B, T, *shape)``.

        Of the size of the global error, unless ``calibration="model"`` asked for the model's.
        """
        return self._values("std", self.family.shape)

    @property
    def cov(self) -> np.ndarray:
        """Posterior covariances ``(B, T, d, d)`` of ``y`` flattened in C order."""
        if "cov" not in self.data:
            raise ValueError("covariances were not asked for: solve with covariance=True.")
        d = int(np.prod(self.family.shape, dtype=int))
        return self._values("cov", (d, d))

    def _values(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        values = np.asarray(self.data[name][...])
        return values.reshape(*self.shape, self.family.times, *shape)

    def _counts(self, name: str) -> np.ndarray:
        return np.asarray(self.data[name][...]).reshape(self.shape)

    @property
    def engine(self) -> str:
        """The engine that was chosen; "lanes" leave a vector field without such a form to vmapped.

        See ``engine`` of :func:`probode.solve_ensemble`, and :attr:`engine_reason`.
        """
        return self.settings.engine

    @property
    def engine_reason(self) -> str:
        """Why this engine, in words."""
        return self.settings.reason

    def diagnose(self) -> EnsembleDiagnosis:
        """Which members' error bars to trust, and what speaks against those of the others."""
        return diagnosis_of(self)

    @property
    def status(self) -> np.ndarray:
        """How each member ended: codes of :class:`probode.Status`.

        What a store lacks, because the run was interrupted, a further run adds.
        """
        codes = self._counts("status")
        return np.where(codes == Status.RUNNING.value, Status.INTERRUPTED.value, codes)

    @property
    def success(self) -> np.ndarray:
        """Which members reached their end."""
        return self.status == Status.SUCCESS.value

    @property
    def failed(self) -> np.ndarray:
        """Numbers of the members that did not, counted in C order of the dimensions."""
        return np.flatnonzero(~self.success)

    @property
    def message(self) -> str:
        """How the members ended, in words."""
        codes, counts = np.unique(self.status, return_counts=True)
        if len(codes) == 1 and self.size == 1:
            return Status(int(codes[0])).message
        parts = [
            f"{count} {Status(int(code)).name}: {Status(int(code)).message}"
            for code, count in zip(codes, counts, strict=True)
            if code != Status.SUCCESS.value
        ]
        reached = int(self.success.sum())
        return "\n".join([f"{reached} of {self.size} members reached their end.", *parts])

    @property
    def steps(self) -> np.ndarray:
        """Steps attempted by each member."""
        return self._counts("steps")

    @property
    def accepted(self) -> np.ndarray:
        """Steps accepted."""
        return self._counts("accepted")

    @property
    def rejected(self) -> np.ndarray:
        """Steps rejected."""
        return self._counts("rejected")

    @property
    def f_evaluations(self) -> np.ndarray:
        """Evaluations of the vector field, those of the calibration included."""
        return self._counts("f_evaluations")

    @property
    def jacobian_evaluations(self) -> np.ndarray:
        """Evaluations of the Jacobian, those of the calibration included."""
        return self._counts("jacobian_evaluations")

    def __getitem__(self, key: Any) -> "Ensemble":
        """A part of the ensemble: whole numbers, slices, or one vector along the members."""
        keys = key if isinstance(key, tuple) else (key,)
        if len(keys) > len(self.shape):
            raise IndexError(
                f"an ensemble is indexed along its members, {self.dims or '(one)'}, got {key!r}."
            )
        full = [_index(k) for k in (*keys, *[slice(None)] * (len(self.shape) - len(keys)))]
        numbers = np.arange(self.size).reshape(self.shape)[tuple(full)]
        if sum(isinstance(k, np.ndarray) for k in full) > 1:
            raise IndexError("one vector of indices at a time: index twice.")
        data = {name: np.asarray(x[...])[np.ravel(numbers)] for name, x in self.data.items()}
        weights = self.weights
        if weights is not None:
            weights = weights[full[self.dims.index(DRAW)]]
            weights = weights if np.ndim(weights) else None
        return replace(self, family=self.family.at(tuple(full)), data=data, weights=weights)

    def _number(self, member: Any) -> int:
        """A member's number in C order, from one or from its place along each dimension."""
        if isinstance(member, tuple):
            return int(np.ravel_multi_index(member, self.shape, mode="raise"))
        number = int(member)
        if not -self.size <= number < self.size:
            raise IndexError(f"there are {self.size} members, got number {number}.")
        return number % self.size

    def member(self, i: Any, *, dense: bool = False) -> Posterior:
        """One member solved alone by :func:`probode.solve`: the same solve, as a full posterior.

        Parameters
        ----------
        i
            Its number (in C order of the dimensions), or its place along each dimension.
        dense
            Keep all steps, for output at any time, instead of the save points only.
        """
        chosen = self.family.members(np.array([self._number(i)]))
        span, y0, args = member(chosen, 0)
        settings = self.settings
        values = {
            **vars(settings.control),
            "rtol": _tolerance(chosen.rtol[0], chosen.shape or ()),
            "atol": _tolerance(chosen.atol[0], chosen.shape or ()),
        }
        fun: Any = traceable(self.fun, chosen)
        if type(settings.equation) is not FirstOrder:
            fun = replace(settings.equation, function=fun)
        start: Any = y0 if chosen.reads == 1 else tuple(y0)
        box, functions = settings.bounds, traced_invariants(settings, chosen)
        # Of the shape of y: of a second order, without that of its derivatives.
        own = y0.shape if chosen.reads == 1 else y0.shape[1:]
        return solve(
            *(fun, span, start, args),
            solver=settings.solver,
            control=unchecked(type(settings.control), values),
            smooth=settings.smooth,
            save_at=None if dense else chosen.times[0],
            max_steps=settings.max_steps,
            jac=settings.jac,
            calibration=settings.calibration,
            invariants=None if functions is None else list(functions),
            bounds=None if box is None else (box.low.reshape(own), box.high.reshape(own)),
        )

    def rerun(self, members: Any = None, **changes: Any) -> "Ensemble":
        """Solve some members again, by default those that failed, possibly with other settings.

        Parameters
        ----------
        members
            Numbers of members, in C order of the dimensions.
        **changes
            ``solver``, ``control``, ``smooth``, ``covariance``, ``calibration``, ``max_steps``,
            ``jac``, ``engine``; without any, the members give the same result as before.
            Tolerances stay those of the members.
        """
        from probode.ensemble.solve import read_settings, run

        before = vars(self.settings)
        fixed = {name: before[name] for name in ("equation", "invariants", "bounds")}
        names = [name for name in before if name not in (*fixed, "reason")]
        unknown = set(changes) - set(names)
        if unknown:
            raise TypeError(f"rerun takes {', '.join(names)}, got {', '.join(sorted(unknown))}.")
        which = self.failed if members is None else np.atleast_1d(members)
        if len(which) == 0:
            raise ValueError("no member has failed: say which members to run again.")
        which = np.array([self._number(i) for i in which])
        # With changes another engine may be needed.
        engine = {"engine": "auto"} if changes else {}
        given = {name: before[name] for name in names}
        settings = read_settings(**{**given, **engine, **changes})
        return run(self.fun, self.family.pick(which), replace(settings, **fixed))

    def reduce(self, reduce: Any) -> Reduced:
        """Statistics over the members, as ``reduce`` of :func:`probode.solve_ensemble` gives them.

        Those in a store are read some at a time.
        """
        if self.weights is not None:
            raise ValueError(
                "reduce counts all members alike, but the draws of a cubature have weights: call "
                "moments()."
            )
        return reduce_data(self.family, self.data, read_reductions(reduce))

    def sample(self, n: int = 1, *, seed: int = 0) -> np.ndarray:
        """Joint samples over the save points, ``(B, n, T, *shape)``; this solves again.

        What a sample needs (a backward kernel for each save point) is not kept: it would take many
        times the memory of the result.
        """
        if not self.settings.smooth:
            raise ValueError(
                "joint samples need the smoother: this ensemble was solved with smooth=False."
            )
        family, n = self.family, whole_number("n", n, 1)
        d = int(np.prod(family.shape, dtype=int))
        at_once = max(1, _SAMPLED_BYTES // (8 * n * family.times * d))
        drawn = []
        for start in range(0, self.size, at_once):
            which = np.arange(start, min(start + at_once, self.size))
            members = family.members(which)
            field = traceable(self.fun, members)
            _, paths = solve_vmapped(
                field, members, self.settings, samples=n, seed=seed, numbers=which
            )
            assert paths is not None
            drawn.append(paths)
        return np.concatenate(drawn).reshape(*self.shape, n, family.times, *family.shape)

    def moments(self, over: str | tuple[str, ...] | None = None) -> Moments:
        """Mean and variance over uncertain inputs, and where the variance comes from.

        The members along ``over`` are taken as draws of uncertain inputs (by default along
        ``"draw"``, where :class:`probode.Normal` and other distributions put theirs, else along
        all dimensions). The law of total variance, per time and component::

            Var y = Var_inputs(E[y | inputs]) + E_inputs(Var[y | inputs])

        Members that failed are left out, which the result says.
        """
        return moments(self, over)


def _index(key: Any) -> Any:
    if isinstance(key, int | np.integer):
        return int(key)
    return key if isinstance(key, slice) else np.asarray(key)


def _tolerance(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return value.reshape(shape) if value.ndim else value
