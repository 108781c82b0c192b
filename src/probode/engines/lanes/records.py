"""What goes into an engine for ensembles, and what comes out."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int


@dataclass(frozen=True)
class Members:
    """The members of an ensemble: ``B`` initial value problems of one vector field.

    ``args`` are the parameters of the vector field (a tuple of trees of numbers and arrays).
    ``axes`` has an entry for each leaf of ``args``, in their order: 0 where the leaf has a leading
    axis over the members, ``None`` where all members share it. Tolerances are ``(B,)`` or
    ``(B, d)``; ``save_at`` is ``(B, T)``, or ``(T,)`` for all members, in the order of integration.
    ``y0`` is flat; ``shape`` is the one that the vector field expects, by default ``(d,)``.
    """

    t0: Float[np.ndarray, " B"]
    t1: Float[np.ndarray, " B"]
    y0: Float[np.ndarray, "B d"]
    rtol: np.ndarray
    atol: np.ndarray
    save_at: np.ndarray
    args: tuple[Any, ...] = ()
    axes: tuple[int | None, ...] = ()
    shape: tuple[int, ...] | None = None
    order: int = 1
    """Of the equation: above one, ``shape`` begins with it, for ``y, ..., y^(k-1)``."""
    slope: Float[np.ndarray, "B d"] | None = None
    """Guesses of ``y'``, of an implicit equation."""

    @property
    def reads(self) -> int:
        """How many arrays the vector field takes, of ``y`` and its derivatives."""
        return self.order if self.slope is None else 2

    @property
    def given(self) -> np.ndarray:
        """All that is given at the start, flat: ``y0``, with the guess of the slope after it."""
        return self.y0 if self.slope is None else np.concatenate([self.y0, self.slope], axis=1)

    @property
    def count(self) -> int:
        """How many members there are."""
        return int(self.y0.shape[0])

    @property
    def d(self) -> int:
        """Dimension of the state."""
        return int(self.y0.shape[1])

    @property
    def times(self) -> np.ndarray:
        """``save_at`` of every member, ``(B, T)``."""
        return np.broadcast_to(self.save_at, (self.count, self.save_at.shape[-1]))

    @property
    def only_end(self) -> bool:
        """Whether the final time is the only one wanted."""
        return self.save_at.shape[-1] == 1 and bool(np.all(self.times[:, 0] == self.t1))


COUNTS = ("steps", "accepted", "rejected", "f_evaluations", "jacobian_evaluations")
SIGN_COUNT = 4
"""Numbers by which the error bars of a member are judged, the last: whether they were lost."""


@dataclass(frozen=True)
class LaneResults:
    """What an engine returns: means and standard deviations at the save points, and counts.

    Save points that a member did not reach are NaN; ``status`` says why
    (:class:`probode.Status`).
    """

    mean: Float[np.ndarray, "B T d"]
    std: Float[np.ndarray, "B T d"]
    cov: Float[np.ndarray, "B T d d"] | None
    status: Int[np.ndarray, " B"]
    steps: Int[np.ndarray, " B"]
    accepted: Int[np.ndarray, " B"]
    rejected: Int[np.ndarray, " B"]
    f_evaluations: Int[np.ndarray, " B"]
    jacobian_evaluations: Int[np.ndarray, " B"]
    signs: Float[np.ndarray, "B 4"] | None = None
    """With calibrated error bars: what they are judged by
    (:data:`probode.global_error.diagnosis.SIGNS`), and one where the estimate was lost."""
