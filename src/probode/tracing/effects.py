"""What a function leaves behind: lists, counters, attributes, arrays, used random numbers.

A compiled function leaves nothing behind. So one that does is not traced, and what trying it has
changed is put back.
"""

import functools
import random
import types
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from probode.identity import global_names, home, is_user_module, package

_DEPTH = 5
_LARGE = 100_000


class State:
    """The mutable objects within reach of a function, as they were.

    Parameters
    ----------
    fun, args
        The user's function and its further arguments.

    Attributes
    ----------
    speaks_jax
        Whether the function refers to anything of JAX.
    is_used
        Whether the function was found to change some of it, or to draw from it: set by the caller.
    """

    def __init__(self, fun: Any, args: Any) -> None:
        self._function = (fun, args)
        self.speaks_jax = False
        self.is_used = False
        self._home = home(fun)
        self._seen: set[int] = set()
        self._lists: list[tuple[Any, Any]] = []
        self._dicts: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._cells: list[tuple[types.CellType, Any]] = []
        self._globals: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._absent: list[tuple[dict[str, Any], set[str]]] = []
        self._arrays: list[tuple[np.ndarray, np.ndarray]] = []
        self._generators: list[tuple[Any, Any]] = []
        self._random = random.getstate(), np.random.get_state()  # noqa: NPY002
        self._visit(fun, 0)
        self._visit(args, 0)

    def _visit(self, value: Any, depth: int) -> None:
        if depth > _DEPTH or id(value) in self._seen or len(self._seen) > _LARGE:
            return
        self._seen.add(id(value))
        self.speaks_jax = self.speaks_jax or _is_of_jax(value)
        inside: list[Any] = []
        if isinstance(value, list | set | deque):
            self._lists.append((value, value.copy()))
            inside = list(value)
        elif isinstance(value, tuple):
            inside = list(value)
        elif isinstance(value, dict):
            self._dicts.append((value, dict(value)))
            inside = list(value.values())
        elif isinstance(value, np.ndarray):
            if value.size <= _LARGE and value.flags.writeable:
                self._arrays.append((value, value.copy()))
        elif isinstance(value, np.random.Generator):
            self._generators.append((value.bit_generator, value.bit_generator.state))
        elif isinstance(value, types.FunctionType):
            inside = self._enter(value)
        elif isinstance(value, types.MethodType):
            inside = [value.__func__, value.__self__]
        elif isinstance(value, functools.partial):
            inside = [value.func, value.args, value.keywords]
        elif isinstance(getattr(value, "__wrapped__", None), types.FunctionType):
            inside = [value.__wrapped__]
        elif not isinstance(value, type | types.ModuleType):
            inside = self._attributes(value)
        for item in inside:
            if not isinstance(item, int | float | str):
                self._visit(item, depth + 1)

    def _enter(self, function: types.FunctionType) -> list[Any]:
        if not is_user_module(function.__module__, self._home):
            return []
        inside = []
        for cell in function.__closure__ or ():
            try:
                self._cells.append((cell, cell.cell_contents))
            except ValueError:  # not assigned yet
                continue
            inside.append(cell.cell_contents)
        namespace, names = function.__globals__, set(global_names(function.__code__))
        found = {name: namespace[name] for name in names if name in namespace}
        self.speaks_jax = self.speaks_jax or any(name.startswith("jax.") for name in names)
        self._globals.append((namespace, found))
        self._absent.append((namespace, names - found.keys()))
        defaults = (function.__defaults__, function.__kwdefaults__)
        return [*inside, *found.values(), *defaults]

    def _attributes(self, value: Any) -> list[Any]:
        """The attributes of an object of the user's class, and what its methods refer to."""
        cls = type(value)
        attributes = getattr(value, "__dict__", None)
        if type(attributes) is not dict or not is_user_module(cls.__module__, self._home):
            return []
        self._dicts.append((attributes, dict(attributes)))
        methods = [
            item
            for base in cls.__mro__
            for item in vars(base).values()
            if isinstance(item, types.FunctionType)
        ]
        return [*attributes.values(), *methods]

    def changed(self) -> bool:
        """Whether a list, a dictionary, an attribute or a variable outside has changed.

        Arrays do not count: they serve as preallocated results.
        """
        return (
            any(_differ(now, before) for now, before in self._lists)
            or any(
                now.keys() != before.keys() or _differ(now.values(), before.values())
                for now, before in self._dicts
            )
            or any(cell.cell_contents is not before for cell, before in self._cells)
            or any(
                namespace[name] is not item
                for namespace, before in self._globals
                for name, item in before.items()
            )
            or any(not names.isdisjoint(namespace) for namespace, names in self._absent)
        )

    def changed_by(self, call: Callable[[], Any]) -> bool:
        """Whether something changes during a call of the function."""
        now = State(*self._function)
        call()
        return now.changed()

    def restore(self) -> None:
        """Put everything back."""
        for now, before in self._lists:
            if _differ(now, before):
                now.clear()
                (now.update if isinstance(now, set) else now.extend)(before)
        for attributes, known in self._dicts:
            if attributes.keys() != known.keys() or _differ(attributes.values(), known.values()):
                attributes.clear()
                attributes.update(known)
        for cell, content in self._cells:
            if cell.cell_contents is not content:
                cell.cell_contents = content
        for namespace, found in self._globals:
            for name, item in found.items():
                if namespace[name] is not item:
                    namespace[name] = item
        for namespace, names in self._absent:
            for name in names & namespace.keys():
                del namespace[name]
        for array, copy in self._arrays:
            array[...] = copy
        for generator, start in self._generators:
            generator.state = start
        random.setstate(self._random[0])
        np.random.set_state(self._random[1])  # noqa: NPY002


def _is_of_jax(value: Any) -> bool:
    """A module, a function or an array of JAX, or a function that JAX has compiled."""
    if isinstance(value, types.ModuleType):
        return package(value.__name__) == "jax"
    if isinstance(value, types.FunctionType):
        return package(value.__module__) == "jax"
    return package(type(value).__module__) in ("jax", "jaxlib")


def _differ(now: Any, before: Any) -> bool:
    if isinstance(now, set):
        return bool(now != before)
    return len(now) != len(before) or any(a is not b for a, b in zip(now, before, strict=True))
