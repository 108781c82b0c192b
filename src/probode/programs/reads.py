"""What a function's code takes from outside, and how far that can be trusted to stay the same.

The bytecode says which names a function looks up and which attributes it asks of them. Values that
are found so can be compared; what lies behind a call (a file, the clock, the environment) cannot.
So everything is *unknown* that is not listed here as a function of its arguments alone.
"""

import builtins
import dis
import enum
import types
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from probode.programs.user_code import closure

_PURE = frozenset(
    (
        *("abc", "bisect", "builtins", "cmath", "collections", "contextlib", "copy"),
        *("dataclasses", "enum", "fractions", "functools", "heapq", "itertools", "math"),
        *("numbers", "operator", "re", "statistics", "string", "types", "typing"),
        *("jax", "jaxlib", "numpy", "scipy", "_bisect", "_functools", "_heapq", "_operator"),
    )
)
"""Packages whose functions depend on their arguments only, but for ``_READING``."""

_READING = frozenset(
    (
        *("numpy.random", "scipy.datasets", "scipy.io", "scipy.stats"),
        *("load", "loadtxt", "genfromtxt", "fromfile", "fromregex", "memmap", "open_memmap"),
        *("DataSource", "geterr", "getbufsize", "get_printoptions"),
        *("globals", "locals", "vars", "dir", "eval", "exec", "compile", "id", "__import__"),
    )
)
"""Modules, functions and built-ins of such packages that look elsewhere."""

_ACTING = frozenset(
    (
        *("asyncio", "concurrent", "contextvars", "datetime", "io", "logging", "multiprocessing"),
        *("os", "pathlib", "queue", "socket", "sqlite3", "subprocess", "tempfile", "threading"),
        *("time", "urllib"),
        *("save", "savetxt", "savez", "savez_compressed"),
        *("open", "input", "breakpoint", "stdin", "stdout", "stderr"),
    )
)
"""Packages, functions and built-ins that do something, or give another answer at each call."""


class Trust(enum.IntEnum):
    """What a function takes from outside: values that can be compared, anything, the clock."""

    KNOWN = 0
    UNKNOWN = 1
    ACTS = 2


class Reads(NamedTuple):
    """What bytecode shows of a function and the functions inside it."""

    names: tuple[str, ...]
    """Global variables."""
    chains: tuple[tuple[str, ...], ...]
    """Variables of any scope with the attributes asked of them: ``("np", "linalg", "norm")``."""
    imports: tuple[str, ...]
    attributes: frozenset[str]
    handles_errors: bool
    """Whether there is an ``except``, a ``finally`` or ``contextlib.suppress``."""


@lru_cache(maxsize=4096)
def reads(code: types.CodeType) -> Reads:
    """What ``code`` reads."""
    names: dict[str, None] = {}
    chains: dict[tuple[str, ...], None] = {}
    imports: dict[str, None] = {}
    attributes: set[str] = set()
    handles_errors = False
    chain: tuple[str, ...] = ()
    before = ""
    for instruction in dis.get_instructions(code):
        name, value = instruction.opname, instruction.argval
        if name in ("LOAD_ATTR", "LOAD_METHOD"):
            attributes.add(value)
            chain = (*chain, value) if chain else ()
            continue
        if chain:
            chains[chain] = None
            chain = ()
        if name in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
            names[value] = None
            chain = (value,)
        elif name in ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"):
            chain = (value,)
        elif name == "IMPORT_NAME":
            imports[value] = None
        elif name == "IMPORT_FROM":
            attributes.add(value)
        if before == "PUSH_EXC_INFO" and name != "WITH_EXCEPT_START":
            handles_errors = True
        before = name
    handles_errors = handles_errors or "suppress" in attributes or "suppress" in names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = reads(constant)
            names.update(dict.fromkeys(inner.names))
            chains.update(dict.fromkeys(inner.chains))
            imports.update(dict.fromkeys(inner.imports))
            attributes |= inner.attributes
            handles_errors = handles_errors or inner.handles_errors
    return Reads(tuple(names), tuple(chains), tuple(imports), frozenset(attributes), handles_errors)


def trust(function: types.FunctionType) -> Trust:
    """How far what ``function`` calls can be trusted: its modules and built-ins.

    Values that it refers to are not judged here, nor are functions that it calls by name.
    """
    return max((judged for judged, _ in _judged(function)), default=Trust.KNOWN)


def acting_name(function: types.FunctionType) -> str | None:
    """Return the first function with side effects that a function calls, like ``"time.time"``."""
    return next((name for judged, name in _judged(function) if judged is Trust.ACTS), None)


def _judged(function: types.FunctionType) -> Iterator[tuple[Trust, str]]:
    found = reads(function.__code__)
    namespace = function.__globals__
    free = {name: value for name, _, value in closure(function)}
    for name in found.imports:
        yield _module(name), name
        if not (_READING | _ACTING).isdisjoint(found.attributes):
            yield Trust.UNKNOWN, name
    for root, *attributes in found.chains:
        if root in function.__code__.co_freevars:
            value = free.get(root)
        else:
            value = namespace.get(root)
            if value is None and root not in namespace:
                if root in found.names:
                    yield _builtin(root), root
                continue
        if isinstance(value, types.ModuleType):
            yield _attribute(value, tuple(attributes)), ".".join((root, *attributes))


def trust_in_callable(value: Any) -> Trust:
    """The same for a function or class that is not the user's, by where it was defined."""
    name = getattr(value, "__module__", None) or ""
    return max(_module(name), _name(getattr(value, "__name__", "")))


def _builtin(name: str) -> Trust:
    if not hasattr(builtins, name):
        return Trust.KNOWN  # not defined (yet)
    return _name(name) if name in _BUILTINS else Trust.UNKNOWN


_BUILTINS = frozenset(vars(builtins))
"""As Python has them: what was added since is somebody's variable."""


@lru_cache(maxsize=4096)
def _attribute(module: types.ModuleType, attributes: tuple[str, ...]) -> Trust:
    """What ``module.a.b`` is: a module by itself may be asked for anything."""
    value: Any = module
    for name in attributes:
        worst = max(_module(value.__name__), _name(name))
        value = getattr(value, name, None)
        if worst or not isinstance(value, types.ModuleType):
            return worst
    return max(Trust.UNKNOWN, _module(value.__name__))


def _module(name: str) -> Trust:
    root = name.partition(".")[0]
    if root in _ACTING:
        return Trust.ACTS
    inside = {".".join(name.split(".")[:2]), name}
    return Trust.KNOWN if root in _PURE and inside.isdisjoint(_READING) else Trust.UNKNOWN


def _name(name: str) -> Trust:
    return Trust.ACTS if name in _ACTING else Trust.UNKNOWN if name in _READING else Trust.KNOWN
