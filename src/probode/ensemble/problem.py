"""The members of an ensemble: every input with its dimensions, taken a few members at a time."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from probode.base.record import unchecked
from probode.engines.lanes.records import Members
from probode.ensemble import inputs
from probode.ensemble.inputs import MEMBER, Axes, Named, Shared, Sweep
from probode.filter.control import PControl
from probode.filter.given import check_range, snap
from probode.model.equation import FIRST_ORDER, Equation
from probode.model.implicit import Implicit
from probode.model.mass_matrix import MassMatrix
from probode.programs.inputs import Input, inputs_in

_CHECKED_AT_ONCE = 65_536


@dataclass(frozen=True)
class Family:
    """``B`` initial value problems of one vector field, as the user described them.

    Nothing is multiplied out: an outer product of three sweeps keeps the three vectors.
    """

    axes: Axes
    t0: Named
    t1: Named
    y0: Named
    rtol: Named
    atol: Named
    save_at: Named
    leaves: tuple[Any, ...]
    """Of ``args``: ``Named`` where it is made of numbers, else as it came."""
    tree: Any
    order: int = 1
    """Of the equation: above one, ``y0`` has ``y, ..., y^(k-1)`` along its first axis."""
    slope: Named | None = None
    """Guesses of ``y'`` at the start, of an implicit equation."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one ``y0``."""
        return self.y0.core

    @property
    def count(self) -> int:
        """Number of members."""
        return self.axes.count

    @property
    def times(self) -> int:
        """Save points of a member."""
        return self.save_at.core[0]

    def members(self, which: np.ndarray | slice) -> Members:
        """Some of the members, numbered in C order of the dimensions; of a slice, as views."""
        index, count = self.axes.index(which), len(range(*_bounds(which, self.count)))

        def take(value: Named) -> np.ndarray:
            return np.asarray(value.take(index, count), float)

        t0, t1, given = take(self.t0), take(self.t1), self.save_at.take(index, count)
        shared = not (self.t0.dims or self.t1.dims or self.save_at.dims)
        rows = slice(1) if shared and count else slice(None)  # one row, where all have the same
        own: Any = np.asarray(given[rows], float)
        ends: Any = (t0[rows, None], t1[rows, None])
        times: Any = snap(own, given, *ends)
        swept = tuple(0 if self._varies(leaf) else None for leaf in self.leaves)
        return Members(
            t0=t0,
            t1=t1,
            y0=take(self.y0).reshape(count, -1),
            rtol=take(self.rtol),
            atol=take(self.atol),
            save_at=np.broadcast_to(times, (count, times.shape[-1])),
            args=jax.tree.unflatten(self.tree, [self._leaf(x, index, count) for x in self.leaves]),
            axes=swept,
            shape=self.shape,
            order=self.order,
            slope=None if self.slope is None else take(self.slope).reshape(count, -1),
        )

    def pick(self, which: np.ndarray) -> "Family":
        """Some of the members as a family of its own.

        A single dimension keeps its name; several become ``"member"``.
        """
        axes, index = self.axes, self.axes.index(which)
        dim = axes.dims[0] if len(axes.dims) == 1 else MEMBER
        labels = axes.coords[dim][which] if axes.dims == (dim,) and dim in axes.coords else None

        def chosen(value: Named) -> Named:
            if not value.dims:
                return value
            return Named(value.take(index, len(which)), (dim,), (labels,))

        coords = {} if labels is None else {dim: labels}
        return self._with(Axes({dim: len(which)}, coords), chosen)

    def at(self, key: tuple[Any, ...]) -> "Family":
        """Indexed along its dimensions by whole numbers, slices or vectors, one for each."""
        keys = dict(zip(self.axes.dims, key, strict=True))

        def chosen(value: Named) -> Named:
            values, kept = value.values, []
            for dim in reversed(value.dims):
                axis = value.dims.index(dim)
                values = np.asarray(values[(*[slice(None)] * axis, keys[dim])])
                if not isinstance(keys[dim], int):
                    kept.append(dim)
            return Named(values, tuple(reversed(kept)), (None,) * len(kept))

        rest = [dim for dim in self.axes.dims if not isinstance(keys[dim], int)]
        sizes = {dim: len(np.arange(self.axes.sizes[dim])[keys[dim]]) for dim in rest}
        coords = {dim: x[keys[dim]] for dim, x in self.axes.coords.items() if dim in rest}
        return self._with(Axes(sizes, coords), chosen)

    def _with(self, axes: Axes, chosen: Callable[[Named], Named]) -> "Family":
        return Family(
            axes=axes,
            t0=chosen(self.t0),
            t1=chosen(self.t1),
            y0=chosen(self.y0),
            rtol=chosen(self.rtol),
            atol=chosen(self.atol),
            save_at=chosen(self.save_at),
            leaves=tuple(chosen(x) if isinstance(x, Named) else x for x in self.leaves),
            tree=self.tree,
            order=self.order,
            slope=None if self.slope is None else chosen(self.slope),
        )

    @staticmethod
    def _varies(leaf: Any) -> bool:
        return isinstance(leaf, Named) and bool(leaf.dims)

    def _leaf(self, leaf: Any, index: dict[str, np.ndarray], count: int) -> Any:
        if self._varies(leaf):
            return leaf.take(index, count)
        return leaf.values if isinstance(leaf, Named) else leaf


