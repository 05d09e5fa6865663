"""What an operator may set: one table, read once into a frozen `Settings`.

`OPTIONS` is the only place where a setting is named. From it come the TOPICS_* variables, the flags of `topics serve`,
their help, and (checked by a test) docs/configuration.md. `load` is called once, by the command line; the children get
the result handed down (`GatewayBoot`, the flags of a shard) and never look at the environment.

Secrets are never part of `Settings`: what is logged, shown by `status` or handed to a child cannot hold one.
"""

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgspec

from topics import limits
from topics.failpoints import BadFailpoint
from topics.failpoints import parse as parse_failpoints
from topics.keys import KeyDigest
from topics.limits import CLAIM_JOBS_HARD_MAX, KIB, MIB, Limits

PREFIX = "TOPICS_"
HANDOVER = PREFIX + "KEYS_FD"  # the supervisor's message to itself, no setting
CREDENTIAL = "topics-api-keys"
OF_THE_COMMAND_LINE = tuple(PREFIX + name for name in ("URL", "KEY", "KEY_FILE", "CONFIG", "NODE"))  # see topics/cli
TRUE_WORDS = ("1", "true", "yes", "on")
FALSE_WORDS = ("0", "false", "no", "off")
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("auto", "text", "json")


class SettingsError(Exception):
    """A value that cannot be used; the message names the variable, the flag and what is allowed."""


class Caps(msgspec.Struct, frozen=True):
    """Instance-wide resource caps; 0 is off."""

    topics: int = 100_000
    routers: int = 10_000
    watch_sessions: int = 10_000
    sse_connections: int = 10_000
    sse_connections_per_key: int = 1_000
    inflight_per_key: int = 1_000
    total_bytes: int = 0
    connections: int = 10_000  # of one gateway


class Settings(msgspec.Struct, frozen=True):
    """Everything an operator set, checked. Holds no secret."""

    host: str
    port: int
    port_file: str | None
    data_dir: str
    run_dir: str | None
    shards: int
    gateways: int
    stop_ms: int
    stuck_ms: int
    log_format: Literal["text", "json"]
    log_level: str
    probe_auth: bool
    allow_insecure_no_auth: bool
    limits: Limits
    caps: Caps
    cold_dir: str | None = None
    failpoints: str | None = None

    @property
    def gateway_stop_ms(self) -> int:
        """How long a gateway may drain; the rest of `stop_ms` is for the shards' checkpoints."""
        return self.stop_ms * 2 // 3


class KeySources(NamedTuple):
    """Where API keys are to be read. Any that is given must hold keys, or the server does not start."""

    text: str | None = None  # of TOPICS_API_KEYS, secret
    file: str | None = None
    credential: str | None = None  # a file that systemd provides
    handover: str | None = None  # a descriptor with the digests of keys that were read before, see keyload.py

    def __repr__(self) -> str:
        return f"KeySources({', '.join(name for name in self._fields if getattr(self, name) is not None)})"


class Loaded(NamedTuple):
    settings: Settings
    keys: KeySources
    unknown: list[str]  # TOPICS_* variables that nothing reads


class GatewayBoot(msgspec.Struct, frozen=True):
    """What the supervisor hands a gateway, as JSON in the file `--boot-fd` names."""

    settings: Settings
    key_digests: list[KeyDigest]  # none: everybody is served
    listen_fd: int
    lifeline_fd: int  # at end of file the supervisor is gone: end
    index: int
    shard_sockets: dict[int, str]
    slots: list[int]  # slot → shard
    board: str
    socket: str  # gateway-<index>.sock in the run directory; answer `health` there
    started_ms: int  # when the server (not this process) started
    port_is_lent: bool = False  # systemd's: it stays when the server ends

    @classmethod
    def read(cls, fd: int) -> "GatewayBoot":
        """Read it whole and close the descriptor."""
        with open(fd, "rb") as file:
            return msgspec.json.decode(file.read(), type=cls)


