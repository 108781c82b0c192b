"""The update of a step on lanes: the one QR of :func:`probode.filter.step.update`, written out.

After an update the slopes follow from the values (``R Hᵀ = 0``), so a factor has no rows for y',
and y' needs no columns of its own in the triangular part: the formulation of the native kernels.
"""

from dataclasses import dataclass

import numpy as np

from probode.filter.step import UNRESOLVED, Method
from probode.model.prior import IWP
from probode.model.structure import BlockDiagonal, Dense
from probode.programs.unroll import entries as e
from probode.programs.unroll.entries import Entry, Lanes

EPSILON = float(np.finfo(float).eps)


@dataclass(frozen=True)
class Cut:
    """How a structure's factor falls into blocks, of ``width`` components each."""

    n: int
    d: int
    width: int
    blocks: int
    jacobian: str

    @staticmethod
    def of(method: Method) -> "Cut":
        """The blocks of a method's structure."""
        structure = method.structure
        width = structure.d if isinstance(structure, Dense) else 1
        blocks = structure.d if isinstance(structure, BlockDiagonal) else 1
        return Cut(structure.n, structure.d, width, blocks, method.jacobian)

    @property
    def shared(self) -> bool:
        """Whether all components share one block."""
        return self.width * self.blocks < self.d

    @property
    def size(self) -> int:
        """Rows and columns of a block's factor."""
        return self.n * self.width

    def present(self, row: int, column: int) -> bool:
        """Whether an entry of a block's factor can differ from zero after an update."""
        w = self.width
        if w <= row < 2 * w:
            return False
        if w <= column < 2 * w:
            if self.jacobian == "none" or row >= w:
                return False
            return self.jacobian == "full" or column - w >= row
        return column >= row

    def pattern(self) -> list[bool]:
        """Which entries of a whole factor can differ from zero."""
        block = [self.present(r, c) for r in range(self.size) for c in range(self.size)]
        return block * self.blocks


@dataclass(frozen=True)
class Moved:
    """Mean and factor after an update, and ``Σ w²`` of the whitened residual, component-wise."""

    mean: Lanes
    factor: Lanes
    whitened: list[Entry]
    gain: list[Entry]
    """``g`` of ``m = m⁻ - T g z``, ``(n, d)``, flat; for a second evaluation only."""


def condition(
    method: Method,
    factor: Lanes,
    change: list[Entry],
    coords: list[Entry],
    predicted: Lanes,
    z: Lanes,
    rounding: Lanes,
    negated: Lanes | None,
    scale: Lanes,
) -> Moved:
    """Condition a prediction on ``z = 0``, block by block.

    ``change`` takes the factor's coordinates to those of the step, ``coords`` are the step's.
    ``negated`` is ``-J``: the block of the values in the linearisation.
    """
    cut = Cut.of(method)
    n, d, w = cut.n, cut.d, cut.width
    mean = list(predicted.entries)
    gain: list[Entry] = [0.0] * (n * d)
    factors: list[Entry] = []
    whitened: list[Entry] = []
    for block in range(cut.blocks):
        mine = range(d) if cut.shared else range(block * w, (block + 1) * w)
        area = cut.size**2
        rows = Lanes((cut.size, cut.size), factor.entries[block * area : (block + 1) * area]).rows
        slopes = _times_jacobian(cut, e.mul(-1.0, coords[0]), negated, block)
        noise = None
        if not method.diffusion.fixed:
            noise = [rounding[k] for k in mine]
            if cut.shared:
                noise = [e.root(e.mul(1.0 / d, e.total(map(e.square, noise))))]
        scales = [scale.entries[0 if len(scale.entries) == 1 else k] for k in mine][:w]
        residual = [[z[k] for k in mine]] if cut.shared else [[z[k]] for k in mine]
        if method.evaluations == 2:
            residual = [[*row, 1.0] for row in residual]
        done = _condition_block(method, cut, rows, change, slopes, noise, scales, residual)
        for i in range(n):
            for k, component in enumerate(mine):
                at = (i, k) if cut.shared else (i * w + k, 0)
                step = e.mul(coords[i], done.correction[at[0]][at[1]])
                mean[i * d + component] = e.sub(mean[i * d + component], step)
                gain[i * d + component] = done.correction[at[0]][-1]  # that of the residual 1
        factors.extend(x for row in done.factor for x in row)
        whitened.extend(x for row in done.whitened for x in row[: len(mine)])
    factor = Lanes(method.structure.factor_shape, factors)
    return Moved(Lanes((n, d), mean), factor, whitened, gain)


@dataclass(frozen=True)
class _Slopes:
    """``c J``, as it acts on the values of a block."""

    matrix: list[list[Entry]] | None

    def of(self, values: list[Entry]) -> list[Entry]:
        """``c J y``."""
        if self.matrix is None:
            return [0.0] * len(values)
        return [e.dot(row, values) for row in self.matrix]


