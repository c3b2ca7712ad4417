from __future__ import annotations

import pytest

from pinwheel.inspect.abi import PythonAbi, TorchAbi, is_unstable, python_abi, torch_abi
from pinwheel.inspect.elf import Binding, Symbol


def needs(*names: str) -> list[Symbol]:
    return [Symbol(n, "", "", Binding.GLOBAL, False, False, True) for n in names]


def defines(*names: str) -> list[Symbol]:
    return [Symbol(n, "", "", Binding.WEAK, True, True, True) for n in names]


@pytest.mark.parametrize(
    "name",
    [
        "_ZN3c104cuda9SetDeviceEa",
        "_ZNK3c105Error4whatEv",
        "_ZN5torch3jit11parseSchemaERKSsb",
        "_ZN2at4_ops5zeros4callEv",
        "_ZTIN3c105ErrorE",
        "_Z14my_own_functionRN2at6TensorE",
        "_ZN4vllm6kernelIN3c108BFloat16EEEvPT_",
        "THPVariableClass",
        "THCPStreamClass",
    ],
)
def test_what_ties_a_library_to_one_torch(name: str) -> None:
    assert is_unstable(name)
    assert torch_abi(needs(name, "aoti_torch_get_dim")).abi is TorchAbi.UNSTABLE


@pytest.mark.parametrize(
    "name",
    [
        "cudaLaunchKernel",
        "_ZNSt6vectorIiSaIiEE9push_backEOi",
        "_ZN5torch6stable6TensorC1Ev",
        "_ZN5torch10headeronly8BFloat16C1Ef",
        "_ZN4attn3runEv",
        "_ZN6c10dapE",
        "TH_alloc",
        "THP",
    ],
)
def test_what_does_not(name: str) -> None:
    assert not is_unstable(name)
    assert torch_abi(needs(name)).abi is TorchAbi.NONE


def test_a_stable_library_has_a_minimum() -> None:
    first = torch_abi(needs("aoti_torch_get_dim", "printf"))
    assert (first.abi, first.shims) == (TorchAbi.STABLE, ("aoti_torch_get_dim",))
    assert first.minimum == (2, 9, 0)
    assert first.because == ()
    later = torch_abi(needs("aoti_torch_get_dim", "torch_call_dispatcher"))
    assert later.minimum == (2, 10, 0)
    assert later.because == ("torch_call_dispatcher",)


def test_a_function_that_no_known_torch_has_is_not_called_stable() -> None:
    verdict = torch_abi(needs("aoti_torch_get_dim", "torch_of_the_future"))
    assert verdict.abi is TorchAbi.UNKNOWN
    assert verdict.unknown == ("torch_of_the_future",)


def test_what_a_library_brings_itself_does_not_count() -> None:
    symbols = defines("_ZN3c105ErrorD0Ev", "PyInit__C", "_PyPrivate")
    assert torch_abi(symbols).abi is TorchAbi.NONE
    assert python_abi(symbols).abi is PythonAbi.NONE


def test_names_made_to_be_demangled_cost_nothing() -> None:
    """Demangled, this one has more characters than there is memory for."""
    name = "_Z1f1A4pairIS_S_E" + "".join(f"S0_IS{n}_S{n}_E" for n in range(1, 200))
    assert not is_unstable(name)
    assert is_unstable(name + "N2at6TensorE")


def test_python_s_limited_api() -> None:
    verdict = python_abi(needs("PyLong_FromLong", "PyBuffer_Release", "_Py_NoneStruct", "printf"))
    assert verdict.abi is PythonAbi.LIMITED
    assert verdict.minimum == (3, 11)
    assert verdict.because == ("PyBuffer_Release",)
    assert verdict.outside == ()


@pytest.mark.parametrize(
    "name", ["PyFrame_GetBack", "_PyThreadState_UncheckedGet", "PyNoSuchThing"]
)
def test_what_is_not_in_it(name: str) -> None:
    verdict = python_abi(needs("PyLong_FromLong", name))
    assert verdict.abi is PythonAbi.FULL
    assert verdict.outside == (name,)


def test_names_that_only_start_like_python_s() -> None:
    assert python_abi(needs("Pythia", "_Pyramid", "PyzBuffer")).abi is PythonAbi.NONE
