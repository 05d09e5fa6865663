"""Settings: where they come from, what they refuse, and that the reference lists them all."""

import os
from pathlib import Path

import msgspec
import pytest

from topics.keys import KeyDigest
from topics.limits import Limits
from topics.settings import OPTIONS, Caps, GatewayBoot, KeySources, Settings, SettingsError, is_loopback, load

REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"


def loaded(env=None, tty=False, cores=4, **flags):
    return load(env or {}, flags, tty=tty, cores=cores)


def settings(env=None, **more):
    return loaded(env, **more).settings


def test_defaults():
    found = settings()
    assert (found.host, found.port, found.data_dir) == ("127.0.0.1", 4000, "./topics-data")
    assert (found.port_file, found.run_dir) == (None, None)
    assert found.limits == Limits()
    assert found.caps == Caps()
    assert not found.probe_auth


def test_every_limit_and_every_cap_can_be_set():
    fields = {option.field for option in OPTIONS}
    assert {f"limits.{name}" for name in Limits.__dataclass_fields__} <= fields
    assert {f"caps.{name}" for name in Caps.__struct_fields__} <= fields
    found = settings({"TOPICS_SEGMENT_MAX_EVENTS": "7", "TOPICS_MAX_TOPICS": "0", "TOPICS_MAX_TAG_BYTES": "9"})
    assert (found.limits.segment_events, found.caps.topics, found.limits.tag_bytes) == (7, 0, 9)


@pytest.mark.parametrize(("cores", "shards", "gateways"), [(1, 1, 1), (2, 2, 1), (5, 5, 2), (64, 8, 32)])
def test_processes_follow_the_cores(cores, shards, gateways):
    found = settings(cores=cores)
    assert (found.shards, found.gateways) == (shards, gateways)


@pytest.mark.parametrize("cold", ["data", "./data", "data/shard-00", "data/shard-07/cold", "other/../data"])
def test_a_cold_directory_must_not_be_the_data_directory_or_in_a_shard_of_it(cold):
    with pytest.raises(SettingsError, match=r"TOPICS_COLD_DIR .*another directory"):
        settings({"TOPICS_COLD_DIR": cold, "TOPICS_DATA_DIR": "data"})
    with pytest.raises(SettingsError, match="TOPICS_COLD_DIR"):
        settings({"TOPICS_COLD_DIR": "data", "TOPICS_DATA_DIR": "data/shard-00"})


def test_a_cold_directory_may_be_beside_the_shards():
    found = settings({"TOPICS_COLD_DIR": "data/cold", "TOPICS_DATA_DIR": "data", "TOPICS_HOT_RETAIN_SEGMENTS": "0"})
    assert (found.cold_dir, found.limits.hot_retain_segments, found.limits.hot_retain_bytes) == ("data/cold", 0, 0)
    assert settings().limits.hot_retain_segments == 4
    assert settings().cold_dir is None


def test_flags_win_over_variables():
    assert settings({"TOPICS_PORT": "1"}, port="2").port == 2
    assert settings({"TOPICS_PROBE_AUTH": "1"}, probe_auth=False).probe_auth is False
    assert settings({"TOPICS_PORT": "1"}, port=None).port == 1


def test_an_empty_variable_is_an_unset_one():
    assert settings({"TOPICS_PORT": "", "TOPICS_PORT_FILE": ""}).port == 4000


def test_logs_are_for_a_person_on_a_terminal():
    assert [settings(tty=tty).log_format for tty in (True, False)] == ["text", "json"]
    assert settings({"TOPICS_LOG_FORMAT": "JSON"}, tty=True).log_format == "json"


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("PORT", "70000", "0 to 65535"),
        ("PORT", "-1", "0 to 65535"),
        ("PORT", "4000 ", "0 to 65535"),
        ("SHARDS", "0", "1 to 64"),
        ("MAX_TOPICS", "many", "0 or more"),
        ("MAX_TOPICS", "9" * 19, "0 or more"),
        ("PROBE_AUTH", "maybe", "1 or 0"),
        ("LOG_LEVEL", "loud", "debug or info or warning or error"),
        ("LOG_FORMAT", "xml", "auto or text or json"),
        ("DATA_DIR", "a\0b", "a path"),
    ],
)
def test_a_bad_value_names_the_variable_the_flag_and_what_is_allowed(name, value, allowed):
    flag = "--" + name.lower().replace("_", "-")
    with pytest.raises(SettingsError) as refused:
        settings({f"TOPICS_{name}": value})
    assert str(refused.value).startswith(f"TOPICS_{name} ({flag}) must be {allowed}")
    assert repr(value) in str(refused.value)


