"""Proves an assembled toolkit: compiles, links and disassembles a kernel for every capability.

The program is small, but takes every tool a real extension takes: cudafe++, cicc, ptxas and
fatbinary through nvcc, the device headers (half precision, CUB, libcu++), the runtime shared and
static, the driver stub, cuobjdump and nvdisasm.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from pinwheel.errors import ToolkitError
from pinwheel.files import atomic_write, make_directory
from pinwheel.matrix.capability import Capability
from pinwheel.toolkit.check import check_nvcc
from pinwheel.toolkit.runner import Completed, Runner

KERNEL = r"""
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <cub/block/block_reduce.cuh>
#include <cuda/std/type_traits>

namespace {
template <typename T>
__global__ void scaled_sum(const T* in, float* out, float scale, int n) {
  using Reduce = cub::BlockReduce<float, 128>;
  __shared__ typename Reduce::TempStorage shared;
  static_assert(cuda::std::is_trivially_copyable<T>::value, "plain data");
  float mine = 0.f;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    mine += scale * static_cast<float>(in[i]);
  const float all = Reduce(shared).Sum(mine);
  if (threadIdx.x == 0) atomicAdd(out, all);
}
}  // namespace

extern "C" int pinwheel_prove(const void* in, float* out, int n, int kind) {
  CUdevice device;
  if (cuInit(0) != CUDA_SUCCESS || cuDeviceGet(&device, 0) != CUDA_SUCCESS) return -1;
  if (kind == 0)
    scaled_sum<__half><<<8, 128>>>(static_cast<const __half*>(in), out, 2.f, n);
  else
    scaled_sum<__nv_bfloat16><<<8, 128>>>(static_cast<const __nv_bfloat16*>(in), out, 2.f, n);
  return static_cast<int>(cudaGetLastError());
}
"""
MAIN = r"""
extern "C" int pinwheel_prove(const void* in, float* out, int n, int kind);
int main() { return pinwheel_prove(nullptr, nullptr, 0, 0) == 0 ? 0 : 1; }
"""
_CUBIN = re.compile(r"^ELF file\s+\d+:\s*(\S+\.(sm_\d+[af]?)\.cubin)\s*$", re.MULTILINE)
_PTX = re.compile(r"^PTX file\s+\d+:\s*\S+\.(sm_\d+[af]?)\.ptx\s*$", re.MULTILINE)
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+\S", re.MULTILINE)
LIBRARY, PROGRAM = "libprove.so", "prove"


@dataclass(frozen=True, slots=True)
class CubinFact:
    """One cubin of the proof's library: its target and how many instructions it holds."""

    sm: str
    instructions: int


@dataclass(frozen=True, slots=True)
class ToolkitProof:
    """What was shown.

    Attributes:
        nvcc_version: as nvcc says when run.
        cubins: one for each capability, in the order asked for.
        ptx: targets that PTX is embedded for.
        needed: NEEDED entries of the shared library.
    """

    nvcc_version: str
    cubins: tuple[CubinFact, ...]
    ptx: tuple[str, ...]
    needed: tuple[str, ...]


