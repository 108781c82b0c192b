"""CUDA's compiler and driver, as far as they are needed: a program, its launch, copies.

Both are libraries that come with JAX for a GPU and with the card; nothing is built beforehand.
Memory is JAX's own, so that programs of both find room beside each other.
"""

import ctypes
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes.util import find_library
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from probode.base.on_disk import kept
from probode.base.waiting import doing


class Unavailable(Exception):
    """What is missing, in words."""


def compiled(source: str, headers: dict[str, str], architecture: str) -> bytes:
    """The machine code of a program; what was compiled once is on disk."""
    compiler = _compiler()
    major, minor = ctypes.c_int(), ctypes.c_int()
    compiler.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    key = (source, *headers.values(), architecture, f"nvrtc {major.value}.{minor.value}")

    def make() -> bytes:
        with doing("compiling for the GPU, once for each kind of problem"):
            return _compile(compiler, source, headers, architecture)

    return kept(key, make)


def _compile(
    compiler: ctypes.CDLL, source: str, headers: dict[str, str], architecture: str
) -> bytes:
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    options = [f"--gpu-architecture={architecture}", "-default-device", "--std=c++17", "-w"]
    compiler.nvrtcCreateProgram(
        *(ctypes.byref(program), source.encode(), b"members.cu", len(headers)),
        *(_strings(headers.values()), _strings(headers)),
    )
    try:
        code = compiler.nvrtcCompileProgram(program, len(options), _strings(options))
        if code:
            compiler.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            compiler.nvrtcGetProgramLog(program, log)
            raise RuntimeError(f"the program for the GPU does not compile:\n{log.value.decode()}")
        compiler.nvrtcGetCUBINSize(program, ctypes.byref(size))
        binary = ctypes.create_string_buffer(size.value)
        compiler.nvrtcGetCUBIN(program, binary)
        return binary.raw
    finally:
        compiler.nvrtcDestroyProgram(ctypes.byref(program))


def _strings(values: Any) -> Any:
    encoded = [value.encode() for value in values]
    return (ctypes.c_char_p * len(encoded))(*encoded)


@lru_cache(maxsize=1)
def _compiler() -> ctypes.CDLL:
    for place in _places("nvrtc"):
        try:
            library = ctypes.CDLL(place)
            if hasattr(library, "nvrtcGetCUBIN"):
                return library
        except OSError:
            continue
    raise Unavailable(
        "CUDA's run time compiler (libnvrtc), which `pip install jax[cuda]` brings with it"
    )


def _places(name: str) -> Iterator[str]:
    """Where a library of CUDA's may be: beside Python's packages, or where the system looks."""
    pattern = f"lib{name}.so.[0-9]*"
    for folder in map(Path, sys.path):
        for found in sorted(folder.glob(f"nvidia/*/lib/{pattern}"), reverse=True):
            if "builtins" not in found.name:
                yield str(found)
    if (found_by_system := find_library(name)) is not None:
        yield found_by_system
    for folder in sorted(Path("/usr/local").glob("cuda*/lib64"), reverse=True):
        yield from map(str, sorted(folder.glob(pattern), reverse=True))


@lru_cache(maxsize=1)
def _driver() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise Unavailable("CUDA's driver (libcuda)") from error
    _done(library, library.cuInit(0))
    return library


_NO_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


class OutOfMemory(RuntimeError):
    """Memory of a card that a program needs and that is not free."""


def _done(driver: ctypes.CDLL, code: int) -> None:
    if code:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(code, ctypes.byref(text))
        kind = OutOfMemory if code == _NO_MEMORY else RuntimeError
        raise kind(f"CUDA: {text.value.decode() if text.value else f'error {code}'}")


