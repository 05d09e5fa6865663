"""The tag predicate of deletes and router filters: one exact tag, or every tag with a prefix.

There is deliberately nothing more: an exact match is a point lookup in a topic's tag index and a prefix a bounded
range scan (`prefix_end`), so no predicate ever has to look at the whole log. A record without a tag never matches.
"""

from typing import Any, Literal

import msgspec

from topics.errors import TopicsError, invalid

Op = Literal["Eq", "Glob"]


class TagMatch(msgspec.Struct, frozen=True):
    """`value` is the whole tag for Eq, and for Glob the literal prefix, without its star."""

    op: Op
    value: str

    def matches(self, tag: str | None) -> bool:
        if tag is None:
            return False
        return tag == self.value if self.op == "Eq" else tag.startswith(self.value)


def parse_match(value: Any) -> TagMatch:
    """From `["tag","Eq","X"]`, `["tag","Glob","X*"]`, or the shorthands `"X"` (Eq) and `"X*"` (Glob)."""
    if isinstance(value, str):
        return TagMatch("Glob", value[:-1]) if value.endswith("*") else TagMatch("Eq", value)
    if not isinstance(value, list | tuple) or len(value) != 3:
        raise _refuse('must be a string or ["tag", "Eq" or "Glob", pattern]')
    field, op, pattern = value
    if field != "tag":
        raise _refuse('can look at "tag" only')
    if op not in ("Eq", "Glob"):
        raise _refuse("knows the operators Eq and Glob only")
    if not isinstance(pattern, str):
        raise _refuse("needs a string as its pattern")
    if op == "Eq":
        return TagMatch("Eq", pattern)
    if not pattern.endswith("*"):
        raise _refuse('with Glob needs a pattern that ends in "*": a literal prefix, then the star')
    return TagMatch("Glob", pattern[:-1])


def _refuse(rule: str) -> TopicsError:
    return invalid(f"a tag match {rule}", field="match")


def prefix_end(prefix: bytes) -> bytes | None:
    """The least key above every key with this prefix, in byte order; None if there is no such key.

    The keys with the prefix are those in `prefix <= key < prefix_end(prefix)`.
    """
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else None
