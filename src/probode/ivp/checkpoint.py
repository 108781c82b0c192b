"""Solves that survive a kill: where they are kept, and how it is told that they are the same."""

import os
import re
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from probode.base.digest import digest
from probode.engines.in_python import Driven
from probode.engines.journal import Folder, Journal, OneFile, Store
from probode.engines.protocol import Engine, Given
from probode.posterior.events import Event
from probode.programs.field import Field


@dataclass(frozen=True)
class Checkpoint:
    """Keep the steps of ``solve_ivp`` in files, and go on from them when it is called again.

    Parameters
    ----------
    path
        A folder, to which rows of steps are appended: memory does not grow with them. Or a file
        ``name.npz``, which is written anew each time: for solves that fit into memory.
    every
        Seconds between two saves, at least: a kill loses the steps since the last of them. Saves
        that take long are made less often, so that they never take more than a twentieth of the
        time.

    Examples
    --------
    >>> from probode import Checkpoint
    >>> Checkpoint("run", every=10.0)
    Checkpoint(path='run', every=10.0)
    """

    path: str | os.PathLike[str]
    every: float = 30.0

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike) or not os.fspath(self.path):
            raise TypeError(f"checkpoint must be a path, got {self.path!r}.")
        try:
            seconds = float(self.every)
        except (TypeError, ValueError):
            seconds = -1.0
        if not seconds >= 0.0:
            raise ValueError(f"every must be a number of seconds, got {self.every!r}.")

    def open(self) -> Journal:
        """What is there already, ready to be gone on with."""
        path = Path(self.path)
        store: Store = OneFile(path) if path.suffix == ".npz" else Folder(path)
        try:
            return Journal(store, str(path), float(self.every))
        except BaseException:
            store.release()
            raise


@contextmanager
def opened(checkpoint: Any) -> Iterator[Journal | None]:
    """The journal of a call, if there is to be one; saved in the end, however that comes."""
    if checkpoint is None or isinstance(checkpoint, Journal):  # of a call around this one
        yield checkpoint
        return
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint(checkpoint)
    journal = checkpoint.open()
    try:
        yield journal
    finally:
        journal.close()


def identity(
    engine: Engine,
    given: Given,
    fun: Any,
    args: Sequence[Any],
    watched: list[Event] | None,
    until: Any,
    matrices: Sequence[Any] = (),
) -> dict[str, str]:
    """All that the steps of a run depend on, by name, as text that is the same in every process.

    Not what is made of them, nor how long they may take: other times of output, error bars and
    limits go on with the same steps.
    """
    method, start, field, control, t0, t1, y0 = given.inputs
    restarts = given.restarts
    terminal = [one for one in watched or () if np.isfinite(one.terminal)]
    events = [x for one in terminal for x in (_code(one.function), one.direction, one.terminal)]
    return {
        "fun": _function(given, field, fun, args),
        "t_span": f"({float(t0)!r}, {float(t1)!r})",
        "y0": digest(np.asarray(y0)),
        "method": _whole(method),
        "start": _whole(start),
        "tolerances, control of steps": _whole(control),
        "breakpoints": digest(*(np.asarray(x) for x in restarts)),
        "uncertainty of the start": digest(*(given.carried or ())),
        "terminal events": digest(*events),
        "matrices": digest(*map(_matrix, matrices)),
        "until": "" if until is None else repr(until.aim),
        "engine": engine.name,
    }


def _whole(value: Any) -> str:
    """An object of the library's by its class, its settings and its numbers."""
    leaves = jax.tree.leaves(value)
    numbers = [x for x in map(np.asarray, leaves) if x.dtype != object]
    settings = [x for x in leaves if np.asarray(x).dtype == object]
    text = f"{type(value).__name__} {jax.tree.structure(value)} {settings}"
    return digest(re.sub(r"0x[0-9a-f]+", "", text), *numbers)


def _function(given: Given, field: Any, fun: Any, args: Sequence[Any]) -> str:
    """By what it computes: its traced program with all numbers; else its code, and the start."""
    numbers = [np.asarray(x) for x in jax.tree.leaves(field)] if isinstance(field, Field) else []
    if isinstance(field, Field):
        programs = [one for one in (field.program, field.jacobian_program) if one is not None]
        return digest(*(one.fingerprint() for one in programs), *numbers)
    assert isinstance(given, Driven)
    start = np.asarray(given.begun.start.mean)
    return digest(_code(fun), start, *map(_plain, jax.tree.leaves(tuple(args))))


def _matrix(value: Any) -> Any:
    """A matrix that a user gives, sparse or not."""
    if callable(value):
        return _code(value)
    if hasattr(value, "tocoo"):
        found = value.tocoo()
        return digest(repr(found.shape), found.data, *found.coords)
    return "" if value is None else digest(np.asarray(value))


def _plain(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, np.ndarray | jax.Array) else repr(type(value))


def _code(function: Any) -> str:
    """Instructions and constants of a function, without names of places or lines."""
    code = getattr(function, "__code__", None)
    if code is None:
        code = getattr(type(function).__call__, "__code__", None)
    return type(function).__qualname__ if code is None else _instructions(code)


def _instructions(code: types.CodeType) -> str:
    constants = [
        _instructions(one) if isinstance(one, types.CodeType) else repr(one)
        for one in code.co_consts
    ]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"
