"""JAX's operations as they are known here: one table, from which all who walk programs take theirs.

==========  ========================================================================================
column      what it says
==========  ========================================================================================
kind        entrywise; moving (entries go elsewhere); reduction; cumulative; call; loop; library
            (by LAPACK and the like, which wait for threads); other
traits      ``linear`` in all operands that are not whole numbers (as is all that moves);
            ``bilinear``; ``compares``, ``levels`` (to whole numbers, or multiples), ``bends``:
            where a function of time switches; ``picks`` entries by their size; ``logical``;
            ``singular``: finite where derivatives are not; ``exact``: NumPy and XLA agree in every
            digit; ``rules``: comes with derivative rules; ``flat``: its derivatives are zero;
            ``each``: entry by entry too, if left to XLA; ``optional``: not in all versions
NumPy       the function there (``=``: of the same name), ``rule`` (in ``in_numpy``), or none
parameters  those that rules here know of, ``*`` for any; of calls, the one that holds the program
==========  ========================================================================================

An operation that is not here has no rule anywhere: it is left to XLA.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from probode.base.jax_inside.in_numpy import RULES, plain

_TABLE = """
add                  entrywise   linear,exact         =
add_any              entrywise   linear               add
sub                  entrywise   linear,exact         subtract
neg                  entrywise   linear,exact         negative
mul                  entrywise   bilinear,exact       multiply
div                  entrywise   -                    rule
square               entrywise   -                    =
integer_pow          entrywise   -                    rule   y
pow                  entrywise   singular             power
rsqrt                entrywise   -                    rule
cbrt,log,log1p,sqrt  entrywise   singular             =
exp,exp2,expm1       entrywise   -                    =
cos,sin,tan          entrywise   -                    =
cosh,sinh,tanh       entrywise   -                    =
acos                 entrywise   singular             arccos
acosh                entrywise   singular             arccosh
asin                 entrywise   singular             arcsin
asinh                entrywise   -                    arcsinh
atan                 entrywise   -                    arctan
atan2                entrywise   singular             arctan2
atanh                entrywise   singular             arctanh
erf,erfc,logistic    entrywise   -                    rule
erf_inv              entrywise   -                    -
digamma,lgamma       entrywise   -                    -
nextafter            entrywise   -                    -
one_minus_square     entrywise   optional             rule
polynomial           entrywise   optional             rule
abs                  entrywise   bends,exact          =
sign                 entrywise   bends,flat           =
max                  entrywise   bends                maximum
min                  entrywise   bends                minimum
clamp                entrywise   bends                rule
floor,ceil           entrywise   levels,exact,flat    =
round                entrywise   levels,flat          rule   rounding_method
rem                  entrywise   levels               fmod
convert_element_type entrywise   linear,levels,exact  rule   new_dtype
reduce_precision     entrywise   linear               -      exponent_bits mantissa_bits
lt                   entrywise   compares,exact       less
le                   entrywise   compares,exact       less_equal
gt                   entrywise   compares,exact       greater
ge                   entrywise   compares,exact       greater_equal
eq                   entrywise   compares,exact       equal
ne                   entrywise   compares,exact       not_equal
and                  entrywise   logical,exact        bitwise_and
or                   entrywise   logical,exact        bitwise_or
xor                  entrywise   logical,exact        bitwise_xor
not                  entrywise   logical,exact        invert
is_finite            entrywise   -                    isfinite
select_n             entrywise   linear,exact         rule
stop_gradient        entrywise   flat                 copy
optimization_barrier entrywise   -                    -      *
copy                 moving      exact                =
copy_p               moving      exact,optional       copy
broadcast_in_dim     moving      exact                rule   broadcast_dimensions shape
concatenate          moving      exact                rule   dimension
dynamic_slice        moving      exact                rule   slice_sizes
dynamic_update_slice moving      -                    -
expand_dims          moving      exact,optional       rule   dimensions
gather               moving      exact                rule   dimension_numbers fill_value mode
    indices_are_sorted slice_sizes unique_indices
pad                  moving      exact                rule   padding_config
reshape              moving      exact                rule   dimensions new_sizes
rev,squeeze          moving      exact                rule   dimensions
scatter              moving      -                    -      dimension_numbers indices_are_sorted
    mode unique_indices update_consts update_jaxpr
