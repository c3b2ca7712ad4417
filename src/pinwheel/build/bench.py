"""The workbench of a build: root, sandbox, tools, CUDA toolkit and Python, from locked files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pinwheel.buildroot.environment import install_environment, python_tag, unpack_tools
from pinwheel.buildroot.lastuse import lock_of, mark_used
from pinwheel.buildroot.root import unpack_root
from pinwheel.buildroot.sandbox import Bind, Sandbox, enter
from pinwheel.console import Console
from pinwheel.errors import ToolkitError
from pinwheel.files import file_lock, make_directory, remove_tree, writing
from pinwheel.matrix.capability import Capability
from pinwheel.matrix.models import Matrix
from pinwheel.matrix.require import require_gcc
from pinwheel.process import Result
from pinwheel.recipe.lock import Lock, Role
from pinwheel.settings import Settings
from pinwheel.toolkit.assemble import Toolkit, assemble, toolkit_key
from pinwheel.toolkit.prove import prove
from pinwheel.toolkit.spec import load_spec

_GXX = re.compile(r"g\+\+-(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What a build stands on.

    Attributes:
        sandbox: the entered root.
        tools: directory with uv and sccache.
        toolkit: the assembled CUDA toolkit.
        environment: the build environment.
        site: site-packages within it.
        files: the store's file of each input, by sha256.
    """

    sandbox: Sandbox
    tools: Path
    toolkit: Toolkit
    environment: Path
    site: str
    files: Mapping[str, Path]


def require_compiler(matrix: Matrix, line: str, lock: Lock) -> None:
    """Refuse a lock whose g++ is newer than nvcc of that CUDA line takes.

    Raises:
        ToolchainError: it is, or the lock has no g++.
    """
    majors = sorted(int(m[1]) for i in lock.with_role(Role.ROOT) if (m := _GXX.fullmatch(i.name)))
    for major in majors:
        require_gcc(matrix, line, major, available=majors, what="the build root's g++")


def set_up(
    lock: Lock,
    files: Mapping[str, Path],
    settings: Settings,
    capabilities: Sequence[Capability],
    console: Console,
) -> Bench:
    """Make, or find, everything a compile of this lock needs, and prove the toolkit.

    Raises:
        UnpackError, SandboxError, ToolkitError, EnvironmentInstallError: the part that failed.
        DiskFullError, NotWritableError: from the file system.
    """
    root = unpack_root(lock.with_role(Role.ROOT), files, settings.cache / "roots", console)
    sandbox = enter(root)
    tools = unpack_tools(lock.with_role(Role.TOOL), files, settings.cache / "tools", console)
    toolkit = _toolkit(lock, files, sandbox, settings, console)
    _prove(toolkit, sandbox, capabilities, console)
    build = lock.with_role(Role.BUILD)
    environment = install_environment(
        build,
        files,
        sandbox=sandbox,
        tools=tools,
        cache=settings.cache / "envs",
        label="installing the build environment",
        console=console,
    )
    return Bench(
        sandbox=sandbox,
        tools=tools,
        toolkit=toolkit,
        environment=environment,
        site=python_tag(build),
        files=files,
    )


def _toolkit(
    lock: Lock,
    files: Mapping[str, Path],
    sandbox: Sandbox,
    settings: Settings,
    console: Console,
) -> Toolkit:
    spec = load_spec(lock.toolkit)
    parts = {i.name: i for i in lock.with_role(Role.TOOLKIT)}
    key = toolkit_key(spec, {name: i.sha256 for name, i in parts.items()})

    def compile_c(source: Path, out: Path, args: Sequence[str]) -> None:
        result = sandbox.run(
            ["/usr/bin/gcc", *args, "-o", f"/out/{out.name}", f"/out/{source.name}"],
            binds=[Bind(source.parent, "/out", writable=True)],
        )
        if result.returncode != 0:
            raise ToolkitError(
                "The libcuda stub did not compile.",
                evidence=result.output.splitlines()[-10:],
                next_step="This is a mistake in the toolkit's stub; please report it.",
            )

    toolkit = assemble(
        spec,
        {name: files[i.sha256] for name, i in parts.items()},
        settings.cache / "toolkits" / f"{spec.name}-{key[:16]}",
        console,
        compile_c=compile_c,
        key=key,
    )
    mark_used(toolkit.path)
    return toolkit


def _prove(
    toolkit: Toolkit, sandbox: Sandbox, capabilities: Sequence[Capability], console: Console
) -> None:
    """Compile, link and disassemble once per toolkit, root and capability list.

    No include path is given, here as in a build: where a toolkit keeps headers in a place of their
    own (CCCL below ``include/cccl`` in CUDA 13), its ``nvcc.profile`` names it to nvcc.
    """
    mark = proof_mark(toolkit.path, sandbox.root.name, capabilities)
    if mark.exists():
        return
    label = f"proving {toolkit.name} for {' '.join(map(str, capabilities))}"
    # Held, because two builds of other capabilities would prove in the same directory.
    with (
        file_lock(lock_of(toolkit.path)),
        console.progress(0, "steps", label) as progress,
    ):
        work = toolkit.path.with_name(f"{toolkit.path.name}.proof")
        remove_tree(work)  # left by a process that was killed
        make_directory(work)

        def run_in_sandbox(argv: Sequence[str], *, cwd: str) -> Result:
            return sandbox.run(
                argv,
                binds=[Bind(toolkit.path, "/opt/cuda"), Bind(work, "/out", writable=True)],
                env={"PATH": "/opt/cuda/bin:/usr/bin:/bin"},
                chdir=cwd,
                tick=progress.tick,
            )

        prove(
            cuda_home="/opt/cuda",
            version=toolkit.version,
            capabilities=capabilities,
            work=work,
            run=run_in_sandbox,
            work_inside="/out",
        )
        with writing(mark):
            mark.touch()
        remove_tree(work)


def proof_mark(toolkit: Path, root: str, capabilities: Sequence[Capability]) -> Path:
    """The file that says a toolkit was proven in a root for these targets, PTX among them."""
    wanted = "-".join(f"{c.sm}{'+ptx' if c.ptx else ''}" for c in capabilities)
    return toolkit.with_name(f"{toolkit.name}.proven-{root[:8]}-{wanted}")