def test_a_record_fits_into_a_body():
    with pytest.raises(SettingsError, match=r"MAX_RECORD_BYTES .* must not exceed TOPICS_MAX_BODY_BYTES"):
        settings({"TOPICS_MAX_BODY_BYTES": "1000"})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_an_open_address_needs_keys_or_a_clear_word(host):
    with pytest.raises(SettingsError, match=r"TOPICS_HOST .* no API keys are set"):
        settings({"TOPICS_HOST": host})
    assert settings({"TOPICS_HOST": host, "TOPICS_ALLOW_INSECURE_NO_AUTH": "1"}).host == host
    assert settings({"TOPICS_HOST": host, "TOPICS_API_KEYS_FILE": "/k"}).host == host
    assert settings({"TOPICS_HOST": host, "TOPICS_API_KEYS": "k"}).host == host


def test_where_keys_are_to_be_read(tmp_path):
    assert loaded().keys == KeySources()
    assert not any(loaded({"CREDENTIALS_DIRECTORY": str(tmp_path)}).keys)
    (tmp_path / "topics-api-keys").write_text("k")
    env = {"TOPICS_API_KEYS": "a", "TOPICS_API_KEYS_FILE": "/k", "CREDENTIALS_DIRECTORY": str(tmp_path)}
    assert loaded(env).keys == KeySources("a", "/k", str(tmp_path / "topics-api-keys"))
    assert loaded({}, api_keys_file="/flag").keys.file == "/flag"
    assert settings({"TOPICS_HOST": "0.0.0.0", "CREDENTIALS_DIRECTORY": str(tmp_path)}).host == "0.0.0.0"
    assert loaded({"TOPICS_KEYS_FD": "9"}).keys.handover == "9"
    assert loaded({"TOPICS_KEYS_FD": "9"}).unknown == []


def test_loopback():
    assert [is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "192.168.0.1", "localhost.example")] == [False] * 4


def test_unknown_variables_are_listed_without_their_values():
    found = loaded({"TOPICS_PROT": "1", "TOPICS_PORT": "0", "PATH": "x"})
    assert found.unknown == ["TOPICS_PROT"]


def test_a_secret_is_not_in_the_settings_nor_in_any_text_of_them():
    found = loaded({"TOPICS_API_KEYS": "hush"})
    assert found.keys.text == "hush"
    assert "hush" not in repr(found)
    assert "hush" not in f"{found} {found.settings}"
    assert b"hush" not in msgspec.json.encode(found.settings)


def test_settings_travel_whole():
    found = settings({"TOPICS_MAX_TAG_BYTES": "9", "TOPICS_MAX_TOPICS": "3"})
    assert msgspec.json.decode(msgspec.json.encode(found), type=Settings) == found


def test_a_boot_file_is_read_and_closed(tmp_path):
    boot = GatewayBoot(
        settings(), [KeyDigest("ab" * 32, 3, ("a.",))], 3, 4, 1, {0: "/a", 7: "/b"}, [0] * 1024, "/board", "/g", 99
    )
    (tmp_path / "boot").write_bytes(msgspec.json.encode(boot))
    fd = os.open(tmp_path / "boot", os.O_RDONLY)
    assert GatewayBoot.read(fd) == boot
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_the_reference_lists_every_variable_and_its_default():
    rows = [line for line in REFERENCE.read_text(encoding="utf-8").splitlines() if line.startswith("| `TOPICS_")]
    flags = {option.env: f"`{option.flag}`" if option.flag else "–" for option in OPTIONS}
    expected = [
        f"| `{option.env}` | {flags[option.env]} | {option.default_text} | {option.allowed} | {option.help} |"
        for option in OPTIONS
    ]
    assert rows == expected
