"""The program of a problem for a card: its lists of operations and its tables as source code.

What is put together here are constants and straight lines of operations; the algorithm is that of
``src/abreast``, which the program includes. Values that may change without another program (what
users give: parameters, tolerances, times) are read from memory.
"""

from collections.abc import Iterator
from functools import lru_cache
from importlib import resources
from typing import Any

import numpy as np

from probode.engines.abreast.problem import Problem, Sizes
from probode.engines.native.code import LANE, OPERATIONS
from probode.engines.native.tape import Tape

HEADERS = (
    *("given.hpp", "number.hpp", "sizes.hpp", "attempt.hpp", "bend.hpp", "look_back.hpp"),
    *("carried_errors.hpp", "kept.hpp", "bars.hpp", "solve.hpp", "card.hpp"),
)

_UNROLLED = 12
"""Columns of a block up to which loops are written out: then matrices are kept in registers, or,
where these do not suffice, in places that are known."""

_INLINE = 150
"""Operations up to which a vector field is put wherever it is evaluated."""

_INLINED, _APART = "__forceinline__", "__noinline__"

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_COMPARED = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_FORMS = {
    "multiply_add": "fma({0}, {1}, {2})",
    "multiply_subtract": "fma({0}, {1}, -{2})",
    "subtract_product": "fma(-{0}, {1}, {2})",
    "neg": "-{0}",
    "square": "{0} * {0}",
    "root": "({0} == -kInfinity ? kInfinity : sqrt({0}) + 0.0)",
    "rsqrt": "1.0 / sqrt({0})",
    "abs": "fabs({0})",
    "max": "larger_of({0}, {1})",
    "min": "smaller_of({0}, {1})",
    "select": "({0} != 0.0 ? {2} : {1})",
    "clamp": "smaller_of(larger_of({1}, {0}), {2})",
    "and": "({0} != 0.0 && {1} != 0.0 ? 1.0 : 0.0)",
    "or": "({0} != 0.0 || {1} != 0.0 ? 1.0 : 0.0)",
    "xor": "(({0} != 0.0) != ({1} != 0.0) ? 1.0 : 0.0)",
    "not": "({0} == 0.0 ? 1.0 : 0.0)",
    "logistic": "1.0 / (1.0 + exp(-{0}))",
    "pow": "pow({0}, {1})",
    "atan2": "atan2({0}, {1})",
    "rem": "fmod({0}, {1})",
    "round_even": "nearbyint({0})",
    "sign": "({0} > 0.0 ? 1.0 : {0} < 0.0 ? -1.0 : {0})",
}
"""Expressions of the operations that are no functions of one number with the same name in C++."""


def source(problem: Problem) -> str:
    """The program that solves members of a problem."""
    tables = tuple(x.tobytes() for x in (problem.prior, problem.scheme, problem.own.places))
    # Lists are known by what they are: they are made once for a vector field, and kept here.
    shape = (problem.sizes, *map(id, problem.lists), *map(len, problem.numbers), *tables)
    key = (*shape, problem.own.of_field)
    found = _KNOWN.get(key)
    if found is None:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        found = _KNOWN[key] = (_written(problem), problem.lists)
    return found[0]


_KNOWN: dict[Any, tuple[str, Any]] = {}
_MOST_KNOWN = 64


def _written(problem: Problem) -> str:
    sizes, lists, d = problem.sizes, problem.lists, problem.sizes.d
    # All or nothing: with a number, loops whose length is not known yet are written out as often.
    written_out, loop = "unroll", "unroll 1"
    short = sum(1 for _ in _operations(lists.value)) <= _INLINE
    pragmas = {
        "": written_out if sizes.block <= _UNROLLED else loop,
        "_STAGES": written_out if short else loop,
    }
    slopes = lists.slopes
    tapes = [("start_of", lists.start), ("value_of", lists.value)]
    if slopes is not None:
        tapes.append(("slopes_of", slopes))
    return "\n".join(
        [
            "#define PROBODE_ISA card",
            "#define kInfinity __longlong_as_double(0x7ff0000000000000LL)",
            *(f'#define PROBODE_UNROLL{which} _Pragma("{how}")' for which, how in pragmas.items()),
            '#include "given.hpp"',
            '#include "number.hpp"',
            "namespace probode { namespace PROBODE_ISA {",
            _sizes(sizes),
            *_tables(problem),
            *(_function(name, tape, problem, d) for name, tape in tapes),
            f"constexpr int kOwn = {len(problem.own.places)};",
            "" if slopes is not None else _NO_SLOPES,
            "}}",
            '#include "card.hpp"',
        ]
    )


_NO_SLOPES = "template <class... Given> void slopes_of(Given...) {}"


@lru_cache(maxsize=1)
def headers() -> dict[str, str]:
    """What the program includes, by name."""
    folder = resources.files("probode.engines.native") / "src" / "abreast"
    return {name: (folder / name).read_text() for name in HEADERS}


