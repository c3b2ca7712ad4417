"""``pinwheel fetch``: fill the store with everything one lock names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinwheel.console import Console
    from pinwheel.inputs.store import Store
    from pinwheel.recipe.lock import Input

_ROLES = ("source", "dependency", "patch", "toolkit", "root", "tool", "build", "run")


@click.command("fetch")
@click.option("--combo", required=True, metavar="ID", help="Combo, as in arch_matrix.toml.")
@click.option("--toolkit", metavar="NAME", help="Toolkit of the lock; default the recipe's own.")
@click.option(
    "--role",
    "roles",
    multiple=True,
    type=click.Choice(_ROLES),
    help="Only inputs of this role; may be given several times.",
)
@click.option("--dry-run", is_flag=True, help="List what is missing, and fetch nothing.")
@click.option("--verify", is_flag=True, help="Also hash what is in the store already.")
@click.option("--recipes", type=click.Path(path_type=Path), help="Directory of recipes.")
@click.option("--cache", type=click.Path(path_type=Path), help="Cache directory.")
@click.option("--offline", is_flag=True, help="Use no network: list what is missing and fail.")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but warnings and errors.")
@click.option("-v", "--verbose", count=True, help="Say more.")
def command(
    combo: str,
    toolkit: str | None,
    roles: tuple[str, ...],
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
    require_recipes(settings)
    recipe = load_recipe(settings, combo)
    name = chosen_toolkit(recipe, toolkit)
    lock = read_lock(lock_path(recipe, name))
    inputs = [i for i in lock.inputs if not roles or any(role in roles for role in i.roles)]
    store = Store(settings.store)

    if verify:
        _verify(store, distinct(inputs), console.warn)
    if dry_run:
        absent = missing(inputs, store)
        if as_json:
            console.emit_json({"missing": [_row(i) for i in absent], "of": len(distinct(inputs))})
        else:
            _list(absent, console)
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
    from pinwheel.console import counted
    from pinwheel.files import human_bytes

    if not absent:
        console.say("nothing to fetch")
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
    total = human_bytes(sum(i.size for i in absent))
    console.say(f"{counted(len(absent), 'input')}, {total} to fetch")
