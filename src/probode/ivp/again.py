"""A solve by ``solve_ivp`` once more, at smaller tolerances: for ``diagnose(again=True)``."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from probode.base.limits import Limits
from probode.filter.control import PControl
from probode.ivp.choice import Candidate
from probode.ivp.evaluation import Evaluation
from probode.ivp.noticed import with_notice
from probode.ivp.run import Task
from probode.posterior.again import MODE, tightened
from probode.posterior.posterior import Posterior


def repeated_by(
    posterior: Posterior, task: Task, control: Any, evaluation: Evaluation
) -> Posterior:
    """The posterior, with what solves its task again (not where the steps were given)."""
    if not isinstance(control, PControl):
        return posterior
    repeat: Callable[[Any, float], Any] = partial(_repeat, _again(task), control, evaluation)
    return replace(posterior, problem=posterior.problem.repeated_by(repeat))


def _again(task: Task) -> Task:
    """What of a task says which solution it has: nothing that looks at it, or ends it early."""
    options = task.options._replace(
        calibration=MODE, checkpoint=None, callback=None, until=None, max_num_steps=None
    )
    options = options._replace(global_rtol=None, global_atol=None)
    return replace(task, options=options, watched=None, output=_nothing)


def _nothing(_: Posterior, limits: Limits) -> None:
    """Nothing is made of the posterior besides."""


def _repeat(
    task: Task, control: PControl, evaluation: Evaluation, first: Any, part: float
) -> Posterior:
    """The same to where the first has come, with ``part`` of the tolerances that it ended with."""
    t = np.asarray(first.t, float)
    low, high = sorted((task.t0, float(t[-1])))
    if low == high:
        return first
    breaks = task.breakpoints
    limits = Limits.read(task.options.time_limit, task.options.max_memory)
    inside = breaks[(breaks >= low) & (breaks <= high)]
    task = replace(task, tf=float(t[-1]), times=t, breakpoints=inside, limits=limits)
    rtol, atol = first.tolerances
    tight = tightened(replace(control, rtol=rtol, atol=atol), first.solver.order, part)
    candidates = [Candidate(first.solver)]
    found = with_notice(task, evaluation, lambda task: task.integrate(candidates, tight))
    return found[0]
