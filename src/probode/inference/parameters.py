"""Parameters as users give them: by name, with starts, bounds and priors, checked."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import jax.numpy as jnp
import numpy as np

from probode.inference.space import Piece, Space
from probode.model.distributions import Distribution


@dataclass(frozen=True, eq=False)
class Parameter:
    """A parameter to be fitted: where to start, what it may be, what is known of it.

    Parameters
    ----------
    start
        Where to start from: a number or an array. Inside of the bounds, not on them.
    lower, upper
        Bounds; ``None`` for none. Those of the prior's support are added.
    prior
        What is known besides the data: :class:`probode.Normal`, :class:`LogNormal`,
        :class:`HalfNormal`, :class:`HalfCauchy`, :class:`Uniform`, anything else with a method
        ``log_prob(x)`` (NumPyro's distributions), or a function that returns the log density.
        Bounds cut it off (and its density is not scaled up for that: a constant).
    own
        With several data sets: each has a value of its own. ``start`` is that of all of them, or
        has one entry for each along its first axis.
    fixed
        Not fitted: stays at its start (with ``own``, doses and other facts of each data set).

    Examples
    --------
    >>> import probode
    >>> probode.Parameter(0.5, lower=0.0)
    Parameter(start=0.5, lower=0.0)
    """

    start: Any
    lower: Any = None
    upper: Any = None
    prior: Any = None
    own: bool = False
    fixed: bool = False

    def __repr__(self) -> str:
        """Without what was not given."""
        given = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self)]
        left_out = ("lower=None", "upper=None", "prior=None", "own=False", "fixed=False")
        return f"Parameter({', '.join(one for one in given if one not in left_out)})"


def read_parameters(given: Any, subjects: int | None) -> Space:
    """Check what users give; ``subjects``: how many data sets there are, if several."""
    if not isinstance(given, Mapping) or not given:
        raise TypeError(
            "parameters must be a dict from names to starts, for example {'rate': 0.5}, "
            "{'rate': (0.5, 0.0, 2.0)} with bounds, or {'rate': Parameter(...)}; got "
            f"{given!r}."
        )
    space = Space([_read(name, one, subjects) for name, one in given.items()])
    if space.size == 0:
        raise ValueError("all parameters are fixed: there is nothing to fit.")
    return space


def read_starts(given: Any, space: Space) -> int | list[np.ndarray]:
    """How many starts, or the starts themselves on the real line."""
    if isinstance(given, int | np.integer) and not isinstance(given, bool) and given >= 1:
        return int(given)
    if (
        not isinstance(given, list | tuple)
        or not given
        or not all(isinstance(one, Mapping) for one in given)
    ):
        raise ValueError(
            "starts must be a positive integer, or a list of starts such as [{'rate': 0.5}, "
            f"{{'rate': 2.0}}], got {given!r}."
        )
    return [_coordinates(one, space) for one in given]


def _coordinates(given: Mapping[str, Any], space: Space) -> np.ndarray:
    unknown = [name for name in given if name not in {piece.name for piece in space.free}]
    if unknown:
        known = ", ".join(repr(piece.name) for piece in space.free)
        raise ValueError(f"starts: {unknown[0]!r} is not fitted; there are {known}.")
    values = {}
    for piece in space.free:
        start = _numbers(piece.name, "start", given.get(piece.name, piece.start))
        try:
            start = np.broadcast_to(start, piece.start.shape).copy()
        except ValueError:
            raise ValueError(
                f"parameter {piece.name!r}: the start must be of the shape {piece.start.shape}, "
                f"got {start.shape}."
            ) from None
        _check_start(piece._replace(start=start))
        values[piece.name] = start
    return space.coordinates(values)


def _read(name: Any, given: Any, subjects: int | None) -> Piece:
    if not isinstance(name, str) or not name.isidentifier():
        raise TypeError(f"names of parameters must be names of variables, got {name!r}.")
    if isinstance(given, tuple):
        if len(given) not in (2, 3):
            raise TypeError(
                f"parameter {name!r}: a tuple is (start, lower, upper), got {given!r}. For the "
                "start of an array use a list or a NumPy array."
            )
        given = Parameter(*given)
    elif not isinstance(given, Parameter):
        given = Parameter(given)
    start = _numbers(name, "start", given.start)
    if given.own:
        if subjects is None:
            raise ValueError(
                f"parameter {name!r} is own=True, which is for a list of several data sets."
            )
        if start.ndim == 0 or start.shape[0] != subjects:
            start = np.broadcast_to(start, (subjects, *start.shape)).copy()
    lower, upper = _bounds(name, given, start)
    piece = Piece(
        name, start, lower, upper, _size(start), given.prior, bool(given.own), bool(given.fixed)
    )
    if not piece.fixed:
        _check_start(piece)
    return piece


def _size(start: np.ndarray) -> np.ndarray:
    return np.where(start == 0.0, 1.0, np.abs(start))


def _numbers(name: str, what: str, value: Any) -> np.ndarray:
    try:
        array = np.asarray(value, float)
    except (TypeError, ValueError):
        raise TypeError(
            f"parameter {name!r}: {what} must be a number or an array, got {value!r}."
        ) from None
    if np.any(np.isnan(array)) or (what == "start" and not np.all(np.isfinite(array))):
        raise ValueError(f"parameter {name!r}: {what} must be finite, got {value!r}.")
    return array


def _bounds(name: str, given: Parameter, start: np.ndarray) -> list[np.ndarray | None]:
    """The tighter of what the user and the prior say."""
    found: list[np.ndarray | None] = []
    for i, tighter in enumerate((np.maximum, np.minimum)):
        sides = [given.lower, given.upper][i], _support(given.prior)[i]
        known = [_numbers(name, "a bound", side) for side in sides if side is not None]
        finite = [side for side in known if not np.all(np.isinf(side))]
        if any(np.any(np.isinf(side)) for side in finite):
            raise ValueError(
                f"parameter {name!r}: either all of its entries have a bound or none, got "
                f"{sides[0]!r}. Make two parameters of it."
            )
        if not finite:
            found.append(None)
            continue
        bound = finite[0] if len(finite) == 1 else tighter(*finite)
        try:
            found.append(np.broadcast_to(bound, start.shape).copy())
        except ValueError:
            raise ValueError(
                f"parameter {name!r}: bounds must be numbers or of the shape {start.shape} of its "
                f"start, got the shape {bound.shape}."
            ) from None
    return found


def _support(prior: Any) -> tuple[Any, Any]:
    """The interval in which a prior has a density."""
    if isinstance(prior, Distribution):
        return prior.support
    support = getattr(prior, "support", None)  # NumPyro's: constraints
    return getattr(support, "lower_bound", None), getattr(support, "upper_bound", None)


def _check_start(piece: Piece) -> None:
    lower, upper = piece.lower, piece.upper
    shown = np.array2string(piece.start, threshold=5)
    if lower is not None and upper is not None and not np.all(lower < upper):
        raise ValueError(
            f"parameter {piece.name!r}: lower must be below upper, got {lower} and {upper}."
        )
    for bound, inside in ((lower, np.greater), (upper, np.less)):
        if bound is not None and not np.all(inside(piece.start, bound)):
            low = "-inf" if lower is None else np.array2string(lower)
            high = "inf" if upper is None else np.array2string(upper)
            raise ValueError(
                f"parameter {piece.name!r}: the start {shown} must lie between its bounds {low} "
                f"and {high} (given, or where its prior is zero), not on or beyond them."
            )
    prior = piece.prior
    if prior is None:
        return
    if not callable(getattr(prior, "log_prob", prior)):
        raise TypeError(
            f"parameter {piece.name!r}: prior must have a method log_prob(x), or be a function "
            f"that returns the log density, got {prior!r}."
        )
    value = float(np.asarray(piece.log_prior(jnp.asarray(piece.start))))
    if not value > -np.inf:
        raise ValueError(
            f"parameter {piece.name!r}: its prior gives the start {shown} no probability (log "
            f"density {value:g}). Start elsewhere, or choose a prior with a wider support."
        )