def _bounds(which: np.ndarray | slice, count: int) -> tuple[int, int, int]:
    return which.indices(count) if isinstance(which, slice) else (0, len(which), 1)


def member(members: Members, i: int) -> tuple[Any, np.ndarray, tuple[Any, ...]]:
    """``t_span``, ``y0`` and ``args`` of one member, as a single solve takes them.

    Of an implicit equation ``y0`` is stacked with the guess of the slope.
    """
    own_shape = members.shape or (members.d,)
    leaves, tree = jax.tree.flatten(members.args)

    def own(leaf: Any, axis: int | None) -> Any:
        if axis is not None:
            return np.asarray(leaf[i])
        # Of one type, varying or not: the traced program is then the same.
        return np.asarray(leaf) if isinstance(leaf, float) else leaf

    span = (members.t0[i], members.t1[i])
    return (
        span,
        members.given[i].reshape(own_shape if members.slope is None else (2, *own_shape)),
        jax.tree.unflatten(
            tree, [own(leaf, axis) for leaf, axis in zip(leaves, members.axes, strict=True)]
        ),
    )


def part(members: Members, which: np.ndarray) -> Members:
    """Some of the members."""
    leaves, tree = jax.tree.flatten(members.args)
    own = [
        leaf if axis is None else leaf[which]
        for leaf, axis in zip(leaves, members.axes, strict=True)
    ]
    return replace(
        members,
        t0=members.t0[which],
        t1=members.t1[which],
        y0=members.y0[which],
        rtol=members.rtol[which],
        atol=members.atol[which],
        save_at=members.times[which],
        slope=None if members.slope is None else members.slope[which],
        args=jax.tree.unflatten(tree, own),
    )


def usable(members: Members) -> np.ndarray:
    """Which members can be begun at all: finite numbers, positive tolerances."""

    def each(array: np.ndarray) -> np.ndarray:
        one = array[:1] if array.strides[0] == 0 else array  # all members have the same
        return one.reshape(len(one), -1)

    fits = np.ones(members.count, bool)
    for array in (members.t0, members.t1, members.given, members.times):
        for column in each(array).T:  # few, of many members
            fits &= np.isfinite(column)
    for array in (members.rtol, members.atol):
        for column in each(array).T:
            fits &= column > 0.0
    return fits


