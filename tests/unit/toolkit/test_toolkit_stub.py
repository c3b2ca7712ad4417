from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from pinwheel.errors import ToolkitError
from pinwheel.toolkit.stub import COMPILE_ARGS, driver_functions, stub_source

# The forms that cuda.h has, a line or two of each.
CUDA_H = """
/* CUresult CUDAAPI cuOnlyInAComment(void); */
typedef enum cudaError_enum { CUDA_ERROR_STUB_LIBRARY                   = 34, } CUresult;
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
    #define __CUDA_API_PTDS(api) api ## _ptds
#else
    #define __CUDA_API_PTDS(api) api
#endif
#define cuDeviceTotalMem                    cuDeviceTotalMem_v2
#define cuMemcpyHtoD                        __CUDA_API_PTDS(cuMemcpyHtoD_v2)
    #define cuStreamQuery                   __CUDA_API_PTSZ(cuStreamQuery)
#define cuNoFunction                        cuAType
CUresult CUDAAPI cuInit(unsigned int Flags);
CUresult CUDAAPI cuDeviceTotalMem(size_t *bytes, CUdevice dev); // cuAlsoAComment
CUresult CUDAAPI cuMemcpyHtoD(CUdeviceptr dst, const void *src, size_t n);
CUresult CUDAAPI
    cuStreamQuery(CUstream hStream);
"""


def test_names_are_those_the_driver_exports() -> None:
    assert driver_functions(CUDA_H) == (
        "cuDeviceTotalMem",
        "cuDeviceTotalMem_v2",
        "cuInit",
        "cuMemcpyHtoD",
        "cuMemcpyHtoD_v2",
        "cuMemcpyHtoD_v2_ptds",
        "cuStreamQuery",
        "cuStreamQuery_ptsz",
    )


def test_source_is_deterministic_and_returns_the_stub_error() -> None:
    source = stub_source(CUDA_H)
    assert source == stub_source(CUDA_H)
    assert "int cuInit(void) { return 34; }" in source


@pytest.mark.parametrize("text", ["", "CUDA_ERROR_STUB_LIBRARY = 34", "CUresult CUDAAPI cuInit();"])
def test_no_cuda_h(text: str) -> None:
    with pytest.raises(ToolkitError):
        stub_source(text)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc on this host")
def test_compiles_to_the_same_library_twice(tmp_path: Path) -> None:
    built = []
    for name in ("one", "two"):
        work = tmp_path / name
        work.mkdir()
        (work / "cuda_stub.c").write_text(stub_source(CUDA_H))
        subprocess.run(
            ["gcc", *COMPILE_ARGS, "-o", "libcuda.so", "cuda_stub.c"], cwd=work, check=True
        )
        built.append(work / "libcuda.so")
    assert built[0].read_bytes() == built[1].read_bytes()
    with built[0].open("rb") as file:
        elf = ELFFile(file)
        symbols = elf.get_section_by_name(".dynsym")
        dynamic = elf.get_section_by_name(".dynamic")
        assert {s.name for s in symbols.iter_symbols() if s.name} == set(driver_functions(CUDA_H))
        assert [t.soname for t in dynamic.iter_tags("DT_SONAME")] == ["libcuda.so.1"]
        assert not list(dynamic.iter_tags("DT_NEEDED"))
