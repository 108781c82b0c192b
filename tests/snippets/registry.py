"""How a snippet is written down."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Snippet(NamedTuple):
    name: str
    fun: Callable[..., Any]
    y0: Any
    path: str | None
    args: tuple[Any, ...]
    t_span: tuple[float, float]


SNIPPETS: list[Snippet] = []


def snippet(
    path: str | None, y0: Any, args: tuple[Any, ...] = (), t_span: Any = (0.0, 2.0), name: str = ""
) -> Callable[..., Any]:
    def register(fun: Callable[..., Any]) -> Callable[..., Any]:
        SNIPPETS.append(Snippet(name or fun.__name__, fun, y0, path, args, t_span))
        return fun

    return register
