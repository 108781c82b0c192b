"""One result of ``solve_ivp`` from those of its pieces."""

from typing import Any

import numpy as np

from probode.ivp.result import Embedding, OdeResult, Solution, state_at
from probode.posterior.pieces import PiecewisePosterior

EVENTS = ("t_events", "y_events", "t_events_std")
"""What a result has of events: for each of them times, states and how sure the times are."""


def joined(
    posterior: PiecewisePosterior,
    results: list[OdeResult],
    found: list[dict[str, Any]],
    times: np.ndarray | None,
    dense_output: bool,
) -> OdeResult:
    """All pieces as one; ``found`` are the events, as their results have them."""
    last, embedding = results[-1], Embedding.of(posterior.first)
    t: Any = np.concatenate([result.t for result in results])
    y, y_std = (np.concatenate([result[name] for result in results], 1) for name in ("y", "y_std"))
    nodes = np.unique(t)
    forward = t[-1] >= t[0]
    nodes = nodes if forward else nodes[::-1]
    if times is not None:
        t = times[times <= nodes[-1]] if forward else times[times >= nodes[-1]]
        at: Any = posterior
        mean, std = state_at(at, t)
        y, y_std = embedding.values(mean).T, embedding.stds(std).T
    occurred: dict[str, Any] = dict.fromkeys(EVENTS)
    if found:
        occurred = {
            name: [_stacked(rows) for rows in zip(*(one[name] for one in found), strict=True)]
            for name in EVENTS
        }
    status = last.status
    if posterior.ended is not None:
        status = -1
    any_posterior: Any = posterior
    return OdeResult(
        t=t,
        y=y,
        sol=Solution(any_posterior, embedding, nodes) if dense_output else None,
        **occurred,
        **{name: sum(result[name] for result in results) for name in ("nfev", "njev", "nlu")},
        status=status,
        message=last.message if posterior.ended is None else posterior.message,
        success=status >= 0,
        y_std=y_std,
        posterior=posterior,
        path=last.path,
    )


def _stacked(rows: tuple[Any, ...]) -> Any:
    some = [np.asarray(row) for row in rows if len(row)]
    return np.concatenate(some) if some else rows[0]
