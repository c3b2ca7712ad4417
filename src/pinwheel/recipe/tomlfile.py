"""Reads a TOML file into a model; what is wrong is named by file, line and key."""

from __future__ import annotations

import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from pinwheel import toml
from pinwheel.errors import PinwheelError
from pinwheel.matrix.toml_lines import dotted, line_of, line_of_syntax_error

Model = TypeVar("Model", bound=BaseModel)

# More messages than this help nobody.
_SHOWN = 8
_WIDEST = 200  # characters of a line that is quoted


def canonical_sha256(data: object) -> str:
    """SHA-256 of ``data`` as JSON with sorted keys and no white space: its meaning, not its form.

    Raises:
        TypeError: ``data`` holds something JSON has no form for.
    """
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def read_model(
    path: Path, model: type[Model], error_class: type[PinwheelError], *, next_step: str
) -> Model:
    """The file at ``path`` as ``model``.

    Args:
        path: a TOML file, UTF-8.
        model: what it has to be.
        error_class: raised for whatever is wrong with it.
        next_step: what the user can do about it.

    Raises:
        PinwheelError: of ``error_class``; each message reads ``file:line: key: what is wrong``.
    """
    try:
        text = toml.read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise error_class(
            f"{path} cannot be read", evidence=[str(error)], next_step=next_step
        ) from error
    try:
        data: dict[str, Any] = toml.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = line_of_syntax_error(error)
        raise error_class(
            f"{path}:{line}: not TOML: {error}",
            evidence=[quoted[:_WIDEST] for quoted in text.splitlines()[line - 1 : line]],
            next_step=next_step,
        ) from error
    try:
        return model.model_validate(data)
    except ValidationError as error:
        found = []
        problems = error.errors(include_url=False, include_context=False)
        for problem in problems[:_SHOWN]:
            place = problem["loc"]
            key = dotted(place) or "(top level)"
            message = problem["msg"].removeprefix("Value error, ")
            found.append(f"{path}:{line_of(text, place)}: {key}: {message}")
        rest = len(problems) - _SHOWN
        raise error_class(
            found[0],
            evidence=found[1:] + ([f"... and {rest} more"] if rest > 0 else []),
            next_step=next_step,
        ) from error
