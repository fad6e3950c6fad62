"""Builds the kernels with the C compiler that is there, if one is. Needs no torch: setup.py runs this file too."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = sorted(HERE.glob("*.c"))
# Not for this machine's processor alone: the library has code for each kind, and chooses when it is loaded.
FLAGS = ["-std=gnu11", "-O3", "-fPIC", "-shared", "-ffp-contract=off", "-fvisibility=default", "-Wno-psabi"]
PATIENCE = 120  # seconds; it takes about three


def fingerprint() -> str:
    """What a library must have been built from to be used with this package."""
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for path in [*SOURCES, *sorted(HERE.glob("*.h"))]:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def compile_library(to: Path) -> str | None:
    """Build the library at this path; what went wrong, or None. Whoever looks there sees all of it or nothing."""
    compiler = next((found for name in (os.environ.get("CC"), "cc", "gcc", "clang") if (found := _program(name))), None)
    if compiler is None:
        return "there is no C compiler"
    sources = [f'-DENGRAM_SOURCES="{fingerprint()}"', *map(str, SOURCES)]
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=to.parent) as directory:
            made = Path(directory) / to.name
            problem = None
            for threads in (["-fopenmp"], []):  # a compiler without OpenMP makes kernels that use one thread
                result = subprocess.run(
                    [compiler, *FLAGS, *threads, *sources, "-lm", "-o", str(made)],
                    capture_output=True,
                    text=True,
                    timeout=PATIENCE,
                    check=False,
                )
                if result.returncode == 0:
                    os.replace(made, to)
                    return None
                problem = problem or f"{compiler} failed: {result.stderr.strip()[:300]}"
            return problem
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)


def _program(name: str | None) -> str | None:
    return shutil.which(name) if name else None
