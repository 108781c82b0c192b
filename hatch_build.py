"""Build the native kernels, if a compiler is at hand; without one the library runs on JAX alone."""

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("src/probode/engines/native/src")
TARGET = Path("src/probode/engines/native/_kernels.so")

# Loops of known length have to be written out (-fpeel-loops), which is all that -O3 gains here; the
# rest of -O3 takes as long again to compile.
FLAGS = [
    *("-O2", "-fpeel-loops", "-std=c++17", "-fPIC", "-fno-math-errno"),
    *("-Wno-psabi", "-Wno-attributes"),
]
# One object per instruction set; the best that the machine has is chosen at run time.
INSTRUCTION_SETS = {"avx2": "x86-64-v3", "avx512": "x86-64-v4"}


class NativeKernels(BuildHookInterface):  # type: ignore[misc]
    """Compiles ``src/probode/engines/native/src`` into a shared library beside it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, or say in one line why not. ``PROBODE_BUILD_NATIVE=0`` does not try."""
        if os.environ.get("PROBODE_BUILD_NATIVE") == "0" or self.target_name != "wheel":
            return
        target = Path(self.root) / TARGET
        try:
            build(Path(self.root) / SOURCE, target)
        except Exception as error:  # an optional part must not fail the installation
            target.unlink(missing_ok=True)
            self.app.display_warning(f"probode: native kernels not built ({error})")
            return
        build_data["pure_python"] = False
        build_data["tag"] = tag()
        build_data["artifacts"].append(TARGET.as_posix())


def machine() -> str:
    """What is built for, such as ``linux-x86_64``; a Python for two processors builds for one."""
    name, processor = sysconfig.get_platform(), platform.machine()
    if name.endswith("-universal2") and processor == "arm64":
        system = name.split("-")[1]  # the oldest of the other processor: there is none before 11
        name = name.replace(system, "11.0" if int(system.split(".")[0]) < 11 else system)
    return name.replace("universal2", processor)


def tag() -> str:
    """Of a wheel with kernels: they know nothing of Python, so one serves every version of it."""
    return f"py3-none-{machine().replace('-', '_').replace('.', '_')}"


def build(source: Path, target: Path) -> None:
    """Compile the kernels for every instruction set, and link them with the interface to XLA."""
    if sys.platform == "win32":  # the interface has 64 bits in a long, where Windows has 32
        raise RuntimeError("not supported on Windows")
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise RuntimeError("no C++ compiler found")
    headers = _xla_headers()
    sets: dict[str, str] = INSTRUCTION_SETS if machine().endswith("-x86_64") else {}
    flags = [*FLAGS, *os.environ.get("ARCHFLAGS", "").split()]  # of macOS: for which processor
    with tempfile.TemporaryDirectory() as folder:

        def compile_one(name: str, file: str, *more: str) -> str:
            out = str(Path(folder) / f"{name}.o")
            _run(compiler, *flags, *more, "-c", str(source / file), "-o", out)
            return out

        defines = [f"-DPROBODE_WITH_{name.upper()}" for name in sets]
        # Beside better sets the baseline serves old processors only: less of it is compiled, which
        # takes half the time and costs it 5 %.
        seldom_used = ["-DPROBODE_KNOWN_WIDTH=0", "-O1"] if sets else []
        units = [
            *(
                (name, "kernels.cc", f"-DPROBODE_ISA={name}", f"-march={sets[name]}")
                for name in sets
            ),
            ("baseline", "kernels.cc", "-DPROBODE_ISA=baseline", *seldom_used),
            # Loops over long vectors, which -O2 leaves as they are: these files are small.
            *(
                (f"{name}-long", "two_pole.cc", f"-DPROBODE_ISA={name}", f"-march={march}", "-O3")
                for name, march in sets.items()
            ),
            ("baseline-long", "two_pole.cc", "-DPROBODE_ISA=baseline", "-O3"),
            *(
                (f"{name}-abreast", "abreast.cc", f"-DPROBODE_ISA={name}", f"-march={march}")
                for name, march in sets.items()
            ),
            ("baseline-abreast", "abreast.cc", "-DPROBODE_ISA=baseline"),
            ("plan", "front_plan.cc"),
            ("module", "module.cc", *defines, f"-I{headers}"),
        ]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(lambda unit: compile_one(*unit), units))
        built = Path(folder) / target.name
        _run(compiler, *flags, "-shared", "-o", str(built), *objects)
        # In one move: a process that has the old library loaded keeps it.
        shutil.copy(built, target.with_suffix(".new"))
        target.with_suffix(".new").replace(target)


def _xla_headers() -> Path:
    import jaxlib

    headers = Path(jaxlib.__file__).parent / "include"
    if not (headers / "xla" / "ffi" / "api" / "ffi.h").exists():
        raise RuntimeError(f"jaxlib {jaxlib.__version__} ships no FFI headers")
    return headers


def _run(*command: str) -> None:
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    if outcome.returncode:
        raise RuntimeError(f"{Path(command[0]).name} failed:\n{outcome.stderr[-2000:]}")
