"""Makes a relocatable CUDA_HOME of a toolkit's locked parts, the same tree for the same parts."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from pinwheel.console import Console
from pinwheel.errors import MissingInputsError, ToolkitError
from pinwheel.files import atomic_write, file_lock, make_directory, remove_tree, writing
from pinwheel.toolkit import debian, layout, stub, wheels
from pinwheel.toolkit.kept import is_whole, keep
from pinwheel.toolkit.spec import ToolkitSpec

# Part of a toolkit's identity: raise it whenever the same parts would give another tree.
LAYOUT_VERSION = 1

Unpacker = Callable[[Path, Path, Callable[[str], bool]], list[str]]
_UNPACK: dict[str, Unpacker] = {"debian": debian.unpack, "wheels": wheels.unpack}

_REQUIRED = (
    *(f"bin/{tool}" for tool in ("nvcc", "cudafe++", "fatbinary", "nvlink", "ptxas")),
    *(f"bin/{tool}" for tool in ("bin2c", "cuobjdump", "nvdisasm", "crt/link.stub")),
    "nvvm/bin/cicc",
    "nvvm/libdevice/libdevice.10.bc",
    "include/cuda.h",
    "include/cuda_runtime.h",
    "include/crt/host_config.h",
    "lib64/libcudart.so",
    "lib64/libcudart_static.a",
    "lib64/libcudadevrt.a",
    "lib64/stubs/libcuda.so",
)
# The driver API is spread over these; the stub has the names of those that are there.
_DRIVER_HEADERS = ("cuda.h", "cudaProfiler.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h")


class CompileC(Protocol):
    """Compiles one C file; ``source`` and ``out`` lie in one directory of their own."""

    def __call__(self, source: Path, out: Path, args: Sequence[str]) -> None:
        """Write ``out`` or raise."""


@dataclass(frozen=True, slots=True)
class Toolkit:
    """An assembled toolkit.

    Attributes:
        path: CUDA_HOME on this host; it may be bound anywhere.
        name, provider, line, version: as in its spec.
        nvcc_version: what the nvcc binary itself states; equal to ``version``.
        digest: :func:`pinwheel.toolkit.layout.tree_digest` of the tree.
        key: what it was made of, :func:`toolkit_key`; empty when the caller gave none.
    """

    path: Path
    name: str
    provider: str
    line: str
    version: str
    nvcc_version: str
    digest: str
    key: str = ""


def toolkit_key(spec: ToolkitSpec, digests: Mapping[str, str]) -> str:
    """Identity of a toolkit to be: its spec, its layout, the sha256 of each part by name."""
    parts = [(part.name, digests[part.name]) for part in spec.parts]
    text = json.dumps([LAYOUT_VERSION, asdict(spec), parts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def assemble(
    spec: ToolkitSpec,
    inputs: Mapping[str, Path],
    dest: Path,
    console: Console,
    *,
    compile_c: CompileC,
    key: str = "",
) -> Toolkit:
    """Assemble ``spec`` at ``dest``, or take what is there, made with the same key and unchanged.

    The tree grows in ``<dest>.partial`` and is renamed when it is whole; ``<dest>.json`` says
    what it is. A run that was killed leaves only the partial tree, which the next one removes.

    Args:
        spec: the toolkit.
        inputs: package name -> file in the store, for each part; others are not looked at.
        dest: CUDA_HOME to be; replaced when it was made of something else.
        console: where progress goes.
        compile_c: compiles the libcuda stub, with the compiler the build uses.
        key: from :func:`toolkit_key`; empty: always assemble anew.

    Raises:
        MissingInputsError: parts that ``inputs`` lacks, all of them.
        ToolkitError: the parts do not make the toolkit the spec names.
        UnpackError, DiskFullError, NotWritableError: while unpacking.
    """
    missing = [part for part in spec.parts if part.name not in inputs]
    if missing:
        raise MissingInputsError(
            f"Toolkit {spec.name} lacks {len(missing)} of its {len(spec.parts)} parts.",
            evidence=[f"{part.name} {part.version}" for part in missing],
            next_step="Fetch the inputs of the lock, then run this again.",
        )
    make_directory(dest.parent)
    with file_lock(dest.with_name(f"{dest.name}.lock")):
        known = _existing(dest, key, console)
        if known is not None:
            return known
        partial = dest.with_name(f"{dest.name}.partial")
        remove_tree(partial)
        tree = make_directory(partial / "tree")
        _unpack_all(spec, inputs, partial, console)
        console.detail(f"toolkit {spec.name}: laying out")
        toolkit = _finish(spec, tree, partial, dest, console, compile_c, key)
        _swap(tree, dest, partial, toolkit)
        return toolkit


def _existing(dest: Path, key: str, console: Console) -> Toolkit | None:
    try:
        facts = json.loads(dest.with_name(f"{dest.name}.json").read_bytes())
        known = Toolkit(path=dest, **facts)
    except (OSError, ValueError, TypeError):
        return None
    return known if key and known.key == key and is_whole(dest, "toolkit", console) else None


def _unpack_all(
    spec: ToolkitSpec, inputs: Mapping[str, Path], partial: Path, console: Console
) -> None:
    """Unpack every part, the largest first, then move its files in the order of the spec."""
    unpack = _UNPACK[spec.provider]
    order = sorted(spec.parts, key=lambda p: (-inputs[p.name].stat().st_size, p.name))
    total = sum(inputs[part.name].stat().st_size for part in spec.parts)
    names: dict[str, list[str]] = {}

    def one(name: str) -> None:
        unknown: list[str] = []

        def keep(member: str) -> bool:
            target = spec.place(member)
            if target is None:
                unknown.append(member)
            return bool(target)

        names[name] = unpack(inputs[name], partial / "raw" / name, keep)
        if unknown:
            raise ToolkitError(
                f"Toolkit {spec.name}: part {name} holds files no layout rule names.",
                evidence=[*sorted(unknown)[:10], f"{len(unknown)} in all"],
                next_step=f"Add rules for them to the layout of provider {spec.provider!r}.",
            )

    with (
        console.progress(total, "bytes", f"unpacking {spec.name}") as progress,
        # Decompression runs outside the interpreter's lock; one part dominates, so two suffice.
        ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool,
    ):
        waiting = {pool.submit(one, part.name): part.name for part in order}
        try:
            while waiting:
                for future in wait(waiting, timeout=1, return_when=FIRST_COMPLETED).done:
                    name = waiting.pop(future)
                    future.result()
                    progress.advance(inputs[name].stat().st_size)
                progress.tick()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    for part in spec.parts:
        layout.place_part(
            spec, part.name, partial / "raw" / part.name, names[part.name], partial / "tree"
        )
    remove_tree(partial / "raw")


def _finish(
    spec: ToolkitSpec,
    tree: Path,
    partial: Path,
    dest: Path,
    console: Console,
    compile_c: CompileC,
    key: str,
) -> Toolkit:
    for directory in (tree / "lib64", tree / "nvvm" / "lib64"):
        if directory.is_dir():
            layout.add_library_links(directory)
    dropped = layout.drop_dangling_links(tree)
    console.detail(f"toolkit {spec.name}: {len(dropped)} links to parts it has not, dropped")
    atomic_write(tree / "bin" / "nvcc.profile", layout.nvcc_profile(spec).encode())
    _add_stub(tree, partial, compile_c)
    version = {
        "cuda": {"name": "CUDA toolkit", "version": spec.version},
        "cuda_nvcc": {"name": "CUDA NVCC", "version": spec.version},
        "parts": {part.name: part.version for part in spec.parts},
    }
    atomic_write(tree / "version.json", (json.dumps(version, indent=2) + "\n").encode())
    absent = [path for path in _REQUIRED if not (tree / path).is_file()]
    if absent:
        raise ToolkitError(
            f"Toolkit {spec.name} came out incomplete.",
            evidence=[f"missing: {path}" for path in absent],
            next_step="A part is missing from its data file, or its files lie elsewhere now: "
            "look at the provider's layout rules.",
        )
    stated = layout.read_nvcc_version(tree / "bin" / "nvcc")
    if stated != spec.version:
        raise ToolkitError(
            f"Toolkit {spec.name} holds nvcc {stated or 'of no known version'}, "
            f"not {spec.version}.",
            evidence=[f"read from: {tree / 'bin' / 'nvcc'}"],
            next_step="Lock the package that carries this nvcc version, or name the toolkit "
            "after the version it has.",
        )
    layout.normalise(tree)
    return Toolkit(
        path=dest,
        name=spec.name,
        provider=spec.provider,
        line=spec.line,
        version=spec.version,
        nvcc_version=stated,
        digest=layout.tree_digest(tree),
        key=key,
    )


def _add_stub(tree: Path, partial: Path, compile_c: CompileC) -> None:
    headers = [tree / "include" / name for name in _DRIVER_HEADERS]
    text = "\n".join(h.read_text("utf-8", "replace") for h in headers if h.is_file())
    work = make_directory(partial / "stub")
    source = work / "cuda_stub.c"
    atomic_write(source, stub.stub_source(text).encode())
    out = work / "libcuda.so"
    compile_c(source, out, stub.COMPILE_ARGS)
    if not out.is_file():
        raise ToolkitError(
            "The libcuda stub did not compile.",
            evidence=[f"source: {source}", f"arguments: {' '.join(stub.COMPILE_ARGS)}"],
            next_step="Look at the compiler's own message above.",
        )
    stubs = make_directory(tree / "lib64" / "stubs")
    with writing(stubs):
        source.replace(stubs / source.name)
        out.replace(stubs / out.name)
        # What needs the stub at load time, on a machine without a driver, asks by SONAME.
        (stubs / stub.SONAME).symlink_to(out.name)


def _swap(tree: Path, dest: Path, partial: Path, toolkit: Toolkit) -> None:
    facts = asdict(toolkit)
    del facts["path"]
    sidecar = dest.with_name(f"{dest.name}.json")
    with writing(dest):
        # Without its sidecar a tree is never taken for finished, so the order of these matters.
        sidecar.unlink(missing_ok=True)
    keep(tree, dest)
    atomic_write(sidecar, (json.dumps(facts, indent=2, sort_keys=True) + "\n").encode())
    remove_tree(partial)
