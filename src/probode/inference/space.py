"""Parameters by name, with bounds and priors, as one vector on the real line.

A bounded parameter is a function of an unbounded coordinate ``z``::

    no bound      x = s z                        s the size of its start
    lower only    x = lower + exp(z)
    upper only    x = upper - exp(z)
    both          x = lower + (upper - lower) / (1 + exp(-z))

A maximum of ``log p(data | x) + log p(x)`` is the same in any coordinates. A *density* of ``z`` has
the factor ``|dx/dz|`` besides: it counts where a posterior is sampled, not where a maximum is
sought.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from probode.base.record import unchecked
from probode.model.distributions import Distribution

_FAR = 10.0
"""Largest distance in ``z`` for numbers without bounds, in units of ``1 + |z|``."""
_FARTHEST = 1e100
_ON_BOUND = 1e-12
"""Distance of a number on its bound, in units of the interval or of the start's distance."""


class NoParameter(KeyError):
    """A ``KeyError`` whose text is a sentence."""

    def __str__(self) -> str:
        """Return the text without the quotes that ``KeyError`` puts around it."""
        return str(self.args[0])


@jax.tree_util.register_pytree_node_class
class Values(dict[str, Any]):
    """Values of parameters by name: ``p["rate"]`` or ``p.rate``."""

    def __getattr__(self, name: str) -> Any:
        """A value by its name."""
        try:
            return self[name]
        except KeyError:
            known = ", ".join(self)
            raise AttributeError(f"there is no parameter {name!r}; there are {known}.") from None

    def __missing__(self, name: Any) -> Any:
        """Raise for a key that is not a name."""
        raise NoParameter(
            f"there is no parameter {name!r}. Parameters are read by name, as in "
            f"p.{next(iter(self), 'name')} or p[{next(iter(self), 'name')!r}]; their names are "
            f"{', '.join(self)}."
        )

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[str, ...]]:
        """Values and names, for JAX."""
        return tuple(self.values()), tuple(self)

    @classmethod
    def tree_unflatten(cls, names: tuple[str, ...], values: tuple[Any, ...]) -> "Values":
        """Inverse of :meth:`tree_flatten`."""
        return cls(zip(names, values, strict=True))


class Piece(NamedTuple):
    """A parameter as it is used."""

    name: str
    start: np.ndarray
    lower: np.ndarray | None
    upper: np.ndarray | None
    scale: np.ndarray
    prior: Any
    own: bool
    fixed: bool

    @property
    def kind(self) -> str:
        """Which transformation it has."""
        names = {(False, False): "free", (True, False): "lower", (False, True): "upper"}
        return names.get((self.lower is not None, self.upper is not None), "both")

    @property
    def numbers(self) -> tuple[Any, ...]:
        """What of it is data: a new value does not compile anything again."""
        return (self.start, self.lower, self.upper, self.scale, numbers_of(self.prior))

    def with_numbers(self, numbers: tuple[Any, ...]) -> "Piece":
        """The same with other numbers; they may be traced."""
        start, lower, upper, scale, inner = numbers
        prior = with_numbers(self.prior, inner)
        return Piece(self.name, start, lower, upper, scale, prior, self.own, self.fixed)

    def natural(self, z: Any, xp: Any = jnp) -> Any:
        """``x`` of ``z``."""
        if self.kind == "free":
            return self.scale * z
        if self.kind == "lower":
            return self.lower + xp.exp(z)
        if self.kind == "upper":
            return self.upper - xp.exp(z)
        lower, upper = self.lower, self.upper
        share = jax.nn.sigmoid(z) if xp is jnp else 0.5 * (1.0 + np.tanh(0.5 * z))
        return lower + (upper - lower) * share  # type: ignore[operator]

    def coordinate(self, x: np.ndarray) -> np.ndarray:
        """``z`` of ``x``."""
        lower, upper = self.lower, self.upper
        if lower is not None and upper is not None:
            return np.log(x - lower) - np.log(upper - x)
        if lower is not None:
            return np.log(x - lower)
        return np.log(upper - x) if upper is not None else x / self.scale

    def slope(self, z: np.ndarray) -> np.ndarray:
        """``dx/dz``."""
        if self.kind == "free":
            return np.broadcast_to(self.scale, z.shape)
        if self.kind != "both":
            return np.exp(z) if self.kind == "lower" else -np.exp(z)
        width: Any = self.upper - self.lower  # type: ignore[operator]
        return width * 0.25 / np.cosh(0.5 * z) ** 2

    def near(self, side: int, share: float) -> np.ndarray | None:
        """Return the ``z`` of a small distance from the lower (-1) or upper (1) bound.

        The distance is a ``share`` of the interval, or of the distance at the start; ``None``
        without such a bound.
        """
        bound = self.lower if side < 0 else self.upper
        if bound is None:
            return None
        if self.kind == "both":
            return np.full(self.start.shape, -side * np.log(share))
        return np.log(share * np.abs(self.start - bound))

    def log_slope(self, z: Array) -> Array:
        """``Σ log |dx/dz|``."""
        if self.kind == "free":
            each = jnp.log(jnp.broadcast_to(self.scale, z.shape))
        elif self.kind != "both":
            each = z
        else:
            width: Any = self.upper - self.lower  # type: ignore[operator]
            each = jnp.log(width) + jax.nn.log_sigmoid(z) + jax.nn.log_sigmoid(-z)
        return jnp.sum(each)

    def log_prior(self, x: Any) -> Any:
        """``Σ log p(x)``."""
        if self.prior is None:
            return jnp.zeros(())
        density = getattr(self.prior, "log_prob", self.prior)
        return jnp.sum(jnp.asarray(density(x), float))


