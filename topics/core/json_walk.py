"""JSON text walked through without being decoded: where a string, a value or a member ends.

It looks at brackets and quotes alone, so what it accepts may still be no JSON; whoever decodes the text finds out. No
step of it searches more than STEP_BYTES at once, so that a thread that walks leaves the interpreter to others.
"""

import re

STEP_BYTES = 64 * 1024
DEPTH_MAX = 4096  # deeper than any decoder goes
_SPACE = re.compile(rb"[ \t\n\r]*+")
_SCALAR = re.compile(rb'[^,:"{}\[\] \t\n\r]*+')
_IN_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_NO_BRACKET = re.compile(rb'(?:[^"{}\[\]]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)  # a string only if it is whole
QUOTE = ord('"')
OPEN = b"{["


class TooLong(ValueError):
    """The value goes on for longer than it may."""


class Malformed(ValueError):
    """The text is not JSON. `at` is about where that can be seen."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


def skip_space(text: bytes, at: int) -> int:
    """Where something other than white space stands, which may be the end of the text."""
    return _skip(_SPACE, text, at)


def byte_at(text: bytes, at: int) -> int:
    """The byte there; Malformed if that is the end."""
    if at >= len(text):
        raise Malformed(len(text))
    return text[at]


def behind(text: bytes, at: int, mark: bytes) -> int:
    """Behind the mark that has to stand at `at`."""
    if byte_at(text, at) != mark[0]:
        raise Malformed(at)
    return at + 1


def end_of_string(text: bytes, at: int, most: int) -> int:
    """Behind the closing quote of the string that begins at `at`. TooLong if it has many more than `most` bytes."""
    at, stop = at + 1, at + most
    while at < len(text):
        if at > stop:
            raise TooLong
        found = _IN_STRING.match(text, at, at + STEP_BYTES)
        assert found is not None
        end = found.end()
        if text[end : end + 1] == b'"':
            return end + 1
        if end == at:  # a backslash, and then nothing
            break
        at = end
    raise Malformed(len(text))


def end_of_value(text: bytes, at: int, most: int) -> int:
    """Behind the value that begins at `at`. TooLong if it has many more than `most` bytes, RecursionError if it is
    nested more deeply than anybody could read."""
    first = byte_at(text, at)
    if first == QUOTE:
        return end_of_string(text, at, most)
    if first not in OPEN:
        end = _skip(_SCALAR, text, at)
        if end == at:
            raise Malformed(at)
        return end
    stop = at + most
    depth = 0
    while at < len(text):
        if at > stop:
            raise TooLong
        found = _NO_BRACKET.match(text, at, at + STEP_BYTES)
        assert found is not None
        if found.end() == at + STEP_BYTES or found.end() == len(text):
            at = found.end()
            continue
        at = found.end()
        if text[at] == QUOTE:  # a string that goes on behind what was looked at
            at = end_of_string(text, at, stop - at)
            continue
        depth += 1 if text[at] in OPEN else -1
        at += 1
        if not depth:
            return at
        if depth > DEPTH_MAX:
            raise RecursionError
    raise Malformed(len(text))


def _skip(pattern: re.Pattern[bytes], text: bytes, at: int) -> int:
    while True:
        found = pattern.match(text, at, at + STEP_BYTES)
        assert found is not None
        if found.end() < at + STEP_BYTES:
            return found.end()
        at = found.end()