class ShardPeers(msgspec.Struct, frozen=True):
    """How a shard finds the others, as JSON in the file `--peers-fd` names."""

    sockets: dict[int, str]
    slots: list[int]  # slot → shard

    @classmethod
    def read(cls, fd: int) -> "ShardPeers":
        """Read it whole and close the descriptor."""
        with open(fd, "rb") as file:
            return msgspec.json.decode(file.read(), type=cls)


Kind = Literal["int", "bool", "text", "path", "word", "secret"]


@dataclass(frozen=True, slots=True)
class Option:
    name: str  # TOPICS_<NAME> and --<name>
    kind: Kind
    help: str
    default: Any
    group: str
    field: str = ""  # where it goes in Settings; `name` unless told
    low: int = 0
    high: int | None = None
    words: tuple[str, ...] = ()
    shown: str = ""

    @property
    def env(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def flag(self) -> str | None:
        """A secret has no flag: command lines are visible to every user of the machine."""
        return None if self.kind == "secret" else "--" + self.name.replace("_", "-")

    @property
    def label(self) -> str:
        return f"{self.env} ({self.flag})" if self.flag else self.env

    @property
    def allowed(self) -> str:
        if self.kind == "int":
            return f"{self.low} to {self.high}" if self.high is not None else f"{self.low} or more"
        if self.kind == "bool":
            return "1 or 0 (also true/false, yes/no, on/off)"
        return " or ".join(self.words) if self.words else "a path" if self.kind == "path" else "text"

    @property
    def default_text(self) -> str:
        if self.shown:
            return self.shown
        if self.kind == "bool":
            return str(int(self.default))
        return "none" if self.default is None else str(self.default)


def _limit(name: str, field: str, high: int, help: str, *, group: str = "Limits", low: int = 1) -> Option:
    default = getattr(Limits(), field)
    return Option(name, "int", help, default, group, f"limits.{field}", low=low, high=high)


def _cap(field: str, help: str) -> Option:
    return Option(f"max_{field}", "int", help + "; 0 is off", getattr(Caps(), field), "Caps", f"caps.{field}")


def _processes(name: str, help: str, shown: str) -> Option:
    return Option(name, "int", help, None, "Processes", low=1, high=64, shown=shown)


_RUN_DIR = "Short directory in which the server makes its private one, for sockets."
_RETAIN = "Newest segments of a topic that are not moved to the cold directory."
_RETAIN_BYTES = "And at most so many bytes of them, per topic; 0 is off."
_STOP_MS = "Longest time for a clean stop; then children are killed."
_STUCK_MS = "A child that answers nothing this long is killed and started again."
_LOG_FORMAT = "Log lines for a person or JSON; auto is text on a terminal."

OPTIONS: tuple[Option, ...] = (
    Option("host", "text", "Address to listen on.", "127.0.0.1", "Network"),
    Option("port", "int", "Port to listen on; 0 picks a free one.", 4000, "Network", high=65_535),
    Option("port_file", "path", "File that receives host:port when the server is ready.", None, "Network"),
    Option("data_dir", "path", "Where everything is kept; made if absent.", "./topics-data", "Storage"),
    Option("run_dir", "path", _RUN_DIR, None, "Storage", shown="$XDG_RUNTIME_DIR, else /tmp"),
    Option("cold_dir", "path", "Where older segments are moved to; without it they stay.", None, "Storage"),
    _limit("hot_retain_segments", "hot_retain_segments", 1_000_000, _RETAIN, group="Storage", low=0),
    _limit("hot_retain_bytes", "hot_retain_bytes", 2**50, _RETAIN_BYTES, group="Storage", low=0),
    _processes("shards", "Shard processes, one WAL each.", "cores, at most 8"),
    _processes("gateways", "Gateway processes, which speak HTTP.", "half the cores, at least 1"),
    Option("stop_ms", "int", _STOP_MS, 30_000, "Processes", low=100, high=3_600_000),
    Option("stuck_ms", "int", _STUCK_MS, 30_000, "Processes", low=100, high=3_600_000),
    Option("log_format", "word", _LOG_FORMAT, "auto", "Logs", words=LOG_FORMATS),
    Option("log_level", "word", "The least severe level that is logged.", "info", "Logs", words=LOG_LEVELS),
    Option("api_keys", "secret", "Comma-separated API keys. Has no flag: command lines are public.", None, "Access"),
    Option("api_keys_file", "path", "File with an API key a line, not readable by everybody.", None, "Access"),
    Option("probe_auth", "bool", "Health and readiness need a key, too.", False, "Access"),
    Option("allow_insecure_no_auth", "bool", "Listen beyond loopback although no keys are set.", False, "Access"),
    _limit("max_batch_records", "batch_records", limits.BATCH_RECORDS_MAX, "Records in one append."),
    _limit("max_record_bytes", "record_bytes", 64 * MIB, "Bytes of one record's data and meta."),
    _limit("max_body_bytes", "body_bytes", 79 * MIB, "Bytes of one request body, after gzip."),
    _limit("max_meta_bytes", "meta_bytes", 60 * KIB, "Bytes of one record's meta."),
    _limit("max_tag_bytes", "tag_bytes", 4 * KIB, "Bytes of one tag."),
    _limit("max_watch_topics", "watch_topics", limits.WATCH_TOPICS_HARD_MAX, "Topics of one watch session."),
    _limit("max_node_bytes", "node_bytes", 4 * KIB, "Bytes of one node id."),
    _limit("max_limit", "read_records", 10_000, "Records in one answer to a diff; a larger limit is clamped to it."),
    _limit("max_claim", "claim_jobs", CLAIM_JOBS_HARD_MAX, "Jobs in one claim, and in one ack, nack or extend."),
    _limit("segment_max_events", "segment_events", 10_000_000, "A segment is sealed at this many records."),
    _limit("segment_max_bytes", "segment_bytes", 4096 * MIB, "A segment is sealed at this many bytes."),
    _limit("segment_max_age_ms", "segment_age_ms", 366 * 86_400_000, "A segment is sealed at this age."),
    _limit("watch_session_ttl_ms", "watch_session_ttl_ms", 366 * 86_400_000, "A watch session lives this long idle."),
    _limit(
        "buffer_grace_ms",
        "buffer_grace_ms",
        limits.SLOW_CONSUMER_MS_MAX,
        "A stream that stalls for longer may lose records.",
    ),
    _limit(
        "slow_consumer_ms", "slow_consumer_ms", limits.SLOW_CONSUMER_MS_MAX, "A client that takes nothing so long goes."
    ),
    _cap("topics", "Topics"),
    _cap("routers", "Routers"),
    _cap("watch_sessions", "Watch sessions"),
    _cap("sse_connections", "Open streams (SSE and WebSocket)"),
    _cap("sse_connections_per_key", "Open streams of one key"),
    _cap("inflight_per_key", "Requests under way of one key"),
    _cap("total_bytes", "Bytes of all retained records"),
    _cap("connections", "Open connections of one gateway"),
    Option("failpoints", "text", "Steps of the storage that fail on purpose.", None, "For tests only"),
)


def load(env: Mapping[str, str], flags: Mapping[str, str | bool | None], *, tty: bool, cores: int) -> Loaded:
    """Flags win over variables, variables over defaults. Raises SettingsError for what cannot be used."""
    values = {option.name: _value(option, env, flags.get(option.name)) for option in OPTIONS}
    values["shards"] = values["shards"] or min(cores, 8)
    values["gateways"] = values["gateways"] or max(1, cores // 2)
    if values["log_format"] == "auto":
        values["log_format"] = "text" if tty else "json"
    keys = KeySources(values["api_keys"], values["api_keys_file"], _credential(env), env.get(HANDOVER))
    loaded = Loaded(_build(values), keys, _unknown(env))
    _check(loaded)
    return loaded


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`. A name other than localhost counts as open: it may resolve anyhow."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def core_count() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _value(option: Option, env: Mapping[str, str], flag: str | bool | None) -> Any:
    raw = env.get(option.env) if flag is None else flag
    if raw is None or (raw == "" and flag is None):  # an empty variable is an unset one
        return option.default
    return raw if isinstance(raw, bool) else _parse(option, raw)


def _parse(option: Option, raw: str) -> Any:
    if option.kind == "int":
        if re.fullmatch(r"\d{1,18}", raw, re.ASCII):
            number = int(raw)
            if option.low <= number and (option.high is None or number <= option.high):
                return number
    elif option.kind == "bool":
        if raw.lower() in TRUE_WORDS + FALSE_WORDS:
            return raw.lower() in TRUE_WORDS
    elif option.kind == "word":
        if raw.lower() in option.words:
            return raw.lower()
    elif raw and "\0" not in raw:
        return raw
    shown = "" if option.kind == "secret" else f", not {raw!r}"
    raise SettingsError(f"{option.label} must be {option.allowed}{shown}")


def _build(values: Mapping[str, Any]) -> Settings:
    fields: dict[str, Any] = {"limits": {}, "caps": {}}
    for option in OPTIONS:
        group, _, name = (option.field or option.name).rpartition(".")
        (fields[group] if group else fields)[name] = values[option.name]
    limits, caps = Limits(**fields.pop("limits")), Caps(**fields.pop("caps"))
    known = {name: value for name, value in fields.items() if name in Settings.__struct_fields__}
    return Settings(**known, limits=limits, caps=caps)


def _credential(env: Mapping[str, str]) -> str | None:
    path = os.path.join(env.get("CREDENTIALS_DIRECTORY", ""), CREDENTIAL)
    return path if os.path.isabs(path) and os.path.exists(path) else None


def _unknown(env: Mapping[str, str]) -> list[str]:
    known = {HANDOVER, *OF_THE_COMMAND_LINE, *(option.env for option in OPTIONS)}
    return sorted(name for name in env if name.startswith(PREFIX) and name not in known)


def _check(loaded: Loaded) -> None:
    settings = loaded.settings
    if settings.limits.record_bytes > settings.limits.body_bytes:
        raise SettingsError(
            "TOPICS_MAX_RECORD_BYTES (--max-record-bytes) must not exceed TOPICS_MAX_BODY_BYTES (--max-body-bytes)"
        )
    _check_cold_dir(settings)
    try:
        parse_failpoints(settings.failpoints or "")
    except BadFailpoint as error:
        raise SettingsError(f"TOPICS_FAILPOINTS (--failpoints): {error}") from None
    if not (is_loopback(settings.host) or any(loaded.keys) or settings.allow_insecure_no_auth):
        raise SettingsError(
            f"TOPICS_HOST (--host) is {settings.host}, which others can reach, and no API keys are set: set "
            "TOPICS_API_KEYS or TOPICS_API_KEYS_FILE, or TOPICS_ALLOW_INSECURE_NO_AUTH=1 to serve everybody"
        )


def _check_cold_dir(settings: Settings) -> None:
    """Each has folders for shards in it; one in the other would be swept or taken for a shard's own.

    Only the names are looked at: a cold directory that does not answer must not keep a server from starting.
    """
    if settings.cold_dir is None:
        return
    cold, data = os.path.abspath(settings.cold_dir), os.path.abspath(settings.data_dir)
    if cold == data or _is_below_shard(cold, data) or _is_below_shard(data, cold):
        raise SettingsError(
            f"TOPICS_COLD_DIR (--cold-dir) must be another directory than TOPICS_DATA_DIR ({settings.data_dir}), and "
            f"neither may be inside a shard's folder of the other, not {settings.cold_dir!r}"
        )


def _is_below_shard(path: str, directory: str) -> bool:
    below = os.path.relpath(path, directory)
    return re.match(r"shard-\d+(/|$)", below) is not None
