"""What the document says of one operation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from topics import errors

TEXT: Mapping[str, Any] = {"type": "string"}
STORES = (errors.STORAGE_FULL,)  # of operations that need room on the disk


@dataclass(frozen=True)
class Parameter:
    name: str
    description: str
    schema: Mapping[str, Any] = field(default_factory=lambda: TEXT)
    example: Any = None
    place: str = "query"
    required: bool = False


@dataclass(frozen=True)
class Operation:
    group: str
    summary: str
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    body: type[msgspec.Struct] | None = None
    body_required: bool = True
    examples: Mapping[str, Any] = field(default_factory=dict)  # request bodies
    answers: Mapping[int, type[msgspec.Struct]] = field(default_factory=dict)
    media: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of a 200 that is not (only) one of `answers`
    shown: Mapping[str, Any] = field(default_factory=dict)  # an example of the answer, without `performance`
    path: str = "orders"  # an example of the name in the path
    errors: tuple[str, ...] = ()
