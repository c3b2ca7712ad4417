"""``pinwheel fetch``: fill the store with everything one lock names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pinwheel.cli.shared import combo_option, require_combo, toolkit_option

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinwheel.console import Console
    from pinwheel.inputs.store import Store
    from pinwheel.recipe.lock import Input

# pinwheel.recipe.lock.Role, which a help text need not wait for; a test keeps the two equal.
_ROLES = {
    "source": "the package's sdist",
    "dependency": "sources it compiles with, such as CUTLASS",
    "patch": "the patch series; copied, needs no network",
    "toolkit": "parts of the CUDA toolkit",
    "root": "Debian packages of the build root",
    "tool": "compile cache and installer",
    "build": "Python packages to build with",
    "run": "Python packages to run with",
    "reference": "the official wheel the result is compared with",
}
_WIDTH = max(map(len, _ROLES))


@click.command(
    "fetch",
    epilog="\b\nRoles (an input may have several; a build needs all of them):\n"
    + "".join(f"  {role:<{_WIDTH}}  {what}\n" for role, what in _ROLES.items())
    + """
\b
Examples:
  pinwheel fetch --combo cu121-torch2.3-vllm0.6.3                     all a build needs
  pinwheel fetch --combo cu121-torch2.3-vllm0.6.3 --dry-run           what is missing
  pinwheel fetch --combo cu121-torch2.3-vllm0.6.3 --role reference    the official wheel only
  pinwheel fetch --combo cu121-torch2.3-vllm0.6.3 --without reference all but that

\b
Exit codes: 0 all is there (--dry-run: also where something is missing), 2 wrong usage, 10-17
what a person wrote, 20 an input was at none of its places, 21 other bytes than the lock names,
22 offline and something is missing, 23 the disk is full, 24 not writable, 130 interrupted: run
it again. All of them: docs/exit-codes.md.""",
)
@combo_option
@toolkit_option
@click.option(
    "--role",
    "roles",
    multiple=True,
    type=click.Choice(tuple(_ROLES)),
    help="Only inputs of this role; may be given several times. Roles are explained below.",
)
@click.option(
    "--without",
    multiple=True,
    type=click.Choice(tuple(_ROLES)),
    help="No inputs that have this role alone; may be given several times.",
)
@click.option("--dry-run", is_flag=True, help="List what is missing, and fetch nothing.")
@click.option("--verify", is_flag=True, help="Also hash what is in the store already.")
@click.option("--recipes", type=click.Path(path_type=Path), help="Directory of recipes.")
@click.option("--cache", type=click.Path(path_type=Path), help="Cache directory.")
@click.option("--offline", is_flag=True, help="Use no network: list what is missing and fail.")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON on stdout.")
@click.option(
    "-q", "--quiet", is_flag=True, help="Warnings, errors, and the last line of --dry-run."
)
@click.option("-v", "--verbose", count=True, help="Say more.")
def command(
    combo: str | None,
    toolkit: str | None,
    roles: tuple[str, ...],
    without: tuple[str, ...],
    dry_run: bool,
    verify: bool,
    recipes: Path | None,
    cache: Path | None,
    offline: bool,
    as_json: bool,
    quiet: bool,
    verbose: int,
) -> None:
    """Download every input of a combo's lock into the store, verified by hash.

    What is there already is left alone and an interrupted download goes on where it stopped,
    so running this again is always right. Afterwards `pinwheel build --offline` needs no network.
    """
    from dataclasses import replace

    from pinwheel.build.recipes import require_recipes
    from pinwheel.console import Console
    from pinwheel.inputs.fetch import distinct, fetch, missing
    from pinwheel.inputs.report import take_stock
    from pinwheel.inputs.store import Store
    from pinwheel.recipe.load import chosen_toolkit, load_recipe, lock_path
    from pinwheel.recipe.lockfile import read_lock
    from pinwheel.settings import load_settings

    settings = load_settings()
    settings = replace(
        settings,
        cache=cache.absolute() if cache else settings.cache,
        recipes=(recipes.absolute(),) if recipes else settings.recipes,
        offline=offline or settings.offline,
    )
    console = Console(quiet=quiet, verbose=verbose)
    combo = require_combo(combo, settings)
    require_recipes(settings)
    recipe = load_recipe(settings, combo)
    name = chosen_toolkit(recipe, toolkit)
    lock = read_lock(lock_path(recipe, name))
    wanted = set(roles or _ROLES) - set(without)
    inputs = [i for i in lock.inputs if wanted.intersection(i.roles)]
    store = Store(settings.store)

    if verify:
        _verify(store, distinct(inputs), console.warn)
    if dry_run:
        absent = missing(inputs, store)
        if as_json:
            console.emit_json({"missing": [_row(i) for i in absent], "of": len(distinct(inputs))})
        else:
            _list(absent, console)
            console.result(take_stock(inputs, store).summary())
        return

    report = fetch(
        inputs,
        store,
        settings,
        console,
        snapshot=lock.debian_snapshot,
        command=f"pinwheel fetch --combo {combo} --toolkit {name}",
    )
    if as_json:
        console.emit_json({**report.as_dict(), "store": str(store.path)})
    else:
        console.say(report.summary())


def _verify(store: Store, inputs: tuple[Input, ...], warn: Callable[[str], None]) -> None:
    from pinwheel.errors import HashMismatchError

    for item in inputs:
        if store.has(item):
            try:
                store.get(item)
            except HashMismatchError as error:  # moved aside, so the fetch that follows mends it
                warn("; ".join((error.what, *error.evidence)))


def _row(item: Input) -> dict[str, object]:
    return item.model_dump(mode="json")


def _list(absent: tuple[Input, ...], console: Console) -> None:
    from pinwheel.files import human_bytes

    if console.quiet or not absent:
        return
    console.table(
        "",
        ("name", "version", "source", "path", "size", "sha256"),
        [
            (i.name, i.version, i.source.value, i.path, human_bytes(i.size), i.sha256)
            for i in absent
        ],
        right=("size",),
    )
