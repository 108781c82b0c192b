"""Small programs as lists of scalar operations, which the kernels evaluate themselves.

A step on a small system takes about a microsecond, and XLA a third of one to get to the vector
field and back. So the traced field and its Jacobian are written out in scalars
(:mod:`probode.unroll`) and the operations listed, those that are alike in groups
(:mod:`probode.native.grouping`), as ``src/tape.hpp`` reads them: one call of the kernels then makes
all steps. What is too long for that, or has an operation that is not on the list, stays with XLA.
"""

import ctypes
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jaxtyping import Array

from probode.native.code import OPERATIONS, Code
from probode.native.grouping import batches, groups
from probode.native.library import address
from probode.precision import double_precision, is_traced
from probode.problem import Field
from probode.program import work
from probode.unroll import Lanes, Unsupported, lift

LONGEST = 300.0
"""Nanoseconds that listed operations may take more than XLA's code: its calls take as many."""

_LONGEST_PROGRAM = 4000
"""Numbers that a program may compute, and its Jacobian with it, to be worth writing out."""

_ONE_TO_ONE = frozenset(OPERATIONS) - {"select", "round", "round_even", "root"}
_LARGEST_HALF = 3.5
_LEAVES = ("input", "constant")
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


class Tape(NamedTuple):
    """Operations on numbered places: ``(t, y, inputs, constants, results)``, in this order.

    ``code`` holds how many constants, groups, outputs and places for results there are, then the
    sections of :class:`~probode.native.code.Code`, and the places of the outputs.
    """

    code: np.ndarray
    constants: np.ndarray
    excess: float

    def numbers(self, parameters: Any) -> Any:
        """What the operations read beside ``t`` and ``y``."""
        return join([*jax.tree.leaves(parameters), self.constants])

    def given(self, numbers: np.ndarray) -> tuple[Any, Any, Any]:
        """The operations and their numbers as the library's functions take them."""
        return address(self.code), address(numbers), ctypes.c_long(len(numbers))


def join(numbers: Sequence[Any]) -> Any:
    """Arrays and numbers as one vector."""
    xp: Any = jnp if is_traced(numbers) else np
    return xp.concatenate([xp.ravel(xp.asarray(x)).astype(float) for x in numbers])


class Signature(NamedTuple):
    """What a program depends on of its parameters: how they are arranged, shapes and types."""

    tree: Any
    shapes: tuple[tuple[tuple[int, ...], Any], ...]

    @staticmethod
    def of(parameters: Any) -> "Signature":
        """The signature of a tree of arrays and numbers."""
        leaves, tree = jax.tree.flatten(parameters)
        return Signature(tree, tuple((np.shape(leaf), _dtype(leaf)) for leaf in leaves))

    @property
    def sizes(self) -> list[int]:
        """How many numbers each leaf has."""
        return [int(np.prod(shape)) for shape, _ in self.shapes]

    def parameters(self) -> Any:
        """Such parameters without their values."""
        return jax.tree.unflatten(self.tree, [jax.ShapeDtypeStruct(*one) for one in self.shapes])

    def numbers(self) -> list[Any]:
        """Their numbers one by one, without values."""
        return [
            jax.ShapeDtypeStruct((), dtype)
            for (_, dtype), size in zip(self.shapes, self.sizes, strict=True)
            for _ in range(size)
        ]


def _dtype(leaf: Any) -> Any:
    return leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype


def tape_of(jacobian: str, field: Field) -> Tape | None:
    """The operations of ``f`` and of a Jacobian of this kind; ``None``: XLA is better at them."""
    return field_tape(jacobian, Signature.of(field))


def evaluate(jacobian: str, field: Field, t: Array, y: Array) -> tuple[Array, Array]:
    """``f`` and the kind of Jacobian a method asks for."""
    if jacobian == "full":
        return field.jacobian(t, y)
    if jacobian == "diagonal":
        return field.jacobian_diagonal(t, y)
    return field(t, y), jnp.zeros(0)


@lru_cache(maxsize=256)
def field_tape(jacobian: str, signature: Signature) -> Tape | None:
    """The same for all vector fields of a signature."""

    def program(field: Field, t: Array, y: Array) -> tuple[Array, Array]:
        return evaluate(jacobian, field, t, y)

    d = signature.parameters().d
    return listed(program, signature, d, longest=LONGEST, longest_program=_LONGEST_PROGRAM)


