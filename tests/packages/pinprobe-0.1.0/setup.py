"""Build script of pinprobe: CMake and ninja compile the extensions, setuptools packs the wheel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from shutil import which

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent.resolve()
VERSION = "0.1.0"
ABI3 = "cp311"  # the oldest Python of the limited API the extensions use


class CMakeExtension(Extension):
    """An extension whose sources only CMake knows."""

    def __init__(self, name: str) -> None:
        super().__init__(name, sources=[], py_limited_api=True)


class CMakeBuild(build_ext):
    """Configure once, build every target in one ninja run, install each component."""

    def jobs(self) -> int:
        """Jobs at once: MAX_JOBS, else the cores this process may use."""
        if given := os.environ.get("MAX_JOBS"):
            return int(given)
        return len(os.sched_getaffinity(0))

    def configure(self, build: Path) -> None:
        jobs = self.jobs()
        threads = int(os.environ.get("NVCC_THREADS") or 1)
        settings = {
            "CMAKE_BUILD_TYPE": os.environ.get("CMAKE_BUILD_TYPE") or "RelWithDebInfo",
            "CMAKE_JOB_POOLS:STRING": f"compile={max(1, jobs // threads)}",
            "CMAKE_JOB_POOL_COMPILE:STRING": "compile",
            "NVCC_THREADS": str(threads),
            "PINPROBE_PYTHON": sys.executable,
        }
        if which("sccache"):
            for language in ("CXX", "CUDA"):
                settings[f"CMAKE_{language}_COMPILER_LAUNCHER"] = "sccache"
        subprocess.check_call(
            ["cmake", "-G", "Ninja", *(f"-D{k}={v}" for k, v in settings.items()), str(ROOT)],
            cwd=build,
        )

    def build_extensions(self) -> None:
        build = Path(self.build_temp).resolve()
        build.mkdir(parents=True, exist_ok=True)
        self.configure(build)
        targets = [extension.name.rpartition(".")[2] for extension in self.extensions]
        subprocess.check_call(
            ["cmake", "--build", ".", f"-j={self.jobs()}", *(f"--target={t}" for t in targets)],
            cwd=build,
        )
        for extension, target in zip(self.extensions, targets, strict=True):
            package = Path(self.get_ext_fullpath(extension.name)).resolve().parent
            subprocess.check_call(
                ["cmake", "--install", ".", "--prefix", str(package.parent), "--component", target],
                cwd=build,
            )


setup(
    name="pinprobe",
    version=VERSION,
    description="A small CUDA extension package that pinwheel builds to test itself.",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=["pinprobe"],
    install_requires=["torch==2.11.0", "typing_extensions>=4"],
    ext_modules=[CMakeExtension("pinprobe._C"), CMakeExtension("pinprobe._C_stable_libtorch")],
    cmdclass={"build_ext": CMakeBuild},
    entry_points={"console_scripts": ["pinprobe = pinprobe.entry:main"]},
    options={"bdist_wheel": {"py_limited_api": ABI3}},
)
