"""What ``solve_ivp`` returns: SciPy's result with error bars, and continuous solutions."""

from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import OptimizeResult

from probode.posterior.posterior import Posterior


class OdeResult(OptimizeResult):
    """SciPy's result of ``solve_ivp``, with error bars.

    Besides SciPy's fields: ``y_std`` of shape ``(n, n_points)`` (of the size of the global error,
    unless ``calibration="model"``), ``y_cov`` of shape ``(n_points, n, n)`` (computed when asked
    for), ``t_events_std``, ``posterior``, and ``path``:
    how the function was evaluated ("jax", "numpy", "scalars": compiled; "python": step by step).

    Of complex states ``y_cov`` is ``E[(y - m)(y - m)ᴴ]`` and ``y_std`` the square root of its
    diagonal; ``posterior`` holds the real form ``(Re y, Im y)``, whose covariance ``(2n, 2n)`` has
    ``E[(y - m)(y - m)ᵀ]`` in it too.
    """

    def __missing__(self, key: str) -> Any:
        if key == "y_cov" and "posterior" in self:
            posterior: Posterior = self["posterior"]
            at = posterior(np.asarray(self["t"], float))
            self["y_cov"] = Embedding.of(posterior).covariances(at.cov)
            return self["y_cov"]
        raise KeyError(key)


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
        mean = self._embedding.values(self.posterior(np.asarray(t, float)).mean)
        return np.moveaxis(mean, -1, 0)

    def std(self, t: Any) -> np.ndarray:
        """Posterior standard deviation, shape ``(n,)`` or ``(n, n_points)``."""
        std = self._embedding.stds(self.posterior(np.asarray(t, float)).std)
        return np.moveaxis(std, -1, 0)

    def cov(self, t: Any) -> np.ndarray:
        """Posterior covariance, shape ``(n, n)`` or ``(n_points, n, n)``."""
        return self._embedding.covariances(self.posterior(np.asarray(t, float)).cov)

    def sample(self, n: int = 1, *, seed: Any = 0, t: Any = None) -> np.ndarray:
        """Joint samples, each of the shape of ``sol(t)``; by default at the steps taken.

        The shape is ``(n_samples, n)`` for one time or ``(n_samples, n, n_points)``.
        """
        drawn = self.posterior.sample(n, seed=seed, t=t)
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
    """Complex states as real ones: ``(Re y, Im y)``. For real states nothing happens."""

    n: int
    is_complex: bool

    @staticmethod
    def of(posterior: Posterior) -> "Embedding":
        """That of a finished solve."""
        size = posterior.shape[0]
        return Embedding(size // 2 if posterior.is_complex else size, posterior.is_complex)

    def flatten(self, y: np.ndarray) -> np.ndarray:
        """Real form of a state."""
        return np.concatenate([y.real, y.imag]) if self.is_complex else y

    def values(self, y: Any) -> Any:
        """States from their real form; the last axis holds components."""
        return y[..., : self.n] + 1j * y[..., self.n :] if self.is_complex else y

    def stds(self, std: Any) -> Any:
        """Standard deviations of ``|y - mean|``."""
        return np.hypot(std[..., : self.n], std[..., self.n :]) if self.is_complex else std

    def covariances(self, cov: Any) -> Any:
        """``E (y - m)(y - m)ᴴ``."""
        if not self.is_complex:
            return cov
        n = self.n
        re, im = cov[..., :n, :n] + cov[..., n:, n:], cov[..., n:, :n] - cov[..., :n, n:]
        return re + 1j * im

    def jacobian(self, j: np.ndarray) -> np.ndarray:
        """Real form of a (complex differentiable) Jacobian."""
        return np.block([[j.real, -j.imag], [j.imag, j.real]]) if self.is_complex else j
