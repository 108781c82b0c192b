"""What ``solve_ivp`` returns: SciPy's result with error bars, and continuous solutions."""

from math import prod
from typing import Any, NamedTuple

import numpy as np

from probode.posterior.posterior import Posterior


class OdeResult(dict[str, Any]):
    """SciPy's result of ``solve_ivp``, with error bars: a dictionary whose keys are attributes too.

    Besides SciPy's fields: ``y_std`` of shape ``(n, n_points)`` (of the size of the global error,
    unless ``calibration="model"``), ``y_cov`` of shape ``(n_points, n, n)`` (computed when asked
    for), ``t_events_std``, ``posterior``, and ``path``:
    how the function was evaluated ("jax", "numpy", "scalars": compiled; "python": step by step).

    Of an equation of second order a state is ``(y, y')``: ``n`` counts both, values on top.
    Of complex states ``y_cov`` is ``E[(y - m)(y - m)ᴴ]`` and ``y_std`` the square root of its
    diagonal; ``posterior`` holds the real form ``(Re y, Im y)``, whose covariance ``(2n, 2n)`` has
    ``E[(y - m)(y - m)ᵀ]`` in it too.
    """

    def __missing__(self, key: str) -> Any:
        if key == "y_cov" and "posterior" in self:
            posterior: Posterior = self["posterior"]
            t = np.asarray(self["t"], float)
            twice = bool(np.any(np.diff(t) == 0.0))  # before and after a jump
            at = posterior.state(None if twice and np.array_equal(t, posterior.t) else t)
            self["y_cov"] = Embedding.of(posterior).covariances(at.cov)
            return self["y_cov"]
        raise KeyError(key)

    def plot(self, **options: Any) -> Any:
        """Draw ``posterior.plot(**options)`` and mark the events; return the figure (or ``ax``)."""
        from probode.posterior.plotting import mark_events

        drawn = self["posterior"].plot(**options)
        if self["t_events"] is not None:
            ax = options.get("ax") or drawn.axes[0]
            mark_events(ax, self["t_events"], self["t_events_std"])
        return drawn

    def plot_interactive(self, **options: Any) -> Any:
        """Draw ``posterior.plot_interactive(**options)`` and mark the events; return the figure."""
        from probode.posterior.interactive import mark_events

        drawn = self["posterior"].plot_interactive(**options)
        if self["t_events"] is None:
            return drawn
        return mark_events(drawn, self["t_events"], self["t_events_std"])

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        del self[name]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self]

    def __repr__(self) -> str:
        """How it ended, then what was computed: long arrays by their first and last entries."""
        keys = dict.fromkeys([key for key in ("message", "success", "status") if key in self])
        width = 1 + max(map(len, self), default=0)
        with np.printoptions(precision=3, threshold=10, linewidth=76 - width):
            rows = ((key, str(self[key])) for key in (keys | self))
            return "\n".join(
                f"{key:>{width}}: {text.replace(chr(10), chr(10) + ' ' * (width + 2))}"
                for key, text in rows
            )


class Solution:
    """Dense output: ``sol(t)`` is the mean, as in SciPy, with ``sol.std(t)`` and ``sol.cov(t)``.

    Outside the interval it is the prediction of the prior, with a growing standard deviation.
    """

    def __init__(self, posterior: Posterior, embedding: "Embedding", ts: np.ndarray) -> None:
        self.posterior, self._embedding, self.ts = posterior, embedding, ts
        self.t_min, self.t_max = float(np.min(ts)), float(np.max(ts))
        self.n_segments = max(len(ts) - 1, 0)

    def __call__(self, t: Any) -> np.ndarray:
        """Posterior mean, shape ``(n,)`` for one time or ``(n, n_points)``."""
        mean, _ = state_at(self.posterior, np.asarray(t, float))
        return np.moveaxis(self._embedding.values(mean), -1, 0)

    def std(self, t: Any) -> np.ndarray:
        """Posterior standard deviation, shape ``(n,)`` or ``(n, n_points)``."""
        _, std = state_at(self.posterior, np.asarray(t, float))
        return np.moveaxis(self._embedding.stds(std), -1, 0)

    def cov(self, t: Any) -> np.ndarray:
        """Posterior covariance, shape ``(n, n)`` or ``(n_points, n, n)``."""
        return self._embedding.covariances(self.posterior.state(np.asarray(t, float)).cov)

    def sample(self, n: int = 1, *, seed: Any = 0, t: Any = None) -> np.ndarray:
        """Joint samples, each of the shape of ``sol(t)``; by default at the steps taken.

        The shape is ``(n_samples, n)`` for one time or ``(n_samples, n, n_points)``.
        """
        order = self.posterior.method.equation.order
        parts = [self.posterior.sample(n, seed=seed, t=t, k=k) for k in range(order)]
        drawn = np.concatenate(parts, axis=-1)
        return np.moveaxis(self._embedding.values(drawn), -1, 1)