class Space:
    """All parameters together."""

    def __init__(self, pieces: list[Piece]) -> None:
        self.pieces = pieces
        self.free = [piece for piece in pieces if not piece.fixed]
        sizes = [piece.start.size for piece in self.free]
        ends = np.cumsum(sizes, dtype=int)
        self.slices = [slice(end - n, end) for n, end in zip(sizes, ends, strict=True)]
        self.size = int(sum(sizes))

    def __iter__(self) -> Iterator[tuple[Piece, slice]]:
        """Those that are fitted, and where they are in ``z``."""
        return iter(zip(self.free, self.slices, strict=True))

    @property
    def names(self) -> list[str]:
        """A name for each coordinate: ``a``, or ``b[0]``, ``b[1]`` of an array."""
        found = []
        for piece, _ in self:
            if piece.start.ndim == 0:
                found.append(piece.name)
            else:
                places = np.ndindex(piece.start.shape)
                found += [f"{piece.name}[{', '.join(map(str, i))}]" for i in places]
        return found

    @property
    def has_priors(self) -> bool:
        """Whether anything is known besides the data."""
        return any(piece.prior is not None for piece in self.free)

    @property
    def numbers(self) -> tuple[Any, ...]:
        """What is data of all of them."""
        return tuple(piece.numbers for piece in self.pieces)

    def with_numbers(self, numbers: tuple[Any, ...]) -> "Space":
        """The same with other numbers; they may be traced."""
        pairs = zip(self.pieces, numbers, strict=True)
        return Space([piece.with_numbers(one) for piece, one in pairs])

    def start(self) -> np.ndarray:
        """``z`` of all starts."""
        return self.coordinates({piece.name: piece.start for piece in self.free})

    def coordinates(self, values: Mapping[str, Any]) -> np.ndarray:
        """``z`` of values by name."""
        parts = [np.ravel(p.coordinate(np.asarray(values[p.name], float))) for p in self.free]
        return np.concatenate([np.zeros(0), *parts])

    def values(self, z: Any, xp: Any = jnp) -> Values:
        """Values by name, those that are fixed too."""
        found = {
            piece.name: piece.natural(z[part].reshape(piece.start.shape), xp)
            for piece, part in self
        }
        return Values(
            (piece.name, piece.start if piece.fixed else found[piece.name]) for piece in self.pieces
        )

    def settled(self, z: np.ndarray) -> Values:
        """Return values by name; a number at a bound is the bound."""
        values, sides = self.values(z, np), self.at_bound(z)
        for piece, part in self:
            for side, bound in ((-1, piece.lower), (1, piece.upper)):
                if bound is not None:
                    there = sides[part].reshape(piece.start.shape) == side
                    values[piece.name] = np.where(there, bound, values[piece.name])
        return values

    def flat(self, z: np.ndarray, *, settled: bool = False) -> np.ndarray:
        """Natural values as one vector, in the order of :attr:`names`."""
        values = self.settled(z) if settled else self.values(z, np)
        return np.concatenate([np.zeros(0), *(np.ravel(values[p.name]) for p in self.free)])

    def slopes(self, z: np.ndarray) -> np.ndarray:
        """``dx/dz``, coordinate by coordinate."""
        parts = [np.ravel(p.slope(z[s].reshape(p.start.shape))) for p, s in self]
        return np.concatenate([np.zeros(0), *parts])

    def at_bound(self, z: np.ndarray, share: float | None = None) -> np.ndarray:
        """Return -1 for numbers at their lower bound, 1 for those at the upper one, else 0.

        The distance that counts is a ``share`` of the interval, or of the distance at the start.
        The default is that of :meth:`on_bound`: a search that does not put numbers on their
        bounds never comes as close.
        """
        share = 10.0 * _ON_BOUND if share is None else share
        found = np.zeros(self.size, int)
        for piece, part in self:
            for side in (-1, 1):
                end = piece.near(side, share)
                if end is not None:
                    up = 1.0 if piece.kind == "both" and side > 0 else -1.0
                    found[part][up * z[part] >= up * end.ravel()] = side
        return found

    def on_bound(self, z: np.ndarray, sides: np.ndarray, share: float | None = None) -> np.ndarray:
        """Return ``z`` with numbers put on their lower (-1) or upper (1) bound, or near it."""
        moved = z.copy()
        for piece, part in self:
            for side in (-1, 1):
                end = piece.near(side, _ON_BOUND if share is None else share)
                if end is not None:
                    moved[part] = np.where(sides[part] == side, end.ravel(), moved[part])
        return moved

    def way(self, z: np.ndarray, free: float = _FAR) -> np.ndarray:
        """Return the largest distance of a number from ``z``, the longer one of :meth:`ways`."""
        return np.maximum(*self.ways(z, free))

    def ways(self, z: np.ndarray, free: float = _FAR) -> tuple[np.ndarray, np.ndarray]:
        """Return the largest distances of numbers below and above ``z``: factors times ``1 + |z|``.

        They are ``free`` for numbers without bounds. The ``z`` of others is a logarithm, in which
        the way from a bound to the rest of the interval (or to the start) is longer near a bound.
        """
        kinds = np.concatenate([np.full(p.start.size, p.kind) for p, _ in self])
        bounded = kinds != "free"
        short = np.where(bounded, _FAR, free) * (1.0 + np.abs(z))
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            rest = np.minimum(self.widths / np.abs(self.slopes(z)), _FARTHEST)
        longer = np.where(bounded, np.maximum(short, rest), short)
        falls = (kinds == "both") & (z > 0.0)
        return np.where(falls, longer, short), np.where(falls, short, longer)

    @property
    def widths(self) -> np.ndarray:
        """Length of the interval, or distance of the start from its only bound, else zero."""
        parts = []
        for piece, _ in self:
            ends = [piece.start if x is None else x for x in (piece.lower, piece.upper)]
            parts.append(np.ravel(ends[1] - ends[0]))
        return np.concatenate([np.zeros(0), *parts])

    def log_prior(self, z: Array) -> Array:
        """``log p(x)``, as a density of ``x``."""
        values = self.values(z)
        return sum((p.log_prior(values[p.name]) for p in self.free), jnp.zeros(()))

    def log_slope(self, z: Array) -> Array:
        """``log |dx/dz|``: what a density of ``z`` has besides."""
        parts = (p.log_slope(z[s].reshape(p.start.shape)) for p, s in self)
        return sum(parts, jnp.zeros(()))

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """A start: from the priors; without one, between the bounds, else around the start."""
        return np.concatenate([np.zeros(0), *(np.ravel(_draw(p, rng)) for p in self.free)])


