"""What the library borrows from JAX's inside: all of it, with what is done where JAX lacks it.

JAX documents its functions, not what they are made of; the latter changes between versions. Nothing
else in the library names an undocumented attribute of JAX or XLA. Each loan has a fallback, by
which results are the same and take longer (or are kept less long), and which is announced once by
the logger ``probode``.

==========================  ==============================================  ========================
loan                        what for                                        without it
==========================  ==============================================  ========================
:func:`is_tracer`           values that are not known yet                   found by a trace
:func:`evaluates_eagerly`   whether anything is traced, in no time          an operation finds out
:func:`unknown_value`       an error of JAX's, raised by us                 made without its text
:func:`double_precision`    64 bits, in a scope                             an older name for it
:func:`trace` and below     programs: equations, operations, parameters     evaluated, not looked at
:func:`rule_of_jvp`         derivative rules, compared                      compiled once per object
:func:`with_constants`      constants made inputs of a stored program       constants of it
:func:`operations`          the operations of a stored program              not stored
:func:`new_operation`       native kernels inside a user's ``jit``          JAX's own loop
:func:`with_callbacks`      ``pure_callback`` in double precision           in single precision
:func:`in_one_piece`        loops compiled as one function                  kernel by kernel
:func:`known_options`       quicker compilation                             JAX's own options
:func:`cache_folder`        compiled programs on disk                       compiled per process
:func:`stored`              our programs on disk                            compiled per process
:func:`trace_settings`      whether one of them may be used here            compiled per process
:func:`pallas`              one kernel on the GPU                           XLA's kernels
==========================  ==============================================  ========================

Programs are read as in JAX's tutorial on interpreters of them: ``jaxpr.eqns``, ``invars``,
``outvars``, ``constvars``; ``equation.primitive``, ``params``; ``variable.aval``; ``literal.val``.
:func:`readable` tries that once. Whoever looks into a program does so within :func:`reading`, and
asks :func:`operation` for the name of an operation: one with parameters that were not there when
its rules were written has another name, for which nobody has a rule. What is known of operations is
in one table (``known``), and :func:`those` of it that a walker has rules for are asked by kind.
"""

from probode.base.jax_inside.callbacks import with_callbacks
from probode.base.jax_inside.compiling import (
    FAST_COMPILATION,
    LESS_OPTIMISATION,
    Derivatives,
    cache_folder,
    in_one_piece,
    keep_compiled,
    known_options,
    new_operation,
    pallas,
    restored,
    stored,
    trace_settings,
)
from probode.base.jax_inside.known import IN_NUMPY, those
from probode.base.jax_inside.loans import said, say
from probode.base.jax_inside.programs import (
    Closed,
    Jaxpr,
    Opaque,
    Unreadable,
    called,
    equations,
    is_literal,
    kind,
    library_calls,
    operation,
    operations,
    program_of,
    programs_in,
    readable,
    reading,
    trace,
    walk,
)
from probode.base.jax_inside.running import apply, bind, rule_of_jvp, run, with_constants
from probode.base.jax_inside.values import (
    REFUSALS,
    double_precision,
    evaluates_eagerly,
    is_tracer,
    unknown_value,
)

__all__ = [
    "FAST_COMPILATION",
    "IN_NUMPY",
    "LESS_OPTIMISATION",
    "REFUSALS",
    "Closed",
    "Derivatives",
    "Jaxpr",
    "Opaque",
    "Unreadable",
    "apply",
    "bind",
    "cache_folder",
    "called",
    "double_precision",
    "equations",
    "evaluates_eagerly",
    "in_one_piece",
    "is_literal",
    "is_tracer",
    "keep_compiled",
    "kind",
    "known_options",
    "library_calls",
    "new_operation",
    "operation",
    "operations",
    "pallas",
    "program_of",
    "programs_in",
    "readable",
    "reading",
    "restored",
    "rule_of_jvp",
    "run",
    "said",
    "say",
    "stored",
    "those",
    "trace",
    "trace_settings",
    "unknown_value",
    "walk",
    "with_callbacks",
    "with_constants",
]
