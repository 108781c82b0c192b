"""Small programs as lists of scalar operations, which the kernels evaluate themselves.

A step on a small system takes about a microsecond, and XLA a third of one to get to the vector
field and back. So the traced field and its Jacobian are written out in scalars
(:mod:`probode.programs.unroll`) and the operations listed, those that are alike in groups
(:mod:`probode.engines.native.grouping`), as ``src/tape.hpp`` reads them: one call of the kernels
then makes all steps. What is too long for that, or has an operation that is not on the list, stays
with XLA.
"""

import ctypes
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from probode.base.jax_inside import equations, operation, trace
from probode.base.precision import double_precision, is_traced
from probode.engines.native.library import address
from probode.engines.native.writer import Writer
from probode.programs.field import Field
from probode.programs.program import work
from probode.programs.unroll import Lanes, Unsupported, as_lanes, run

LONGEST = 300.0
"""Nanoseconds that listed operations may take more than XLA's code: its calls take as many."""

LONGEST_DENSE = 0.1
"""Times ``d³``, with a dense covariance: nanoseconds more, a twentieth of a step of order 3."""

LONGEST_SIMPLE = 4.0
"""Times ``d``, with a covariance in one number or one for each component: nanoseconds more, where
a step of order 3 takes at least five times as many."""

TRANSFORM = 500.0
"""Nanoseconds that XLA takes for a Fourier transform, however short it is."""

_LONGEST_PROGRAM = 300_000
"""Numbers that a program may compute to be looked at (of a Jacobian most are known zeros)."""

_MOST_OPERATIONS = 20_000
"""Operations that are written down before giving up: about a tenth of a second."""


class Tape(NamedTuple):
    """Operations on numbered places: ``(t, y, inputs, constants, results)``, in this order.

    ``code`` holds how many constants, groups, outputs and places for results there are, then the
    sections of :class:`~probode.engines.native.code.Code`, and the places of the outputs.
    """

    code: np.ndarray
    constants: np.ndarray
    excess: float

    def numbers(self, parameters: Any) -> Any:
        """What the operations read besides ``t`` and ``y``."""
        return join([*jax.tree.leaves(parameters), self.constants])

    def given(self, numbers: np.ndarray) -> tuple[Any, Any, Any]:
        """The operations and their numbers as the library's functions take them."""
        return address(self.code), address(numbers), ctypes.c_long(len(numbers))


def join(numbers: Sequence[Any]) -> Any:
    """Arrays and numbers as one vector."""
    xp: Any = jnp if is_traced(numbers) else np
    parts = [xp.ravel(xp.asarray(x)).astype(float) for x in numbers]
    return xp.concatenate(parts) if parts else np.zeros(0)


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


def _dtype(leaf: Any) -> Any:
    return leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype


def tape_of(jacobian: str, field: Field, within: str | None = None) -> Tape | None:
    """The operations of ``f`` and of a Jacobian of this kind; ``None``: XLA is better at them.

    ``within`` is the kind that a step needs, where this is only a part of it.
    """
    return field_tape(jacobian, Signature.of(field), within or jacobian)


def longest_excess(jacobian: str, d: int) -> float:
    """Nanoseconds that the lists of a step with such a Jacobian may take more than XLA's code."""
    return LONGEST + (LONGEST_DENSE * d**3 if jacobian == "full" else LONGEST_SIMPLE * d)


def why_not_listed(jacobian: str, field: Field) -> str | None:
    """What keeps the operations of ``f`` and such a Jacobian from being listed, in words."""
    found = _attempt(*_asked(jacobian, Signature.of(field), jacobian))
    return found if isinstance(found, str) else None


def evaluate(jacobian: str, field: Field, t: Array, y: Array) -> tuple[Array, Array]:
    """``f`` and the kind of Jacobian a method asks for."""
    if jacobian == "full":
        return field.jacobian(t, y)
    if jacobian == "diagonal":
        return field.jacobian_diagonal(t, y)
    return field(t, y), jnp.zeros(0)


@lru_cache(maxsize=256)
def field_tape(jacobian: str, signature: Signature, within: str) -> Tape | None:
    """The same for all vector fields of a signature."""
    return listed(*_asked(jacobian, signature, within))


def _asked(
    jacobian: str, signature: Signature, within: str
) -> tuple[Callable[[Any, Array, Array], Any], Signature, int, float, int]:
    """What is asked of :func:`listed` for a vector field."""

    def program(field: Field, t: Array, y: Array) -> tuple[Array, Array]:
        return evaluate(jacobian, field, t, y)

    field = signature.parameters()
    reads, longest = field.reads * field.d, longest_excess(within, field.d)
    return program, signature, reads, longest, _MOST_OPERATIONS


def listed(
    program: Callable[[Any, Array, Array], Any],
    signature: Signature,
    size: int,
    longest: float,
    most: int,
) -> Tape | None:
    """The operations of ``program(parameters, t, y)``, ``y`` of this size; its results in a row.

    ``None`` if they take ``longest`` nanoseconds more than XLA's code (without its transforms), if
    they are more than ``most`` (it would take long to find out), or cannot be listed.
    """
    found = _attempt(program, signature, size, longest, most)
    return None if isinstance(found, str) else found


def _attempt(
    program: Callable[[Any, Array, Array], Any],
    signature: Signature,
    size: int,
    longest: float,
    most: int,
) -> Tape | str:
    """The list, or why there is none."""
    if not all(_is_real(dtype) for _, dtype in signature.shapes):
        return "numbers that are not real"
    if size + sum(signature.sizes) > most:
        return f"more than {most} numbers that it reads"
    with double_precision():
        number, state = jax.ShapeDtypeStruct((), float), jax.ShapeDtypeStruct((size,), float)
        in_arrays = trace(program, signature.parameters(), number, state)
        if work(in_arrays.jaxpr) > _LONGEST_PROGRAM:
            return "arrays that are large"
        inputs = _Inputs(signature, size, most)
        try:
            results = run(in_arrays.jaxpr, in_arrays.consts, inputs.values)
            outputs = [x for result in results for x in as_lanes(result).entries]
            code, constants, excess = inputs.writer.code(inputs.count, outputs)
        except Unsupported as reason:
            return str(reason)
    transforms = sum(operation(equation) == "fft" for equation in equations(in_arrays.jaxpr))
    if excess > longest + TRANSFORM * transforms:
        return "many operations, of which XLA makes faster code"
    return Tape(code, constants, excess)


class _Inputs:
    """What a program of ``(parameters, t, y)`` reads as symbols; their places: t, y, parameters."""

    def __init__(self, signature: Signature, size: int, most: int) -> None:
        self.writer = Writer(most)
        self.count = 0
        t, y = self._array((), np.dtype(float)), self._array((size,), np.dtype(float))
        self.values = [*(self._array(*one) for one in signature.shapes), t, y]

    def _array(self, shape: tuple[int, ...], dtype: Any) -> Lanes:
        places = range(self.count, self.count + math.prod(shape))
        self.count = places.stop
        return Lanes(shape, [self.writer.input(place, dtype) for place in places])


def _is_real(dtype: Any) -> bool:
    return any(jnp.issubdtype(dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_))