def _sizes(sizes: Sizes) -> str:
    kinds = {True: "true", False: "false"}
    fields = [
        f"  static constexpr {'bool' if isinstance(x, bool) else 'int'} {name} = "
        f"{kinds[x] if isinstance(x, bool) else x};"
        for name, x in zip(sizes._fields, sizes, strict=True)
    ]
    return "\n".join(["struct SizesHere {", *fields, "};"])


def _tables(problem: Problem) -> Iterator[str]:
    """``struct Tables``, which points at constants."""
    n, s, k, pairs = (getattr(problem.sizes, x) for x in ("n", "stages", "contact", "pairs"))
    parts = [("transition", n * n), ("noise", n * n), ("weights", n)]
    of_scheme = [("nodes", s), ("values", s * (2 * k + 1)), ("slopes", s * (2 * k + 1))]
    of_scheme += [("matrix", s * s), ("ends", s), ("inverse", s * s)]
    of_scheme += [("shift_re", pairs), ("shift_im", pairs), ("column_re", s * pairs)]
    of_scheme += [("column_im", s * pairs), ("row_re", pairs * s), ("row_im", pairs * s)]
    names = []
    for table, sections in ((problem.prior, parts), (problem.scheme, of_scheme)):
        at = 0
        for name, size in sections:
            values = ", ".join(map(_number, table[at : at + size])) or "0.0"
            at += size
            yield f"__device__ const double k_{name}[] = {{{values}}};"
            names.append(name)
    yield "struct Tables {"
    yield from (f"  const double* {name} = k_{name};" for name in names)
    yield "};"


def _number(x: Any) -> str:
    x = float(x)
    if np.isnan(x):
        return 'nan("")'
    if np.isinf(x):
        return "kInfinity" if x > 0 else "-kInfinity"
    return x.hex() if x else repr(x)


def _outputs(tape: Tape) -> int:
    return int(tape.code[2])


def _function(name: str, tape: Tape, problem: Problem, d: int) -> str:
    """A list as a function of ``(t, y)``, shared numbers and the member's own."""
    given = {"start_of": 0, "value_of": 1, "slopes_of": 2}[name]
    shared = len(problem.numbers[given]) - len(tape.constants)
    own = {
        int(place): k
        for k, place in enumerate(problem.own.places)
        if name == "start_of" or place < problem.own.of_field
    }
    names = {0: "t", **{1 + a: f"y[{a}]" for a in range(d)}}
    for i in range(shared):
        names[1 + d + i] = f"own[{own[i]}]" if i in own else f"shared[{i}]"
    for i, x in enumerate(tape.constants):
        names[1 + d + shared + i] = f"({_number(x)})"
    lines = []
    for operation, place, reads in _operations(tape):
        names[place] = f"v{place}"
        lines.append(
            f"  const double v{place} = {_form(operation).format(*(names[i] for i in reads))};"
        )
    places = tape.code[len(tape.code) - _outputs(tape) :].tolist()
    lines += [f"  out[{i}] = {names[place]};" for i, place in enumerate(places)]
    alone = _APART if len(lines) > _INLINE or name == "start_of" else _INLINED
    arguments = "double t, const double* y, const double* shared, const double* own, double* out"
    return "\n".join([f"__device__ {alone} void {name}({arguments}) {{", *lines, "}"])


def _form(operation: str) -> str:
    """Return the expression of an operation, with ``{0}`` in the place of its first operand."""
    if operation in _INFIX:
        return f"{{0}} {_INFIX[operation]} {{1}}"
    if operation in _COMPARED:
        return f"({{0}} {_COMPARED[operation]} {{1}} ? 1.0 : 0.0)"
    return _FORMS.get(operation, f"{operation}({{0}})")


@lru_cache(maxsize=len(OPERATIONS))
def _arity(operation: str) -> int:
    """Count the operands of an operation."""
    return sum(f"{{{i}}}" in _form(operation) for i in range(3))


def _operations(tape: Tape) -> Iterator[tuple[str, int, list[int]]]:
    """Yield ``(name, place of the result, places of the operands)`` in the order of tape.hpp.

    Rows and groups of a list have room for three operands. The room that an operation leaves unused
    refers to places that need not exist, and is passed over here.
    """
    code = tape.code.tolist()
    groups, at = code[1], 4
    for group in range(groups + 1):
        count, place = code[at : at + 2]
        at += 2
        for i in range(count):
            operation, *reads = code[at : at + 4]
            at += 4
            name = OPERATIONS[operation]
            yield name, place + i, reads[: _arity(name)]
        if group == groups:
            return
        operation, count, place = code[at : at + 3]
        how, at = code[at + 3 : at + 9], at + 9
        operands = []
        for kind, first in zip(how[::2], how[1::2], strict=True):
            if kind == 2:  # listed, in whole lanes
                operands.append([first + i for i in code[at : at + count]])
                at += count + -count % LANE
            else:
                operands.append([first + i * (kind == 0) for i in range(count)])
        name = OPERATIONS[operation]
        for i in range(count):
            yield name, place + i, [places[i] for places in operands[: _arity(name)]]
