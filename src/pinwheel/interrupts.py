"""Signals that end us: one KeyboardInterrupt, and never in the middle of starting or ending.

Without this a second Ctrl-C, or the SIGTERM that a CI job sends after SIGINT, would break off the
ending of compilers that the first one began, and leave them running.
"""

from __future__ import annotations

import atexit
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

#: Seconds after the first signal in which others change nothing: ending a program takes up to ten.
ENDING = 20.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_last = -ENDING  # when the last interrupt was raised (monotonic clock)
_held = 0  # how many blocks that must not be interrupted the main thread is in
_waiting = False  # a signal came meanwhile


def listen() -> None:
    """Let Ctrl-C, SIGTERM and a terminal that closes end this process alike.

    A signal that is ignored stays so (nohup; a job in the background of a script), and so does
    the handler of whoever runs us. Outside the main thread nothing is changed.
    """
    for number in SIGNALS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            with suppress(ValueError):
                signal.signal(number, _arrived)
    atexit.register(_ignore)


def _ignore() -> None:
    """Take no more signals: nothing runs any more, and only the exit code is left to give.

    A moment later Python gives each signal back its own meaning, and one more would kill.
    """
    for number in SIGNALS:
        if signal.getsignal(number) is _arrived:
            signal.signal(number, signal.SIG_IGN)


def _arrived(_number: int, _frame: FrameType | None) -> None:
    global _waiting
    if time.monotonic() - _last < ENDING:
        return
    if _held:
        _waiting = True
        return
    _interrupt()


def _interrupt() -> None:
    global _last, _waiting
    _waiting = False
    _last = time.monotonic()
    raise KeyboardInterrupt


@contextmanager
def held() -> Iterator[None]:
    """Let signals wait until the block is left; only the main thread ever gets any.

    Raises:
        KeyboardInterrupt: at the end of the block, when one came.
    """
    global _held
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _held += 1
    try:
        yield
    finally:
        _held -= 1
        if _waiting and not _held:
            _interrupt()
