"""Builds the kernels with the system's C compiler. Imports no torch, since setup.py runs this file too."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = sorted(HERE.glob("*.c"))
# No -march: the library has code for each instruction set and selects one when it is loaded.
FLAGS = ["-std=gnu11", "-O3", "-fPIC", "-shared", "-ffp-contract=off", "-fvisibility=default", "-Wno-psabi"]
TIMEOUT = 120  # seconds; it takes about three


def fingerprint() -> str:
    """Hash of the sources and flags. A library is used only if it was built from the same."""
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for path in [*SOURCES, *sorted(HERE.glob("*.h"))]:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def compile_library(to: Path) -> str | None:
    """Build the library at this path, atomically. Returns the problem, or None."""
    compiler = next((found for name in (os.environ.get("CC"), "cc", "gcc", "clang") if (found := _program(name))), None)
    if compiler is None:
        return "no C compiler found"
    sources = [f'-DENGRAM_SOURCES="{fingerprint()}"', *map(str, SOURCES)]
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=to.parent) as directory:
            built = Path(directory) / to.name
            problem = None
            for threads in (["-fopenmp"], []):  # without OpenMP the kernels use one thread
                result = subprocess.run(
                    [compiler, *FLAGS, *threads, *sources, "-lm", "-o", str(built)],
                    capture_output=True,
                    text=True,
                    timeout=TIMEOUT,
                    check=False,
                )
                if result.returncode == 0:
                    os.replace(built, to)
                    return None
                problem = problem or f"{compiler} failed: {result.stderr.strip()[:300]}"
            return problem
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)


def _program(name: str | None) -> str | None:
    return shutil.which(name) if name else None
