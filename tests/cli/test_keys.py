"""`topics keys new`."""

import json
import re

import pytest
from click.testing import CliRunner

from topics.cli import main
from topics.keys import ALL, READ, WRITE, digest_of, entries_of_variable, parse_entries


def new(*options):
    return CliRunner().invoke(main, ["keys", "new", *options])


@pytest.mark.parametrize(
    ("options", "shape", "scopes", "prefixes"),
    [
        ([], r"[\w-]{43}", ALL, ()),
        (["--scopes", "rw"], r"[\w-]{43}:read\+write", READ | WRITE, ()),
        (["--scopes", "r", "--prefixes", "t1:|shared."], r"[\w-]{43}:read:t1:\|shared\.", READ, ("t1:", "shared.")),
        (["--prefixes", "t1:"], r"[\w-]{43}::t1:", ALL, ("t1:",)),
    ],
)
def test_what_it_prints_is_an_entry(options, shape, scopes, prefixes):
    done = new(*options)
    assert done.exit_code == 0
    assert re.fullmatch(shape, done.output.strip())
    (key,) = parse_entries(entries_of_variable(done.output, "TOPICS_API_KEYS"))
    assert (key.scopes, key.prefixes) == (scopes, prefixes)


def test_every_secret_is_new():
    assert len({new().output for _ in range(20)}) == 20


def test_json():
    found = json.loads(new("--scopes", "d+a", "--prefixes", "x", "--json").output)
    assert found["entry"] == f"{found['secret']}:delete+admin:x"
    assert (found["scopes"], found["prefixes"]) == (["delete", "admin"], ["x"])
    (key,) = parse_entries(entries_of_variable(found["entry"], "TOPICS_API_KEYS"))
    assert key.digest == digest_of(found["secret"].encode()).hex()


@pytest.mark.parametrize("options", [["--scopes", "reed"], ["--prefixes", "|"], ["--prefixes", "a,b"]])
def test_what_no_server_would_take_is_not_printed(options):
    done = new(*options)
    assert done.exit_code == 2
    assert "the key has" in done.output
