"""JSON text walked through without being decoded: where a string, a value or a member ends.

It looks at brackets and quotes alone, so what it accepts may still be no JSON; whoever decodes the text finds out. No
step of it searches more than STEP_BYTES at once, so that a thread that walks leaves the interpreter to others.
"""

import re

STEP_BYTES = 64 * 1024
_SPACE = re.compile(rb"[ \t\n\r]*")
_MARK = re.compile(rb'["{}\[\]]')
_SCALAR = re.compile(rb'[^,:"{}\[\] \t\n\r]*')
QUOTE, BACKSLASH = b'"\\'
OPEN, CLOSE = b"{[", b"}]"


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


def end_of_string(text: bytes, at: int) -> int:
    """Behind the closing quote of the string that begins at `at`."""
    start = at + 1
    while start < len(text):
        quote = text.find(b'"', start, start + STEP_BYTES)
        if quote < 0:
            start += STEP_BYTES
        elif _is_escaped(text, quote):
            start = quote + 1
        else:
            return quote + 1
    raise Malformed(len(text))


def _is_escaped(text: bytes, at: int) -> bool:
    before = at
    while text[before - 1] == BACKSLASH:
        before -= 1
    return (at - before) % 2 == 1


def end_of_value(text: bytes, at: int) -> int:
    """Behind the value that begins at `at`."""
    first = byte_at(text, at)
    if first == QUOTE:
        return end_of_string(text, at)
    if first not in OPEN:
        end = _skip(_SCALAR, text, at)
        if end == at:
            raise Malformed(at)
        return end
    depth = 0
    while at < len(text):
        mark = _MARK.search(text, at, at + STEP_BYTES)
        if mark is None:
            at += STEP_BYTES
            continue
        at = mark.start()
        if text[at] == QUOTE:
            at = end_of_string(text, at)
            continue
        depth += 1 if text[at] in OPEN else -1
        at += 1
        if not depth:
            return at
    raise Malformed(len(text))


def _skip(pattern: re.Pattern[bytes], text: bytes, at: int) -> int:
    while True:
        found = pattern.match(text, at, at + STEP_BYTES)
        assert found is not None
        if found.end() < at + STEP_BYTES:
            return found.end()
        at = found.end()