def _times_jacobian(cut: Cut, weight: Entry, negated: Lanes | None, block: int) -> _Slopes:
    w = cut.width
    if negated is None:
        return _Slopes(None)
    if len(negated.shape) == 2:
        return _Slopes([[e.mul(weight, x) for x in row] for row in negated.rows])
    diagonal = [e.mul(weight, negated[block * w + k]) for k in range(w)]
    return _Slopes([[diagonal[k] if k == j else 0.0 for j in range(w)] for k in range(w)])


@dataclass(frozen=True)
class _Conditioned:
    factor: list[list[Entry]]
    correction: list[list[Entry]]
    whitened: list[list[Entry]]


def _condition_block(
    method: Method,
    cut: Cut,
    factor: list[list[Entry]],
    change: list[Entry],
    slopes: _Slopes,
    noise: list[Entry] | None,
    scale: list[Entry],
    residual: list[list[Entry]],
) -> _Conditioned:
    """Condition a block, with the columns ``u = H x | y' | y | y'' | ... | y^(q)``.

    ::

        [ R Ãᵀ Hᵀ    R Ãᵀ    ]
        [ diag(r)    0       ]
        [ s R_Q Hᵀ   s R_Q   ]

    The columns of y' are rotated but not eliminated.
    """
    n, w, size = cut.n, cut.width, cut.size
    columns = size + w
    prior = method.prior
    assert isinstance(prior, IWP)
    transition, noise_factor = prior.transition().tolist(), prior.noise_factor().tolist()
    place = [2 * w, w, *((i + 1) * w for i in range(2, n))]

    def observed(states: list[list[Entry]]) -> list[Entry]:
        """A row of the stack from a row of a factor, derivative by derivative."""
        row: list[Entry] = [0.0] * columns
        for i, at in enumerate(place):
            row[at : at + w] = states[i]
        shifted = slopes.of(states[0])
        row[:w] = [e.sub(a, b) for a, b in zip(states[1], shifted, strict=True)]
        return row

    stack = []
    for r in [*range(w), *range(2 * w, size)]:
        old = [[e.mul(change[j], x) for x in factor[r][j * w : (j + 1) * w]] for j in range(n)]
        moved = [
            [e.total(e.mul(transition[i][j], old[j][k]) for j in range(i, n)) for k in range(w)]
            for i in range(n)
        ]
        stack.append(observed(moved))
    known = [e.total(e.square(row[a]) for row in stack) for a in range(w)]
    own_rows = [
        observed(
            [
                [
                    e.mul(scale[k], noise_factor[i][j]) if c == k and j >= i else 0.0
                    for c in range(w)
                ]
                for j in range(n)
            ]
        )
        for i in range(n)
        for k in range(w)
    ]
    own = [e.total(e.square(row[a]) for row in own_rows) for a in range(w)]
    blank = [e.equal(e.add(known[a], own[a]), 0.0) for a in range(w)]
    if noise is not None:
        for a in range(w):
            stack.append([0.0] * columns)
            stack[-1][a] = _observation_noise(noise[a], known[a], own[a], blank[a])
    stack.extend(own_rows)

    pivots = [*range(w), *range(2 * w, 3 * w), *range(3 * w, columns)]
    for row, column in enumerate(pivots):
        rest = [c for c in range(columns) if c not in pivots[: row + 1]]
        e.reflect(stack, row, range(row + 1, len(stack)), column, rest)

    whitened: list[list[Entry]] = []
    for a in range(w):
        inverse = e.reciprocal(stack[a][a], safe=True)
        column = [stack[b][a] for b in range(a)]
        whitened.append(
            [
                e.mul(e.sub(z, e.dot(column, (known[p] for known in whitened))), inverse)
                for p, z in enumerate(residual[a])
            ]
        )
    order = [c for at in place for c in range(at, at + w)]
    correction = [
        [e.dot((stack[a][c] for a in range(w)), weights) for weights in zip(*whitened, strict=True)]
        for c in order
    ]
    rows = [[0.0] * size for _ in range(size)]
    for r in [*range(w), *range(2 * w, size)]:
        from_stack = stack[w + r] if r < w else stack[r]
        for c in range(size):
            if cut.present(r, c):
                rows[r][c] = from_stack[order[c]]
        if r < w:
            rows[r][w : 2 * w] = slopes.of(rows[r][:w])
    counted = [[e.choose(blank[a], 0.0, x) for x in row] for a, row in enumerate(whitened)]
    return _Conditioned(rows, correction, counted)


def _observation_noise(rounding: Entry, known: Entry, own: Entry, blank: Entry) -> Entry:
    """A noise of rounding size; more where the step's own noise is lost in rounding."""
    noise = e.choose(blank, e.choose(e.equal(rounding, 0.0), 1.0, rounding), rounding)
    hidden = e.compare("lt", lambda a, b: a < b, own, e.mul(UNRESOLVED * UNRESOLVED, known))
    return e.largest(noise, e.choose(hidden, e.mul(UNRESOLVED, e.root(known)), 0.0))
