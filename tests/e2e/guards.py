"""Checks the import-time guards of a patched vLLM 0.6.3 against the PyTorch that runs this file.

    python tests/e2e/guards.py DIRECTORY

DIRECTORY holds the ``vllm`` package: a patched source tree, or an environment's site-packages. It
is copied, so nothing is written there. torch must be importable; with the rest of the run lock
installed the whole of vLLM is imported too, otherwise that part is reported as skipped. No GPU is
needed. Exit status 1 when a check fails.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

STATEMENT = 'TORCH = "{}"\nCUDA = "{}"\nCXX11_ABI = {}\n'

SELECTS = """
import sys, types, torch, vllm
import vllm.attention.selector as selector
for name in ("is_cpu", "is_openvino", "is_xpu", "is_hip"):
    setattr(selector, name, lambda: False)
gpu = types.SimpleNamespace(is_tpu=lambda: False, has_device_capability=lambda *_: True)
selector.current_platform = gpu
def choice():
    return selector.which_attn_to_use(64, None, torch.float16, None, 16, False).name
assert choice() == "XFORMERS", choice()
# Also when somebody has put a vllm_flash_attn there.
stub = types.ModuleType("vllm.vllm_flash_attn")
stub.flash_attn_varlen_func = stub.flash_attn_with_kvcache = None
sys.modules[stub.__name__] = vllm.vllm_flash_attn = stub
wanted = "FLASH_ATTN" if hasattr(torch.library, "custom_op") else "XFORMERS"
assert choice() == wanted, choice()
import vllm.attention.backends.xformers
for backend in ("flash_attn", "flashinfer"):
    try:
        __import__(f"vllm.attention.backends.{backend}")
        assert wanted == "FLASH_ATTN", backend
    except ImportError as error:
        assert "VLLM_ATTENTION_BACKEND=XFORMERS" in str(error), error
"""


def python(code: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run ``code`` with the copy first on the path and no GPU."""
    env = {**os.environ, "PYTHONPATH": str(directory), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, "-B", "-W", "ignore", "-c", code],
        env=env, cwd=directory, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


def main(source: Path) -> int:
    """Run the checks on a copy of ``source/vllm``; 0 when all hold."""
    import torch

    version = str(torch.__version__).split("+")[0]
    cuda, abi = torch.version.cuda, torch.compiled_with_cxx11_abi()
    failures = 0

    def report(name: str, good: bool, result: subprocess.CompletedProcess[str]) -> None:
        nonlocal failures
        failures += not good
        print(f"{'ok' if good else 'FAILED':8}{name}")
        if not good:
            print(result.stdout[-1000:], result.stderr[-3000:], sep="\n")

    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        shutil.copytree(source / "vllm", directory / "vllm")
        statement = directory / "vllm/_pinwheel.py"

        wrong = [("9.9.9", cuda, abi), (version, "9.9", abi), (version, cuda, not abi)]
        for built in wrong:
            statement.write_text(STATEMENT.format(*built))
            loaded = (
                "import sys\ntry:\n import vllm\nexcept ImportError as e:\n"
                " assert type(e).__name__ == 'TorchMismatchError', repr(e)\n print(e)\n"
                " assert not [m for m in sys.modules if m.endswith('_C') and 'vllm' in m]\n"
                "else:\n sys.exit('vllm was imported')"
            )
            result = python(loaded, directory)
            named = built[0] in result.stdout and version in result.stdout
            report(f"refused: built for torch {built}", result.returncode == 0 and named, result)

        statement.write_text(STATEMENT.format(version, cuda, abi))
        result = python("import vllm._torch_guard", directory)
        passed = result.returncode == 0 or "TorchMismatchError" not in result.stderr
        report(f"accepted: built for torch {version}, here {torch.__version__}", passed, result)

        if importlib.util.find_spec("transformers") is None:
            print(f"{'skipped':8}selector and backends: the run set is not installed")
        else:
            result = python(SELECTS, directory)
            report("selector falls back to xformers", result.returncode == 0, result)
    return 1 if failures else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1])))
