"""API keys at start, with real processes: what is read, what is refused, and that no plaintext is left anywhere."""

import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.supervisor.server_process import ServerProcess
from topics.keys import ALL, READ, WRITE, KeysError, digest_of
from topics.settings import KeySources
from topics.supervisor import keyload
from topics.supervisor.keyload import read_keys, take_keys

# Put together at run time, so that no file, and no memory of a file, holds them.
SECRETS = [f"hush-{kind}-{os.getpid()}-{os.urandom(8).hex()}" for kind in ("variable", "file", "credential")]


def private(path, text):
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


@pytest.fixture
def serve(tmp_path):
    """`serve(api_keys=…)`; whatever still runs at the end is killed."""
    servers = []

    def start(**settings):
        servers.append(ServerProcess(tmp_path, shards=1, log_level="debug", **settings))
        return servers[-1]

    yield start
    for server in servers:
        server.__exit__()


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """Settings that give one key each in the variable, a file and a systemd credential."""
    (tmp_path / "credentials").mkdir()
    private(tmp_path / "credentials" / "topics-api-keys", f"# third\n{SECRETS[2]}::t:\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "credentials"))
    return {"api_keys": f"{SECRETS[0]}:rw", "api_keys_file": private(tmp_path / "keys", f"\n{SECRETS[1]}:r\n")}


# --- a whole server -----------------------------------------------------------------------------------------------


def processes(server):
    server.status()
    return [server.process.pid, *server.pids]


def memory(pid):
    """What a process could have in a core dump."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as mem:
        for line in maps:
            span, mode, *rest = line.split()
            first, last = (int(end, 16) for end in span.split("-"))
            if "r" in mode and rest[-1] not in ("[vvar]", "[vsyscall]", "[vvar_vclock]"):
                mem.seek(first)
                yield mem.read(last - first)


def test_no_plaintext_is_left_in_a_running_tree(serve, sources):
    server = serve(gateway=None, **sources).wait_ready()
    found, digests = [], 0
    for pid in processes(server):
        shown = [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("environ", "cmdline", "comm", "status")]
        for place in [*shown, *memory(pid)]:
            found += [(pid, secret) for secret in SECRETS if secret.encode() in place]
            digests += digest_of(SECRETS[1].encode()).hex().encode() in place
    assert found == []
    assert digests  # what is there can be seen
    assert len(processes(server)) == 3
    assert b"TOPICS_API_KEYS=" not in Path(f"/proc/{server.process.pid}/environ").read_bytes()
    run_dir = Path(server.holder()["run_dir"])
    for path in [path for folder in (run_dir, server.data) for path in folder.rglob("*") if path.is_file()]:
        with suppress(FileNotFoundError):  # a spare file of the log that has got its name meanwhile
            text = path.read_bytes()
            assert not any(secret.encode() in text for secret in SECRETS)
    assert server.stop() == 0
    assert not any(secret in server.text() for secret in SECRETS)


def test_gateways_get_the_digests_of_all_sources_in_order(serve, sources):
    server = serve(**sources).wait_ready()
    known = server.get()
    expected = [(SECRETS[0], READ | WRITE, []), (SECRETS[1], READ, []), (SECRETS[2], ALL, ["t:"])]
    assert known["keys"] == [
        {"digest": digest_of(secret.encode()).hex(), "scopes": scopes, "prefixes": prefixes}
        for secret, scopes, prefixes in expected
    ]
    assert known["key_slots"] == 3
    assert "TOPICS_KEYS_FD" not in known["environ"]
    assert not any("TOPICS_KEYS_FD" in line["msg"] for line in server.lines())
    assert server.stop() == 0


def test_without_keys_the_log_warns(serve):
    server = serve().wait_ready()
    assert server.get()["keys"] == []
    (line,) = [line for line in server.lines() if "no API keys" in line["msg"]]
    assert line["level"] == "warning"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("good,{}:reed", "entry 2 of TOPICS_API_KEYS has an unknown scope"),
        ("good,{0},good2,{0}:r", "entry 4 of TOPICS_API_KEYS has the same secret as entry 2 of TOPICS_API_KEYS"),
        ("{},", "entry 2 of TOPICS_API_KEYS is empty"),
    ],
)
def test_malformed_keys_refuse_the_start(serve, given, message):
    server = serve(gateway=None, api_keys=given.format(SECRETS[0]))
    assert server.wait_end() == 2
    assert message in server.lines()[-1]["msg"]
    assert SECRETS[0] not in server.text()
    assert "good" not in server.text()
    assert not server.data.exists()


def test_a_message_to_itself_from_somebody_else_refuses_the_start(serve):
    for value in ("", "x", "-1", "9999"):
        server = serve(gateway=None, keys_fd=value)
        assert server.wait_end() == 2
        assert "TOPICS_KEYS_FD is for the server's own use" in server.text()


# --- reading ------------------------------------------------------------------------------------------------------


def test_a_file_has_an_entry_a_line(tmp_path):
    path = private(tmp_path / "keys", "\ufeff# who: ünï\n\n  one:read \r\ntwo::t:\n")
    assert [(key.digest, key.scopes, key.prefixes) for key in read_keys(KeySources(file=path))] == [
        (digest_of(b"one").hex(), READ, ()),
        (digest_of(b"two").hex(), ALL, ("t:",)),
    ]


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o601, 0o666])
def test_a_file_that_is_open_to_everybody_is_refused(tmp_path, mode):
    path = tmp_path / "keys"
    private(path, "hush")
    path.chmod(mode)
    with pytest.raises(KeysError, match=r"TOPICS_API_KEYS_FILE .*keys is open to every user"):
        read_keys(KeySources(file=str(path)))
    with pytest.raises(KeysError, match=r"the systemd credential .*keys is open to every user"):
        read_keys(KeySources(credential=str(path)))
    path.chmod(0o640)
    assert len(read_keys(KeySources(file=str(path)))) == 1


def test_a_source_that_is_given_must_hold_keys(tmp_path, monkeypatch):
    with pytest.raises(KeysError, match=r"TOPICS_API_KEYS_FILE .*absent cannot be read: No such file"):
        read_keys(KeySources(text="good", file=str(tmp_path / "absent")))
    with pytest.raises(KeysError, match=r"cannot be read: Is a directory"):
        read_keys(KeySources(file=str(tmp_path)))
    with pytest.raises(KeysError, match=r"TOPICS_API_KEYS_FILE .*keys holds no key"):
        read_keys(KeySources(text="good", file=private(tmp_path / "keys", "# none\n\n")))
    monkeypatch.setattr(keyload, "FILE_BYTES_MAX", 3)
    with pytest.raises(KeysError, match="larger than 3 bytes"):
        read_keys(KeySources(file=private(tmp_path / "keys", "long")))


def test_a_secret_stands_once_over_all_sources(tmp_path):
    path = private(tmp_path / "keys", "# x\nhush:read\n")
    with pytest.raises(KeysError) as refused:
        read_keys(KeySources(text="other,hush", file=path))
    assert str(refused.value) == "line 2 of TOPICS_API_KEYS_FILE has the same secret as entry 2 of TOPICS_API_KEYS"


def test_no_source_means_no_keys():
    assert take_keys(KeySources()) == []


def test_a_server_that_cannot_start_itself_again_does_not_serve(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    with pytest.raises(KeysError, match="cannot start itself again to forget the keys: No such file"):
        take_keys(KeySources(text="hush"))