class Constant:
    """Dense output where nothing was integrated: the initial value, with certainty."""

    def __init__(self, y: np.ndarray, ts: np.ndarray) -> None:
        self._y, self.ts = y, ts
        self.t_min, self.t_max = float(np.min(ts)), float(np.max(ts))
        self.n_segments = 1

    def __call__(self, t: Any) -> np.ndarray:
        """The value, repeated."""
        return np.multiply.outer(self._y, np.ones(np.shape(t)))

    def std(self, t: Any) -> np.ndarray:
        """Zero."""
        return np.zeros(np.shape(self(t)))

    def cov(self, t: Any) -> np.ndarray:
        """Zero."""
        return np.zeros((*np.shape(t), self._y.size, self._y.size), self._y.dtype)

    def sample(self, n: int = 1, *, seed: Any = 0, t: Any = None) -> np.ndarray:
        """The value, repeated."""
        return np.repeat(self(self.ts if t is None else t)[None], n, axis=0)


class Embedding(NamedTuple):
    """States as the user writes them, in real form: complex ones as ``(Re y, Im y)``.

    Of an equation of order ``k`` a state has ``y, ..., y^(k-1)`` one after the other, each in its
    real form. For real states nothing happens.
    """

    n: int
    """Components of ``y``."""
    is_complex: bool
    order: int = 1

    @staticmethod
    def of(posterior: Posterior) -> "Embedding":
        """That of a finished solve."""
        size = posterior.shape[0]
        n = size // 2 if posterior.is_complex else size
        return Embedding(n, posterior.is_complex, posterior.method.equation.order)

    @property
    def size(self) -> int:
        """Numbers in a state as the user writes it."""
        return self.order * self.n

    @property
    def d(self) -> int:
        """Numbers in the real form of ``y``."""
        return 2 * self.n if self.is_complex else self.n

    def flatten(self, y: np.ndarray) -> np.ndarray:
        """Real form of a state."""
        if not self.is_complex:
            return y
        parts = np.split(y, self.order)
        return np.concatenate([half for part in parts for half in (part.real, part.imag)])

    def repeated(self, x: np.ndarray) -> np.ndarray:
        """Numbers for the components of a state (or of ``y``), for those of its real form."""
        if x.ndim == 0:
            return x
        x = np.tile(x, self.size // x.size)
        parts = np.split(x, self.order)
        return np.concatenate([np.tile(part, 2) for part in parts]) if self.is_complex else x

    def parts(self, u: Any) -> list[Any]:
        """``y, ..., y^(k-1)`` as the user writes them, from the real form of a state."""
        found = [u[i * self.d : (i + 1) * self.d] for i in range(self.order)]
        n = self.n
        return [y[:n] + 1j * y[n:] for y in found] if self.is_complex else found

    def values(self, y: Any) -> Any:
        """States from their real form; the last axis holds components."""
        if not self.is_complex:
            return y
        halves = self._halves(y)
        return (halves[..., 0, :] + 1j * halves[..., 1, :]).reshape(*y.shape[:-1], y.shape[-1] // 2)

    def stds(self, std: Any) -> Any:
        """Standard deviations of ``|y - mean|``."""
        if not self.is_complex:
            return std
        halves = self._halves(std)
        return np.hypot(halves[..., 0, :], halves[..., 1, :]).reshape(
            *std.shape[:-1], std.shape[-1] // 2
        )

    def _halves(self, x: Any) -> Any:
        """Real and imaginary parts apart: ``(..., k, 2, n)``."""
        return x.reshape(*x.shape[:-1], x.shape[-1] // (2 * self.n), 2, self.n)

    def covariances(self, cov: Any) -> Any:
        """``E (y - m)(y - m)ᴴ``."""
        if not self.is_complex:
            return cov
        k, n = self.order, self.n
        cut = cov.reshape(*cov.shape[:-2], k, 2, n, k, 2, n)
        rr, ii = cut[..., 0, :, :, 0, :], cut[..., 1, :, :, 1, :]
        ir, ri = cut[..., 1, :, :, 0, :], cut[..., 0, :, :, 1, :]
        return (rr + ii + 1j * (ir - ri)).reshape(*cov.shape[:-2], k * n, k * n)

    def jacobian(self, j: np.ndarray) -> np.ndarray:
        """Real form of a (complex differentiable) Jacobian, ``(n, k n)``."""
        if not self.is_complex:
            return j
        parts = np.split(j, self.order, axis=1)
        return np.concatenate(
            [np.block([[x.real, -x.imag], [x.imag, x.real]]) for x in parts], axis=1
        )


def state_at(posterior: Posterior, t: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations of states in real form, ``(..., k d)``."""
    at = posterior.state(t)
    mean, std = np.asarray(at.mean), np.asarray(at.std)
    order = posterior.method.equation.order
    times = mean.shape[: mean.ndim - len(posterior.shape) - (order > 1)]
    whole = (*times, order * prod(posterior.shape))
    return mean.reshape(whole), std.reshape(whole)
