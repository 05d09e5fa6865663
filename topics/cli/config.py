"""Where the server is and which key to show it: flags, then variables, then the config file.

    # ~/.config/topics/config.toml
    url = "https://topics.example.org"
    key_file = "~/.config/topics/key"     # or: key = "…"
    data_dir = "/var/lib/topics"          # for `status` and `shards`

A file with a key in it must not be open to others. A key given with `--key` stands on the command line, which every
user of the machine can read; so the command moves it to its environment and starts itself again at once.
"""

import os
import stat
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple, NoReturn

from topics.cli.failures import USAGE, Failure

URL, KEY, KEY_FILE, CONFIG, DATA_DIR = "TOPICS_URL", "TOPICS_KEY", "TOPICS_KEY_FILE", "TOPICS_CONFIG", "TOPICS_DATA_DIR"
DEFAULT_URL = "http://127.0.0.1:4000"
DEFAULT_DATA_DIR = "./topics-data"
KNOWN = ("url", "key", "key_file", "data_dir")
KEY_BYTES_MAX = 64 * 1024


class Target(NamedTuple):
    url: str
    key: str | None

    def __repr__(self) -> str:
        return f"Target({self.url!r})"


def target(url: str | None, key: str | None, key_file: str | None) -> Target:
    if key is not None:
        _hide(key)
    file = _config()
    url = url or os.environ.get(URL) or file.get("url") or DEFAULT_URL
    if not url.startswith(("http://", "https://")):
        raise Failure(USAGE, f"{url!r} is no URL of a server: it begins with http:// or https://")
    return Target(url.rstrip("/"), _key(key_file, file))


def data_dir(given: str | None) -> Path:
    return Path(given or os.environ.get(DATA_DIR) or _config().get("data_dir") or DEFAULT_DATA_DIR).expanduser()


def _key(key_file: str | None, file: dict[str, str]) -> str | None:
    if key_file:
        return _read_key(key_file)
    if os.environ.get(KEY_FILE):
        return _read_key(os.environ[KEY_FILE])
    if os.environ.get(KEY):
        return os.environ[KEY].strip()
    if file.get("key_file"):
        return _read_key(file["key_file"])
    return file.get("key")


def _read_key(name: str) -> str:
    """The first line; of an entry such as `topics keys new` prints, the secret before the first colon."""
    try:
        text = sys.stdin.readline() if name == "-" else _read_private(Path(name).expanduser())
    except OSError as error:
        raise Failure(USAGE, f"the key file {name} cannot be read: {error.strerror}") from None
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if not lines:
        raise Failure(USAGE, f"the key file {name} holds no key")
    return lines[0].partition(":")[0]


def _read_private(path: Path) -> str:
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        text = file.read(KEY_BYTES_MAX).decode("utf-8-sig", errors="replace")
    if stat.S_ISREG(mode) and mode & stat.S_IRWXO:
        raise Failure(USAGE, f"{path} holds a key and is open to every user of this machine: chmod o= {path}")
    return text


def _config() -> dict[str, str]:
    named = os.environ.get(CONFIG)
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    path = Path(named or os.path.join(base, "topics", "config.toml")).expanduser()
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if named:
            raise Failure(USAGE, f"{CONFIG} names {named}, which is not there") from None
        return {}
    except (OSError, ValueError) as error:
        raise Failure(USAGE, f"the config file {path} cannot be read: {error}") from None
    for name, value in found.items():
        if name not in KNOWN or not isinstance(value, str):
            raise Failure(USAGE, f"{path}: {name} is not one of the texts {', '.join(KNOWN)}")
    if "key" in found:
        _read_private(path)
    return found


def _hide(key: str) -> NoReturn:
    arguments = sys.orig_argv[1:]
    for n, argument in enumerate(arguments):
        if argument == f"--key={key}":
            del arguments[n]
            break
        if argument == "--key" and arguments[n + 1 : n + 2] == [key]:
            del arguments[n : n + 2]
            break
    else:
        raise Failure(USAGE, "--key is for a command line; use TOPICS_KEY")
    environment = {name: value for name, value in os.environ.items() if name != KEY_FILE}
    os.execve(sys.executable, [sys.executable, *arguments], environment | {KEY: key})
