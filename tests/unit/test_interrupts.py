from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from pinwheel import interrupts


@pytest.fixture(autouse=True)
def as_at_start(monkeypatch: pytest.MonkeyPatch) -> object:
    """Our handlers for each test, and pytest's own afterwards."""
    before = {number: signal.getsignal(number) for number in interrupts.SIGNALS}
    for number in interrupts.SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    monkeypatch.setattr(interrupts, "_last", -interrupts.ENDING)
    interrupts.listen()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", interrupts.SIGNALS)
def test_every_signal_is_an_interrupt(number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)


def test_while_things_end_another_one_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGTERM)
    monkeypatch.setattr(interrupts, "ENDING", 0.0)  # as if that time had passed
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)


def nested(done: list[str]) -> None:
    with interrupts.held():
        with interrupts.held():
            signal.raise_signal(signal.SIGTERM)
            done.append("inner")
        done.append("outer")


def test_held_ones_come_when_the_outermost_block_is_left() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        nested(done)
    assert done == ["inner", "outer"]
    with interrupts.held():  # it came once
        pass


def test_another_thread_holds_nothing_back() -> None:
    inside, leave = threading.Event(), threading.Event()

    def work() -> None:
        with interrupts.held():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(60)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    leave.set()
    thread.join()


def test_what_is_ignored_or_anothers_is_left_alone() -> None:
    def others(*_: object) -> None:
        pass

    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, others)
    interrupts.listen()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) is others


def test_a_signal_at_exit_does_not_change_how_it_ends() -> None:
    code = (
        "import atexit, os, signal, sys\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGTERM)  # called last\n"
        "from pinwheel import interrupts; interrupts.listen(); sys.exit(11)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert (said.returncode, said.stderr) == (11, "")


def test_outside_the_main_thread_nothing_is_changed() -> None:
    code = (
        "import signal, threading; from pinwheel import interrupts\n"
        "thread = threading.Thread(target=interrupts.listen); thread.start(); thread.join()\n"
        "print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert (said.stdout, said.stderr) == ("True\n", "")