def read_family(
    t_span: Any,
    y0: Any,
    args: Any,
    save_at: Any,
    rtol: Any,
    atol: Any,
    control: PControl,
    core_dims: tuple[str, ...],
    equation: Equation = FIRST_ORDER,
) -> Family:
    """All inputs with their dimensions, checked against each other."""
    core_dims = (*inputs.CORE_DIMS, *core_dims)
    t0, t1 = _span(t_span, core_dims)
    named = {"t_span[0]": t0, "t_span[1]": t1}
    y0, guess = _with_guess(y0, equation)
    named["y0"] = _start(y0, equation, core_dims)
    slope = None if guess is None else inputs.read(guess, "y0[1]", 1, core_dims)
    if isinstance(equation, Implicit):
        slope = _slope(slope, named["y0"], equation)
        named["y0[1]"] = slope
    if 0 in named["y0"].core:
        raise ValueError(
            f"y0 must have at least one component, got shape {named['y0'].values.shape}."
        )
    leaves, tree = _arguments(args)
    read_leaves = []
    for path, leaf in leaves:
        if _is_data(leaf):
            leaf = inputs.read(leaf, path, 0, core_dims)
            named[path] = leaf
        read_leaves.append(leaf)
    for name, given, own in (("rtol", rtol, control.rtol), ("atol", atol, control.atol)):
        given = Shared(own) if given is None else given
        named[name] = _tolerance(
            inputs.read(given, name, 0, core_dims), name, named["y0"].core, equation.order
        )
    if save_at is None:
        named["save_at"] = t1.map(lambda t: t[..., None])
    else:
        times = inputs.read(save_at, "save_at", 1, core_dims)
        named["save_at"] = times if times.core else times.map(lambda t: t[..., None])
    if len(named["save_at"].core) != 1 or 0 in named["save_at"].core:
        shape = named["save_at"].values.shape
        raise ValueError(
            f"save_at must be a time, a vector of times (T,), or (B, T), got shape {shape}."
        )
    starts = [name for name in ("y0", "y0[1]") if name in named]
    order = (*starts, *(path for path, leaf in leaves if _is_data(leaf)), "t_span[0]", "t_span[1]")
    for name in ("t_span[0]", "t_span[1]", *starts, "save_at"):
        if not named[name].dims and not np.all(np.isfinite(named[name].values)):
            raise ValueError(f"{name} must be finite, got {named[name].values}.")
    axes = Axes.of({name: named[name] for name in (*order, "rtol", "atol", "save_at")})
    family = Family(
        *(axes, t0, t1, named["y0"], named["rtol"], named["atol"], named["save_at"]),
        tuple(read_leaves),
        tree,
        equation.order,
        slope,
    )
    _check_times(family)
    _check_inputs(family)
    return family


def takes_pair(y0: Any, equation: Equation) -> bool:
    """Whether ``y0`` is a tuple ``(y0, yp0)``, with a guess of the slope, as in ``solve``."""
    implicit = isinstance(equation, Implicit) and not isinstance(equation, MassMatrix)
    return implicit and isinstance(y0, tuple) and len(y0) == 2


def _with_guess(y0: Any, equation: Equation) -> tuple[Any, Any]:
    return y0 if takes_pair(y0, equation) else (y0, None)


def _slope(given: Named | None, y0: Named, equation: Implicit) -> Named:
    """Guesses of ``y'``: those that were given, or zero."""
    if isinstance(equation, MassMatrix):
        equation.check_size(int(np.prod(y0.core, dtype=int)))
    if given is None:
        return Named(np.zeros(y0.core))
    if given.core != y0.core:
        raise ValueError(
            f"{type(equation).__name__} takes y0, or a tuple (y0, yp0) with a guess of y' of the "
            f"same shape for a member, got {y0.core} and {given.core}. Values of one start are a "
            "list or an array."
        )
    return given


