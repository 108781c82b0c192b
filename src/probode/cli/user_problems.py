"""Problems from a user's file: ``path/to/file.py:function``."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np

from probode.problems import InitialValueProblem


def is_file_problem(name: str) -> bool:
    """Whether this names a function in a file rather than a problem of the zoo."""
    return ".py:" in name


def load(name: str, t_span: list[float] | None, y0: list[float] | None) -> InitialValueProblem:
    """The function ``fun(t, y)`` of a file as a problem.

    Interval and initial value come from the arguments, or from ``t_span`` and ``y0`` in the file.
    """
    location, _, function = name.rpartition(":")
    module = imported(Path(location))
    fun = getattr(module, function, None)
    if not callable(fun):
        known = [key for key, value in vars(module).items() if callable(value) and key[0] != "_"]
        raise ValueError(
            f"{location} has no function {function!r}; it has {', '.join(known) or 'none'}."
        )
    span = _given("--t-span", t_span, module, "t_span")
    start = _given("--y0", y0, module, "y0")
    if span.shape != (2,):
        raise ValueError(f"--t-span takes two numbers, got {span.size}.")
    return InitialValueProblem(
        name=name,
        vector_field=fun,
        t_span=(float(span[0]), float(span[1])),
        y0=start,
        args=(),
        description=(fun.__doc__ or "").strip().split("\n")[0],
        stiff=False,
        reference_end=None,
        reference_source="",
        exact=None,
    )


def imported(path: Path) -> Any:
    """The module in a file."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}.")
    spec = importlib.util.spec_from_file_location(f"probode_user_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _given(option: str, value: list[float] | None, module: Any, attribute: str) -> np.ndarray:
    if value is None:
        value = getattr(module, attribute, None)
    if value is None:
        raise ValueError(
            f"a problem from a file needs {option} (or {attribute} = ... in the file)."
        )
    return np.atleast_1d(np.asarray(value, float))
