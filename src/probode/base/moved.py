"""Modules under the names they had before they were put into packages: pickles know them by those.

``probode.prior`` is the module ``probode.model.prior`` itself. Nothing is imported before somebody
asks for an old name.
"""

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_PACKAGES = {
    "base": "compile errors limits precision rational record status",
    "programs": "finite_differences identity inputs interpolators lifting program reads stored "
    "switches taylor tracing unroll user_code",
    "model": "diffusion gaussian linearize prior structure",
    "filter": "control first_step loop saving smooth solvers step",
    "engines": "fallback kept lanes native progress",
    "posterior": "cells chosen crossings curves display events export finish hermite outcome paths "
    "plotting views",
    "ivp": "choice scipy",
    "cli": "user_problems",
}
_MOVED = {
    **{name: f"{package}.{name}" for package in _PACKAGES for name in _PACKAGES[package].split()},
    **{
        f"ivp_{name}": f"ivp.{name}"
        for name in ("function", "jacobian", "method", "options", "result", "run")
    },
    "calibration": "global_error",
    "calibration.target": "ivp.target",
    "cli_paper": "cli.paper",
    "cli_summary": "cli.summary",
    "engine": "engines.in_jax",
    "global_error.carry": "global_error.in_jax",
    "global_error.drive": "global_error.in_jax",
    "global_error.host": "global_error.in_python",
    "global_error.kernels": "global_error.native",
    "host": "engines.in_python",
    "initial": "filter.start",
    "problem": "programs.field",
    "reductions": "ensemble.reductions",
    "tracing.watch": "programs.tracing.watching",
}
_LIBRARY = "probode."


def place_of(name: str) -> str | None:
    """Where a module is, given its full name of old; ``None`` if that is no such name."""
    if not name.startswith(_LIBRARY):
        return None
    old = name.removeprefix(_LIBRARY)
    package, dot, rest = old.partition(".")
    if old in _MOVED:
        return _LIBRARY + _MOVED[old]
    return f"{_LIBRARY}{_MOVED[package]}.{rest}" if dot and package in _MOVED else None


class _Finder(MetaPathFinder):
    """Asked before Python's own, which would load the parts of a moved package once more."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        place = place_of(name)
        return None if place is None else ModuleSpec(name, _Loader(place))


class _Loader(Loader):
    """Hands out a module that has a place of its own, as it is."""

    def __init__(self, place: str) -> None:
        self._place = place

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._place)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # which Python has just replaced


def install() -> None:
    """Let Python find modules by their old names, too."""
    sys.meta_path.insert(0, _Finder())
