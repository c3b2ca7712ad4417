"""The ``pinwheel`` command: finds the subcommand, and turns errors into one clear message.

Subcommands are imported when they are asked for: ``pinwheel --help`` reads no library.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from pinwheel import interrupts

if TYPE_CHECKING:
    from pinwheel.errors import PinwheelError

# Subcommand -> what it does, so that --help needs no import of it.
COMMANDS = {
    "abi": "Show which torch builds a wheel fits, and what breaks the others.",
    "build": "Build a combo's wheel into dist/, from its lock alone.",
    "clean": "Show what the cache takes, and remove what was not used for long.",
    "compare": "Show what differs between two wheels, down to operators and kernels.",
    "fetch": "Fill the store with a combo's inputs, to build without network.",
    "lock": "Resolve every input of a combo to path, size and hash.",
    "matrix": "Show and check drivers, CUDA lines, torch builds, releases, combos.",
    "verify": "Read a wheel and say whether it fits what it is for.",
}
USAGE = 2
BUG = 70
INTERRUPTED = 130
READER_GONE = 141  # as the shell says of a program ended by SIGPIPE


class ReaderGoneError(Exception):
    """Whoever read our output closed it. No OSError, which click would take for itself."""


class Lazy(click.Group):
    """A group whose commands are modules of their own, imported on demand."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """As click's; --help writes here."""
        try:
            return super().make_context(info_name, args, parent, **extra)
        except BrokenPipeError as error:
            raise ReaderGoneError from error

    def invoke(self, ctx: click.Context) -> Any:
        """As click's; commands write here."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderGoneError from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table above, for --help and completion."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"pinwheel.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, with the nearest names for a word that is none."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, n=2)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            raise click.UsageError(f"{error.message}{hint}", ctx) from error


def _version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        import pinwheel

        click.echo(f"pinwheel {pinwheel.__version__}")
        ctx.exit()


@click.command(
    cls=Lazy,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Start here:
  pinwheel matrix                                          what there is
  pinwheel build --combo cu121-torch2.3-vllm0.6.3          the wheel, in dist/
  pinwheel build --combo cu121-torch2.3-vllm0.6.3 --archs 8.0

\b
Completion: eval "$(_PINWHEEL_COMPLETE=bash_source pinwheel)"; more: docs/configuration.md
Exit codes: docs/exit-codes.md. Sources and caches: docs/configuration.md.""",
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """Reproducible builds of pinned vLLM wheels.

    A combo such as cu121-torch2.3-vllm0.6.3 names a CUDA line, a torch minor and a vLLM release;
    its recipe and lock name every byte that goes into its wheel.
    """


def main(argv: list[str] | None = None) -> None:
    """Run the command line; the process ends with a documented exit code."""
    from pinwheel.errors import PinwheelError

    arguments = sys.argv[1:] if argv is None else argv
    as_json = "--json" in arguments
    _fill_standard_streams()
    interrupts.listen()
    try:
        code = cli.main(arguments, prog_name="pinwheel", standalone_mode=False)
    except PinwheelError as error:
        show_error(error, as_json=as_json)
        sys.exit(error.exit_code)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        if as_json:
            _as_json("interrupted", "interrupted", INTERRUPTED, "Run the same command again.")
        _say("interrupted; run the same command again to go on")
        sys.exit(INTERRUPTED)
    except click.ClickException as error:
        if as_json:
            _as_json(error.format_message(), "usage", error.exit_code, "Add --help to the command.")
        try:
            error.show()
        except OSError:
            _drop_output()
        sys.exit(error.exit_code)
    except (BrokenPipeError, ReaderGoneError):
        # Never 0: where progress was cut off, what was asked for has not been done.
        _drop_output()
        sys.exit(READER_GONE)
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC and not error.filename:
            _output_full(error)
        show_bug(error, as_json=as_json)
        sys.exit(BUG)
    try:
        # At exit Python would only complain, and the shell would see a success.
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        sys.exit(READER_GONE)
    except OSError as error:
        _output_full(error)
    sys.exit(code if isinstance(code, int) else 0)


def _fill_standard_streams() -> None:
    """Open closed ones: the first file opened would take the place. No text breaks stdout."""
    for number, mode in ((0, "r"), (1, "w"), (2, "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
            name = ("stdin", "stdout", "stderr")[number]
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr does on its own


def _say(text: str) -> None:
    try:
        click.echo(text, err=True)
    except OSError:
        _drop_output()


def _output_full(error: OSError) -> None:
    """End where the disk that our own output goes to is full."""
    from pinwheel.errors import DiskFullError

    full = DiskFullError(
        "there is no space left where the output goes",
        evidence=[str(error)],
        next_step="Free some space where it goes to, or send it elsewhere.",
    )
    show_error(full, as_json=False)
    _drop_output()
    sys.exit(full.exit_code)


def _as_json(what: str, rule: str, code: int, next_step: str) -> None:
    """What went wrong, on stdout in the shape of every error."""
    import json

    data = {"error": what, "rule": rule, "evidence": [], "next": next_step, "exit_code": code}
    try:
        click.echo(json.dumps(data, indent=2))
    except OSError:
        _drop_output()


def show_error(error: PinwheelError, *, as_json: bool) -> None:
    """Print an error for a person on stderr, and as JSON on stdout where that was asked for."""
    try:
        _show_error(error, as_json=as_json)
    except OSError:
        _drop_output()  # nobody listens, or it is full; the exit code still tells


def _drop_output() -> None:
    """Let nothing more be written: Python would complain of a closed pipe once more at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(null, descriptor)


def _show_error(error: PinwheelError, *, as_json: bool) -> None:
    if as_json:
        import json

        click.echo(json.dumps(error.as_dict(), indent=2))
    red = {"fg": "red", "bold": True}
    click.echo(f"{_styled('error:', red)} {printable(error.what)}", err=True)
    click.echo(f"  rule: {error.rule} (exit code {error.exit_code})", err=True)
    for line in error.evidence:
        click.echo(f"  {printable(line)}", err=True)
    click.echo(f"{_styled('next:', {'bold': True})} {printable(error.next_step)}", err=True)


def printable(text: str) -> str:
    """Text with control characters made visible: evidence may quote hostile input."""
    return "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in text.rstrip())


def _styled(text: str, style: dict[str, Any]) -> str:
    plain = "NO_COLOR" in os.environ or not sys.stderr.isatty()
    return text if plain else click.style(text, **style)


def show_bug(error: Exception, *, as_json: bool = False) -> None:
    """Say that this is our mistake; the traceback goes to a file, or to stderr when asked for."""
    import tempfile
    import traceback

    text = "".join(traceback.format_exception(error))
    if as_json:
        kind = f"{type(error).__name__}: {error}"
        _as_json(kind, "internal", BUG, "Report it with the traceback.")
    if os.environ.get("PINWHEEL_TRACEBACK"):
        click.echo(text, err=True)
        return
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="pinwheel-bug-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
    except OSError:  # no place to write to may be the very reason
        click.echo(text, err=True)
        return
    click.echo(f"bug: {type(error).__name__}: {printable(str(error))}", err=True)
    click.echo(f"  This is a mistake in pinwheel. Traceback: {file.name}", err=True)
    click.echo("next: Report it with that file; PINWHEEL_TRACEBACK=1 prints it here.", err=True)


if __name__ == "__main__":
    main()
