"""Mangled names: two names of one entity are told from two entities, whatever the ABI flag."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinwheel.verify.abi_mangling import LONGEST, UnreadableError, entity
from pinwheel.verify.snapshot import builds, load

STRING = "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"

# Old and new name of one entity, as torch, libstdc++ and g++ have them.
TWINS = [
    (
        "_ZN3c106detail14torchCheckFailEPKcS2_jRKSs",
        f"_ZN3c106detail14torchCheckFailEPKcS2_jRK{STRING}",
    ),
    (
        "_ZN5torch3jit17parseSchemaOrNameERKSsb",
        f"_ZN5torch3jit17parseSchemaOrNameERK{STRING}b",
    ),
    (
        "_ZN3c106ivalue14ConstantString6createESs",
        f"_ZN3c106ivalue14ConstantString6createE{STRING}",
    ),
    # A function that returns a string is told by its tag alone.
    ("_ZNK3c104Type3strEv", "_ZNK3c104Type3strB5cxx11Ev"),
    # Written by g++ 12, the same source under either flag. Substitutions count otherwise there.
    (
        (
            "_ZN1a1c1mERSt19basic_ostringstreamIcSt11char_traitsIcESaIcEERKSt13match_resultsI"
            "N9__gnu_cxx17__normal_iteratorIPKcSsEESaISt9sub_matchISC_EEE"
        ),
        (
            "_ZN1a1c1mERNSt7__cxx1119basic_ostringstreamIcSt11char_traitsIcESaIcEEERKNS1_13ma"
            "tch_resultsIN9__gnu_cxx17__normal_iteratorIPKcNS1_12basic_stringIcS4_S5_EEEESaIN"
            "S1_9sub_matchISF_EEEEE"
        ),
    ),
    (
        "_ZN1a1c1vIJRPKcEEEDTcvSsspfp_EDpOT_",
        ("_ZN1a1c1vIJRPKcEEEDTcvNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEspfp_EDpOT_"),
    ),
    (
        "_ZN1a1ccvSsEv",
        "_ZN1a1ccvNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEEv",
    ),
    (
        "_ZN1a1fESsSsRKNS_1bESt6vectorISsSaISsEERKS5_",
        (
            "_ZN1a1fENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEES5_RKNS_1bESt6vector"
            "IS5_SaIS5_EERKSB_"
        ),
    ),
    (
        (
            "_ZN1a1gESt3mapISsSt4listIiSaIiEESt4lessISsESaISt4pairIKSsS3_EEESt8functionIFSsS1"
            "_INS_1bESaISC_EEEEPSt6vectorISsSaISsEE"
        ),
        (
            "_ZN1a1gESt3mapINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEENS1_4listIiSa"
            "IiEEESt4lessIS6_ESaISt4pairIKS6_S9_EEESt8functionIFS6_NS7_INS_1bESaISI_EEEEEPSt6"
            "vectorIS6_SaIS6_EE"
        ),
    ),
    (
        "_ZN1a1hISsEET_S1_St6vectorIS1_SaIS1_EESbIwSt11char_traitsIwESaIwEE",
        (
            "_ZN1a1hINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEEET_S7_St6vectorIS7_"
            "SaIS7_EENS2_IwS3_IwESaIwEEE"
        ),
    ),
    (
        "_ZN1a1sE",
        "_ZN1a1sB5cxx11E",
    ),
    (
        "_ZStplIcSt11char_traitsIcESaIcEESbIT_T0_T1_EPKS3_RKS6_",
        "_ZStplIcSt11char_traitsIcESaIcEENSt7__cxx1112basic_stringIT_T0_T1_EEPKS5_RKS8_",
    ),
    ("_Z1fSt4listIiSaIiEE", "_Z1fNSt7__cxx114listIiSaIiEEE"),
    ("_ZNSsC1Ev", "_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEC1Ev"),
]

# Each its own entity, though a demangler gives some of them one text.
APART = [
    "_ZN5torch7LibraryC1ENS0_4KindESs",
    "_ZN5torch7LibraryC2ENS0_4KindESs",
    "_ZN3c104cuda9SetDeviceEi",
    "_ZN3c104cuda9SetDeviceEa",
    "_ZN3c104cuda9SetDeviceEab",
    "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib",
    "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jb",
    "_ZNK3c105Error4whatEv",
    "_ZN3c105Error4whatEv",
    "_ZTIN3c105ErrorE",
    "_ZTSN3c105ErrorE",
    "_ZTVN3c105ErrorE",
    "_ZThn8_N3c105ErrorD1Ev",
    "_Z1fSs",
    "_Z1fSbIwSt11char_traitsIwESaIwEE",
    "_Z1fRSs",
    "_Z1fOSs",
    "_Z1fSi",
    "_Z1fSo",
]

# What torch, CUTLASS and C++17 bring: each has to be read to its end.
KINDS = [
    "_ZGVZN9libkineto6Logger20loggerObserversMutexEvE20loggerObserversMutex",
    "_ZTISt19_Sp_counted_deleterIPcPDoFvPvESaIvELN9__gnu_cxx12_Lock_policyE2EE",
    "_ZTSZN10onnx_torch19RegisterOpSetSchemaINS_15OpSet_Onnx_ver1EEEvibEUlONS_8OpSchemaEE_",
    "_ZTVZNSt10filesystem4path4_CvtIwE10_S_convertEPKwS4_E5_UCvt",
    "_ZN1aL1bE.isra.0",
    "_ZNKR1a1fEMS_KFviEPA3_DF16_",
    "_ZN1fIJidEEENSt9enable_ifIXsrSt11is_integralIT_E5valueEvE4typeES1_",
    "_Z1gIiEDTcl1fcvT__EEES0_",
    "_ZN1acviEv",
    "_Zli2_kmPKcm",
    "_ZZN1a1fEvENKUliE_clEi",
    "_ZN12_GLOBAL__N_11fEDpOT_",
    "_ZNSt6vectorIPN5cudnn4NodeESaIS2_EE12emplace_backIIS2_EEEvDpOT_",
]


@pytest.mark.parametrize(("old", "new"), TWINS)
def test_the_flag_does_not_count(old: str, new: str) -> None:
    assert entity(old).key == entity(new).key
    assert not entity(old).cxx11
    assert entity(new).cxx11
    assert not entity(new).old
    assert entity(old).identifiers == entity(new).identifiers
    assert entity(old).head == entity(new).head
    assert all(identifier in text for text in (old, new) for identifier in entity(old).identifiers)


def test_everything_else_does() -> None:
    assert len({entity(name).key for name in APART}) == len(APART)


def test_kinds_of_names() -> None:
    assert len({entity(name).key for name in KINDS}) == len(KINDS)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("_ZN3c104cuda9SetDeviceEi", ("c10", "cuda", "SetDevice")),
        ("_Z20cutlass_moe_mm_sm100RN2at6TensorE", ("cutlass_moe_mm_sm100",)),
        ("_ZN5torch7LibraryC1ENS0_4KindESs", ("torch", "Library")),
        ("_ZTIN3c105ErrorE", ("c10", "Error")),
        ("_ZSt4moveIN2at6TensorEEvT_", ("std", "move")),
        ("_ZNSt6vectorIN2at6TensorEE4sizeEv", ("std", "vector", "size")),
        ("_ZNSs4sizeEv", ("std", "size")),
        ("_ZNSaIcED1Ev", ("std",)),
        (
            "_ZNKRSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv",
            ("std", "basic_stringbuf", "str"),
        ),
        ("_ZN3c10lsERSoRKNS_6DeviceE", ("c10",)),
        ("_ZdlPvm", ()),
        ("_ZZN4vllm1fEvE4once", ("vllm", "f")),
    ],
)
def test_the_qualified_name(name: str, path: tuple[str, ...]) -> None:
    assert entity(name).path == path


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("_ZN3c104cuda9SetDeviceEi", "_ZN3c104cuda9SetDevice"),
        ("_ZN5torch7LibraryC1ENS0_4KindESs", "_ZN5torch7Library"),
        ("_ZNK3c104Type3strB5cxx11Ev", "_ZNK3c104Type3str"),
        ("_ZN1aB5cxx111fEv", "_ZN1a"),
        ("_ZN5torch3setISsE1fEv", "_ZN5torch3set"),
        ("_ZTVN3c105ErrorE", "_ZTVN3c105Error"),
        ("_Z1fNSt7__cxx114listIiSaIiEEE", "_Z1f"),
        ("_ZSt4moveIN2at6TensorEEvT_", ""),
        ("_ZNSt6vectorIN2at6TensorEE4sizeEv", ""),
        ("_ZNSs4sizeEv", ""),
    ],
)
def test_what_every_name_of_an_entity_begins_with(name: str, head: str) -> None:
    assert entity(name).head == head


@pytest.mark.parametrize(
    "name",
    [
        "",
        "_Z",
        "memcpy",
        "_ZN3c10",
        "_ZN3c10Ev" + "E",
        "_Z9f",
        "_Z1fS_",
        "_Z1fS0_",
        "_Z1fSZZZZZZZZ_",
        "_Z1f" + "S" + "9" * 5000 + "_",
        "_Z99999fv",
        "_Z1f\udcff",
        "_Z1f" + "P" * 5000 + "i",
        "_Z1fI" * 3000,
        "_Z1fDT" * 3000,
        "_Z" + "N" * 9000,
        "_Z1f" + "i" * LONGEST,
    ],
)
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(UnreadableError):
        entity(name)


def test_a_name_that_doubles_with_each_step_costs_no_more_than_its_length() -> None:
    # Written out it has 2^1000 characters.
    steps = "".join(f"NS_I{_back(n)}{_back(n)}EE" for n in range(1000))
    assert len(entity(f"_Z1fN1a1bE{steps}").key) == 16


def _back(step: int) -> str:
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    if step == 0:
        return "S_"
    text, number = "", step - 1
    while True:
        text = digits[number % 36] + text
        number //= 36
        if not number:
            return f"S{text}_"


# --- what a compiler would write -----------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """A type to be mangled: a letter, ``string``, ``list``, a pointer, a class, a template."""

    name: str
    inner: tuple[Kind, ...] = ()


LEAVES = st.sampled_from([Kind("i"), Kind("b"), Kind("string"), Kind("Tensor"), Kind("Scalar")])
TYPES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda t: Kind("P", (t,)), inner),
        st.builds(lambda t: Kind("RK", (t,)), inner),
        st.builds(lambda t: Kind("list", (t,)), inner),
        st.builds(lambda a, b: Kind("pair", (a, b)), inner, inner),
    ),
    max_leaves=6,
)


class Mangler:
    """Writes the names of functions as g++ does, under either flag; of these types only."""

    def __init__(self, cxx11: bool) -> None:
        self.cxx11 = cxx11
        self.seen: list[object] = []

    def function(self, name: str, parameters: list[Kind]) -> str:
        text = "_Z" + self.nested("at", name)
        return text + ("".join(map(self.type, parameters)) or "v")

    def back(self, what: object) -> str:
        return _back(self.seen.index(what)) if what in self.seen else ""

    def keep(self, what: object) -> None:
        self.seen.append(what)

    def nested(self, space: str, name: str) -> str:
        prefix = self.back(space)
        if not prefix:
            prefix = f"{len(space)}{space}"
            self.keep(space)
        return f"N{prefix}{len(name)}{name}E"

    def type(self, kind: Kind) -> str:
        if kind.name in ("i", "b"):
            return kind.name
        if kind.name == "string":
            return self.string()
        if back := self.back(kind):
            return back
        text = self.compound(kind)
        self.keep(kind)
        return text

    def compound(self, kind: Kind) -> str:
        if kind.name == "P":
            return "P" + self.type(kind.inner[0])
        if kind.name == "RK":
            constant = Kind("K", kind.inner)
            if back := self.back(constant):
                return "R" + back
            text = "RK" + self.type(kind.inner[0])
            self.keep(constant)
            return text
        if kind.name == "pair":
            return self.template("pair", kind.inner)
        if kind.name == "list":
            allocator = Kind("allocator", kind.inner)
            return self.template("list", (*kind.inner, allocator))
        if kind.name == "allocator":
            return f"SaI{self.type(kind.inner[0])}E"
        return self.nested("at", kind.name)

    def template(self, name: str, arguments: tuple[Kind, ...]) -> str:
        spelled = f"St{len(name)}{name}"
        wrapped = self.cxx11 and name == "list"
        head = self.back(("std", name))
        if not head:
            head = spelled
            if wrapped:
                head = (self.back("cxx11") or "St7__cxx11") + f"{len(name)}{name}"
                if not self.back("cxx11"):
                    self.keep("cxx11")
            self.keep(("std", name))
        inside = f"{head}I{''.join(map(self.type, arguments))}E"
        return f"N{inside}E" if wrapped else inside

    def string(self) -> str:
        if not self.cxx11:
            return "Ss"
        if back := self.back("string"):
            return back
        head = self.back("cxx11") or "St7__cxx11"
        if head == "St7__cxx11":
            self.keep("cxx11")
        head += "12basic_string"
        self.keep("basic_string")
        traits = self.back("traits")
        if not traits:
            self.keep("char_traits")
            self.keep("traits")
            traits = "St11char_traitsIcE"
        allocator = self.back("char allocator")
        if not allocator:
            self.keep("char allocator")
            allocator = "SaIcE"
        self.keep("string")
        return f"N{head}Ic{traits}{allocator}EE"


def mangled(name: str, parameters: list[Kind], *, cxx11: bool) -> str:
    return Mangler(cxx11).function(name, parameters)


def has_string(kind: Kind) -> bool:
    return kind.name in ("string", "list") or any(map(has_string, kind.inner))


@settings(deadline=None)
@given(st.sampled_from(["f", "add"]), st.lists(TYPES, max_size=4))
def test_both_names_of_any_function_have_one_key(name: str, parameters: list[Kind]) -> None:
    old = entity(mangled(name, parameters, cxx11=False))
    new = entity(mangled(name, parameters, cxx11=True))
    assert old.key == new.key
    shown = any(map(has_string, parameters))
    assert (old.old, old.cxx11, new.old, new.cxx11) == (shown, False, False, shown)


@settings(deadline=None)
@given(st.lists(TYPES, max_size=4), st.lists(TYPES, max_size=4), st.booleans())
def test_other_parameters_have_another_key(a: list[Kind], b: list[Kind], cxx11: bool) -> None:
    first, second = mangled("f", a, cxx11=False), mangled("f", b, cxx11=cxx11)
    assert (entity(first).key == entity(second).key) == (a == b)


@settings(deadline=None)
@given(st.text("_ZNSTIEKPRCD0123456789abilsvxtXLJFAM", max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(UnreadableError):
        assert len(entity("_Z" + text).key) == 16


@settings(deadline=None)
@given(
    st.sampled_from([*KINDS, *APART, *(new for _, new in TWINS)]),
    st.integers(0, 100),
    st.integers(0, 5),
    st.text("NSTIEKXLJ01_Ssiv", max_size=4),
)
def test_any_change_of_a_name_is_read_or_refused(name: str, at: int, out: int, text: str) -> None:
    at = min(at, len(name))
    with suppress(UnreadableError):
        assert len(entity(name[:at] + text + name[at + out :]).key) == 16


# --- torch's own names ---------------------------------------------------------------------------


@pytest.mark.parametrize("build", builds()[:: max(1, len(builds()) - 1)])
def test_torch_names_are_all_read_and_differ(build: str) -> None:
    # _ZGVbN4v_sin: names of vector functions, which have an ABI of their own.
    sample = [n for n in load(build).beginning("_Z") if not re.match("_ZGV[bcde][MN][0-9]", n)][
        ::200
    ]
    assert len(sample) > 300
    keys: dict[bytes, list[str]] = {}
    for name in sample:
        keys.setdefault(entity(name).key, []).append(name)
    for same in keys.values():
        assert len(same) == 1 or {entity(n).cxx11 for n in same} == {False, True}, same
