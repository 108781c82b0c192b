"""Right-hand sides as scientists write them.

Each snippet names the way in which it should become traceable (or ``None``: it stays Python).
"""

from typing import Any

import numpy as np

from probode.programs.tracing import make_traceable
from snippets import (  # noqa: F401  each adds its own to SNIPPETS
    arithmetic,
    branches,
    entry_by_entry,
    helpers_and_objects,
    numpy_functions,
    stays_python,
)
from snippets.registry import SNIPPETS, Snippet

TRACED = [s for s in SNIPPETS if s.path is not None]
STAYS = [s for s in SNIPPETS if s.path is None]


def ids(snippets: list[Snippet]) -> list[str]:
    return [s.name for s in snippets]


def traceable(s: Snippet) -> Any:
    return make_traceable(s.fun, s.t_span, np.array(s.y0, float), s.args)


def original(s: Snippet, t: float, y: np.ndarray) -> np.ndarray:
    return np.array(s.fun(t, y.copy(), *s.args), float)