def _start(y0: Any, equation: Equation, core_dims: tuple[str, ...]) -> Named:
    """``y0``; of an equation of order ``k`` its ``k`` values, along an axis before those of each.

    They may vary along different dimensions: then all combinations are written out.
    """
    k = equation.order
    if k == 1:
        return inputs.read(y0, "y0", 1, core_dims)
    if not isinstance(y0, tuple | list) or len(y0) != k:
        names = ", ".join("y" + "'" * i for i in range(k))
        raise TypeError(
            f"{type(equation).__name__} needs {k} values at t0: pass a tuple of ({names}), each as "
            f"y0 of an equation of first order; got {type(y0).__name__}."
        )
    parts = {f"y0[{i}]": inputs.read(part, f"y0[{i}]", 1, core_dims) for i, part in enumerate(y0)}
    shapes = [part.core for part in parts.values()]
    if len(set(shapes)) > 1:
        found = ", ".join(map(str, shapes))
        raise ValueError(f"the values in y0 must have one shape for a member, got {found}.")
    if not any(part.dims for part in parts.values()):
        return Named(np.stack([part.values for part in parts.values()]))
    axes = Axes.of(parts)
    index = axes.index(np.arange(axes.count))
    every = np.stack([part.take(index, axes.count) for part in parts.values()], axis=1)
    labels = tuple(axes.coords.get(dim) for dim in axes.dims)
    return Named(every.reshape(*axes.shape, *every.shape[1:]), axes.dims, labels)


def _span(t_span: Any, core_dims: tuple[str, ...]) -> tuple[Named, Named]:
    if isinstance(t_span, np.ndarray | jax.Array) and np.ndim(t_span) == 2:
        t_span = tuple(np.asarray(t_span).T) if np.shape(t_span)[1] == 2 else t_span
    if not isinstance(t_span, tuple | list | np.ndarray | jax.Array) or len(t_span) != 2:
        raise ValueError(
            "t_span must be a pair (t0, t1), each a number or one per member, or an array (B, 2), "
            f"got {t_span!r}."
        )
    ends = [
        inputs.read(t, f"t_span[{i}]", 0, core_dims).map(lambda t: np.asarray(t, float))
        for i, t in enumerate(t_span)
    ]
    for end in ends:
        if end.core:
            raise ValueError(f"t_span must be a pair of numbers for each member, got {end.core}.")
    return ends[0], ends[1]


def _arguments(args: Any) -> tuple[list[tuple[str, Any]], Any]:
    """Leaves of ``args`` with their names; a DataFrame is one argument per column."""
    if inputs.is_labelled(args) and type(args).__name__ == "DataFrame":
        args = tuple(args[column] for column in args.columns)
    if not isinstance(args, tuple | list):
        raise TypeError(
            f"args must be a tuple of parameters, got {type(args).__name__}. "
            "For a single parameter write args=(parameter,)."
        )
    args = jax.tree.map(_of_input, tuple(args), is_leaf=lambda x: isinstance(x, Input))
    flat, tree = jax.tree_util.tree_flatten_with_path(args)
    return [("args" + jax.tree_util.keystr(path), leaf) for path, leaf in flat], tree


def _of_input(leaf: Any) -> Any:
    """An input, which all members share, or a ``Sweep`` of inputs, by its times and values."""
    if isinstance(leaf, Input):
        return jax.tree.map(Shared, leaf)
    given = getattr(leaf, "values", None) if isinstance(leaf, Sweep | Shared) else None
    if isinstance(given, Input):
        if isinstance(leaf, Shared):
            return jax.tree.map(Shared, given)
        given = [given]
    if not isinstance(leaf, Sweep) or not isinstance(given, list | tuple):
        return leaf
    if not any(isinstance(one, Input) for one in given):
        return leaf
    shapes: list[Any] = [jax.tree.structure(one) for one in given]
    sizes = [[np.shape(x) for x in jax.tree.leaves(one)] for one in given]
    if any(one != shapes[0] for one in shapes) or any(one != sizes[0] for one in sizes):
        raise ValueError(
            "a Sweep of inputs needs inputs of one kind (constant, linear or cubic), with as many "
            f"times, and values of one shape; got {', '.join(map(repr, given[:5]))}. Add times "
            "to the shorter ones and repeat their last values there."
        )
    return jax.tree.map(lambda *x: Sweep(np.stack(x), leaf.dim, leaf.coords), *given)


