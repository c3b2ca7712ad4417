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

#: Rule -> why no byte of a wheel breaks it.
NO_BYTES = {
    "parity-answered": "it asks which official wheel was compared with: lock, store and command "
    "line decide that. It is left open with recipe-known, when no lock is known",
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
    "operator": Damage(rule="parity", do=_operator, says="topk_softmix"),
}


# --- what a release must be -----------------------------------------------------------------------

#: What a build of the flagship saw the loader take (docs/rules.md, one-libtorch).
LOADED = {
    "libc10": ["/opt/env/lib/python3.11/site-packages/torch/lib/libc10.so"],
    "libcudart": ["/opt/env/lib/python3.11/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12"],
    "libtorch": ["/opt/env/lib/python3.11/site-packages/torch/lib/libtorch.so"],
}
#: Held to what a release must be: the loader's answer at hand, compared with the lock's own wheel.
_RELEASE = {"profile": Profile.RELEASE, "official": None, "loaded": LOADED}
_PARTIAL = {"whole": (Status.FAILED, "the flagship of these tests is built for 8.0 alone")}
_UNKNOWN_RECIPE = "without the recipe and lock it was built from nothing answers this"


def _kept(wheel: Wheel) -> None:
    """The manifest beside it keeps what the loader took for another wheel."""
    wheel.loaded, wheel.loaded_sha256 = LOADED, "7" * 64


def _two_copies(wheel: Wheel) -> None:
    wheel.loaded = {**LOADED, "libc10": [*LOADED["libc10"], "/opt/env/lib/libc10.so"]}


def _hand_built_root(wheel: Wheel) -> None:
    wheel.stated["root"]["kind"] = "host"


def _hand_picked_toolkit(wheel: Wheel) -> None:
    wheel.stated["toolkit"]["kind"] = "host"


def _other_recipe(wheel: Wheel) -> None:
    wheel.stated["recipe-sha256"] = "6" * 64


RELEASE = {
    "loaded-twice": Damage(rule="one-libtorch", do=_two_copies, says="/opt/env/lib/libc10.so"),
    "loaded-before": Damage(
        rule="one-libtorch", do=_kept, says="seen of another wheel", status=Status.UNKNOWN
    ),
    "loaded-nowhere": Damage(
        rule="loader-answered",
        do=_kept,
        says="seen of another wheel",
        status=Status.UNKNOWN,
        also={
            **_PARTIAL,
            "one-libtorch": (Status.UNKNOWN, "an answer for another wheel is none for this one"),
        },
        asked={**_RELEASE, "loaded": None},
    ),
    "partial": Damage(rule="whole", do=lambda _: None, says="missing: 8.6", asked=_RELEASE),
    "root": Damage(
        rule="hermetic",
        do=_hand_built_root,
        says="manifest: root host",
        also=_PARTIAL,
        asked=_RELEASE,
    ),
    "toolkit": Damage(
        rule="hermetic",
        do=_hand_picked_toolkit,
        says="manifest: toolkit host",
        also=_PARTIAL,
        asked=_RELEASE,
    ),
    "recipe": Damage(
        rule="recipe-known",
        do=_other_recipe,
        says="recipe is another now",
        status=Status.UNKNOWN,
        also={
            "whole": (Status.UNKNOWN, _UNKNOWN_RECIPE),
            "companion-pins": (Status.UNKNOWN, _UNKNOWN_RECIPE),
            "parity": (Status.UNKNOWN, _UNKNOWN_RECIPE),
            "parity-answered": (Status.UNKNOWN, _UNKNOWN_RECIPE),
        },
        # With --combo the recipe is the project's, and manifest-agrees says that it differs.
        asked={**_RELEASE, "combo": None},
    ),
}

#: Name of a damage -> the damage.
DAMAGES: Mapping[str, Damage] = {
    **FILE,
    **REQUIREMENTS,
    **PLATFORM,
    **LIBTORCH,
    **CODE,
    **OTHERS,
    **RELEASE,
}
