"""Operations of a program on numbers written down: each once, and only those that are needed."""

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from probode.base.jax_inside import those
from probode.engines.native.code import OPERATIONS, Code
from probode.engines.native.grouping import batches, groups
from probode.programs.unroll import Symbol, Unsupported
from probode.programs.unroll.entries import ABSENT, NOT_ROUNDED

_ONE_TO_ONE = frozenset(OPERATIONS) - {"select", "round", "round_even", "root"}
_PLAIN = _ONE_TO_ONE - {"pow"}
"""Operations that are written as they are, whatever they are of."""

_LARGEST_HALF = 3.5
_LEAVES = ("input", "constant")
_COMPARED = those("compares") | {"select_n"}


_FLOAT, _SINGLE, _BOOL = np.dtype(np.float64), np.dtype(np.float32), np.dtype(np.bool_)


def _as_doubles(name: str, given: Sequence[Any], dtype: Any) -> bool:
    """Whether an operation on numbers of these types is the same on doubles."""
    if name == "convert_element_type":
        whole = all(x.kind in "biu" for x in given)
        return dtype in (_FLOAT, _BOOL) or (whole and dtype.kind in "iu")
    if name in _COMPARED:
        return all(x.kind in "biu" or x in (_FLOAT, _SINGLE) for x in given)
    if name == "pow" and given[1].kind in "iu":  # whole exponents of doubles
        return dtype == given[0] == _FLOAT
    if name in NOT_ROUNDED and dtype == _SINGLE:
        return all(x == _SINGLE for x in given)
    return all(x in (_FLOAT, _BOOL) for x in (dtype, *given))


def _shifts(name: str, operands: Sequence[Any], dtype: Any) -> bool:
    """Whether a known number is added to an index: as on doubles, far from where it overflows."""
    known = any(type(x) is int and abs(x) < 2**31 for x in operands)
    return name in ("add", "sub") and dtype.kind == "i" and known


class _Number(Symbol):
    """A number of the program that is being written: where it stands in the list."""

    __slots__ = ("value", "writer")

    def __init__(self, writer: "Writer", value: int, dtype: Any) -> None:
        super().__init__(dtype)
        self.writer = writer
        self.value = value

    def operation(
        self, name: str, operands: Sequence[Any], given: Sequence[Any], dtype: Any, params: Any
    ) -> "_Number":
        """The result of an operation, which the list has from now on."""
        return self.writer.operation(name, operands, given, dtype, params)


