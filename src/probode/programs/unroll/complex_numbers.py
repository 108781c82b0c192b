"""Complex numbers as pairs of real ones, and Fourier transforms of them.

A transform of length ``n = p m`` is ``p`` transforms of length ``m`` and what combines them::

    X[k + q m] = Σ_r ω_p^(r q) ω_n^(r k) P_r[k],   P_r the transform of x[r], x[r + p], ...

Products with the roots of unity 1, -1, i and -i are not computed, nor is the half of a transform of
real numbers that is the conjugate of the other.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from probode.base.jax_inside import IN_NUMPY, kind, operation
from probode.programs.unroll import entries as e
from probode.programs.unroll.entries import Entry, Lanes, Unsupported, Value, as_lanes

_LONGEST = 512
"""Numbers that are transformed at most."""

_LARGEST_POWER = 8


class Pair(NamedTuple):
    """``a + i b``."""

    real: Entry
    imag: Entry


def parts(x: Entry) -> Pair:
    """An entry as a pair."""
    if isinstance(x, Pair):
        return x
    return Pair(float(np.real(x)), float(np.imag(x))) if e.constant(x) else Pair(x, 0.0)


def add(x: Pair, y: Pair) -> Pair:
    """``x + y``."""
    return Pair(e.add(x.real, y.real), e.add(x.imag, y.imag))


def sub(x: Pair, y: Pair) -> Pair:
    """``x - y``."""
    return Pair(e.sub(x.real, y.real), e.sub(x.imag, y.imag))


def mul(x: Pair, y: Pair) -> Pair:
    """``x y``."""
    return Pair(
        e.sub(e.mul(x.real, y.real), e.mul(x.imag, y.imag)),
        e.add(e.mul(x.real, y.imag), e.mul(x.imag, y.real)),
    )


def conjugate(x: Pair) -> Pair:
    """``x`` with the other sign of its imaginary part."""
    return Pair(x.real, e.neg(x.imag))


def _divide(x: Pair, y: Pair) -> Pair:
    """``x / y``, with ``y`` in units of its larger part."""
    if e.zero(y.imag):
        return Pair(e.div(x.real, y.real), e.div(x.imag, y.real))
    unit = e.largest(e.absolute(y.real), e.absolute(y.imag))
    shares = conjugate(Pair(e.div(y.real, unit), e.div(y.imag, unit)))
    above = mul(x, shares)
    below = e.sub(e.mul(y.real, shares.real), e.mul(y.imag, shares.imag))
    return Pair(e.div(above.real, below), e.div(above.imag, below))


def _size(x: Pair) -> Entry:
    """``|x|``, in units of its larger part."""
    a, b = e.absolute(x.real), e.absolute(x.imag)
    large = e.largest(a, b)
    share = e.mul(e.smallest(a, b), e.reciprocal(large, safe=True))
    return e.mul(large, e.root(e.add(1.0, e.square(share))))


def _power(x: Pair, exponent: int) -> Pair:
    if abs(exponent) > _LARGEST_POWER:
        raise Unsupported(f"complex numbers to the power of {exponent}")
    result = Pair(1.0, 0.0)
    for _ in range(abs(exponent)):
        result = mul(result, x)
    return _divide(Pair(1.0, 0.0), result) if exponent < 0 else result


def _same(x: Pair, y: Pair) -> Entry:
    return e.choose(e.equal(x.real, y.real), e.equal(x.imag, y.imag), False)


_ENTRYWISE: dict[str, Callable[..., Entry]] = {
    "add": add,
    "add_any": add,
    "sub": sub,
    "mul": mul,
    "div": _divide,
    "neg": lambda x: Pair(e.neg(x.real), e.neg(x.imag)),
    "square": lambda x: mul(x, x),
    "conj": conjugate,
    "real": lambda x: x.real,
    "imag": lambda x: x.imag,
    "abs": _size,
    "complex": lambda x, y: Pair(x.real, y.real),
    "eq": _same,
    "copy": lambda x: x,
    "optimization_barrier": lambda x: x,
    "stop_gradient": lambda x: x,
}


def is_complex(equation: Any) -> bool:
    """Whether an equation has complex numbers, or makes them."""
    return any(kind(x)[1].kind == "c" for x in (*equation.invars, *equation.outvars))


def evaluate(equation: Any, operands: list[Value]) -> list[Value]:
    """An equation with complex numbers that does more than move them."""
    name = operation(equation)
    types = [kind(x)[1] for x in (*equation.invars, *equation.outvars)]
    if any(x.kind in "fc" and x not in (np.float64, np.complex128) for x in types):
        raise Unsupported(f"{name!r} in {types}: constants are doubles")
    if name == "fft":
        return [_transform(equation, operands[0])]
    if name not in _ENTRYWISE and name not in ("integer_pow", "convert_element_type", "select_n"):
        raise Unsupported(f"the operation {name!r} of complex numbers has no form on lanes")
    shape, dtype, _ = kind(equation.outvars[0])
    columns = [np.broadcast_to(_array(x), shape).reshape(-1) for x in operands]
    if name == "integer_pow":
        numbers = [_power(parts(x), equation.params["y"]) for x in columns[0]]
    elif name == "convert_element_type" and types[0].kind in "fc":
        numbers = [parts(x) if dtype.kind == "c" else parts(x).real for x in columns[0]]
    elif name == "select_n" and len(columns) == 3 and types[0].kind == "b":
        numbers = [_choose(which, parts(x), parts(y)) for which, x, y in zip(*columns, strict=True)]
    elif name in _ENTRYWISE:
        numbers = [_ENTRYWISE[name](*map(parts, xs)) for xs in zip(*columns, strict=True)]
    else:
        raise Unsupported(f"the operation {name!r} of complex numbers has no form on lanes")
    return [Lanes(shape, numbers)]


def _array(value: Value) -> np.ndarray:
    """The entries as an array of objects."""
    lanes = as_lanes(value)
    array = np.empty(len(lanes.entries), object)
    for i, entry in enumerate(lanes.entries):
        array[i] = entry
    return array.reshape(lanes.shape)


def _choose(which: Entry, no: Pair, yes: Pair) -> Pair:
    return Pair(e.choose(which, yes.real, no.real), e.choose(which, yes.imag, no.imag))


_FORWARD, _INVERSE, _OF_REAL, _TO_REAL = range(4)


def _transform(equation: Any, operand: Value) -> Value:
    """Along the last axes ``X[k] = Σ_j e^(-2πi jk/n) x[j]``, the inverse, or one for real ``x``."""
    which, lengths = int(equation.params["fft_type"]), equation.params["fft_lengths"]
    (shape, dtype, _), axes = kind(equation.outvars[0]), range(-len(lengths), 0)
    if isinstance(operand, np.ndarray):
        known: np.ndarray = IN_NUMPY["fft"](equation.params, operand).astype(dtype)
        return known
    if max(lengths, default=1) > _LONGEST:
        raise Unsupported(f"a transform of {max(lengths)} numbers")
    x, sign = _array(operand), 1 if which in (_INVERSE, _TO_REAL) else -1
    # The last axis first, or last where the conjugate half of the result is missing before.
    for axis in axes if which == _TO_REAL else reversed(axes):
        half = axis == -1 and which in (_OF_REAL, _TO_REAL)
        x = np.moveaxis(x, axis, -1)
        lines = [
            _line([parts(entry) for entry in line], sign, lengths[axis], which if half else None)
            for line in x.reshape(-1, x.shape[-1])
        ]
        flat = np.empty(len(lines) * len(lines[0]), object)
        for i, entry in enumerate(entry for line in lines for entry in line):
            flat[i] = entry
        x = np.moveaxis(flat.reshape(*x.shape[:-1], -1), -1, axis)
    return Lanes(shape, list(x.reshape(-1)))


def _line(x: list[Pair], sign: int, n: int, half: int | None) -> list[Entry]:
    if half == _TO_REAL:  # of the numbers that are their own conjugates only the real part counts
        ends = (0, n / 2)
        x = [Pair(z.real, 0.0) if k in ends else z for k, z in enumerate(x[: n // 2 + 1])]
        x += [conjugate(x[k]) for k in range((n - 1) // 2, 0, -1)]
    result = _fourier(x, sign)
    if sign > 0:
        result = [Pair(e.mul(z.real, 1.0 / n), e.mul(z.imag, 1.0 / n)) for z in result]
    if half == _TO_REAL:
        return [z.real for z in result]
    return list(result if half is None else result[: n // 2 + 1])


def _fourier(x: Sequence[Pair], sign: int) -> list[Pair]:
    """``X[k] = Σ_j ω_n^(jk) x[j]`` with ``ω_n = e^(±2πi/n)``, for all ``k``."""
    n = len(x)
    if n == 1:
        return list(x)
    p = next(p for p in range(2, n + 1) if n % p == 0)
    m, of_real = n // p, all(e.zero(z.imag) for z in x)
    inner = [
        [mul(_root(sign * r * k, n), z) for k, z in enumerate(_fourier(x[r::p], sign))]
        for r in range(p)
    ]
    result = []
    for k in range(n // 2 + 1 if of_real else n):
        total = inner[0][k % m]
        for r in range(1, p):
            total = _plus(total, _root(sign * r * (k // m), p), inner[r][k % m])
        result.append(total)
    return result + [conjugate(result[n - k]) for k in range(len(result), n)]


def _root(j: int, n: int) -> Pair:
    """``e^(2πi j/n)``, exact where it is 1, i, -1 or -i."""
    j %= n
    if 4 * j % n == 0:
        return (Pair(1.0, 0.0), Pair(0.0, 1.0), Pair(-1.0, 0.0), Pair(0.0, -1.0))[4 * j // n]
    return Pair(math.cos(2.0 * math.pi * j / n), math.sin(2.0 * math.pi * j / n))


def _plus(x: Pair, root: Pair, y: Pair) -> Pair:
    """``x + root y``."""
    return sub(x, y) if root == (-1.0, 0.0) else add(x, mul(root, y))
