"""What a posterior is made of besides its path: Gaussians, costs, the problem it belongs to."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from probode.base.in_double import as_one
from probode.base.precision import double_precision, on_host
from probode.base.record import record, static
from probode.model.gaussian import norm
from probode.model.structure import Structure
from probode.programs.stored import stored


@record
class Stats:
    """What a solve cost.

    Examples
    --------
    >>> import probode
    >>> stats = probode.solve_ivp(lambda t, y: -y, (0, 1), [1.0]).posterior.stats
    >>> bool(stats.steps == stats.accepted + stats.rejected)
    True
    """

    steps: Array | int
    """Steps attempted."""
    accepted: Array | int
    rejected: Array | int
    f_evaluations: Array | int
    """Evaluations of the vector field, those of the start included (Taylor mode: one per order)."""
    jacobian_evaluations: Array | int
    calibration_f_evaluations: Array | int = 0
    """Evaluations of the vector field by the calibration, not counted above."""
    calibration_jacobian_evaluations: Array | int = 0
    factorisations: Array | int = 0
    """Sparse ones, of SparseEK1; those of other solvers are part of every step."""
    path: str = static(default="jax")
    """How the vector field was evaluated: "jax" (as it is), "numpy" or "scalars" (a NumPy function,
    traced), "python" (called from Python)."""


@record
class Gaussian:
    """A Gaussian over ``y`` (or one of its derivatives), at one time or at several.

    Examples
    --------
    >>> import probode
    >>> posterior = probode.solve(lambda t, y: -y, (0, 1), 1.0)
    >>> at = posterior(0.5)
    >>> round(float(at.mean), 2), bool(at.std < 1e-3)
    (0.61, True)
    """

    mean: Array
    """Shape ``(*times, *shape)``."""
    columns: Array
    """Columns of the covariance's right factor, in the form of the solver's structure."""
    spread: Array
    """From a fixed diffusion: a factor for all standard deviations, or one per component."""
    structure: Structure = static()
    multivariate: bool = static()
    ratio: Array | None = None
    """Factors of the model's standard deviations, ``(*times, d)``, of a calibrated posterior."""
    own: Array | None = None
    """Standard deviations of components for which the model has none, ``(*times, d)``."""

    @property
    @as_one
    def std(self) -> Array:
        """Marginal standard deviations, in the shape of the mean."""
        xp: Any = np if on_host(self.columns) else jnp
        with double_precision():
            std = self.structure.std(self.columns)
            std = std * self._spread_over(std.ndim)
            if self.ratio is not None:
                std = xp.hypot(std * self.ratio, self.own)
            return std.reshape(self.mean.shape)

    @property
    def cov(self) -> Array:
        """Covariance of ``y`` flattened in C order: shape ``(*times, d, d)``.

        It holds squares, which beyond 1e154 are infinite; ``std`` is not.
        """
        return self.covariance_with(self)

    @as_one
    def covariance_with(self, other: "Gaussian") -> Array:
        """Covariances with another derivative at the same times; with itself: ``cov``."""
        structure = self.structure
        with double_precision():
            if other is self:
                covariance = structure.covariance(self.columns)
            else:
                covariance = structure.cross(self.columns, other.columns)
            ndim = covariance.ndim - 1
            covariance = (
                covariance * self._scale(ndim)[..., None] * other._scale(ndim)[..., None, :]
            )
            if self.own is not None and other is self:
                covariance = covariance + self.own[..., None] ** 2 * np.eye(self.own.shape[-1])
            return covariance

    def along(self, direction: np.ndarray) -> Any:
        """Rows of a factor of ``direction · y``, without what the model has no variance for."""
        return self.structure.along(self.columns, direction * self._scale(direction.ndim))

    def _scale(self, ndim: int) -> Array:
        """Factors of the model's standard deviations."""
        spread = self._spread_over(ndim)
        return spread if self.ratio is None else spread * self.ratio

    def project(self, direction: np.ndarray) -> Any:
        """Standard deviations of ``direction · y`` (flattened in C order), one per time."""
        weights = direction * self._spread_over(direction.ndim)
        if self.ratio is None:
            return self.structure.project(self.columns, weights)
        across = self.structure.project(self.columns, weights * self.ratio)
        assert self.own is not None
        return np.hypot(across, norm(direction * self.own))

    def _spread_over(self, ndim: int) -> Array:
        """``spread`` with axes for the times, between those of a batch and the components."""
        spread = self.spread if self.multivariate else self.spread[..., None]
        times = ndim - spread.ndim
        return spread.reshape((*spread.shape[:-1], *[1] * times, spread.shape[-1]))


