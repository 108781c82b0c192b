"""What is asked of XLA beyond compiling a program."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import jax

from probode.base.jax_inside.loans import borrowed, say
from probode.base.jax_inside.values import double_precision


def new_operation(
    name: str,
    *,
    shape: Callable[..., Any],
    evaluate: Callable[..., Any],
    batched: Callable[..., Any],
    on_cpu: Callable[..., Any],
    elsewhere: Callable[..., Any] | None = None,
    derivatives: "Derivatives | None" = None,
) -> Callable[..., Any] | None:
    """Return an operation of our own, a function of arrays; ``None`` if JAX does not allow it.

    ``shape`` describes its result, or a list of results. Without ``derivatives`` it has none.

    JAX documents functions with other derivatives (``custom_jvp``), with other batches
    (``custom_vmap``), and choices by platform. It does not document a choice that is made when a
    program is lowered, after all transformations, and costs nothing where it is not taken.
    """
    several = derivatives is not None
    try:
        batching, mlir = map(import_module, ("jax.interpreters.batching", "jax.interpreters.mlir"))
        primitive = import_module("jax.extend.core").Primitive(name)
        described = import_module("jax.core").ShapedArray
        primitive.multiple_results = several

        def abstract(*values: Any, **params: Any) -> Any:
            found = shape(*values, **params)
            every = [described(*_parts(one)) for one in (found if several else [found])]
            return every if several else every[0]

        primitive.def_impl(evaluate)
        primitive.def_abstract_eval(abstract)
        batching.primitive_batchers[primitive] = batched
        for platform, function in (("cpu", on_cpu), (None, elsewhere or on_cpu)):
            rule = _in_scope(mlir.lower_fun(function, multiple_results=several))
            mlir.register_lowering(primitive, rule, platform=platform)
        if derivatives is not None:
            _differentiate(primitive, derivatives)
    except Exception:
        say("operations of others' making", "inside jit the native kernels are not used")
        return None
    return primitive.bind


def _in_scope(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Return a lowering rule that runs in double precision, like the functions that it applies to.

    Lowering happens after everything else has returned, and the type of an index depends on the
    precision that is set then.
    """

    def lower(*args: Any, **params: Any) -> Any:
        with double_precision():
            return rule(*args, **params)

    return lower


class Derivatives(NamedTuple):
    """Rules for the derivatives of an operation with several results.

    ``None`` stands for a derivative that is known to be zero.
    """

    forward: Callable[..., tuple[list[Any], list[Any]]]
    """``(inputs, tangents, **parameters)`` to the results and their tangents."""
    reverse: Callable[..., list[Any]]
    """``(cotangents, known, **parameters)`` to cotangents of the inputs in which it is linear.

    ``known`` are the other inputs, and ``None`` in the places of these.
    """


def _differentiate(primitive: Any, rules: Derivatives) -> None:
    ad = import_module("jax.interpreters.ad")
    zero, unknown = ad.Zero, ad.UndefinedPrimal

    def given(values: Any) -> list[Any]:
        return [None if isinstance(value, zero | unknown) else value for value in values]

    def forward(inputs: Any, tangents: Any, **params: Any) -> Any:
        results, moved = rules.forward(inputs, given(tangents), **params)
        pairs = zip(results, moved, strict=True)
        still = [zero(jax.typeof(x).to_tangent_aval()) if dx is None else dx for x, dx in pairs]
        return results, still

    def reverse(cotangents: Any, *inputs: Any, **params: Any) -> Any:
        found = rules.reverse(given(cotangents), given(inputs), **params)
        pairs = zip(found, inputs, strict=True)
        return [value if isinstance(x, unknown) else None for value, x in pairs]

    ad.primitive_jvps[primitive] = forward
    ad.primitive_transposes[primitive] = reverse


def _parts(described: Any) -> tuple[Any, Any]:
    return described.shape, described.dtype


_KNOWN_COMPILERS = ("0.10.", "0.12.")
"""Versions of JAX whose compiler was seen to do that right. (Several results make it abort.)"""


def in_one_piece(function: Any) -> Any:
    """Have XLA compile a function of arrays for the CPU as one piece, not kernel by kernel.

    The function returns one array.
    """
    mark = borrowed("jax.experimental.xla_metadata", "set_xla_metadata")
    if mark is None or not jax.__version__.startswith(_KNOWN_COMPILERS):
        say("a way to have loops compiled as one function", "lanes take longer for each step")
        return function

    def inside(*args: Any) -> Any:
        with mark(xla_cpu_small_call=None, inlineable=None):
            return function(*args)

    def call(*args: Any) -> Any:
        with mark(xla_cpu_small_call="true", inlineable="false"):
            return jax.jit(inside, inline=False)(*args)

    return call


FAST_COMPILATION = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 2,
}
"""Halves compile times on the CPU; run times of the small kernels met here stay the same."""

LESS_OPTIMISATION = {"xla_backend_optimization_level": 1}
"""For long programs of simple operations: half the time to compile, the same code."""


def known_options(options: dict[str, Any]) -> dict[str, Any]:
    """Those of the options that this version of the compiler knows."""

    def are_known(some: dict[str, Any]) -> bool:
        try:
            jax.jit(lambda x: x, compiler_options=some).lower(0.0).compile()
        except Exception:  # an unknown option is reported in different ways
            return False
        return True

    if are_known(options):
        return options
    known = {name: value for name, value in options.items() if are_known({name: value})}
    missing = ", ".join(sorted(set(options) - set(known)))
    say(f"the options {missing} of its compiler", "compiling takes longer")
    return known


def cache_folder() -> str | None:
    """Where compiled programs are kept, if they are."""
    return getattr(jax.config, "jax_compilation_cache_dir", None)


def keep_compiled(folder: str) -> bool:
    """Have compiled programs kept in a folder; whether that was done."""
    try:
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    except Exception:  # an option of another name
        say("settings of its cache", "programs are compiled in every process")
        return False
    return True


def trace_settings() -> Any | None:
    """What of JAX's settings, here and now, a trace depends on; ``None``: not to be had."""
    settings = borrowed("jax._src.config", "trace_context")
    return None if settings is None else settings()


def stored(program: Any) -> bytes | None:
    """A compiled program in bytes, for this JAX on this machine; ``None``: not to be had."""
    serialize = borrowed("jax.experimental.serialize_executable", "serialize")
    try:
        data: bytes = serialize(program)[0]  # type: ignore[misc]
    except Exception:  # one with constants, or of another kind
        return None
    return data


def restored(data: bytes, lowered: Any) -> Any | None:
    """A program of :func:`stored`, of which ``lowered`` is what was compiled."""
    load = borrowed("jax.experimental.serialize_executable", "deserialize_and_load")
    if load is None:
        return None
    return load(data, jax.tree.structure(lowered.args_info), lowered.out_tree)


def pallas(warps: int | None = None) -> tuple[Any, dict[str, Any]] | None:
    """Pallas, and its options for kernels of so many warps; ``None``: not to be had."""
    try:
        options = {}
        if warps is not None:  # not everywhere that Pallas is
            triton = import_module("jax.experimental.pallas.triton")
            options["compiler_params"] = triton.CompilerParams(num_warps=warps)
        return import_module("jax.experimental.pallas"), options
    except Exception:
        say("jax.experimental.pallas", "on a GPU many members take longer")
        return None
