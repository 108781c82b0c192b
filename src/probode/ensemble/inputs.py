"""What varies from member to member, and along which named dimension.

One rule for plain arrays: the axis in front of what a single solve takes runs over the members. A
number or a vector ``y0`` is one initial value, a matrix ``(B, d)`` is ``B`` of them; a number among
``args``, in ``t_span`` or for a tolerance is shared, an array has the members in front; ``save_at``
is ``(T,)``, or ``(B, T)``. Where that is not meant there are two words for it: ``Shared(array)`` is
the same for all members, ``Sweep(values, dim)`` has its leading axis along a dimension of its own.

Dimensions have names. Inputs along the same dimension go together, different dimensions make all
combinations (as xarray's arithmetic does). Plain arrays are along ``"member"``.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from probode.engines.lanes.records import COUNTS

MEMBER = "member"
"""The dimension of plain arrays."""

CORE_DIMS = ("state", "time")
"""Dimensions of a DataArray that belong to one member."""


RESERVED = ("time", "state", "state2")
"""Dimensions of the result."""

VARIABLES = ("y", "y_std", "y_cov", "status", *COUNTS, "signs", "trusted")
"""Variables of the result as a Dataset and in a store."""


@dataclass(frozen=True)
class Sweep:
    """Values for the members of an ensemble: the leading axis runs along a named dimension.

    Parameters
    ----------
    values
        An array ``(B, ...)``.
    dim
        Name of the dimension, which the result keeps. Sweeps along the same dimension go together,
        those along different ones make all combinations.
    coords
        Labels along the dimension, ``(B,)``; by default the values, if they are numbers.

    Examples
    --------
    >>> import probode
    >>> one, two = probode.Sweep([1.0, 2.0, 3.0], "a"), probode.Sweep([0.0, 0.5], "b")
    >>> ensemble = probode.solve_ensemble(
    ...     lambda t, y, a, b: b - a * y, (0, 1), 1.0, (one, two), save_at=1.0
    ... )
    >>> ensemble.dims, ensemble.mean.shape
    (('a', 'b'), (3, 2, 1))
    """

    values: Any
    dim: str = MEMBER
    coords: Any = None


@dataclass(frozen=True)
class Shared:
    """An array that is the same for all members of an ensemble.

    Examples
    --------
    >>> import numpy as np
    >>> import probode
    >>> rates = np.array([[-1.0, 0.5], [0.5, -1.0]])
    >>> ensemble = probode.solve_ensemble(
    ...     lambda t, y, a: a @ y, (0, 1), np.ones((3, 2)), (probode.Shared(rates),), save_at=1.0
    ... )
    >>> ensemble.mean.shape  # three starts, one matrix; one time
    (3, 1, 2)
    """

    values: Any


@dataclass(frozen=True, eq=False)
class Named:
    """An array whose leading axes are named dimensions; the others belong to one member."""

    values: np.ndarray
    dims: tuple[str, ...] = ()
    coords: tuple[Any, ...] = ()
    """One entry per dimension: labels, or ``None``."""

    @property
    def core(self) -> tuple[int, ...]:
        """The shape that one member has."""
        return self.values.shape[len(self.dims) :]

    def take(self, index: dict[str, Any], count: int) -> np.ndarray:
        """The values of ``count`` members, whose place along each dimension is given."""
        if not self.dims:
            return np.broadcast_to(self.values, (count, *self.core))
        return self.values[tuple(index[dim] for dim in self.dims)]

    def map(self, function: Any) -> "Named":
        """The same dimensions with other values."""
        return Named(function(self.values), self.dims, self.coords)


def is_labelled(value: Any) -> bool:
    """Whether a value is xarray's or pandas's."""
    return type(value).__module__.partition(".")[0] in ("xarray", "pandas")


def read(value: Any, what: str, core_ndim: int, core_dims: tuple[str, ...] = CORE_DIMS) -> Named:
    """An input with the dimensions it varies along.

    ``core_ndim`` is the number of axes that a single solve takes: one more is a batch.
    """
    if isinstance(value, Shared):
        return Named(_array(value.values, what))
    if isinstance(value, Sweep):
        return _swept(value, what)
    if is_labelled(value):
        return _labelled(value, what, core_dims)
    array = _array(value, what)
    if array.ndim <= core_ndim:
        return Named(array)
    return _swept(Sweep(array), what)


def _array(value: Any, what: str) -> np.ndarray:
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"an array of {array.dtype}")
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} must be made of real numbers, got {value!r}: {error}") from None
    return array


def _swept(sweep: Sweep, what: str) -> Named:
    array = _array(sweep.values, what)
    if array.ndim == 0:
        raise ValueError(f"{what}: a Sweep needs an axis over the members, got the number {array}.")
    if not isinstance(sweep.dim, str):
        raise TypeError(f"{what}: dim must be the name of a dimension, got {sweep.dim!r}.")
    coords = sweep.coords
    if coords is None and array.ndim == 1 and sweep.dim != MEMBER:
        coords = array
    if coords is not None and np.shape(coords) != array.shape[:1]:
        raise ValueError(
            f"{what}: coords must have one label for each of the {array.shape[0]} values, got "
            f"shape {np.shape(coords)}."
        )
    return Named(array, (sweep.dim,), (None if coords is None else np.asarray(coords),))


def _labelled(value: Any, what: str, core_dims: tuple[str, ...]) -> Named:
    kind = type(value).__name__
    if kind == "DataArray":
        own = tuple(dim for dim in value.dims if dim in core_dims)
        dims = tuple(str(dim) for dim in value.dims if dim not in core_dims)
        ordered = value.transpose(*dims, *own)
        coords = tuple(
            np.asarray(value.coords[dim]) if dim in value.coords else None for dim in dims
        )
        return Named(_array(ordered.values, what), dims, coords)
    if kind in ("Series", "DataFrame"):
        if value.index.nlevels > 1:
            raise TypeError(
                f"{what}: an index of several levels is not a dimension. Pass "
                f"{what}.to_xarray(), which has one dimension for each level."
            )
        dim = MEMBER if value.index.name is None else str(value.index.name)
        return Named(_array(value.to_numpy(), what), (dim,), (np.asarray(value.index),))
    raise TypeError(
        f"{what} must be a number, an array, a DataArray, a Series or a DataFrame, got "
        f"{type(value).__module__}.{kind}."
    )


@dataclass(frozen=True)
class Axes:
    """The dimensions of an ensemble, in the order in which the inputs mention them."""

    sizes: dict[str, int]
    coords: dict[str, np.ndarray]

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the dimensions."""
        return tuple(self.sizes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Their lengths."""
        return tuple(self.sizes.values())

    @property
    def count(self) -> int:
        """Number of members."""
        return int(np.prod(self.shape, dtype=int))

    def index(self, members: np.ndarray | slice) -> dict[str, Any]:
        """The place of members (numbered in C order) along each dimension."""
        if not self.sizes:
            return {}
        if len(self.sizes) == 1:
            return {self.dims[0]: members}
        if isinstance(members, slice):
            members = np.arange(*members.indices(self.count))
        return dict(zip(self.dims, np.unravel_index(members, self.shape), strict=True))

    @staticmethod
    def of(inputs: dict[str, Named]) -> "Axes":
        """The dimensions of all inputs together; raises where they do not fit."""
        sizes: dict[str, dict[str, int]] = {}
        coords: dict[str, tuple[str, np.ndarray]] = {}
        for what, value in inputs.items():
            labels = value.coords or (None,) * len(value.dims)
            for axis, (dim, label) in enumerate(zip(value.dims, labels, strict=True)):
                sizes.setdefault(dim, {})[what] = value.values.shape[axis]
                if label is not None:
                    _agree(dim, what, label, coords)
        if not sizes:
            raise ValueError(
                "nothing varies: none of y0, args, t_span, save_at, rtol and atol has an axis over "
                "the members. Pass y0 as a matrix (B, d), or an array (B,) among args (a list "
                "there is a parameter of its own), or use probode.solve for a single problem."
            )
        for dim, owners in sizes.items():
            if dim in (*RESERVED, *VARIABLES):
                kind = "dimension" if dim in RESERVED else "variable"
                raise ValueError(
                    f"{next(iter(owners))} varies along {dim!r}, which is a {kind} of the "
                    "result: give it another name."
                )
            _check_sizes(dim, owners)
        return Axes(
            {dim: next(iter(owners.values())) for dim, owners in sizes.items()},
            {dim: label for dim, (_, label) in coords.items()},
        )


def _check_sizes(dim: str, owners: dict[str, int]) -> None:
    found = ", ".join(f"{size} in {what}" for what, size in owners.items())
    if len(set(owners.values())) > 1:
        raise ValueError(
            f"the number of members along {dim!r} differs: {found}. If an array is the same for "
            "all members, wrap it: probode.Shared(array). For all combinations give one of them a "
            "dimension of its own: probode.Sweep(array, dim='name')."
        )
    if 0 in owners.values():
        raise ValueError(f"an ensemble needs at least one member, got {found} (along {dim!r}).")


def _agree(
    dim: str, what: str, label: np.ndarray, known: dict[str, tuple[str, np.ndarray]]
) -> None:
    """Labels along a dimension must be the same wherever they are given."""
    if dim not in known:
        known[dim] = (what, label)
        return
    first, other = known[dim]
    same_size = other.shape == label.shape
    if same_size and not np.array_equal(other, label):
        raise ValueError(
            f"the labels along {dim!r} differ between {first} and {what}: select the same ones "
            "first, for example with xarray.align."
        )
