"""Makes the fatbins in data/ with NVIDIA's own tools, and writes down what cuobjdump says of them.

Run by hand when a toolkit packs device code in a new way: ``python make_fatbins.py``. It gets the
compilers from the configured package index; the PTX is our own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

DATA = Path(__file__).parent / "data"
# The second compiler writes cubins of the ABI before the first one's.
TOOLS = (
    "nvidia-cuda-nvcc==13.5.*",
    "nvidia-cuda-cuobjdump==13.5.*",
    "nvidia-cuda-nvcc-cu12==12.4.*",
)
PTX = """\
.version {isa}
.target sm_{sm}
.address_size 64
// .entry comment(
.visible .entry store(.param .u64 p)
{{
  .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [p];
  cvta.to.global.u64 %rd2, %rd1;
  st.global.u64 [%rd2], %rd1;
  ret;
}}
.visible .func (.param .b32 r) device_only(.param .b32 a)
{{
  .reg .b32 %r<3>;
  ld.param.b32 %r1, [a];
  add.s32 %r2, %r1, 7;
  st.param.b32 [r], %r2;
  ret;
}}
"""
NEW = ("80", "90a", "100", "100a", "100f", "120f")
OLD = ("75", "90", "90a")
TILE = b"\x7fTileIR\0\x0d\x01\0\0"


def get_tools(into: Path) -> dict[str, Path]:
    for requirement in TOOLS:
        command = ("download", "-q", "--no-deps", "--only-binary", ":all:", "-d", str(into))
        subprocess.run([sys.executable, "-m", "pip", *command, requirement], check=True)
    found: dict[str, Path] = {}
    for wheel in sorted(into.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(into / wheel.stem)
    for path in into.glob("*/nvidia/*/bin/*"):
        if path.is_file():
            path.chmod(0o755)
            found[f"{path.parts[-3]}/{path.name}"] = path
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        tools = get_tools(work / "tools")

        def run(tool: str, *args: str) -> str:
            command = [str(tools[tool]), *args]
            return subprocess.run(
                command, cwd=work, check=True, capture_output=True, text=True
            ).stdout

        for sm in sorted({*NEW, *OLD}):
            (work / f"{sm}.ptx").write_text(PTX.format(isa="8.8", sm=sm))
        for sm in NEW:
            run("cu13/ptxas", f"-arch=sm_{sm}", f"{sm}.ptx", "-o", f"{sm}.cubin")
        for sm in OLD:
            (work / "old.ptx").write_text(PTX.format(isa="8.0", sm=sm))
            run("cuda_nvcc/ptxas", f"-arch=sm_{sm}", "old.ptx", "-o", f"{sm}.old.cubin")
        run("cu13/ptxas", "-c", "-arch=sm_80", "80.ptx", "-o", "80.rel.cubin")
        (work / "80.tile").write_bytes(TILE + b"x" * 32)

        def image(kind: str, sm: str, file: str) -> str:
            return f"--image3=kind={kind},sm={sm},file={file}"

        new = [image("elf", sm, f"{sm}.cubin") for sm in NEW]
        old = [image("elf", sm, f"{sm}.old.cubin") for sm in OLD]
        ptx = [image("ptx", sm, f"{sm}.ptx") for sm in ("80", "90a", "100f")]
        tile = image("tileir", "100", "80.tile")
        relocatable = image("elf", "80", "80.rel.cubin")
        for out, *args in (
            ("none", "--compress-mode=none", *new, *old, *ptx),
            ("lz4", "--compress-all", "--compress-mode=speed", *new, *old, *ptx),
            ("zstd", "--compress-all", "--compress-mode=default", *new, *old, *ptx),
            ("concat", "--compress-all", "--concat", new[0], new[1], old[0], ptx[0], new[4]),
            ("odd", "-g", "--ident=a.cu", "--cmdline=-O3 --x", tile, relocatable, ptx[0]),
        ):
            run("cu13/fatbinary", "-64", f"--create={out}.fatbin", *args)
            (DATA / f"{out}.fatbin").write_bytes((work / f"{out}.fatbin").read_bytes())
            said = run("cu13/cuobjdump", f"{out}.fatbin")
            (DATA / f"{out}.cuobjdump.txt").write_text(said)


if __name__ == "__main__":
    main()