@record
class Joint:
    """A Gaussian over ``y`` and some of its derivatives together, at one time or at several."""

    parts: tuple[Gaussian, ...]
    ndim: int = static()
    """Axes of ``y`` itself: the one of the derivatives is put before them."""

    @property
    def mean(self) -> Array:
        """Shape ``(*times, k, *shape)``."""
        return self._stacked([part.mean for part in self.parts])

    @property
    @as_one
    def std(self) -> Array:
        """Marginal standard deviations, in the shape of the mean."""
        return self._stacked([part.std for part in self.parts])

    @property
    @as_one
    def cov(self) -> Array:
        """Covariance of all derivatives, one after the other: shape ``(*times, k d, k d)``."""
        with double_precision():
            rows = [[one.covariance_with(other) for other in self.parts] for one in self.parts]
            xp: Any = np if on_host(rows[0][0]) else jnp
            return xp.concatenate([xp.concatenate(row, axis=-1) for row in rows], axis=-2)

    def project(self, direction: np.ndarray) -> Any:
        """Standard deviations of ``direction · (y, y', ...)``, one per time."""
        pairs = list(zip(self.parts, np.split(direction, len(self.parts), axis=-1), strict=True))
        rows = [part.along(each) for part, each in pairs]
        most = max(row.shape[-1] for row in rows)
        none = [(0, 0)] * (rows[0].ndim - 1)
        both: Any = sum(np.pad(row, [*none, (0, most - row.shape[-1])]) for row in rows)
        own = [norm(each * part.own) for part, each in pairs if part.own is not None]
        return norm(np.stack([norm(both.reshape(*direction.shape[:-1], -1)), *own]), 0)

    @as_one
    def _stacked(self, values: list[Array]) -> Array:
        xp: Any = np if on_host(values[0]) else jnp
        with double_precision():
            return xp.stack(values, axis=values[0].ndim - self.ndim)


@jax.tree_util.register_pytree_node_class
class Problem:
    """The vector field of a finished solve, for a later calibration.

    Not part of the values: functions on pytrees (``jit``, ``vmap``, ``tree.map``) leave it behind.
    Pickled, a traced field goes along by value (:mod:`probode.programs.stored`), one that only
    Python can evaluate by the names of its functions; where neither is possible, the reason does.

    Parameters
    ----------
    field
        The vector field; ``None``: not known.
    again
        Makes a field that cannot be stored by value, from functions that pickle knows by name.
    repeat
        Solves the problem once more: of a posterior and a part of its tolerances it makes another
        posterior, whose values are known at the times of the first. It has the arguments of the
        user's call, and is not pickled. ``None``: it cannot be done, see ``lost``.
    """

    def __init__(
        self,
        field: Any = None,
        notes: tuple[str, ...] = (),
        switches: Any = None,
        look: Any = None,
        again: Callable[[], Any] | None = None,
        repeat: Callable[[Any, float], Any] | None = None,
    ) -> None:
        self._field, self._again, self.repeat = field, again, repeat
        self._stored: Any = None
        self.lost = "it was loaded from a file, or went through jit, vmap or tree.map"
        """Why there is no field, if there is none."""
        self.notes = notes
        """What was done otherwise than asked for, and why, in words."""
        self.switches = switches
        """When the field switches (:class:`probode.programs.switches.Switches`), if known."""
        self.look = look
        """What was seen between the steps (:class:`probode.global_error.between.Look`)."""

    located: Any = None
    """Its events (:class:`probode.posterior.events.Located`); ``None``: not located yet."""
    said: tuple[str, ...] = ()
    """Those notes that a result of ``solve_ivp`` has in its message."""

    def noted(self, text: str) -> "Problem":
        """The same with something more to say of it."""
        found = copy.copy(self)
        found.notes, found.said = (*self.notes, text), (*self.said, text)
        return found

    def seen(self, look: Any) -> "Problem":
        """The same after a look between the steps."""
        found = copy.copy(self)
        found.look = look
        return found

    def with_events(self, located: Any) -> "Problem":
        """Return a copy with its events."""
        found = copy.copy(self)
        found.located = located
        return found

    def repeated_by(self, repeat: Callable[[Any, float], Any]) -> "Problem":
        """The same with what solves it once more."""
        found = copy.copy(self)
        found.repeat = repeat
        return found

    @property
    def field(self) -> Any:
        """The vector field, put together now if it was stored; ``None`` if it is lost."""
        if self._field is None and self._stored is not None:
            try:
                self._field = pickle.loads(self._stored)()
            except Exception as error:  # another version of JAX, or a function that is not there
                self._stored = None
                self.lost = f"it was pickled, and here its function cannot be loaded: {error}"
        return self._field

    def __getstate__(self) -> dict[str, Any]:
        content, lost = self._stored, self.lost
        if self._field is not None:
            try:
                content = pickle.dumps(self._again or stored(self._field).field)
            except Exception as error:  # pickle raises of all kinds
                lost = f"it was pickled, and its vector field cannot be: {error}"
                if self._again is not None:
                    lost += ". What only Python can evaluate must be defined in a module"
        seen = {"notes": self.notes, "switches": self.switches, "look": self.look}
        seen["said"] = self.said
        return {"_stored": content, "lost": lost, **seen}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._field = self._again = self.repeat = None
        self.__dict__.update(state)

    def __copy__(self) -> "Problem":
        made = Problem(self._field, self.notes, self.switches, self.look, self._again, self.repeat)
        made._stored, made.lost, made.said = self._stored, self.lost, self.said
        made.located = self.located
        return made

    def __deepcopy__(self, memo: Any) -> "Problem":
        return self

    def tree_flatten(self) -> tuple[tuple[()], None]:
        """Nothing inside."""
        return (), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[()]) -> "Problem":
        """An empty one."""
        return cls()
