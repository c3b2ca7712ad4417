"""What pinwheel says: results on stdout, everything meant for a watching person on stderr.

On a terminal progress is a live bar and a table has a frame. Anywhere else progress is a plain
line every few seconds and a table is tab-separated lines, without escape codes, so that a CI log
stays readable and ``cut`` and ``awk`` can read a table. ``NO_COLOR`` is honoured.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Literal, Protocol

from pinwheel.files import human_bytes

if TYPE_CHECKING:
    from rich.console import Console as RichConsole
    from rich.progress import Progress as RichProgress
    from rich.progress import ProgressColumn, TaskID

BYTES = "bytes"
PLAIN_INTERVAL = 5.0  # seconds between plain progress lines
_SETTLED = 1.0  # seconds before a rate means anything
_UNSAFE = re.compile(r"[\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def emit_json(obj: object, stream: IO[str] | None = None) -> None:
    """Write ``obj`` to stdout as indented JSON with sorted keys and a final newline."""
    stream = sys.stdout if stream is None else stream
    narrow = "utf" not in (getattr(stream, "encoding", None) or "utf-8").lower()
    text = json.dumps(obj, indent=2, sort_keys=True, ensure_ascii=narrow)
    # JSON lets DEL, C1 controls and half characters stand as they are; terminals do not.
    text = _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    stream.write(text + "\n")
    stream.flush()


def visible(text: str) -> str:
    """``text`` with control characters spelled out; lines and tabs stay."""
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def human_seconds(seconds: float) -> str:
    """A duration as people say it: ``48 s``, ``3 min 20 s``, ``2 h 05 min``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def counted(count: int, noun: str) -> str:
    """``count`` with its noun: ``1 input``, ``2 inputs``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def progress_line(
    label: str, done: float, total: float, unit: str, elapsed: float, estimate: str = ""
) -> str:
    """One plain progress line: how much is done, how fast, how long it may still take.

    Args:
        label: what is being done.
        done: amount done so far; more than ``total`` is shown as ``total``.
        total: amount in all; 0 when not known.
        unit: ``bytes`` or a plural noun.
        elapsed: seconds since the first of it was done.
        estimate: how long it may still take, by who knows better than the rate so far.
    """
    if not total and not done:
        # A single step that counts nothing, such as one program that runs: time is all there is.
        return f"{label}: {human_seconds(elapsed)}"
    if total:
        done = min(done, total)

    def shown(value: float) -> str:
        return human_bytes(value) if unit == BYTES else f"{value:.0f}"

    amount = f"{shown(done)} of {shown(total)}" if total else shown(done)
    parts = [amount if unit == BYTES else f"{amount} {unit}"]
    if total:
        parts.append(f"{100 * done / total:.0f}%")
    if elapsed >= _SETTLED and done > 0:
        rate = done / elapsed
        if unit == BYTES:
            parts.append(f"{human_bytes(rate)}/s")
        if total > done and not estimate:
            parts.append(f"about {human_seconds((total - done) / rate)} left")
    if estimate:
        parts.append(estimate)
    return f"{label}: {', '.join(parts)}"


class Progress(Protocol):
    """A running piece of work. Every method may be called from any thread."""

    def advance(self, amount: float = 1) -> None:
        """``amount`` more is done; negative when done work turned out to be void."""

    def skip(self, amount: float) -> None:
        """``amount`` was done before this run: it counts as done, not towards the rate."""

    def describe(self, text: str, estimate: str = "") -> None:
        """Say what is being worked on just now, and how long all of it may still take.

        ``text`` is what gets cut where a terminal is narrow. Without ``estimate`` one is made of
        the rate so far, where there is a rate.
        """

    def tick(self) -> None:
        """Nothing new is done, but a plain line may be due (for long single steps)."""


class _PlainProgress:
    def __init__(
        self, stream: IO[str] | None, label: str, total: float, unit: str, interval: float
    ) -> None:
        self._stream, self._label, self._total, self._unit = stream, label, total, unit
        self._interval = interval
        self._start = self._last = time.monotonic()
        self._done = self._skipped = 0.0
        self._text = self._estimate = self._said = ""
        self._lock = threading.Lock()

    def advance(self, amount: float = 1) -> None:
        with self._lock:
            self._done += amount
            self._maybe()

    def skip(self, amount: float) -> None:
        with self._lock:
            self._skipped += amount

    def describe(self, text: str, estimate: str = "") -> None:
        with self._lock:
            self._text, self._estimate = visible(text), visible(estimate)
            self._maybe()

    def tick(self) -> None:
        with self._lock:
            self._maybe()

    def finish(self, completed: bool) -> None:
        with self._lock:
            # Of what was never counted there is news only if it was said to be going on.
            counted = self._total > 0 or bool(self._said)
            self._estimate = ""
            if (completed and counted) or self._done or self._skipped:
                self._write("", again=False)

    def _maybe(self) -> None:
        if time.monotonic() - self._last >= self._interval:
            self._write(self._text)

    def _write(self, text: str, *, again: bool = True) -> None:
        if self._stream is None:
            return
        self._last = time.monotonic()
        elapsed = self._last - self._start
        # Skipped work says nothing about speed: stretch the clock so that the rate is this run's.
        done = self._done + self._skipped
        if self._done > 0:
            elapsed *= done / self._done
        elif self._skipped:
            elapsed = 0.0
        line = progress_line(self._label, done, self._total, self._unit, elapsed, self._estimate)
        line = f"{line} ({text})" if text else line
        if not again and line == self._said:
            return
        self._said = line
        self._stream.write(f"{line}\n")
        self._stream.flush()


class _LiveProgress:
    def __init__(self, bar: RichProgress, task: TaskID) -> None:
        self._bar, self._task = bar, task

    def advance(self, amount: float = 1) -> None:
        self._bar.advance(self._task, amount)

    def skip(self, amount: float) -> None:
        # Through `update` it would become a sample, and a task's speed is made of samples.
        task = self._bar.tasks[0]
        task.completed += amount

    def describe(self, text: str, estimate: str = "") -> None:
        self._bar.update(self._task, doing=visible(text), estimate=visible(estimate))

    def tick(self) -> None:
        return


class Console:
    """The one door for output.

    Args:
        quiet: say nothing but warnings, errors and results; no progress.
        verbose: how much detail; ``detail`` speaks from 1 on.
        out: where results go, default stdout.
        err: where everything else goes, default stderr.
        interval: seconds between plain progress lines.
    """

    def __init__(
        self,
        *,
        quiet: bool = False,
        verbose: int = 0,
        out: IO[str] | None = None,
        err: IO[str] | None = None,
        interval: float = PLAIN_INTERVAL,
    ) -> None:
        self.quiet, self.verbose = quiet, verbose
        self._out, self._err = out, err
        self._interval = interval
        self._live: RichProgress | None = None

    @property
    def out(self) -> IO[str]:
        """The stream of results."""
        return sys.stdout if self._out is None else self._out

    @property
    def err(self) -> IO[str]:
        """The stream of everything else."""
        return sys.stderr if self._err is None else self._err

    @property
    def terminal(self) -> bool:
        """Whether someone watches stderr on a terminal that understands a live bar."""
        return self.err.isatty() and os.environ.get("TERM", "dumb") != "dumb"

    def say(self, text: str = "") -> None:
        """A line for the person watching."""
        if not self.quiet:
            self._line(text)

    def warn(self, text: str) -> None:
        """A line that is shown even when quiet."""
        self._line(f"warning: {text}", style="yellow")

    def detail(self, text: str) -> None:
        """A line shown with ``-v`` only."""
        if self.verbose:
            self._line(text, style="dim")

    def result(self, text: str) -> None:
        """A line of the result itself, on stdout."""
        self.out.write(visible(text) + "\n")
        self.out.flush()

    def emit_json(self, obj: object) -> None:
        """``obj`` as JSON on stdout."""
        emit_json(obj, self.out)

    def table(
        self,
        title: str,
        columns: Sequence[str],
        rows: Iterable[Sequence[object]],
        *,
        right: Iterable[str] = (),
    ) -> None:
        """A table on stdout.

        On a terminal it has a frame. Anywhere else it is one line for each row, cells separated by
        tabs, below one line of column names and, where there is a title, a line ``# title``; a tab
        or line break within a cell is spelled out, and nothing is aligned, wrapped or cut.

        Args:
            title: what it shows; may be empty.
            columns: their names.
            rows: cells, as many as columns.
            right: names of the columns to align right on a terminal.
        """
        if not self.out.isatty():
            self.out.write(_plain_table(title, columns, rows))
            self.out.flush()
            return

        from rich.table import Table
        from rich.text import Text

        table = Table(title=title or None, title_justify="left")
        aligned = set(right)
        for column in columns:
            table.add_column(column, justify="right" if column in aligned else "left")
        for row in rows:
            # Text, so that square brackets in data are never read as markup.
            table.add_row(*(Text(visible(str(cell))) for cell in row))
        _rich(self.out).print(table)

    @contextmanager
    def progress(self, total: float, unit: str, label: str) -> Iterator[Progress]:
        """Follow a piece of work; leave the block when it is over.

        Args:
            total: the whole amount, 0 when unknown.
            unit: ``"bytes"``, or a plural noun such as ``"sources"``.
            label: what is being done.
        """
        if self.quiet or not self.terminal or self._live is not None:
            plain = _PlainProgress(
                None if self.quiet else self.err, label, total, unit, self._interval
            )
            completed = False
            try:
                yield plain
                completed = True
            finally:
                plain.finish(completed)
            return

        from rich.progress import Progress as RichProgress

        bar = RichProgress(*_columns(unit), console=_rich(self.err), expand=True)
        task = bar.add_task(visible(label), total=total or None, doing="", estimate="")
        self._live = bar
        try:
            with bar:
                yield _LiveProgress(bar, task)
        finally:
            self._live = None

    def _line(self, text: str, style: str = "") -> None:
        text = visible(text)
        live = self._live
        if live is not None:
            live.console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
        elif style and self.terminal:
            _rich(self.err).print(text, style=style, markup=False, highlight=False, soft_wrap=True)
        else:
            self.err.write(text + "\n")
            self.err.flush()


def _plain_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = ["\t".join(_cell(cell) for cell in row) for row in (columns, *rows)]
    head = [f"# {_cell(title)}"] if title else []
    return "\n".join([*head, *lines, ""])


def _cell(value: object) -> str:
    return visible(str(value)).replace("\t", "\\t").replace("\n", "\\n")


def _rich(stream: IO[str]) -> RichConsole:
    from rich.console import Console as RichConsole

    # rich leaves bold and italic on under NO_COLOR; who sets it wants plain text.
    color: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    return RichConsole(file=stream, color_system=color, highlight=False)


def _columns(unit: str) -> list[ProgressColumn]:
    """Label, bar, count, percent, rate, estimate, and what is worked on just now.

    The last and the bar share the width that is left: a long file name is what gets cut.
    """
    from rich.progress import BarColumn, ProgressColumn, Task, TextColumn
    from rich.table import Column
    from rich.text import Text

    whole = Column(no_wrap=True)

    class Live(ProgressColumn):
        def __init__(self, text: Callable[[Task], str]) -> None:
            super().__init__(table_column=whole)
            self._text = text

        def render(self, task: Task) -> Text:
            return Text(self._text(task))

    rest = Column(no_wrap=True, ratio=2, overflow="ellipsis")
    return [
        TextColumn("{task.description}", markup=False, table_column=whole),
        BarColumn(bar_width=None, table_column=Column(ratio=1)),
        Live(lambda task: _count(task.completed, task.total, unit)),
        Live(lambda task: "" if task.total is None else f"{task.percentage:.0f}%"),
        Live(lambda task: _rate(task.speed, task.elapsed, unit)),
        Live(lambda task: task.fields["estimate"] or _left(task.time_remaining, task.finished)),
        TextColumn("{task.fields[doing]}", markup=False, table_column=rest),
    ]


def _count(done: float, total: float | None, unit: str) -> str:
    if total is None and not done:
        return ""

    def shown(value: float) -> str:
        return human_bytes(value) if unit == BYTES else f"{value:.0f}"

    amount = shown(done) if total is None else f"{shown(min(done, total))}/{shown(total)}"
    return amount.replace(" ", "") if unit == BYTES else f"{amount} {unit}"


def _rate(speed: float | None, elapsed: float | None, unit: str) -> str:
    """How fast bytes come; sources and the like have the time that has passed instead."""
    if unit == BYTES:
        return f"{human_bytes(speed)}/s" if speed else ""
    seconds = int(elapsed or 0)
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def _left(seconds: float | None, finished: bool) -> str:
    return "" if seconds is None or finished else f"about {human_seconds(seconds)} left"