def _check_inputs(family: Family) -> None:
    """Raise if a member needs an input outside of its times and it has ``outside="refuse"``."""
    ends = np.concatenate([np.ravel(family.t0.values), np.ravel(family.t1.values)])
    low, high = np.min(ends), np.max(ends)
    leaves = [x.values if isinstance(x, Named) else x for x in family.leaves]
    for one in inputs_in(jax.tree.unflatten(family.tree, leaves)):
        known = np.array([np.max(one.times[..., 0]), np.min(one.times[..., -1])])
        check_range(unchecked(type(one), {**vars(one), "times": known}), low, high)


def _is_data(leaf: Any) -> bool:
    """Whether a leaf of ``args`` may vary: numbers are shared as they are."""
    if isinstance(leaf, Sweep | Shared) or inputs.is_labelled(leaf):
        return True
    return isinstance(leaf, np.ndarray | jax.Array) and leaf.ndim > 0 and leaf.dtype.kind != "O"


def _tolerance(value: Named, name: str, shape: tuple[int, ...], order: int) -> Named:
    """One number a member, or one per component of ``y0`` (flattened)."""
    if order > 1 and value.core and value.core == shape[1:]:  # the same for all derivatives
        value = value.map(lambda x: np.stack([x] * order, axis=len(value.dims)))
    if value.core not in ((), shape):
        raise ValueError(
            f"{name} must be a number, one per member (B,), or {('B', *shape)} for tolerances by "
            f"component; got {value.values.shape}. Tolerances by component that all members share: "
            f"probode.Shared({name})."
        )
    if np.any(value.values <= 0) or (not value.dims and not np.all(value.values > 0)):
        raise ValueError(f"{name} must be positive, got {value.values}.")
    if len(value.core) <= 1:
        return value
    return value.map(lambda x: x.reshape(*x.shape[: len(value.dims)], -1))


def _check_times(family: Family) -> None:
    """Save points of every member in order and inside its interval (unless these are NaN)."""
    varying = {*family.t0.dims, *family.t1.dims, *family.save_at.dims}
    total = family.count if varying else 1
    for start in range(0, total, _CHECKED_AT_ONCE):
        which = np.arange(start, min(start + _CHECKED_AT_ONCE, total))
        members = family.members(which)
        low = np.minimum(members.t0, members.t1)[:, None]
        high = np.maximum(members.t0, members.t1)[:, None]
        direction = np.where(members.t1 < members.t0, -1.0, 1.0)[:, None]
        known = np.isfinite(low + high)[:, 0] & np.isfinite(members.times).all(axis=1)
        outside = ((members.times < low) | (members.times > high)) & known[:, None]
        disordered = (np.diff(members.times, axis=1) * direction <= 0) & known[:, None]
        for wrong, words in ((outside, _outside), (disordered, _disordered)):
            if wrong.any():
                i, k = (int(x) for x in np.argwhere(wrong)[0])
                where = f" of member {which[i]}" if varying else ""
                span = f"t_span = ({_exact(members.t0[i])}, {_exact(members.t1[i])}){where}"
                raise ValueError(words(span, members.times[i], k, int(wrong[i].sum())))


def _exact(t: Any) -> str:
    """A time with all its digits: a save point may miss the end by the last of them."""
    return repr(float(t)).removesuffix(".0")


def _outside(span: str, times: np.ndarray, k: int, count: int) -> str:
    more = "" if count == 1 else f" and so are {count - 1} others"
    return (
        f"save_at must lie between t0 and t1: save_at[{k}] = {_exact(times[k])} is outside of "
        f"{span}{more}. Leave such times out, or change t_span."
    )


def _disordered(span: str, times: np.ndarray, k: int, count: int) -> str:
    return (
        "save_at must be strictly monotone in the direction from t0 to t1: save_at"
        f"[{k + 1}] = {_exact(times[k + 1])} comes after save_at[{k}] = {_exact(times[k])}, for "
        f"{span}. numpy.unique(save_at) is sorted and has no time twice; backwards in time it "
        "takes [::-1]."
    )
