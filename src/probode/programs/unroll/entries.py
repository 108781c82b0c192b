"""Numbers of many members at once: arithmetic that knows its constants.

An *entry* is one scalar of a small matrix. It is an array over the members (all of one shape), a
:class:`Symbol` where the program is only written down, or a Python number where it is known and the
same for all of them. Products with a zero and sums with one are not computed: known zeros of a
factor or a Jacobian cost nothing.
"""

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from math import inf, prod, sqrt
from typing import Any

import jax
import numpy as np
from jax import lax

from probode.base.jax_inside import those

Entry = Any
"""A Python number, an array over the members, or a symbol."""

_NUMBERS = frozenset((float, int, bool))


NOT_ROUNDED = frozenset(("neg", "abs", "max", "min", "sign", "select_n", "stop_gradient"))
"""Operations whose results are among their operands, but for a sign: the same in any precision."""

ABSENT: Any = object()
"""Stands for a number that was not computed: it can be passed on, but not used."""


class Unsupported(Exception):
    """A program that cannot be written on lanes."""


class Symbol:
    """A number that is not computed: operations on it are written down by who made it."""

    __slots__ = ("dtype",)
    shape = ()

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype

    def operation(
        self, name: str, operands: Sequence[Entry], given: Sequence[Any], dtype: Any, params: Any
    ) -> "Symbol":
        """An operation of JAX's, of these operands of the types ``given``; its result of ``dtype``.

        One of the operands is this symbol; those that are numbers are known.
        """
        raise NotImplementedError


def apply(name: str, *operands: Entry) -> Entry:
    """An operation of ``jax.lax``; its operands have one type (but for the condition of a choice).

    The known ones among them are numbers where the others are symbols.
    """
    symbols = [x for x in operands if isinstance(x, Symbol)]
    if not symbols:
        return getattr(lax, name)(*operands)
    if name == "select":
        condition, yes, no = operands
        kind = next((x.dtype for x in (yes, no) if isinstance(x, Symbol)), _type_of(yes))
        return symbols[0].operation("select_n", (condition, no, yes), [_BOOL, kind, kind], kind, {})
    kind = symbols[0].dtype
    result = _BOOL if name in _COMPARISONS else kind
    return symbols[0].operation(name, operands, [kind] * len(operands), result, {})


_BOOL = np.dtype(bool)
_COMPARISONS = those("compares")


def _type_of(number: Any) -> Any:
    return np.asarray(number).dtype


@dataclass(frozen=True)
class Lanes:
    """A small array whose entries are spread over members: its shape, its entries in C order."""

    shape: tuple[int, ...]
    entries: list[Entry]

    def __post_init__(self) -> None:
        assert len(self.entries) == prod(self.shape)

    def __getitem__(self, at: int | tuple[int, ...]) -> Entry:
        """One entry."""
        index = (at,) if isinstance(at, int) else at
        flat = 0
        for i, size in zip(index, self.shape, strict=True):
            flat = flat * size + i
        return self.entries[flat]

    @property
    def rows(self) -> list[list[Entry]]:
        """The entries of a matrix, row by row (of an array: along its last axis)."""
        width = self.shape[-1]
        return [self.entries[i : i + width] for i in range(0, len(self.entries), width)]


Value = np.ndarray | Lanes
"""Known numbers, or numbers that differ between members."""


def as_lanes(value: Value) -> Lanes:
    """Known numbers as entries."""
    if isinstance(value, Lanes):
        return value
    return Lanes(value.shape, value.reshape(-1).tolist())


def scalar(entry: Entry) -> Lanes:
    """An array without axes."""
    return Lanes((), [entry])


def constant(x: Entry) -> bool:
    """Whether an entry is the same for all members, and known."""
    if type(x) in _NUMBERS:
        return True
    if x is ABSENT:
        raise Unsupported("a result that is not computed on lanes")
    return not isinstance(x, Symbol | jax.Array)


def zero(x: Entry) -> bool:
    """Whether an entry is known to be zero."""
    return constant(x) and x == 0


def add(a: Entry, b: Entry) -> Entry:
    """``a + b``."""
    if zero(a):
        return b
    if zero(b):
        return a
    return a + b if constant(a) and constant(b) else apply("add", a, b)


def sub(a: Entry, b: Entry) -> Entry:
    """``a - b``."""
    if zero(b):
        return a
    if zero(a):
        return neg(b)
    return a - b if constant(a) and constant(b) else apply("sub", a, b)


def neg(a: Entry) -> Entry:
    """``-a``."""
    return -a if constant(a) else apply("neg", a)


def mul(a: Entry, b: Entry) -> Entry:
    """``a b``."""
    if constant(a) and constant(b):
        return a * b
    if constant(b):
        a, b = b, a
    if constant(a):
        if a == 0:
            return 0.0
        if a == 1:
            return b
        if a == -1:
            return apply("neg", b)
    return apply("mul", a, b)


def div(a: Entry, b: Entry) -> Entry:
    """``a / b``."""
    if constant(a) and constant(b):
        return a / b
    if zero(a):
        return 0.0
    like = b if constant(a) else a
    return apply("div", full(a, like, b), full(b, like, a))


def dot(xs: Iterable[Entry], ys: Iterable[Entry]) -> Entry:
    """``Σ x y``."""
    total: Entry = 0.0
    for x, y in zip(xs, ys, strict=True):
        total = add(total, mul(x, y))
    return total


def total(xs: Iterable[Entry]) -> Entry:
    """``Σ x``."""
    result: Entry = 0.0
    for x in xs:
        result = add(result, x)
    return result


