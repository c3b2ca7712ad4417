"""Real, small wheels for the tests of finishing: compiled by the host's gcc, zipped by hand."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import shutil
import subprocess
import sysconfig
import zipfile
from pathlib import Path

import pytest

needs_gcc = pytest.mark.skipif(
    not shutil.which("gcc") or not shutil.which("strip"),
    reason="compiles small libraries with the host's gcc",
)

EXTENSION = r"""
#define Py_LIMITED_API 0x03080000
#include <Python.h>
#include <unistd.h>
static PyObject *answer(PyObject *self, PyObject *arg) {
    return PyLong_FromLong(getpid() > 0 ? 42 : 0);
}
static PyMethodDef methods[] = {{"answer", answer, METH_O, ""}, {0, 0, 0, 0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", "", -1, methods};
PyMODINIT_FUNC PyInit__C(void) { return PyModule_Create(&module); }
"""

# Where nvcc puts device code; the bytes stand in for a cubin, which no test here looks into.
DEVICE_CODE = r"""
__attribute__((section(".nv_fatbin"), used)) static const char fatbin[4096] = {1};
"""

METADATA = b"""\
Metadata-Version: 2.1
Name: tinypack
Version: 0.6.3
Summary: caf\xc3\xa9
Requires-Dist: numpy<2.0.0
Requires-Dist: torch==2.4.0
Requires-Dist: xformers==0.0.27.post2; platform_system == "Linux" and platform_machine == "x86_64"
Requires-Dist: librosa; extra == "audio"

Requires-Dist: torch==9.9
A body that looks like fields keeps its bytes.
"""

WHEEL = b"""\
Wheel-Version: 1.0
Generator: bdist_wheel (0.44.0)
Root-Is-Purelib: false
Tag: cp38-abi3-linux_x86_64

"""


def compile_library(target: Path, source: str, *flags: str) -> Path:
    """Compile one C source to a shared library; -g so that there is something to strip."""
    target.parent.mkdir(parents=True, exist_ok=True)
    include = sysconfig.get_path("include")
    if "Python.h" in source and not Path(include, "Python.h").is_file():
        pytest.skip("no Python.h")
    subprocess.run(
        [
            *("gcc", "-g", "-O1", "-shared", "-fPIC", "-D_GNU_SOURCE", f"-I{include}"),
            *("-x", "c", "-", "-x", "none", "-o", target, "-ffile-prefix-map=/=", *flags),
        ],
        input=source.encode(),
        check=True,
        cwd=target.parent,
    )
    return target


def digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def record(files: dict[str, bytes], info: str) -> bytes:
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    for name, data in files.items():
        writer.writerow((name, f"sha256={digest(data)}", len(data)))
    writer.writerow((f"{info}/RECORD", "", ""))
    return out.getvalue().encode()


def write_wheel(
    path: Path,
    files: dict[str, bytes],
    *,
    info: str = "tinypack-0.6.3.dist-info",
    metadata: bytes = METADATA,
    wheel: bytes = WHEEL,
    records: bytes | None = None,
) -> Path:
    """Zip a wheel as a build back end would, in the order given, with today's times."""
    everything = {**files, f"{info}/METADATA": metadata, f"{info}/WHEEL": wheel}
    everything[f"{info}/RECORD"] = record(everything, info) if records is None else records
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in everything.items():
            archive.writestr(name, data)
    return path


def host_strip(paths: list[Path]) -> None:
    for path in paths:
        subprocess.run(["strip", "--strip-all", str(path)], check=True)
