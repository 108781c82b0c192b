"""Members that are solved side by side: what they have in common, and the arrays of each."""

from typing import Any, NamedTuple

import numpy as np

from probode.engines.native.members import Bars
from probode.engines.native.tape import Tape
from probode.filter.control import PControl, PIControl
from probode.filter.start import DiffuseStart, SlopeStart, TaylorStart
from probode.filter.step import Method
from probode.model.prior import IWP
from probode.model.structure import BlockDiagonal, Dense

_FOLLOWS = {"none": 0, "diagonal": 1, "full": 2}

_HEAD = 18
"""Numbers before the tables of a scheme: see ``struct Scheme`` of ``src/transport.hpp``."""

_WINDOWS = 4
"""Numbers after them: the lengths of the windows of ``struct Windows``."""

NO_ROOM = -99.0
"""The status of members that took more steps than there was memory to look back over."""


class Sizes(NamedTuple):
    """As ``SizesOf`` of ``src/abreast/sizes.hpp`` lists them."""

    n: int
    width: int
    d: int
    blocks: int
    follows: int
    fixed: bool
    multivariate: bool
    damped: bool
    twice: bool
    integral: bool
    smoothed: bool
    only_end: bool
    calibrated: bool
    covariance: bool
    carried: int = 0
    stages: int = 1
    contact: int = 1
    rounds: int = 1
    middle: int = 0
    pairs: int = 1

    @property
    def block(self) -> int:
        """Columns of the factor of a block."""
        return self.n * self.width

    @property
    def kept(self) -> int:
        """Numbers that are kept of a step, to be smoothed: ``Kept`` of ``src/abreast/kept.hpp``."""
        w, above = self.width, self.block - 2 * self.width
        scales = self.d if self.multivariate and not self.fixed else 1
        triangle = self.block * w - w * (w - 1) // 2 + above * (above + 1) // 2
        link = self.block * (self.block - w) + w * self.block
        slopes = (0, self.d, self.d**2)[self.follows]
        return 2 + scales + (self.n + 1) * self.d + self.blocks * (triangle + link) + slopes

    @property
    def noted(self) -> int:
        """Numbers that are noted at a save point: ``noted_width`` of ``src/abreast/bars.hpp``."""
        return 2 * self.d + 4 if self.calibrated else 0


class Lists(NamedTuple):
    """Programs as operations; ``slopes`` (f and its Jacobian) where a step reads a Jacobian."""

    start: Tape
    value: Tape
    slopes: Tape | None


class Own(NamedTuple):
    """Numbers that each member has of its own, and where they are among those of the start."""

    places: np.ndarray
    numbers: np.ndarray
    """``(B, own)``."""
    of_field: int
    """Below this place they are the vector field's, and at the same places in all lists."""


class Problem(NamedTuple):
    """What is to be solved."""

    sizes: Sizes
    prior: np.ndarray
    """Transition, noise factor and weights of the prior."""
    scheme: np.ndarray
    """Tables of the transport; empty: the model's error bars."""
    options: np.ndarray
    """As ``struct Options`` of ``src/abreast/given.hpp`` reads them."""
    lists: Lists
    numbers: tuple[np.ndarray, np.ndarray, np.ndarray]
    """What the lists read: those of the first member."""
    own: Own
    t0: np.ndarray
    t1: np.ndarray
    y0: np.ndarray
    rtol: np.ndarray
    atol: np.ndarray
    """``(B, 1)`` or ``(B, d)``, or one row for all members; the times ``(B, 1)`` or ``(1, 1)``."""
    save_at: np.ndarray
    """``(B, T)`` or ``(1, T)``."""
    members: int
    """How many there are."""

    def arrays(self) -> dict[str, np.ndarray]:
        """What each member has, in the order of ``struct Given`` of ``src/abreast/given.hpp``."""
        times = {"t0": self.t0, "t1": self.t1, "y0": self.y0}
        tolerances = {"rtol": self.rtol, "atol": self.atol}
        return {**times, **tolerances, "numbers": self.own.numbers, "save_at": self.save_at}


def lacks(method: Method, initialization: Any, control: Any) -> str | None:
    """What keeps members with such a method from being solved side by side; ``None``: nothing."""
    if type(control) not in (PControl, PIControl) or control.stops is not None:
        return "this control of the steps"
    if not method.is_ours or method.equation.order > 1 or method.diffusion.needs_innovation:
        return "this solver"
    if method.error != "residual":
        return "steps that are linearised again"
    if method.evaluations != 1 and (method.jacobian != "none" or type(method.structure) is Dense):
        return "a second evaluation of f with so large blocks of the covariance"
    if type(initialization) not in (TaylorStart, DiffuseStart, SlopeStart):
        return "starts in which y' is not known"
    return None


def sizes_of(
    method: Method,
    control: PControl,
    bars: Bars | None,
    *,
    smoothed: bool,
    only_end: bool,
    covariance: bool,
) -> Sizes:
    """Sizes and kinds that members with this method have in common."""
    structure, diffusion = method.structure, method.diffusion
    dense, blocks = type(structure) is Dense, type(structure) is BlockDiagonal
    sizes = Sizes(
        structure.n,
        structure.d if dense else 1,
        structure.d,
        structure.d if blocks else 1,
        _FOLLOWS[method.jacobian],
        diffusion.fixed,
        diffusion.multivariate,
        diffusion.remembers,
        method.evaluations == 2,
        isinstance(control, PIControl),
        smoothed,
        only_end,
        bars is not None,
        covariance,
    )
    if bars is None:
        return sizes
    kind, _, stages, contact, rounds, middle, pairs = bars.table[:7].astype(int).tolist()
    return sizes._replace(
        carried=kind, stages=stages, contact=contact, rounds=rounds, middle=middle, pairs=pairs
    )


def tables_of(method: Method, bars: Bars | None) -> tuple[np.ndarray, np.ndarray]:
    """Tables of the prior, and of the transport."""
    prior = method.prior
    assert isinstance(prior, IWP)
    tables = [prior.transition().ravel(), prior.noise_factor().ravel(), prior.weights]
    return np.concatenate(tables), np.zeros(0) if bars is None else bars.table[_HEAD:-_WINDOWS]


def options_of(control: PControl, bars: Bars | None, max_steps: float) -> np.ndarray:
    """The control of the steps and of the transport, as ``struct Options`` reads them."""
    steps = [control.rho, control.eta_min, control.eta_max, control.min_step, control.max_step]
    steps += [control.integral, control.proportional] if isinstance(control, PIControl) else [0, 0]
    transport = [1.0] * (_HEAD - 7 + 2 + _WINDOWS)
    if bars is not None:
        limits, windows = bars.table[7:_HEAD], bars.table[-_WINDOWS:]
        transport = [*limits, bars.harmless, bars.doubt, *windows]
    return np.array([*steps, max_steps, *transport], float)