def root(x: Entry) -> Entry:
    """``sqrt(x)``."""
    return sqrt(x) if constant(x) else apply("sqrt", x)


def square(x: Entry) -> Entry:
    """``x²``."""
    return mul(x, x)


def absolute(x: Entry) -> Entry:
    """``|x|``."""
    return abs(x) if constant(x) else apply("abs", x)


def largest(a: Entry, b: Entry) -> Entry:
    """``max(a, b)``; NaN wins."""
    return max(a, b) if constant(a) and constant(b) else apply("max", a, b)


def smallest(a: Entry, b: Entry) -> Entry:
    """``min(a, b)``; NaN wins."""
    return min(a, b) if constant(a) and constant(b) else apply("min", a, b)


def choose(condition: Entry, yes: Entry, no: Entry) -> Entry:
    """``yes`` where the condition holds, ``no`` elsewhere."""
    if constant(condition):
        return yes if condition else no
    if yes is no or (constant(yes) and constant(no) and yes == no):
        return yes
    return apply("select", condition, full(yes, condition, no), full(no, condition, yes))


def full(x: Entry, like: Entry, kind: Entry = 0.0) -> Entry:
    """An entry as an array over the members, of the type of ``kind`` if it is a constant.

    Next to a symbol constants stay what they are.
    """
    if isinstance(like, Symbol) or not constant(x):
        return x
    return lax.full(like.shape, x, kind.dtype if not constant(kind) else type(x))


def reciprocal(x: Entry, safe: bool = False) -> Entry:
    """``1 / x``; if ``safe``, zero has the reciprocal zero."""
    if constant(x):
        return 0.0 if safe and x == 0 else 1.0 / x
    if not safe:
        return apply("div", full(1.0, x, x), x)
    none = equal(x, 0.0)
    return choose(none, 0.0, apply("div", full(1.0, x, x), choose(none, 1.0, x)))


multiplies = ContextVar("multiplies", default=False)
"""Whether a reflection divides once and multiplies, instead of dividing for each column.

A GPU is faster so. XLA on the CPU repeats products and sums wherever they are used rather than
store them, over and over along a decomposition; a quotient it stores.
"""


def reflect(
    matrix: list[list[Entry]], pivot: int, below: Sequence[int], column: int, columns: Sequence[int]
) -> None:
    """One Householder reflection: zero ``column`` in the rows ``below`` the row ``pivot``.

    ::

        x = (W[pivot], W[below])[column],  α = -sign(x_0) |x|,  v = x - α e_0
        W ← W + v vᵀW / (α v_0)

    applied in place to ``columns`` as well. Rows whose entry is known to be zero are not touched,
    and a column that is zero is left alone.
    """
    rows = [i for i in below if not zero(matrix[i][column])]
    if not rows:
        return
    first = matrix[pivot][column]
    norm = root(total(square(matrix[i][column]) for i in [pivot, *rows]))
    alpha = choose(greater(first, 0.0), neg(norm), norm)
    v = [sub(first, alpha), *(matrix[i][column] for i in rows)]
    size = mul(alpha, v[0])
    size = choose(equal(size, 0.0), inf, size)
    inverse = reciprocal(size) if multiplies.get() else None
    rows = [pivot, *rows]
    for c in columns:
        weight = dot(v, (matrix[i][c] for i in rows))
        if zero(weight):
            continue
        weight = div(weight, size) if inverse is None else mul(weight, inverse)
        for x, i in zip(v, rows, strict=True):
            matrix[i][c] = add(matrix[i][c], mul(weight, x))
    matrix[pivot][column] = alpha
    for i in rows[1:]:
        matrix[i][column] = 0.0


def as_type(x: Entry, dtype: Any) -> Entry:
    """An entry as a number of another type."""
    if constant(x) or x.dtype == dtype:
        return x
    if isinstance(x, Symbol):
        return x.operation("convert_element_type", (x,), [x.dtype], dtype, {"new_dtype": dtype})
    return lax.convert_element_type(x, dtype)


def greater(a: Entry, b: Entry) -> Entry:
    """``a > b``."""
    return compare("gt", lambda a, b: a > b, a, b)


def equal(a: Entry, b: Entry) -> Entry:
    """``a == b``."""
    return compare("eq", lambda a, b: a == b, a, b)


def compare(name: str, known: Callable[[Any, Any], bool], a: Entry, b: Entry) -> Entry:
    """A comparison, known if both sides are."""
    if constant(a) and constant(b):
        return known(a, b)
    like = b if constant(a) else a
    return apply(name, full(a, like, b), full(b, like, a))


def triangular(matrix: list[list[Entry]], columns: int) -> list[list[Entry]]:
    """``R`` of the QR decomposition: upper triangular, ``min(rows, columns)`` rows."""
    matrix = [list(row) for row in matrix]
    for c in range(min(columns, len(matrix))):
        reflect(matrix, c, range(c + 1, len(matrix)), c, range(c + 1, columns))
    return matrix[:columns]


def solve_triangular(
    matrix: list[list[Entry]], rhs: list[list[Entry]], *, upper: bool
) -> list[list[Entry]]:
    """``x`` with ``matrix x = rhs``, by substitution; an infinite pivot gives a zero."""
    order = range(len(matrix))
    solution: dict[int, list[Entry]] = {}
    for i in reversed(order) if upper else order:
        known = sorted(solution)
        weights = [matrix[i][j] for j in known]
        solution[i] = [
            div(sub(b, dot(weights, (solution[j][p] for j in known))), matrix[i][i])
            for p, b in enumerate(rhs[i])
        ]
    return [solution[i] for i in order]
