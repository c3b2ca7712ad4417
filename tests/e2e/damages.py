"""Ways to damage the flagship wheel: at least one for every rule that a wheel's bytes can break.

Each changes real bytes of the real wheel and names the rule that must notice. Where a damage
cannot break one rule alone, those that break with it are named with the reason. Those inside the
libraries are in ``damages_libraries.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from damages_kit import CORE, MOE, C, Damage
from damages_libraries import CODE, LIBTORCH, PLATFORM
from damages_wheel import Wheel

from pinwheel.verify.model import Profile, Status

#: Rule -> why no byte of a wheel can break it.
NO_BYTES = {
    "one-libtorch": "it is asked of the loader in the sandbox while a wheel is built, of the files "
    "that lie in the environment; reading a wheel asks it of nobody",
}


# --- the wheel as a file --------------------------------------------------------------------------


def _other_info(wheel: Wheel) -> None:
    wheel.rename_info(wheel.info.replace("0.6.3", "0.6.4", 1))


def _renamed(wheel: Wheel) -> None:
    wheel.name = wheel.name.replace("vllm-0.6.3", "vllm-0.6.4", 1)


def _build_tag(wheel: Wheel) -> None:
    wheel.replace(f"{wheel.info}/WHEEL", "Build: 0sm80\n", "Build: 0sm90\n")


def _row_hash(wheel: Wheel) -> None:
    name = "vllm/__init__.py"
    path, _, size = wheel.recorded(name).rsplit(",", 2)
    wheel.rows[name] = f"{path},sha256={'A' * 43},{size}"


def _row_size(wheel: Wheel) -> None:
    name = "vllm/__init__.py"
    wheel.rows[name] = wheel.recorded(name) + "0"


def _row_gone(wheel: Wheel) -> None:
    wheel.rows["vllm/__init__.py"] = None


def _file_gone(wheel: Wheel) -> None:
    wheel.rows["vllm/gone.py"] = f"vllm/gone.py,sha256={'A' * 43},1"


def _byte_flipped(wheel: Wheel) -> None:
    library = wheel.library(CORE)
    library.data[library.contents(".note.gnu.build-id").stop - 1] ^= 1
    wheel.unnoticed.add(CORE)


def _wheel_tag(wheel: Wheel) -> None:
    wheel.replace(f"{wheel.info}/WHEEL", "manylinux_2_34_x86_64", "linux_x86_64")


def _other_lock(wheel: Wheel) -> None:
    wheel.stated["lock-sha256"] = "5" * 64


def _other_cubins(wheel: Wheel) -> None:
    wheel.stated["libraries"][C]["cubins"]["sm_80"] += 1


def _no_manifest(wheel: Wheel) -> None:
    wheel.manifest = None
    del wheel.files[f"{wheel.info}/pinwheel.json"]


def _torn_manifest(wheel: Wheel) -> None:
    wheel.manifest = None
    name = f"{wheel.info}/pinwheel.json"
    wheel.files[name] = wheel.files[name][:-100]


#: Without our manifest nothing says which part of the recipe's capabilities the wheel is for.
_ALONE = {"archs": "8.0", "profile": Profile.OURS}

FILE = {
    "names-directory": Damage(rule="names-agree", do=_other_info, says="0.6.4"),
    "names-file": Damage(rule="names-agree", do=_renamed, says="0.6.4"),
    "names-build-tag": Damage(rule="names-agree", do=_build_tag, says="0sm90"),
    "record-hash": Damage(rule="record-true", do=_row_hash, says="vllm/__init__.py"),
    "record-size": Damage(rule="record-true", do=_row_size, says="vllm/__init__.py"),
    "record-row-gone": Damage(rule="record-true", do=_row_gone, says="not in RECORD"),
    "record-file-gone": Damage(rule="record-true", do=_file_gone, says="vllm/gone.py"),
    "record-byte": Damage(
        rule="record-true",
        do=_byte_flipped,
        says=CORE,
        also={"manifest-agrees": (Status.FAILED, "it states the hash of each library too")},
    ),
    "tags": Damage(rule="tags-agree", do=_wheel_tag, says="linux_x86_64"),
    "manifest-lock": Damage(rule="manifest-agrees", do=_other_lock, says="another lock"),
    "manifest-cubins": Damage(rule="manifest-agrees", do=_other_cubins, says="other cubins"),
    "manifest-missing": Damage(
        rule="manifest-agrees", do=_no_manifest, says="it is missing", asked=_ALONE
    ),
    "manifest-torn": Damage(
        rule="manifest-agrees", do=_torn_manifest, says="cannot be read", asked=_ALONE
    ),
}


# --- what it asks for -----------------------------------------------------------------------------


def _requires(old: str, new: str) -> Callable[[Wheel], None]:
    return lambda wheel: wheel.require(old, new)


def _one_more(wheel: Wheel) -> None:
    wheel.require("torch==2.3.0", "torch==2.3.0\nRequires-Dist: pandas")


_METADATA = {
    "parity": (
        Status.FAILED,
        "a requirement that is neither upstream's nor the recipe's is a difference from the "
        "official wheel",
    )
}

REQUIREMENTS = {
    "torch-other": Damage(
        rule="torch-pin",
        do=_requires("torch==2.3.0", "torch==2.4.0"),
        says="which excludes 2.3.0",
        also=_METADATA,
    ),
    "torch-open": Damage(
        rule="torch-pin",
        do=_requires("torch==2.3.0", "torch>=2.3"),
        says="leaves the torch release open",
        also=_METADATA,
    ),
    "torch-local": Damage(
        rule="torch-pin",
        do=_requires("torch==2.3.0", "torch==2.3.0+cu121"),
        says="cannot be met by an index",
        also=_METADATA,
    ),
    "companion": Damage(
        rule="companion-pins",
        do=_requires("torchvision==0.18.0", "torchvision==0.18.1"),
        says="torchvision 0.18.0",
        also=_METADATA,
    ),
    "companion-unlocked": Damage(
        rule="companion-pins", do=_one_more, says="pandas", also=_METADATA
    ),
}


# --- against others -------------------------------------------------------------------------------


def _changed(wheel: Wheel) -> None:
    wheel.files["vllm/logger.py"] += b"\nimport socket\n"


def _missing(wheel: Wheel) -> None:
    del wheel.files["vllm/py.typed"]


def _operator(wheel: Wheel) -> None:
    wheel.library(MOE).replace(b"\0topk_softmax(", b"\0topk_softmix(")


OTHERS = {
    "changed": Damage(rule="parity", do=_changed, says="vllm/logger.py"),
    "missing": Damage(rule="parity", do=_missing, says="vllm/py.typed"),
    "operator": Damage(rule="parity", do=_operator, says="topk_softmax"),
}

#: Name of a damage -> the damage.
DAMAGES: Mapping[str, Damage] = {
    **FILE,
    **REQUIREMENTS,
    **PLATFORM,
    **LIBTORCH,
    **CODE,
    **OTHERS,
}
