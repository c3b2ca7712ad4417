"""What a shell offers behind Tab: combos, their toolkits, wheels. Where it cannot know: nothing.

A recipe is looked at, not checked, so that no library has to be loaded while somebody types.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import click
    from click.shell_completion import CompletionItem

    from pinwheel.settings import Settings


def combos(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Ids of the combos that have a recipe, of ``--recipes`` if that was typed before."""
    try:
        return sorted({path.parent.name for path in _recipes(ctx, f"{incomplete}*")})
    except Exception:  # a message would land in the middle of what is being typed
        return []


def toolkits(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Toolkits that the recipe of the ``--combo`` typed before offers; of all recipes without."""
    import tomllib

    names: set[str] = set()
    try:
        for path in _recipes(ctx, ctx.params.get("combo") or "*"):
            names.update(tomllib.loads(path.read_text("utf-8"))["toolkits"]["offered"])
        return sorted(name for name in names if name.startswith(incomplete))
    except Exception:
        return []


def wheels(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Wheels in the directory typed so far and in ``dist/``; with none of them, any file."""
    from click.shell_completion import CompletionItem

    try:
        found = sorted({*_beside(incomplete), *_built(incomplete)})
    except Exception:
        found = []
    if not found:
        return [CompletionItem(incomplete, type="file")]
    return [CompletionItem(text) for text in found]


def _settings() -> Settings:
    from pinwheel.settings import VARIABLES, load_settings

    # Where inputs come from is not asked here; finding it out would load the index's client.
    return load_settings(env={**os.environ, **dict.fromkeys(VARIABLES.values(), "file:///")})


def _recipes(ctx: click.Context, combo: str) -> Iterator[Path]:
    """Recipe files by a pattern of their combo's name; the first directory that has one wins."""
    typed = ctx.params.get("recipes")
    places = _settings().recipes if typed is None else (typed,)
    seen: set[str] = set()
    for place in places:
        for path in place.glob(f"{combo}/recipe.toml"):
            if path.parent.name not in seen:
                seen.add(path.parent.name)
                yield path


def _beside(incomplete: str) -> Iterator[str]:
    directory, name = os.path.split(incomplete)
    for path in Path(directory or ".").expanduser().glob("*.whl"):
        if path.name.startswith(name):
            yield incomplete.removesuffix(name) + path.name


def _built(incomplete: str) -> Iterator[str]:
    here = Path.cwd()
    for path in _settings().dist.glob("*/*.whl"):
        text = str(path.relative_to(here) if path.is_relative_to(here) else path)
        if text.startswith(incomplete):
            yield text