def listed(
    program: Callable[[Any, Array, Array], Any],
    signature: Signature,
    d: int,
    *,
    longest: float,
    longest_program: int,
) -> Tape | None:
    """The operations of ``program(parameters, t, y)``; its results one after the other.

    ``None`` if they take ``longest`` nanoseconds more than XLA's code, if the program computes more
    than ``longest_program`` numbers (it would take long to find out), or cannot be listed.
    """
    real = all(_is_real(dtype) for _, dtype in signature.shapes)
    if sum(signature.sizes) > longest_program or not real:
        return None
    with double_precision():
        number, state = jax.ShapeDtypeStruct((), float), jax.ShapeDtypeStruct((d,), float)
        in_arrays = jax.make_jaxpr(program)(signature.parameters(), number, state)
        if work(in_arrays.jaxpr) > longest_program:
            return None
        given = signature.numbers()
        in_scalars = _in_scalars(program, signature, d)
        try:
            in_numbers = jax.make_jaxpr(in_scalars)(number, [number] * d, given)
            writer = _Writer()
            tape = writer.tape(1 + d + len(given), writer.read(in_numbers))
        except Unsupported:
            return None
    return tape if tape.excess <= longest else None


def _in_scalars(
    program: Callable[[Any, Array, Array], Any], signature: Signature, d: int
) -> Callable[[Array, list[Array], list[Array]], list[Any]]:
    """The same program from ``t``, and the entries of ``y`` and of the parameters."""

    def in_scalars(t: Array, y: list[Array], flat: list[Array]) -> list[Any]:
        rest, leaves = list(flat), []
        for (shape, _), size in zip(signature.shapes, signature.sizes, strict=True):
            leaves.append(Lanes(shape, rest[:size]))
            rest = rest[size:]
        parameters = jax.tree.unflatten(signature.tree, leaves)
        results = lift(program, parameters, Lanes((), [t]), Lanes((d,), y))
        return [x for result in jax.tree.leaves(results) for x in result.entries]

    return in_scalars


def _is_real(dtype: Any) -> bool:
    return any(jnp.issubdtype(dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_))


def _as_doubles(name: str, given: list[Any], dtype: Any) -> bool:
    """Whether an operation on numbers of these types is the same on doubles."""
    if name == "convert_element_type":
        whole = all(x.kind in "biu" for x in given)
        return dtype in (np.float64, np.bool_) or (whole and dtype.kind in "iu")
    if name in (*_COMPARISONS, "select_n"):
        return all(x.kind in "biu" or x == np.float64 for x in given)
    return all(x in (np.float64, np.bool_) for x in [dtype, *given])


class _Writer:
    """Lists the operations of a program on scalars: each once, and only those that are needed.

    A value is a number: where ``(operation, value, ...)`` stands in the list of all that were seen.
    """

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self._known: dict[tuple[Any, ...], int] = {}

    def value(self, *row: Any) -> int:
        """``(operation, value, ...)``, ``("input", index)`` or ``("constant", bytes)``."""
        if row not in self._known:
            self._known[row] = len(self.seen)
            self.seen.append(row)
        return self._known[row]

    def constant(self, number: Any) -> int:
        """A known number; by its bytes, which tell zeros and NaNs apart."""
        return self.value("constant", np.float64(number).tobytes())

    def read(self, program: core.ClosedJaxpr) -> list[int]:
        """The values that a program returns."""
        values: dict[Any, int] = {}
        for i, variable in enumerate(program.jaxpr.invars):
            values[variable] = self.value("input", i)
        for variable, number in zip(program.jaxpr.constvars, program.consts, strict=True):
            values[variable] = self.constant(number)

        def find(atom: Any) -> int:
            return self.constant(atom.val) if isinstance(atom, core.Literal) else values[atom]

        for equation in program.jaxpr.eqns:
            operands = [find(atom) for atom in equation.invars]
            values[equation.outvars[0]] = self._operation(equation, operands)
        return [find(atom) for atom in program.jaxpr.outvars]

    def _operation(self, equation: Any, operands: list[int]) -> int:
        name, dtype = equation.primitive.name, equation.outvars[0].aval.dtype
        given = [atom.aval.dtype for atom in equation.invars]
        if not _as_doubles(name, given, dtype):
            raise Unsupported(f"{name!r} of {given} to {dtype}")
        if name == "convert_element_type":
            if dtype == np.bool_ and given[0] != np.bool_:
                return self.value("ne", operands[0], self.constant(0.0))
            return operands[0]
        if name == "integer_pow":
            return self._power(operands[0], equation.params["y"])
        if name == "select_n" and given[0] == np.bool_ and len(operands) == 3:
            return self.value("select", *operands)
        if name == "round":
            even = int(equation.params["rounding_method"]) == 1
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

    def tape(self, inputs: int, outputs: list[int]) -> Tape:
        """The operations that lead to the outputs; the first ``inputs`` places are given."""
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
                results = code.add(operations[group[0]][0], [reads[value] for value in group])
                places.update(zip(group, results, strict=True))
        sections, size = code.finished(), code.free - inputs - len(constants)
        head = [len(constants), code.groups, len(outputs), size]
        everything = [*head, *sections, *(places[value] for value in outputs)]
        numbers = [np.frombuffer(self.seen[v][1])[0] for v in constants]
        return Tape(np.array(everything, np.int32), np.array(numbers, float), code.excess)

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
