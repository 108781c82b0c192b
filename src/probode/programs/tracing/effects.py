"""What a function leaves behind: lists, counters, attributes, arrays, used random numbers.

A compiled function leaves nothing behind. So one that does is not traced, and what trying it has
changed is put back.
"""

import functools
import random
import types
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np

from probode.programs.inputs import Input
from probode.programs.reads import acting_name, reads
from probode.programs.user_code import (
    asked,
    closure,
    global_names,
    home,
    is_user_module,
    package,
    slots_of,
)

_ACTORS = {
    *("_queue", "_thread", "logging", "multiprocessing", "queue", "socket", "sqlite3"),
    *("subprocess", "threading"),
}
"""Packages whose objects are there to do something."""

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
    acts
        Description of an object that changes with every call (an iterator, a file), or of a call to
        a function with side effects or another result each time (``open``, the clock: see
        ``probode.programs.reads``); else ``None``.
    handles_errors
        Whether it, or a function that it calls, catches errors (``except`` and the like).
    is_used
        Whether the function was found to change some of it, or to draw from it: set by the caller.
    call
        Calls the function as it was called before: set by the caller.
    """

    def __init__(self, fun: Any, args: Any) -> None:
        self._function = (fun, args)
        self.speaks_jax = self.handles_errors = self.is_used = False
        self.acts: str | None = None
        self.call: Callable[[], Any] | None = None
        self._home = home(fun)
        self._seen: set[int] = set()
        self._lists: list[tuple[Any, Any]] = []
        self._dicts: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._cells: list[tuple[types.CellType, Any, str]] = []
        self._globals: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._absent: list[tuple[dict[str, Any], set[str]]] = []
        self._slots: list[tuple[Any, dict[str, Any]]] = []
        self._classes: list[tuple[type, dict[str, Any]]] = []
        self._arrays: list[tuple[np.ndarray, np.ndarray]] = []
        self._buffers: list[tuple[Any, bytes]] = []
        self._foreign: list[tuple[Any, dict[str, Any]]] = []
        self._written: list[Any] = []
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
        elif isinstance(value, types.BuiltinFunctionType | types.MethodWrapperType):
            inside = [value.__self__]  # a list, for its append
        elif isinstance(value, functools.partial):
            inside = [value.func, value.args, value.keywords]
        elif isinstance(asked(value, "__wrapped__"), types.FunctionType):
            inside = [value.__wrapped__]
        elif isinstance(value, types.SimpleNamespace):
            inside = [vars(value)]
        elif isinstance(value, types.ModuleType):
            if is_user_module(value.__name__, self._home):
                self._dicts.append((vars(value), dict(vars(value))))
        elif isinstance(value, type):
            inside = self._members(value)
        else:
            kind = type(value)
            if issubclass(kind, Iterator | ContextVar) or package(kind.__module__) in _ACTORS:
                self.acts = self.acts or f"it holds an object of type {kind.__qualname__}"
            content = _content(value)
            if content is not None and content.nbytes <= _LARGE:
                self._buffers.append((value, bytes(content)))
            del content  # while it is there, nothing can be appended
            inside = self._attributes(value)
        for item in inside:
            if not isinstance(item, int | float | str):
                self._visit(item, depth + 1)

    def _enter(self, function: types.FunctionType) -> list[Any]:
        if not is_user_module(function.__module__, self._home):
            return []
        acting = acting_name(function)
        if acting is not None:
            self.acts = self.acts or f"it calls {acting}"
        self.handles_errors = self.handles_errors or reads(function.__code__).handles_errors
        cells = [(cell, value, name) for name, cell, value in closure(function)]
        self._cells += cells
        inside = [value for _, value, _ in cells]
        namespace, names = function.__globals__, set(global_names(function.__code__))
        found = {name: namespace[name] for name in names if name in namespace}
        self.speaks_jax = self.speaks_jax or any(name.startswith("jax.") for name in names)
        self._globals.append((namespace, found))
        self._absent.append((namespace, names - found.keys()))
        for module in found.values():
            if isinstance(module, types.ModuleType) and is_user_module(module.__name__, self._home):
                inside += [item for name, item in vars(module).items() if name in names]
        defaults = (function.__defaults__, function.__kwdefaults__)
        return [*inside, *found.values(), *defaults, function.__dict__]

    def _attributes(self, value: Any) -> list[Any]:
        """The attributes of an object of the user's class, and its class."""
        if isinstance(value, Input):  # it only computes, with its numbers
            return list(vars(value).values())
        if not is_user_module(type(value).__module__, self._home):
            self._foreign.append((value, _plain_attributes(value)))
            return []
        attributes = asked(value, "__dict__")
        if type(attributes) is not dict:
            attributes = {}
        self._dicts.append((attributes, dict(attributes)))
        slots = slots_of(value)
        self._slots.append((value, slots))
        return [*attributes.values(), *slots.values(), *type(value).__mro__]

    def _members(self, cls: type) -> list[Any]:
        """The attributes of a class of the user's, and what its methods refer to."""
        if cls.__module__ == "builtins" or not is_user_module(cls.__module__, self._home):
            return []
        self._classes.append((cls, dict(vars(cls))))
        members = list(vars(cls).values())
        inside = [asked(item, name) for item in members for name in ("__func__", "fget")]
        return [*members, *inside]

    def mark(self) -> None:
        """Remember what is in arrays, other memory, and objects of other packages now."""
        self._written = self._memory()

    def wrote_anew(self) -> bool:
        """Whether it has changed since :meth:`mark`: then it is neither a result nor a cache."""
        return self._memory() != self._written

    def _memory(self) -> list[Any]:
        return [
            *(array.tobytes() for array, _ in self._arrays),
            *(bytes(_content(buffer) or b"") for buffer, _ in self._buffers),
            *(_plain_attributes(value) for value, _ in self._foreign),
        ]

    def changed(self) -> bool:
        """Whether a list, a dictionary, an attribute or a variable outside has changed.

        Arrays do not count: they serve as preallocated results (but see :meth:`wrote_anew`).
        """
        return self.first_change() is not None

    def first_change(self) -> str | None:
        """Describe the first change, if there is one."""
        return next(self._changes(), None)

    def _changes(self) -> Iterator[str]:
        for now, before in self._lists:
            if _differ(now, before):
                yield f"a {type(now).__name__}"
        named = [(attributes, known) for attributes, known in self._dicts]
        named += [(slots_of(value), known) for value, known in self._slots]
        named += [(dict(vars(cls)), known) for cls, known in self._classes]
        for attributes, known in named:
            if attributes.keys() != known.keys() or _differ(attributes.values(), known.values()):
                names = {*attributes, *known}
                changed = [x for x in names if attributes.get(x, self) is not known.get(x, self)]
                yield f"{changed[0]!r}" if changed else "a dictionary"
        for cell, before, name in self._cells:
            if cell.cell_contents is not before:
                yield f"the variable {name!r}"
        for namespace, found in self._globals:
            for name, item in found.items():
                if namespace[name] is not item:
                    yield f"the variable {name!r}"
        for namespace, names in self._absent:
            if not names.isdisjoint(namespace):
                yield f"the variable {min(names & namespace.keys())!r}"

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
                if known.keys() - attributes.keys():
                    attributes.clear()  # for the order of the keys
                for name in attributes.keys() - known.keys():
                    del attributes[name]
                attributes.update(known)
        for value, slots in self._slots:
            now = slots_of(value)
            for name, item in slots.items():
                if now.get(name, self) is not item:
                    object.__setattr__(value, name, item)
        for cls, members in self._classes:
            for name in vars(cls).keys() - members.keys():
                delattr(cls, name)
            for name, item in members.items():
                if vars(cls).get(name, self) is not item:
                    setattr(cls, name, item)
        for cell, content, _ in self._cells:
            if cell.cell_contents is not content:
                cell.cell_contents = content
        for namespace, found in self._globals:
            for name, item in found.items():
                if namespace[name] is not item:
                    namespace[name] = item
        for namespace, names in self._absent:
            for name in names & namespace.keys():
                del namespace[name]
        self.restore_memory()
        for value, plain in self._foreign:
            if _plain_attributes(value) != plain:
                vars(value).update(plain)
        for generator, state in self._generators:
            generator.state = state
        random.setstate(self._random[0])
        np.random.set_state(self._random[1])  # noqa: NPY002

    def restore_what_is_written(self) -> None:
        """Put back what a call of the function writes into arrays and other memory, and no more.

        What has changed otherwise was changed by other threads.
        """
        if self.call is None or not self._memory_changed():
            return
        arrays = [array.copy() for array, _ in self._arrays]
        buffers = [bytes(_content(buffer) or b"") for buffer, _ in self._buffers]
        self.restore_memory()
        self.call()
        for (array, start), now in zip(self._arrays, arrays, strict=True):
            array[...] = np.where(array != start, start, now)
        for (buffer, start_bytes), before in zip(self._buffers, buffers, strict=True):
            content = _content(buffer)
            if content is not None and content.nbytes == len(before):
                content[:] = before if bytes(content) == start_bytes else start_bytes

    def _memory_changed(self) -> bool:
        return any(array.tobytes() != copy.tobytes() for array, copy in self._arrays) or any(
            bytes(_content(buffer) or b"") != start for buffer, start in self._buffers
        )

    def restore_memory(self) -> None:
        """Put arrays and other memory back."""
        for array, copy in self._arrays:
            array[...] = copy
        for buffer, start in self._buffers:
            content = _content(buffer)
            if content is not None and content.nbytes > len(start):
                content = None
                del buffer[len(start) // getattr(buffer, "itemsize", 1) :]
                content = _content(buffer)
            if content is not None and content.nbytes == len(start):
                content[:] = start


def _plain_attributes(value: Any) -> dict[str, Any]:
    """Numbers and text that an object holds, such as how often it was asked."""
    attributes = asked(value, "__dict__")
    if type(attributes) is not dict:
        return {}
    return {name: item for name, item in attributes.items() if type(item) in (int, float, str)}


def _content(value: Any) -> memoryview | None:
    """Memory that is not NumPy's as bytes: ``array.array``, ``ctypes``, ``bytearray``, ``mmap``."""
    try:
        view = memoryview(value)
        return None if view.readonly else view.cast("B")
    except (TypeError, ValueError):
        return None


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
