"""``one-libtorch``: what the loader took for libtorch and its like, and where that is kept.

Only a build asks the loader: inside its sandbox, of a wheel it has just made. It keeps the answer
in the manifest beside the wheel, bound to the wheel's hash, so that it can be read long afterwards.
A wheel of anyone else's is read and never loaded, whatever lies beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pinwheel.inspect.region import printable
from pinwheel.verify.claim import Claim
from pinwheel.verify.manifest import MOST, SIDECAR, Digest
from pinwheel.verify.model import Checked, Problem

ONE = "one-libtorch"
#: What a process that has imported torch has loaded, by the name the proof gives it. A build for
#: CUDA always loads libcudart: libc10_cuda and libtorch_cuda need it.
EXPECTED = ("libc10", "libcudart", "libtorch")
KEY = "loaded"  # in the manifest beside the wheel

_Name = Annotated[str, Field(pattern=r"^lib[A-Za-z0-9_+-]{1,60}$")]
_File = Annotated[str, Field(min_length=1, max_length=4096)]
_TOGETHER = (
    "Take wheel and manifest from where they were built together, or build again: "
    "pinwheel build --again."
)


class _Part(BaseModel):
    """Base: what is not named here is not looked at."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class _Loaded(_Part):
    wheel_sha256: Annotated[Digest, Field(alias="wheel-sha256")]
    libraries: Annotated[
        dict[_Name, Annotated[tuple[_File, ...], Field(max_length=64)]], Field(max_length=64)
    ]


class _Beside(_Part):
    """The manifest beside a wheel, the part that is the loader's answer."""

    loaded: _Loaded | None = None


def kept(wheel_sha256: str, loaded: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """What a build adds to the manifest beside its wheel, under :data:`KEY`.

    Args:
        wheel_sha256: of the wheel that was loaded.
        loaded: library, as ``libtorch``, -> the files it was found as. They are paths of the
            sandbox, the same for everybody.
    """
    libraries = {name: sorted(set(paths)) for name, paths in sorted(loaded.items())}
    return {"wheel-sha256": wheel_sha256, "libraries": libraries}


def check_loaded(
    wheel: Path, sha256: str, claim: Claim, loaded: Mapping[str, Sequence[str]] | None
) -> Checked:
    """``one-libtorch``.

    Args:
        wheel: the wheel; beside it its manifest may lie.
        sha256: of the wheel; an answer that was given for another is none.
        claim: whose wheel it is taken for.
        loaded: the answer, as a build hands it in; None outside a build.
    """
    if loaded is not None:
        return _judge(loaded, "asked in this build")
    if not claim.ours:
        why = "not run: a wheel that pinwheel did not build is read and never loaded"
        return Checked(skipped={ONE: why})
    beside = wheel.with_name(f"{wheel.name}{SIDECAR}")
    where = "the manifest beside it"
    if not beside.is_file():
        why = f"not run here, and no .whl{SIDECAR} beside it keeps what the build saw"
        return Checked(skipped={ONE: why})
    try:
        with beside.open("rb") as file:
            data = file.read(MOST + 1)
        if len(data) > MOST:
            return _unknown(f"{where} is larger than {MOST} bytes")
        found = _Beside.model_validate_json(data).loaded
    except OSError as error:
        return _unknown(f"{where} cannot be read", printable(str(error)))
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        first = ".".join(str(part) for part in faults[0]["loc"])
        return _unknown(
            f"{where} does not say what the loader took", printable(f"{first}: {faults[0]['msg']}")
        )
    if found is None:
        why = f"not run here, and {where} is of a build that did not keep what it saw"
        return Checked(skipped={ONE: why})
    if found.wheel_sha256 != sha256:
        return _unknown(
            f"what {where} keeps was seen of another wheel",
            f"loaded: sha256 {found.wheel_sha256}",
            f"this wheel: sha256 {sha256}",
        )
    return _judge(found.libraries, f"kept in {where}")


def _unknown(what: str, *evidence: str) -> Checked:
    problem = Problem(
        rule=ONE,
        subject=SIDECAR,
        what=what,
        evidence=evidence,
        next_step=_TOGETHER,
        unknown=True,
    )
    return Checked(problems=(problem,))


def _judge(loaded: Mapping[str, Sequence[str]], source: str) -> Checked:
    files = {name: sorted({*paths}) for name, paths in sorted(loaded.items())}
    lines = [printable(f"{name}: {path}", 4200) for name, paths in files.items() for path in paths]
    problems = [
        Problem(
            rule=ONE,
            subject=name,
            what=f"the loader takes {len(paths)} copies of {name}",
            evidence=tuple(printable(path, 4200) for path in paths),
            next_step="Find out what brings the second one: two copies are two allocators and two "
            "registries of operators.",
        )
        for name, paths in files.items()
        if len(paths) > 1
    ]
    if absent := [name for name in EXPECTED if not files.get(name)]:
        problems.append(
            Problem(
                rule=ONE,
                subject=absent[0],
                what=f"the loader was seen taking no {', no '.join(absent)}",
                evidence=(source, *lines),
                next_step="Build again (pinwheel build --again); where that gives the same, "
                "the proof did not look into this torch build's libraries: report it.",
                unknown=True,
            )
        )
    return Checked(
        looked={ONE: f"{source}: {'; '.join(lines)}"},
        problems=tuple(problems),
        facts={KEY: {"from": source, "libraries": files}},
    )