class Card:
    """The card of a JAX device."""

    _MULTIPROCESSORS, _MAJOR, _MINOR = 16, 75, 76  # CUdevice_attribute
    _BESIDE = 1  # CU_STREAM_NON_BLOCKING: waits for no other stream

    def __init__(self, device: Any) -> None:
        self.driver = _driver()
        self._pinned: dict[int, list[np.ndarray]] = {}
        self._streams: list[Stream] = []
        ordinal = getattr(device, "local_hardware_id", None)
        self._handle, self._context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(self._handle), int(ordinal or 0))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._handle)
        self.multiprocessors = self._attribute(self._MULTIPROCESSORS)
        self.architecture = f"sm_{self._attribute(self._MAJOR)}{self._attribute(self._MINOR)}"

    def _call(self, name: str, *arguments: Any) -> None:
        _done(self.driver, getattr(self.driver, name)(*arguments))

    def _attribute(self, which: int) -> int:
        value = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), which, self._handle)
        return value.value

    def enter(self) -> None:
        """Make this card the one of this thread."""
        self._call("cuCtxSetCurrent", self._context)

    def function(self, binary: bytes, name: str) -> "Function":
        """A kernel of a program."""
        module, handle = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), binary)
        self._call("cuModuleGetFunction", ctypes.byref(handle), module, name.encode())
        return Function(self, handle)

    @contextmanager
    def stream(self) -> "Iterator[Stream]":
        """A line of work, in which one thing is done after the other; it is kept for the next."""
        try:
            found = self._streams.pop()
        except IndexError:
            handle = ctypes.c_void_p()
            self._call("cuStreamCreate", ctypes.byref(handle), ctypes.c_uint(self._BESIDE))
            found = Stream(self, handle)
        try:
            yield found
        finally:
            self._streams.append(found)

    @contextmanager
    def pinned(self, size: int) -> Iterator[np.ndarray]:
        """Bytes that the card can write to by itself; they are kept for the next who asks."""
        waiting = self._pinned.setdefault(size, [])
        try:
            found = waiting.pop()
        except IndexError:
            pointer = ctypes.c_void_p()
            self._call("cuMemAllocHost_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
            assert pointer.value is not None
            found = np.ctypeslib.as_array((ctypes.c_ubyte * size).from_address(pointer.value))
        try:
            yield found
        finally:
            waiting.append(found)

    def copy_to(self, where: int, array: Any) -> None:
        """An array of NumPy's, to memory of the card."""
        source, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
        self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(where), source, size)


class Stream:
    """Things that a card does one after the other, beside those of other streams."""

    def __init__(self, card: Card, handle: ctypes.c_void_p) -> None:
        self.card, self.handle = card, handle

    def wait(self) -> None:
        """For all that was begun."""
        self.card._call("cuStreamSynchronize", self.handle)

    def copy_from(self, array: Any, where: int) -> None:
        """Memory of the card, to an array.

        It should be one that the card can write to, or nothing else happens beside it.
        """
        target, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
        self.card._call("cuMemcpyDtoHAsync_v2", target, ctypes.c_uint64(where), size, self.handle)
        self.wait()

    def mark(self) -> "Mark":
        """What is done when all is that was begun so far."""
        handle = ctypes.c_void_p()
        self.card._call("cuEventCreate", ctypes.byref(handle), ctypes.c_uint(Mark.FLAGS))
        self.card._call("cuEventRecord", handle, self.handle)
        return Mark(self.card, handle)


class Mark:
    """A point in a stream."""

    FLAGS = 1 | 2  # CU_EVENT_BLOCKING_SYNC, CU_EVENT_DISABLE_TIMING: who waits, sleeps

    def __init__(self, card: Card, handle: ctypes.c_void_p) -> None:
        self.card, self._handle = card, handle
        weakref.finalize(self, card.driver.cuEventDestroy_v2, handle)

    def wait(self) -> None:
        """Until the card has come there."""
        self.card._call("cuEventSynchronize", self._handle)


class Function:
    """A kernel that can be launched."""

    def __init__(self, card: Card, handle: ctypes.c_void_p) -> None:
        self.card, self._handle = card, handle

    def blocks_beside_each_other(self, threads: int) -> int:
        """How many blocks of so many threads a multiprocessor holds."""
        count = ctypes.c_int()
        self.card._call(
            "cuOccupancyMaxActiveBlocksPerMultiprocessor",
            ctypes.byref(count), self._handle, threads, ctypes.c_size_t(0),
        )  # fmt: skip
        return max(1, count.value)

    def launch(self, stream: Stream, blocks: int, threads: int, *arguments: Any) -> None:
        """Run it; arguments are values of :mod:`ctypes`."""
        pointers = (ctypes.c_void_p * len(arguments))(
            *(ctypes.cast(ctypes.byref(x), ctypes.c_void_p) for x in arguments)
        )
        sizes = (blocks, 1, 1, threads, 1, 1)
        self.card._call(
            "cuLaunchKernel", self._handle, *map(ctypes.c_uint, sizes),
            ctypes.c_uint(0), stream.handle, pointers, None,
        )  # fmt: skip
