"""The library's compiled programs, kept on disk: another process loads them instead of compiling.

JAX has such a cache for whole processes. Switching it on would decide for all of a user's programs
as well, and a folder that the user names later would be ignored; so it is left alone, and where it
is in use, nothing is done here. Ours keeps the programs of the library only, on one CPU device:

- a file is known by what was to be compiled (the text of the program, JAX's version, the compiler's
  options and flags, the processor), so it is never stale, and homes that are shared by different
  machines are no danger;
- files appear in one move: processes may write the same one; what cannot be read or written is
  compiled, without a word;
- programs that call back into Python are not kept, nor are those that compile in no time;
- beyond ``LARGEST`` bytes the files that were not used for longest are removed.

``PROBODE_CACHE=0`` in the environment switches it off, ``PROBODE_CACHE=folder`` moves it.
"""

import hashlib
import os
import platform
import time
from collections.abc import Callable, Hashable
from functools import lru_cache
from pathlib import Path
from threading import RLock
from typing import Any

import jax
import jaxlib
import numpy as np

from probode.base.jax_inside import cache_folder, is_tracer, restored, stored, trace_settings
from probode.base.limits import compiling
from probode.base.waiting import doing

LARGEST = 200 * 2**20
_WORTH_KEEPING = 0.1
"""Seconds of compiling."""
_MOST_PROGRAMS = 512
"""Signatures of one function that are remembered in a process."""


def user_cache() -> Path:
    """The folder of the user's caches that is ours."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "probode"


def folder() -> Path | None:
    """Where programs are kept; ``None``: they are not."""
    wanted = os.environ.get("PROBODE_CACHE", "")
    if wanted == "0":
        return None
    try:
        return Path(wanted) if wanted else user_cache() / "programs"
    except RuntimeError:  # no home
        return None


def in_use() -> bool:
    """Whether programs are kept here, and not by JAX, or on devices of which we know less."""
    return (
        os.environ.get("PROBODE_CACHE") != "0"
        and cache_folder() is None
        and bool(getattr(jax.config, "jax_enable_compilation_cache", False))
        and not getattr(jax.config, "jax_disable_jit", True)
        and _one_cpu()
    )


@lru_cache(maxsize=1)
def _one_cpu() -> bool:
    return jax.default_backend() == "cpu" and jax.device_count() == 1


class KeptProgram:
    """A function of :func:`jax.jit`, whose programs are looked for on disk before compiling.

    ``static`` are the positions of the arguments that are part of the program, ``options`` those of
    the compiler.
    """

    def __init__(
        self, function: Callable[..., Any], jitted: Any, static: tuple[int, ...], options: Any
    ) -> None:
        self._function = function
        self._jitted, self._static, self._options = jitted, frozenset(static), options
        self._programs: dict[Hashable, Callable[..., Any]] = {}
        self._turn = RLock()  # one thread compiles, the others wait for what it gets

    @classmethod
    def of(cls, function: Callable[..., Any], options: Any, *static: int) -> "KeptProgram":
        """A function to be compiled."""
        # With arguments that are not used: without, different programs would have the same text.
        jitted = jax.jit(
            function, static_argnums=static, keep_unused=True, compiler_options=options
        )
        return cls(function, jitted, static, options)

    def __call__(self, *args: Any) -> Any:
        """The value, by a program of this signature; inside another one, as a part of that."""
        inputs = [x for i, x in enumerate(args) if i not in self._static]
        if any(map(is_tracer, jax.tree.leaves(inputs))):
            return self._function(*args)
        signature = self._signature(args) if in_use() else None
        if signature is None:
            with doing("compiling or running a program"):
                return self._jitted(*args)
        program = self._programs.get(signature) or self._compiled(signature, args)
        return program(*inputs)

    def _compiled(self, signature: Hashable, args: tuple[Any, ...]) -> Callable[..., Any]:
        with self._turn:
            program = self._programs.get(signature)
            if program is None:
                with compiling():
                    program = _compiled(self._jitted.lower(*args), self._options)
                if len(self._programs) >= _MOST_PROGRAMS:
                    self._programs.clear()
                self._programs[signature] = program
            return program

    def _signature(self, args: tuple[Any, ...]) -> Hashable | None:
        """What decides about the program; ``None``: values are not known, or of other kinds."""
        settings, static = trace_settings(), tuple(args[i] for i in self._static)
        if settings is None:
            return None
        leaves, tree = jax.tree.flatten([x for i, x in enumerate(args) if i not in self._static])
        kinds: list[Hashable] = []
        for leaf in leaves:
            if is_tracer(leaf):
                return None
            if isinstance(leaf, jax.Array):
                kinds.append((leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)))
            elif isinstance(leaf, np.ndarray | np.generic):
                kinds.append((leaf.shape, leaf.dtype, False))
            elif isinstance(leaf, bool | int | float | complex):
                kinds.append(((), type(leaf), True))
            else:
                return None
        return static, tree, tuple(kinds), settings


def _compiled(lowered: Any, options: Any) -> Callable[..., Any]:
    """From disk, or compiled and written there."""
    text, place = lowered.as_text(), folder()
    if place is None or "callback" in text:
        return lowered.compile()
    path = (
        place / hashlib.sha256("\n".join((text, repr(options), *_setting())).encode()).hexdigest()
    )
    try:
        program = restored(path.read_bytes(), lowered)
        os.utime(path)
    except Exception:  # not there, or not to be read: it is compiled
        program = None
    if program is not None:
        return program
    start = time.perf_counter()
    with doing("compiling, once for each kind of problem"):
        program = lowered.compile()
    if time.perf_counter() - start > _WORTH_KEEPING:
        data = stored(program)
        if data is not None:
            _write(path, data)
    return program


def kept(key: tuple[str, ...], make: Callable[[], bytes]) -> bytes:
    """What ``make`` makes of all that ``key`` says: from disk, or made and written there."""
    place = folder()
    if place is None:
        return make()
    path = place / hashlib.sha256("\n".join(key).encode()).hexdigest()
    try:
        data = path.read_bytes()
        os.utime(path)
        return data
    except OSError:  # not there, or not to be read
        data = make()
        _write(path, data)
        return data


def _setting() -> tuple[str, ...]:
    """What else decides how a program is compiled."""
    optimised = getattr(jax.config, "jax_disable_most_optimizations", None)
    versions = (jax.__version__, jaxlib.__version__)
    return (*versions, str(optimised), os.environ.get("XLA_FLAGS", ""), _processor())


@lru_cache(maxsize=1)
def _processor() -> str:
    """With all it can do, where that is told."""
    described = f"{platform.system()} {platform.machine()} {platform.processor()}"
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not told: this computer only
        return f"{described} {platform.node()}"
    told = ("model name", "flags", "Features", "CPU part")
    return "\n".join([described, *dict.fromkeys(line for line in lines if line.startswith(told))])


def _write(path: Path, data: bytes) -> None:
    unfinished = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        unfinished.write_bytes(data)
        unfinished.replace(path)
        _make_room(path.parent)
    except OSError:  # full, or not ours to write to
        pass


def _make_room(place: Path) -> None:
    """Remove what was not used for longest, until the rest fits."""
    files = sorted((file.stat().st_mtime, file.stat().st_size, file) for file in place.iterdir())
    excess = sum(size for _, size, _ in files) - LARGEST
    for _, size, file in files:
        if excess <= 0:
            return
        file.unlink(missing_ok=True)
        excess -= size
