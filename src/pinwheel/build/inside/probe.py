"""Looks at an installed wheel from inside: imports it, loads its libraries, lists operators.

Runs in the clean environment under the root's Python. Orders come as JSON on standard input, the
findings go as JSON to ``/out/findings.json``; a finding never stops the next one.

- ``module``: import package
- ``entry_points``: commands to run, lists of words
- ``libraries``: library path relative to site-packages -> those that are loaded before it
"""

from __future__ import annotations

import glob
import json
import os
import re
import subprocess
import sys
import sysconfig
from typing import Any

SITE = sysconfig.get_paths()["platlib"]
BIN = os.path.dirname(sys.executable)
KEEP = 65536  # characters of what a command said; more than any ldd prints
_LDD = re.compile(r"^\s*(\S+) => (not found|\S+)")

# Each library is loaded in a process of its own, after torch and what the orders name, alone.
_LOAD = """
import json, sys
import torch
names = lambda: set(torch._C._dispatch_get_all_op_names())
for first in sys.argv[2:]:
    torch.ops.load_library(first)
before = names()
torch.ops.load_library(sys.argv[1])
operators = sorted(names() - before)
maps = sorted({line.split(None, 5)[5].strip() for line in open("/proc/self/maps")
               if ".so" in line and len(line.split(None, 5)) == 6})
print("PROBE" + json.dumps({"operators": operators, "maps": maps, "torch": torch.__version__,
    "abi": torch.compiled_with_cxx11_abi(), "cuda": torch.version.cuda}))
"""
_IMPORT = """
import json, sys, importlib
module = importlib.import_module(sys.argv[1])
print("PROBE" + json.dumps({"version": getattr(module, "__version__", None),
    "file": module.__file__}))
"""


def run(args: list[str], env: dict[str, str] | None = None) -> dict[str, Any]:
    """Run a command; its exit status and the end of what it said."""
    done = subprocess.run(
        args,
        env=None if env is None else {**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    text = done.stdout.decode("utf-8", "replace")
    return {"code": done.returncode, "output": text[-KEEP:], "found": answer(text)}


def answer(text: str) -> dict[str, Any] | None:
    """What a script above printed behind its mark; other lines are the package's own."""
    for line in text.splitlines():
        if line.startswith("PROBE"):
            found = json.loads(line[len("PROBE") :])
            return found if isinstance(found, dict) else None
    return None


def torch_directories() -> list[str]:
    """Where torch and the CUDA wheels it pins keep their libraries."""
    return [f"{SITE}/torch/lib", *sorted(glob.glob(f"{SITE}/nvidia/*/lib"))]


def resolved(path: str) -> dict[str, str]:
    """soname -> file, as the loader resolves it with torch's library path (ldd)."""
    search = ":".join([*torch_directories(), os.environ.get("LD_LIBRARY_PATH", "")])
    said = run(["ldd", path], {"LD_LIBRARY_PATH": search.strip(":")})
    found: dict[str, str] = {}
    for line in said["output"].splitlines():
        match = _LDD.match(line)
        if match:
            target = match[2]
            found[match[1]] = target if target == "not found" else os.path.realpath(target)
    return found


def main() -> int:
    """Carry out the orders."""
    orders = json.load(sys.stdin)
    python = [sys.executable, "-I", "-c"]
    findings: dict[str, Any] = {"import": run([*python, _IMPORT, orders["module"]])}
    findings["entry_points"] = {
        " ".join(words): run([os.path.join(BIN, words[0]), *words[1:]])
        for words in orders["entry_points"]
    }
    findings["torch_itself"] = resolved(f"{SITE}/torch/lib/libtorch_python.so")
    findings["libraries"] = {}
    for name, first in orders["libraries"].items():
        path = os.path.join(SITE, name)
        findings["libraries"][name] = {
            "load": run([*python, _LOAD, path, *(os.path.join(SITE, f) for f in first)]),
            "resolved": resolved(path),
        }
    with open("/out/findings.json", "w", encoding="utf-8") as out:
        json.dump(findings, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
