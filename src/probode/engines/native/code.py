"""Operations as ``src/tape.hpp`` reads them: one by one, or many of a kind at once."""

# fmt: off
OPERATIONS = (
    "add", "sub", "mul", "div", "multiply_add", "multiply_subtract", "subtract_product",
    "neg", "square", "sqrt", "root", "rsqrt", "abs", "max", "min", "select", "clamp",
    "lt", "le", "gt", "ge", "eq", "ne", "and", "or", "xor", "not",
    "exp", "exp2", "expm1", "log", "log1p", "pow", "logistic", "tanh", "sin", "cos", "tan",
    "sinh", "cosh", "asin", "acos", "atan", "atan2", "asinh", "acosh", "atanh", "cbrt", "erf",
    "erfc", "floor", "ceil", "round", "round_even", "sign", "rem",
)
# fmt: on
"""In the order of ``enum Operation`` of ``src/operations.hpp``."""

LANE = 4
"""Numbers that are computed at once: ``kLane`` of ``src/qr.hpp``."""

_CODES = {name: code for code, name in enumerate(OPERATIONS)}
_CONSECUTIVE, _SAME, _LISTED = range(3)

_ALONE, _GROUP, _MEMBER = 2.0, 5.0, 0.3
"""Nanoseconds that an operation takes more than in compiled code; a group, and each of its own."""

_POWER = 10.0
"""Nanoseconds that a root takes less than the power of a number that it stands for."""

Reads = tuple[int, ...]
"""The places that an operation reads."""


class Code:
    """Operations as they are added, and where their results go: places from ``free`` on.

    Sections follow each other: operations one by one, ``(count, place of the first result)`` and
    ``(operation, place, place, place)`` for each; then a group, ``(operation, count, place of the
    first result)``, how and from where each of three operands is read, and the places that are
    listed. At the end there is no group.

    ``excess``: about how many nanoseconds they take more than the code that XLA makes of them.
    """

    def __init__(self, free: int) -> None:
        self.numbers: list[int] = []
        self.groups = 0
        self.free = free
        self.excess = 0.0
        self._rows: list[int] = []

    def add(self, name: str, reads: list[Reads]) -> range:
        """The places of the results of operations of one kind."""
        if name == "root":
            self.excess -= len(reads) * _POWER
        if len(reads) == 1:
            self.excess += _ALONE
            self._rows += [_CODES[name], *reads[0], *[0] * (3 - len(reads[0]))]
            return self._take(1)
        self.excess += _GROUP + _MEMBER * len(reads)
        self._end_rows()
        self.free = _whole(self.free)
        self.numbers += [_CODES[name], len(reads), self.free, *_operands(reads)]
        self.groups += 1
        results = self._take(len(reads))
        self.free = _whole(self.free)
        return results

    def finished(self) -> list[int]:
        """All sections."""
        self._end_rows()
        return self.numbers

    def _take(self, count: int) -> range:
        self.free += count
        return range(self.free - count, self.free)

    def _end_rows(self) -> None:
        count = len(self._rows) // 4
        self.numbers += [count, self.free - count, *self._rows]
        self._rows = []


def _whole(count: int) -> int:
    """Rounded up to whole lanes."""
    return count + -count % LANE


def _operands(reads: list[Reads]) -> list[int]:
    how: list[int] = []
    listed: list[int] = []
    for places in zip(*reads, strict=True):
        if places == tuple(range(places[0], places[0] + len(places))):
            how += [_CONSECUTIVE, places[0]]
        elif len(set(places)) == 1:
            how += [_SAME, places[0]]
        else:
            how += [_LISTED, 0]
            listed += [*places, *[places[-1]] * (-len(places) % LANE)]
    unread = [_CONSECUTIVE, 0] * (3 - len(reads[0]))
    return [*how, *unread, *listed]
