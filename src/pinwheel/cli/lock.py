"""``pinwheel lock``: resolve every input of a combo, check a lock, export it for pip and uv."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pinwheel.cli.shared import combo_option, require_combo, toolkit_option

if TYPE_CHECKING:
    from pinwheel.console import Console
    from pinwheel.recipe.lock import Lock


@click.command(
    "lock",
    epilog="""\b
Examples:
  pinwheel lock --combo cu121-torch2.3-vllm0.6.3               write the lock
  pinwheel lock --combo cu121-torch2.3-vllm0.6.3 --check       is it fresh? no network
  pinwheel lock --combo cu121-torch2.3-vllm0.6.3 --dry-run     would it change? writes nothing
  pinwheel lock --combo cu121-torch2.3-vllm0.6.3 --export DIR  for pip and uv

\b
Exit codes: 0 written, unchanged or fresh (--dry-run: also where it would change; the last line
says which), 2 wrong usage, 10-15 what a person wrote, 13 no lock or a damaged one, 16 the lock
is stale, 17 a setting, 20-25 inputs (25 cannot be resolved), 130 interrupted. All of them:
docs/exit-codes.md. More: docs/locks.md.""",
)
@combo_option
@toolkit_option
@click.option("--check", is_flag=True, help="Only say whether the lock is fresh; no network.")
@click.option(
    "--export",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write pylock.build.toml and pylock.run.toml (PEP 751) from the lock as it is.",
)
@click.option("--dry-run", is_flag=True, help="Resolve and compare, and write nothing.")
@click.option("--recipes", type=click.Path(path_type=Path), help="Directory of recipes.")
@click.option("--cache", type=click.Path(path_type=Path), help="Cache directory.")
@click.option(
    "--offline", is_flag=True, help="Use no network; only --check and --export work then."
)
@click.option("--json", "as_json", is_flag=True, help="Report as JSON on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="The last line, warnings and errors.")
@click.option("-v", "--verbose", count=True, help="Say more.")
def command(
    combo: str | None,
    toolkit: str | None,
    check: bool,
    export: Path | None,
    dry_run: bool,
    recipes: Path | None,
    cache: Path | None,
    offline: bool,
    as_json: bool,
    quiet: bool,
    verbose: int,
) -> None:
    """Write recipes/COMBO/lock.TOOLKIT.toml: every file that goes into a build, by hash.

    Locking twice writes the same bytes while the sources serve the same files. A lock names no
    host; where its files come from is configuration.
    """
    from dataclasses import replace

    from pinwheel.build.recipes import require_recipes
    from pinwheel.console import Console
    from pinwheel.matrix.models import load_matrix
    from pinwheel.recipe.load import chosen_toolkit, load_recipe
    from pinwheel.recipe.lockfile import lock_path, lock_text, read_lock, write_lock
    from pinwheel.recipe.stale import check_fresh
    from pinwheel.settings import MATRIX, load_settings

    if check and dry_run:
        raise click.UsageError("--check and --dry-run exclude each other")
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
    loaded = load_recipe(settings, combo)
    name = chosen_toolkit(loaded, toolkit)
    path = lock_path(loaded, name)

    if check or export:
        lock = read_lock(path)
        check_fresh(lock, loaded, load_matrix(settings.project / MATRIX), name)
        state = "fresh"
    else:
        from pinwheel.recipe.resolve import resolve

        lock = resolve(settings, loaded, name, console)
        if dry_run:
            same = path.is_file() and path.read_bytes() == lock_text(lock).encode()
            state = "unchanged" if same else "would change"
        else:
            state = "written" if write_lock(lock, path) else "unchanged"
    written: tuple[Path, ...] = ()
    if export:
        from pinwheel.recipe.export import export_lock

        written = export_lock(lock, loaded.recipe.python, settings, export)
    _report(console, lock, path, state, written, as_json=as_json)


def _report(
    console: Console,
    lock: Lock,
    path: Path,
    state: str,
    written: tuple[Path, ...],
    *,
    as_json: bool,
) -> None:
    from pinwheel.files import human_bytes, sha256_file
    from pinwheel.recipe.lock import Role

    roles = {role: lock.with_role(role) for role in Role}
    if as_json:
        console.emit_json(
            {
                "combo": lock.combo,
                "toolkit": lock.toolkit,
                "lock": str(path),
                "sha256": sha256_file(path) if path.is_file() else None,
                "state": state,
                "inputs": {
                    role.value: {"files": len(found), "bytes": sum(i.size for i in found)}
                    for role, found in roles.items()
                },
                "exported": [str(p) for p in written],
            }
        )
        return
    if not console.quiet:
        console.table(
            f"{lock.combo}, {lock.toolkit}",
            ("role", "files", "size"),
            [
                (role.value, len(found), human_bytes(sum(i.size for i in found)))
                for role, found in roles.items()
                if found
            ],
            right=("files", "size"),
        )
    for file in written:
        console.say(f"exported {file}")
    total = human_bytes(sum(i.size for i in lock.inputs))
    console.result(f"{path}: {state}, {len(lock.inputs)} files, {total}")