class Writer:
    """Lists the operations of a program on scalars: each once, and only those that are needed.

    A value is a number: where ``(operation, value, ...)`` stands in the list of all that were seen.
    More than ``most`` of them are not written.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.seen: list[tuple[Any, ...]] = []
        self._known: dict[tuple[Any, ...], int] = {}
        self._numbers: dict[tuple[int, Any], _Number] = {}

    def value(self, *row: Any) -> int:
        """``(operation, value, ...)``, ``("input", index)`` or ``("constant", bytes)``."""
        found = self._known.get(row)
        if found is None:
            found = self._known[row] = len(self.seen)
            if found > self.most:
                raise Unsupported(f"more than {self.most} operations")
            self.seen.append(row)
        return found

    def constant(self, number: Any) -> int:
        """A known number; by its bytes, which tell zeros and NaNs apart."""
        return self.value("constant", struct.pack("d", number))

    def input(self, place: int, dtype: Any) -> _Number:
        """What is given in a place."""
        return self._number(self.value("input", place), dtype)

    def operation(
        self, name: str, operands: Sequence[Any], given: Sequence[Any], dtype: Any, params: Any
    ) -> _Number:
        """An operation of JAX's on numbers, known or written before, of the types ``given``."""
        doubles = dtype is _FLOAT and list(given).count(_FLOAT) == len(given)
        if not (doubles or _as_doubles(name, given, dtype) or _shifts(name, operands, dtype)):
            types = ", ".join(map(str, given))
            raise Unsupported(f"{name!r} of {types}, where kernels have float64")
        values = list(map(self._value_of, operands))
        return self._number(self._written(name, values, given, dtype, params), dtype)

    def _number(self, value: int, dtype: Any) -> _Number:
        """One object for each number, so that two uses of it are seen to be the same."""
        key = (value, dtype)
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = _Number(self, value, dtype)
        return found

    def _value_of(self, entry: Any) -> int:
        if isinstance(entry, _Number):
            return entry.value
        if entry is ABSENT:
            raise Unsupported("a result that was not computed")
        return self.constant(entry)

    def _written(
        self, name: str, operands: list[int], given: Sequence[Any], dtype: Any, params: Any
    ) -> int:
        if name in _PLAIN:
            return self.value(name, *operands)
        if name == "convert_element_type":
            if dtype == _BOOL and given[0] != _BOOL:
                return self.value("ne", operands[0], self.constant(0.0))
            return operands[0]
        if name == "integer_pow":
            return self._power(operands[0], params["y"])
        if name == "select_n" and given[0] == _BOOL and len(operands) == 3:
            return self.value("select", *operands)
        if name == "round":
            even = int(params["rounding_method"]) == 1
            return self.value("round_even" if even else "round", *operands)
        if name == "pow" and (exponent := self._known_half(operands[1])) is not None:
            return self._half_power(operands[0], exponent)
        if name not in _ONE_TO_ONE:
            raise Unsupported(f"the operation {name!r} is not on the list")
        return self.value(name, *operands)

    def _power(self, x: int, exponent: int) -> int:
        """``x^exponent`` by squaring."""
        if exponent < 0:
            return self.value("div", self.constant(1.0), self._power(x, -exponent))
        result = None
        while exponent:
            if exponent % 2:
                result = x if result is None else self.value("mul", result, x)
            exponent //= 2
            x = self.value("square", x) if exponent else x
        return self.constant(1.0) if result is None else result

    def _known_half(self, value: int) -> int | None:
        """The whole part of a known exponent that is a whole number and a half, if not large."""
        kind, number = self.seen[value][:2]
        if kind != "constant":
            return None
        exponent = float(np.frombuffer(number)[0])
        half = abs(exponent) <= _LARGEST_HALF and exponent % 1.0 == 0.5
        return math.floor(exponent) if half else None

    def _half_power(self, x: int, whole: int) -> int:
        """``x^(whole + 1/2)`` by a root; to a rounding error or two what ``pow`` gives."""
        if whole < 0:
            return self.value("div", self.constant(1.0), self._half_power(x, -whole - 1))
        root = self.value("root", x)
        if whole == 0:
            return root
        # Of negative numbers only infinity has such a power: it is that of its size.
        size = self.value("abs", x) if whole % 2 else x
        return self.value("mul", root, self._power(size, whole))

    def code(self, inputs: int, results: list[Any]) -> tuple[np.ndarray, np.ndarray, float]:
        """The operations that lead to the results; the first ``inputs`` places are given.

        Returns what :class:`~probode.engines.native.tape.Tape` is made of.
        """
        outputs = list(map(self._value_of, results))
        needed = self._merged(outputs)
        constants = [v for v in sorted(needed) if self.seen[v][0] == "constant"]
        places = {v: inputs + i for i, v in enumerate(constants)}
        places.update((v, row[1]) for v, row in needed.items() if row[0] == "input")
        operations = {v: (row[0], row[1:]) for v, row in needed.items() if row[0] not in _LEAVES}

        def read(value: int) -> tuple[int, ...]:
            return tuple(places[x] for x in operations[value][1])

        code = Code(free=inputs + len(constants))
        for batch in batches(operations):
            reads = {value: read(value) for value in batch}
            for group in groups(reads):
                found = code.add(operations[group[0]][0], [reads[value] for value in group])
                places.update(zip(group, found, strict=True))
        sections, size = code.finished(), code.free - inputs - len(constants)
        head = [len(constants), code.groups, len(outputs), size]
        everything = [*head, *sections, *(places[value] for value in outputs)]
        numbers = [np.frombuffer(self.seen[v][1])[0] for v in constants]
        return np.array(everything, np.int32), np.array(numbers, float), code.excess

    def _merged(self, outputs: list[int]) -> dict[int, tuple[Any, ...]]:
        """Needed values and their operations; a product that one sum alone needs goes into it."""
        uses: dict[int, int] = {}
        waiting = list(outputs)
        while waiting:
            value = waiting.pop()
            uses[value] = uses.get(value, 0) + 1
            if uses[value] == 1 and self.seen[value][0] not in _LEAVES:
                waiting += self.seen[value][1:]
        needed: dict[int, tuple[Any, ...]] = {}
        waiting = list(outputs)
        while waiting:
            value = waiting.pop()
            if value in needed:
                continue
            row = self.seen[value]
            if row[0] in ("add", "sub"):
                row = self._with_product(row, uses)
            needed[value] = row
            if row[0] not in _LEAVES:
                waiting += row[1:]
        return needed

    def _with_product(self, row: tuple[Any, ...], uses: dict[int, int]) -> tuple[Any, ...]:
        """``a b + c``, ``a b - c`` or ``c - a b`` as one operation."""
        name, left, right = row
        for product, other, merged in (
            (left, right, "multiply_add" if name == "add" else "multiply_subtract"),
            (right, left, "multiply_add" if name == "add" else "subtract_product"),
        ):
            kind, *factors = self.seen[product]
            if kind in ("mul", "square") and uses[product] == 1:
                return (merged, factors[0], factors[-1], other)
        return row