slice                moving      exact                rule   limit_indices start_indices strides
split                moving      exact                rule   axis sizes
stack,unstack        moving      exact,optional       rule   axis
tile                 moving      exact,optional       rule   reps
transpose            moving      exact                rule   permutation
reduce_sum           reduction   linear               rule   axes
reduce_max           reduction   picks                rule   axes
reduce_min           reduction   picks                rule   axes
reduce_prod          reduction   -                    rule   axes
reduce_and,reduce_or reduction   logical              rule   axes
cumsum               cumulative  linear               rule   axis reverse
cumprod              cumulative  -                    rule   axis reverse
cummax,cummin        cumulative  picks                rule   axis reverse
cumlogsumexp         cumulative  -                    -      axis reverse
jit,pjit             call        -                    -      jaxpr
checkpoint           call        -                    -      jaxpr
remat,remat2         call        -                    -      jaxpr
closed_call          call        -                    -      call_jaxpr
core_call            call        -                    -      call_jaxpr
eval_jaxpr           call        -                    -      call_jaxpr
custom_jvp_call      call        rules                -      call_jaxpr
custom_vjp_call      call        rules                -      call_jaxpr
custom_vjp_call_jaxpr call       rules                -      fun_jaxpr
scan                 loop        -                    -      _split_transpose ft_in ft_out jaxpr
    length linear num_carry num_consts reverse
while                loop        -                    -      *
cholesky,eig,eigh    library     -                    -      *
fft                  library     linear               rule   *
geqp3,geqrf          library     -                    -      *
hessenberg,schur,svd library     -                    -      *
householder_product  library     -                    -      *
lu                   library     -                    -
qr                   library     -                    -      full_matrices pivoting use_magma
triangular_solve     library     -                    -      conjugate_a left_side lower
    transpose_a unit_diagonal
tridiagonal          library     -                    -      *
tridiagonal_solve    library     -                    -      *
dot_general          other       bilinear             rule   dimension_numbers
    preferred_element_type
conv_general_dilated other       bilinear             -      *
bcoo_dot_general,bcsr_dot_general other optional - dimension_numbers lhs_spinfo
    preferred_element_type
argmax,argmin        other       picks                rule   axes index_dtype
bessel_i0e,bessel_i1e,igamma,igammac,polygamma,zeta other each - *
regularized_incomplete_beta,device_put,name other each - *
complex              other       linear,each          rule   *
conj                 other       linear,each          =      input_dtype
real,imag            other       linear,each          =
cond                 other       -                    -      branches branches_platforms
custom_linear_solve  other       -                    -      const_lengths jaxprs
iota                 other       exact                rule   dimension dtype shape
lt_to,le_to          other       compares             -
platform_index       other       optional             -      platforms
reduce_window_sum    other       linear               -      *
reduce_window_max,reduce_window_min other picks - *
scatter-add          other       linear               -      *
scatter-sub          other       linear,optional      -      *
scatter-max,scatter-min other picks   -                    *
scatter-mul          other       -                    -      *
sort                 other       picks                -      dimension is_stable num_keys
"""
"""Names that share a row have everything in common; a row may go on in the next line."""


class Known(NamedTuple):
    """A row of the table."""

    words: frozenset[str]
    """Its kind, and its traits."""
    in_numpy: Callable[..., Any] | None
    """From an equation's parameters and arrays to the result, or a list of results."""
    parameters: tuple[str, ...]


def _in_numpy(name: str, function: str) -> Callable[..., Any] | None:
    if function == "-":
        return None
    return RULES[name] if function == "rule" else plain(getattr(np, function.replace("=", name)))


def _read(table: str) -> Iterator[tuple[str, Known]]:
    for row in re.split(r"\n(?=\S)", table.strip()):
        names, kind, traits, function, *parameters = row.split()
        for name in names.split(","):
            words = frozenset((kind, *traits.split(",")))
            yield name, Known(words, _in_numpy(name, function), tuple(parameters))


TABLE = dict(_read(_TABLE))


def those(*words: str) -> frozenset[str]:
    """The operations that have one of these kinds or traits."""
    return frozenset(name for name, row in TABLE.items() if not row.words.isdisjoint(words))


IN_NUMPY = {name: row.in_numpy for name, row in TABLE.items() if row.in_numpy is not None}
"""Operations that NumPy can do."""

CALLS = {name: TABLE[name].parameters[0] for name in those("call")}
"""All calls, and the parameter that holds what is called."""

PARAMETERS = {
    name: frozenset(row.parameters)
    for name, row in TABLE.items()
    if name not in CALLS and row.parameters != ("*",)
}
"""Operations for which there are rules here, and the parameters that these know of."""

HARMLESS = frozenset(("accuracy", "out_sharding", "precision", "sharding", "unroll", "weak_type"))
"""Parameters that do not change what is computed, but for rounding, type or place."""
