"""The shape of ``lock.<toolkit>.toml``: every byte that goes into a build, by hash."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from pinwheel.recipe.models import Strict, Text, Word

SHA256 = re.compile(r"[0-9a-f]{64}")
_SNAPSHOT = re.compile(r"([0-9]{8}T[0-9]{6}Z)?")
_LONGEST_NAME = 255  # bytes, on every file system in use (NAME_MAX)
_LATEST = 4354819198  # seconds since 1970: the last moment a zip can state (2107-12-31T23:59:58)


class SourceKind(StrEnum):
    """Where an input lives. Which URL a source has is configuration, never part of a lock."""

    INDEX = "index"
    DEBIAN = "debian"
    PROJECT = "project"


class Role(StrEnum):
    """What an input is for."""

    SOURCE = "source"
    DEPENDENCY = "dependency"
    PATCH = "patch"
    TOOLKIT = "toolkit"
    ROOT = "root"
    TOOL = "tool"
    BUILD = "build"
    RUN = "run"
    REFERENCE = "reference"


class Input(Strict):
    """One file: its roles, its source, its path within the source, its size and hash.

    ``path`` is a file name for ``index`` (found on the project's page), a pool path for
    ``debian`` and a path relative to the recipe repository for ``project``.
    """

    roles: tuple[Role, ...]
    source: SourceKind
    name: Word
    version: Word
    path: Word
    size: Annotated[int, Field(ge=0, lt=1 << 63, strict=True)]  # bytes
    sha256: Text

    @field_validator("sha256")
    @classmethod
    def _hex(cls, value: str) -> str:
        if not SHA256.fullmatch(value):
            raise ValueError("must be 64 lower-case hexadecimal digits")
        return value

    @field_validator("path")
    @classmethod
    def _relative(cls, value: str) -> str:
        parts = value.split("/")
        if "\\" in value or any(part in ("", ".", "..") for part in parts):
            raise ValueError("must be a relative path without '..'")
        if any(len(part.encode()) > _LONGEST_NAME for part in parts):
            raise ValueError("has a name that no file can have")
        return value

    @field_validator("roles")
    @classmethod
    def _some_role(cls, value: tuple[Role, ...]) -> tuple[Role, ...]:
        if not value or len(set(value)) != len(value):
            raise ValueError("must name each role once, and at least one")
        return value

    @model_validator(mode="after")
    def _one_file(self) -> Input:
        if self.source is SourceKind.INDEX and "/" in self.path:
            raise ValueError("the path of an index input is the name of a file")
        return self


class Lock(Strict):
    """One lock, whole. Inputs are sorted by source, name, version, path."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    lock_version: Annotated[Literal[1], Field(alias="lock-version")]
    combo: Text
    toolkit: Text
    recipe_sha256: Annotated[Text, Field(alias="recipe-sha256")]
    matrix_sha256: Annotated[Text, Field(alias="matrix-sha256")]
    data_sha256: Annotated[Text, Field(alias="data-sha256")]
    debian_snapshot: Annotated[str, Field(alias="debian-snapshot")] = ""
    source_date_epoch: Annotated[
        int, Field(alias="source-date-epoch", ge=315532800, le=_LATEST, strict=True)
    ]  # seconds
    inputs: Annotated[tuple[Input, ...], Field(alias="input")]

    @field_validator("debian_snapshot")
    @classmethod
    def _timestamp(cls, value: str) -> str:
        if not _SNAPSHOT.fullmatch(value):
            raise ValueError("must be a timestamp such as 20261130T000000Z")
        return value

    @model_validator(mode="after")
    def _ordered(self) -> Lock:
        keys = [(i.source, i.name, i.version, i.path) for i in self.inputs]
        if keys != sorted(keys):
            raise ValueError("inputs are not sorted by source, name, version, path")
        if len(set(keys)) != len(keys):
            raise ValueError("an input is listed twice")
        sizes: dict[str, int] = {}
        for item in self.inputs:
            if sizes.setdefault(item.sha256, item.size) != item.size:
                raise ValueError(f"sha256 {item.sha256} has two sizes")
        return self

    def with_role(self, role: Role) -> tuple[Input, ...]:
        """The inputs that serve ``role``, in lock order."""
        return tuple(i for i in self.inputs if role in i.roles)
