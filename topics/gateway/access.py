"""Who asks, and may they: run for every route, over every transport.

The seam for API keys. Until keys can be configured there is one principal, who may do everything.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass


class Scope(enum.Enum):
    OPEN = "open"  # probes
    READ = "read"
    WRITE = "write"
    DELETE = "delete"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Principal:
    """`prefixes`: the names it may touch; empty means all."""

    name: str
    scopes: frozenset[Scope]
    prefixes: tuple[str, ...] = ()


ANYONE = Principal("anyone", frozenset(Scope))


def authenticate(headers: Mapping[bytes, bytes]) -> Principal:
    """The principal of a request. Raises `unauthorized`."""
    return ANYONE


def authorise(principal: Principal, scope: Scope, name: str) -> None:
    """May the principal do this, to this name (empty: to no name in particular)? Raises `forbidden`."""
