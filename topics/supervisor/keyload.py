"""API keys at start: read once, from wherever they were given, and the plaintext gone.

A process cannot forget a secret it was started with: /proc/PID/environ shows its first environment for as long as it
lives, and copies stay behind in freed memory. So a server that was given keys reads them, puts their digests into
an anonymous file and starts itself again in the same process (same pid, same arguments) without TOPICS_API_KEYS. From
then on there is no plaintext in its environment, in its memory, or in anything it can hand to a child.

A crash in between leaves nothing: nothing has been taken yet, and the file has no name.
"""

import os
import stat
import sys
import tempfile
from typing import NoReturn

import msgspec

from topics.keys import KeyDigest, KeysError, entries_of_file, entries_of_variable, parse_entries
from topics.settings import HANDOVER, PREFIX, KeySources

VARIABLE = PREFIX + "API_KEYS"
FILE_BYTES_MAX = 1 << 20


def take_keys(sources: KeySources) -> list[KeyDigest]:
    """The keys of this server, none if none were given. With plaintext around this does not return: the server starts
    again, and gets them then. Raises KeysError for keys that cannot be used."""
    if sources.handover is not None:
        os.environ.pop(HANDOVER, None)
        return _receive(sources.handover)
    if not any(sources):
        return []
    keys = read_keys(sources)
    try:
        _start_again(keys)
    except OSError as error:
        raise KeysError(f"the server cannot start itself again to forget the keys: {error.strerror}") from None


def read_keys(sources: KeySources) -> list[KeyDigest]:
    entries = entries_of_variable(sources.text, VARIABLE) if sources.text is not None else []
    for path, name in ((sources.file, VARIABLE + "_FILE"), (sources.credential, "the systemd credential")):
        if path is not None:
            found = entries_of_file(_read_private(path, name), name)
            if not found:
                raise KeysError(f"{name} {path} holds no key")
            entries += found
    return parse_entries(entries)


def _read_private(path: str, name: str) -> str:
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise KeysError(f"{name} {path} cannot be read: {error.strerror}") from None
    if mode & stat.S_IRWXO:
        raise KeysError(f"{name} {path} is open to every user of this machine; close it with chmod o= {path}")
    if len(content) > FILE_BYTES_MAX:
        raise KeysError(f"{name} {path} is larger than {FILE_BYTES_MAX} bytes")
    return content.decode("utf-8-sig", errors="replace")  # what is no text can only be in a comment, see parse_entry


def _start_again(keys: list[KeyDigest]) -> NoReturn:
    fd = _anonymous_file()
    with open(fd, "wb", closefd=False) as file:
        file.write(msgspec.json.encode(keys))
    os.lseek(fd, 0, os.SEEK_SET)
    os.set_inheritable(fd, True)
    env = {name: value for name, value in os.environ.items() if name != VARIABLE} | {HANDOVER: str(fd)}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], env)


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("topics-keys")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _receive(handover: str) -> list[KeyDigest]:
    try:
        with open(int(handover), "rb") as file:
            keys = msgspec.json.decode(file.read(), type=list[KeyDigest])
    except (OSError, ValueError, msgspec.MsgspecError):
        raise KeysError(f"{HANDOVER} is for the server's own use; unset it") from None
    if not keys:
        raise KeysError(f"{HANDOVER} names a file without keys")
    return keys
