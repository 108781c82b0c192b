"""How a solve ended: codes that are their message."""

from enum import IntEnum


class Status(IntEnum):
    """How a solve ended. ``Status.SUCCESS`` is 0, ``Status.EVENT`` 2, every failure is negative.

    Examples
    --------
    >>> import probode
    >>> posterior = probode.solve(lambda t, y: y**2, (0, 2), 1.0)  # infinite at t = 1
    >>> posterior.status < 0
    True
    >>> bool(posterior.t[-1] < 1)
    True
    """

    RUNNING = 1
    SUCCESS = 0
    EVENT = 2
    STEP_TOO_SMALL = -1
    NOT_FINITE = -2
    MAX_STEPS = -3
    INTERRUPTED = -4
    TIME_LIMIT = -5
    CALLBACK = -6
    START_NOT_FINITE = -7
    MEMORY_LIMIT = -8
    NOT_A_FUNCTION = -9
    ACCUMULATING = -10

    @property
    def message(self) -> str:
        """The code in words."""
        return _MESSAGES[self]


_MESSAGES = {
    Status.RUNNING: "The solver has not reached the end of the integration interval yet.",
    Status.SUCCESS: "The solver successfully reached the end of the integration interval.",
    Status.EVENT: "A termination event occurred.",
    Status.STEP_TOO_SMALL: (
        "Required step size is less than spacing between numbers; the solution up to there is "
        "returned. It may be infinite or singular there, the tolerance may be far below rounding, "
        "or atol larger than a component that must keep its sign."
    ),
    Status.NOT_FINITE: (
        "The vector field returned NaN or Inf, also for the smallest steps; the solution up to "
        "there is returned."
    ),
    Status.MAX_STEPS: (
        "The maximal number of steps was reached before the end of the integration interval. If "
        "the steps are tiny, the problem may be stiff for this solver: try EK1, or EK0 with "
        "evaluations=2 or a lower order (it is limited by stability); otherwise raise "
        "max_steps (in solve_ivp max_num_steps)."
    ),
    Status.INTERRUPTED: "The solve was interrupted; the solution up to there is returned.",
    Status.TIME_LIMIT: "The time limit was reached; the solution up to there is returned.",
    Status.MEMORY_LIMIT: (
        "The memory that the solve may take (max_memory) is full; the solution up to there is "
        "returned. To get further, pass a larger max_memory, a lower order, or EK0, whose states "
        "are small. Or keep the solution at chosen times only: pass t_eval without dense_output, "
        "events and checkpoint (in solve save_at), for a function that can be traced. Error bars "
        "then keep a part of each step; with calibration='model' nothing is kept."
    ),
    Status.NOT_A_FUNCTION: (
        "The vector field is no function of t and y: it gives other values at the same point "
        "(random numbers, a clock, a memory of earlier calls), and for that the steps became too "
        "short to reach the end; the solution up to there is returned."
    ),
    Status.ACCUMULATING: (
        "Events that act follow each other without end; the solution up to there is returned."
    ),
    Status.CALLBACK: "The callback stopped the solve; the solution up to there is returned.",
    Status.START_NOT_FINITE: (
        "The vector field or its derivatives at the initial value are NaN or Inf. (Outside jit, "
        "vmap and grad derivatives that are not finite are done without; inside, use "
        "initialization='runge-kutta'.) Or, of an implicit equation, nothing that fulfils it was "
        "found near the initial value, or that is not the initial value, as inconsistent='refuse' "
        "demands; solve, or member(i) of an ensemble, says more."
    ),
}
