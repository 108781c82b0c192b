"""JAX's operations as the rules here know them: calls, and parameters."""

WITH_RULES = {
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}
"""Calls of functions that come with derivative rules, and the parameter that holds the function."""

CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr",
    "checkpoint": "jaxpr",
    "remat": "jaxpr",
    "remat2": "jaxpr",
    **WITH_RULES,
}
"""All calls, and the parameter that holds what is called."""

LIBRARY_CALLS = (
    *("cholesky", "eig", "eigh", "fft", "geqrf", "geqp3", "hessenberg", "householder_product"),
    *("lu", "qr", "schur", "svd", "triangular_solve", "tridiagonal", "tridiagonal_solve"),
)
"""Decompositions and transforms, in all versions."""

HARMLESS = frozenset(("accuracy", "out_sharding", "precision", "sharding", "unroll", "weak_type"))
"""Parameters that do not change what is computed, but for rounding, type or place."""

# fmt: off
PARAMETERS: dict[str, frozenset[str]] = {
    **dict.fromkeys(
        (
            "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2",
            "atanh", "cbrt", "ceil", "clamp", "copy", "copy_p", "cos", "cosh", "digamma", "div",
            "dynamic_update_slice", "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor",
            "ge", "gt", "imag", "is_finite", "le", "le_to", "lgamma", "log", "log1p", "logistic",
            "lt", "lt_to", "lu", "max", "min", "mul", "ne", "neg", "nextafter", "not",
            "one_minus_square", "or", "polynomial", "pow", "real", "rem", "rsqrt", "select_n",
            "sign", "sin", "sinh", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh", "xor",
        ),
        frozenset[str](),
    ),
    **dict.fromkeys(("cummax", "cummin", "cumprod", "cumsum"), frozenset(("axis", "reverse"))),
    **dict.fromkeys(
        ("reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_sum"),
        frozenset(("axes",)),
    ),
    **dict.fromkeys(("argmax", "argmin"), frozenset(("axes", "index_dtype"))),
    "broadcast_in_dim": frozenset(("broadcast_dimensions", "shape")),
    "concatenate": frozenset(("dimension",)),
    "cond": frozenset(("branches", "branches_platforms")),
    "conj": frozenset(("input_dtype",)),
    "convert_element_type": frozenset(("new_dtype",)),
    "custom_linear_solve": frozenset(("const_lengths", "jaxprs")),
    "dot_general": frozenset(("dimension_numbers", "preferred_element_type")),
    "dynamic_slice": frozenset(("slice_sizes",)),
    "expand_dims": frozenset(("dimensions",)),
    "gather": frozenset((
        "dimension_numbers", "fill_value", "indices_are_sorted", "mode", "slice_sizes",
        "unique_indices",
    )),
    "integer_pow": frozenset(("y",)),
    "iota": frozenset(("dimension", "dtype", "shape")),
    "pad": frozenset(("padding_config",)),
    "platform_index": frozenset(("platforms",)),
    "qr": frozenset(("full_matrices", "pivoting", "use_magma")),
    "reduce_precision": frozenset(("exponent_bits", "mantissa_bits")),
    "reshape": frozenset(("dimensions", "new_sizes")),
    "rev": frozenset(("dimensions",)),
    "round": frozenset(("rounding_method",)),
    "scan": frozenset((
        "_split_transpose", "ft_in", "ft_out", "jaxpr", "length", "linear", "num_carry",
        "num_consts", "reverse",
    )),
    "scatter": frozenset((
        "dimension_numbers", "indices_are_sorted", "mode", "unique_indices", "update_consts",
        "update_jaxpr",
    )),
    "slice": frozenset(("limit_indices", "start_indices", "strides")),
    "sort": frozenset(("dimension", "is_stable", "num_keys")),
    "split": frozenset(("axis", "sizes")),
    "squeeze": frozenset(("dimensions",)),
    "stack": frozenset(("axis",)),
    "transpose": frozenset(("permutation",)),
    "triangular_solve": frozenset((
        "conjugate_a", "left_side", "lower", "transpose_a", "unit_diagonal",
    )),
    "unstack": frozenset(("axis",)),
}
# fmt: on
"""Operations for which there are rules here, and the parameters that these know of."""

COME_AND_GO = frozenset(
    (
        *("copy_p", "expand_dims", "one_minus_square", "platform_index", "polynomial"),
        *("stack", "unstack"),
    )
)
"""Those of them that not all versions have."""