def prove(
    *,
    cuda_home: str,
    version: str,
    capabilities: Sequence[Capability],
    work: Path,
    run: Runner,
    work_inside: str | None = None,
    host_compiler: str = "g++",
    headers: Sequence[str] = (),
) -> ToolkitProof:
    """Compile, link, list and disassemble a kernel with the toolkit.

    Args:
        cuda_home: CUDA_HOME as ``run`` sees it.
        version: nvcc version the spec names.
        capabilities: what to compile for, at least one.
        work: scratch directory on this host; files of an earlier proof are overwritten.
        run: runs programs, in the sandbox.
        work_inside: ``work`` as ``run`` sees it; None: the same path.
        host_compiler: given to nvcc as ``-ccbin``.
        headers: further headers that must compile, such as ``cublas_v2.h``.

    Raises:
        ToolkitError: a step fails, or a capability has no machine code; with command and output.
    """
    if not capabilities:
        raise ValueError("no capability to prove")
    inside = work_inside or str(work)
    make_directory(work)
    source = "".join(f"#include <{header}>\n" for header in headers) + KERNEL
    atomic_write(work / "prove.cu", source.encode())
    atomic_write(work / "main.cpp", MAIN.encode())
    stated = check_nvcc(cuda_home, version=version, run=run, cwd=inside)

    def step(argv: Sequence[str]) -> str:
        result = run(argv, cwd=inside)
        if result.returncode != 0:
            raise _failed(argv, result)
        return result.output

    nvcc = [f"{cuda_home}/bin/nvcc", "-ccbin", host_compiler, "-objtemp", "-std=c++17"]
    gencode = [flag for capability in capabilities for flag in capability.gencode]
    step([*nvcc, *gencode, "-Xcompiler", "-fPIC", "-c", "prove.cu", "-o", "prove.o"])
    step([*nvcc, *gencode, "-cudart=shared", "-shared", "prove.o", "-o", LIBRARY, "-lcuda"])
    step([*nvcc, *gencode, "-cudart=static", "main.cpp", "prove.o", "-o", PROGRAM, "-lcuda"])

    for path in work.glob("*.cubin"):
        path.unlink()
    dump = f"{cuda_home}/bin/cuobjdump"
    ptx = _PTX.findall(step([dump, "--list-ptx", LIBRARY])) if _wants_ptx(capabilities) else []
    listing = step([dump, "--list-elf", LIBRARY])
    listed = _CUBIN.findall(listing)
    step([dump, "--extract-elf", "all", LIBRARY])
    counts: dict[str, int] = {}
    for name, sm in listed:
        text = step([f"{cuda_home}/bin/nvdisasm", "-c", name])
        counts[sm] = counts.get(sm, 0) + len(_INSTRUCTION.findall(text))
    _compare(capabilities, counts, ptx, listing)
    return ToolkitProof(
        nvcc_version=stated,
        cubins=tuple(CubinFact(c.sm, counts[c.sm]) for c in capabilities),
        ptx=tuple(ptx),
        needed=_needed(work / LIBRARY),
    )


def _wants_ptx(capabilities: Sequence[Capability]) -> bool:
    return any(capability.ptx for capability in capabilities)


def _compare(
    capabilities: Sequence[Capability], counts: dict[str, int], ptx: list[str], listing: str
) -> None:
    wanted = {capability.sm for capability in capabilities}
    wrong = [f"no cubin for {sm}" for sm in sorted(wanted - counts.keys())]
    wrong += [f"no instruction in the cubin for {sm}" for sm in sorted(counts) if not counts[sm]]
    wrong += [f"a cubin for {sm}, not asked for" for sm in sorted(counts.keys() - wanted)]
    wrong += [
        f"no PTX for {capability.compute}"
        for capability in capabilities
        if capability.ptx and capability.sm not in ptx
    ]
    if wrong:
        raise ToolkitError(
            "The toolkit does not give the machine code it was asked for.",
            evidence=[*wrong, f"cuobjdump --list-elf {LIBRARY}:", *listing.splitlines()[:20]],
            next_step="Check the capability list against the CUDA line, and the toolkit's parts.",
        )


def _needed(library: Path) -> tuple[str, ...]:
    try:
        with library.open("rb") as file:
            dynamic = ELFFile(file).get_section_by_name(".dynamic")
            if not isinstance(dynamic, DynamicSection):
                raise ELFError("no dynamic section")
            needed = tuple(str(vars(t)["needed"]) for t in dynamic.iter_tags("DT_NEEDED"))
    except (OSError, ELFError) as error:
        raise ToolkitError(
            f"{library} is no shared library.",
            evidence=[str(error)],
            next_step="Look at the link step of the toolkit's proof.",
        ) from error
    for name in ("libcuda.so.", "libcudart.so."):
        if not any(entry.startswith(name) for entry in needed):
            raise ToolkitError(
                f"The toolkit linked no {name}N.",
                evidence=[f"NEEDED {entry}" for entry in needed],
                next_step="The stub or the runtime's links are wrong: assemble the toolkit anew.",
            )
    return needed


def _failed(argv: Sequence[str], result: Completed) -> ToolkitError:
    tool = argv[0].rsplit("/", 1)[-1]
    return ToolkitError(
        f"The toolkit's {tool} failed on a small kernel.",
        evidence=[
            f"command: {' '.join(argv)}",
            f"exit status: {result.returncode}",
            *result.output.splitlines()[-20:],
        ],
        next_step="The output says what it lacks: a part, a header or a compiler that fits.",
    )
