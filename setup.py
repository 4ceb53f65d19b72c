"""What pyproject.toml cannot say: that a part of millrace is compiled, if the machine has a compiler of C.

Where there is none, or it fails, all of millrace works without that part; JSON, CSV and bad Examples take longer. `CC`
names another compiler, also one with arguments, as `zig cc -target aarch64-linux-gnu.2.17`; an empty `CC` compiles
nothing. `PLATFORM` is then the wheel's, as `manylinux_2_17_aarch64`, and the part has to compile.
"""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

FLAGS = ("-std=c11", "-O3", "-Wall", "-Wextra", "-shared", "-fPIC", "-s")
LIBRARY = Extension(
    "millrace.pipelines.formats.shared.libplain",
    sorted(map(str, Path("pipelines/formats").glob("*/plain.c"))),
    optional="PLATFORM" not in os.environ,
)


def compiler() -> list[str]:
    """Return the command of a compiler; empty if there is none."""
    if "CC" in os.environ:
        return shlex.split(os.environ["CC"])
    return [name for name in ("cc", "gcc", "clang") if shutil.which(name)][:1]


class Library(build_ext):  # type: ignore[misc]  # no types of setuptools
    """Compiles a library that is no module: it knows nothing of Python, so that one serves all its versions."""

    def get_ext_filename(self, fullname: str) -> str:
        return f"{fullname.replace('.', '/')}.so"

    def build_extension(self, ext: Extension) -> None:
        path = Path(self.get_ext_fullpath(ext.name))
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            subprocess.run([*compiler(), *FLAGS, "-o", path, *ext.sources], check=True)  # noqa: S603 - the user's compiler
        except (OSError, subprocess.CalledProcessError) as error:
            raise CompileError(str(error)) from error  # of an optional part: told, and left out


class AnyPython(bdist_wheel):  # type: ignore[misc]
    """Names the wheel by its platform alone."""

    def get_tag(self) -> tuple[str, str, str]:
        *_, platform = super().get_tag()
        return "py3", "none", os.environ.get("PLATFORM", platform)


setup(ext_modules=[LIBRARY] if compiler() else [], cmdclass={"build_ext": Library, "bdist_wheel": AnyPython})
