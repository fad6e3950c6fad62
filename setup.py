"""Builds the native kernels where there is a C compiler; the package works without them. All else: pyproject.toml."""

import runpy
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = Path("engram") / "native"
builder = runpy.run_path(str(NATIVE / "build.py"))  # not imported: that would bring torch


class BuildKernels(build_ext):
    def build_extension(self, extension: Extension) -> None:
        problem = builder["compile_library"](Path(self.get_ext_fullpath(extension.name)).resolve())
        print(f"native kernels: {problem or 'built'}")


setup(
    ext_modules=[Extension("engram.native.kernels", sources=[str(NATIVE / "kernels.c")], optional=True)],
    cmdclass={"build_ext": BuildKernels},
)