_SPREAD = 1.0
"""Of starts without prior or two bounds, on the transformed scale: for positive ones a factor e."""
_TRIES = 100


def _draw(piece: Piece, rng: np.random.Generator) -> np.ndarray:
    shape = piece.start.shape
    if hasattr(piece.prior, "sample"):
        for _ in range(_TRIES):
            if isinstance(piece.prior, Distribution):
                x = np.asarray(piece.prior.sample(rng, shape))
            else:  # of JAX's kind, with a key
                key = jax.random.PRNGKey(int(rng.integers(2**31)))
                missing = shape[: len(shape) - len(getattr(piece.prior, "batch_shape", ()))]
                x = np.asarray(piece.prior.sample(key, missing), float).reshape(shape)
            with np.errstate(all="ignore"):
                z = piece.coordinate(x)
            if np.all(np.isfinite(z)):
                return z
    if piece.lower is not None and piece.upper is not None:
        return piece.coordinate(piece.lower + (piece.upper - piece.lower) * rng.uniform(size=shape))
    return piece.coordinate(piece.start) + _SPREAD * rng.standard_normal(shape)


def numbers_of(prior: Any) -> tuple[Any, ...]:
    """The numbers in a prior, where they can be told from its form."""
    if isinstance(prior, Distribution):
        return tuple(np.asarray(x, float) for x in vars(prior).values() if x is not None)
    leaves = jax.tree.leaves(prior)
    return tuple(np.asarray(x, float) for x in leaves) if _is_tree(prior) else ()


def with_numbers(prior: Any, numbers: tuple[Any, ...]) -> Any:
    """The same prior with other numbers."""
    if isinstance(prior, Distribution):
        rest = iter(numbers)
        given = {k: None if v is None else next(rest) for k, v in vars(prior).items()}
        return unchecked(type(prior), given)
    if _is_tree(prior):
        return jax.tree.unflatten(jax.tree.structure(prior), numbers)
    return prior


def _is_tree(prior: Any) -> bool:
    """Whether JAX sees into it: NumPyro's distributions."""
    return prior is not None and not jax.tree_util.all_leaves([prior])
