"""Commands over HTTP, as a script runs them: output in pipes, exit status, keys."""

import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest

from tests.cli.conftest import ADMIN_KEY, READ_KEY, Commands
from topics.cli import main
from topics.cli.failures import MEANINGS
from topics.testing.server import wait_until

WITHOUT_JSON = {"serve", "bench", "completion"}


def leaves(group: click.Group, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], click.Command]:
    found: dict[tuple[str, ...], click.Command] = {}
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found |= leaves(command, (*path, name)) if isinstance(command, click.Group) else {(*path, name): command}
    return found


@pytest.mark.parametrize("path", leaves(main), ids=" ".join)
def test_every_command_has_examples_and_json(path):
    command = leaves(main)[path]
    assert f"  topics {' '.join(path)}" in (command.help or "") or path[0] == "completion"
    flags = {flag for parameter in command.params for flag in parameter.opts}
    assert ("--json" in flags) is (path[0] not in WITHOUT_JSON)
    assert all(getattr(option, "help", "") for option in command.params if isinstance(option, click.Option)) or (
        path[0] == "serve"  # makes its help from the table of settings
    )


def test_the_page_has_every_exit_status_and_command():
    page = (Path(__file__).resolve().parents[2] / "docs/cli.md").read_text()
    for status, meaning in MEANINGS.items():
        assert f"| {status} | {meaning} |" in page
    for path in leaves(main):
        assert f"`topics {' '.join(path)}" in page


def test_records_for_a_while(topics: Commands) -> None:
    topics.ok("topic", "append", "brief", '"short"', "--ttl-ms", "1")
    topics.ok("topic", "append", "brief", '"long"', "--ttl", "600000")
    wait_until(lambda: topics.ok("topic", "diff", "brief").count("\n") == 1, "the end of the short one")
    assert '"long"' in topics.ok("topic", "diff", "brief")
    assert topics("topic", "append", "brief", "1", "--ttl-ms", "0").returncode == 2


def test_the_life_of_a_topic(topics: Commands) -> None:
    assert topics.ok("topic", "create", "life", "--durability", "fsync") == "life: created\n"
    values = ['{"a":  1e400}', '"\u0085 x"', "1.0"]
    assert topics.ok("topic", "append", "life", *values, "--tag", "t1", "--meta", "k=v=w").endswith("seqs 1 to 3\n")
    got = [line.partition('"data":')[2] for line in topics.ok("topic", "diff", "life").split("\n")[:-1]]
    assert got == [f'{value},"meta":{{"k":"v=w"}}}}' for value in values]  # as it was sent, byte for byte
    shown = json.loads(topics.ok("topic", "show", "life", "--json"))
    assert (shown["head_seq"], shown["config"]["durability"]) == (3, "fsync")
    assert "config.durability" in topics.ok("topic", "show", "life")
    (row,) = (json.loads(line) for line in topics.ok("topic", "ls", "--prefix", "lif", "--json").splitlines())
    assert (row["topic"], row["count"]) == ("life", 3)
    assert topics.ok("topic", "ls", "--prefix", "lif").split()[:2] == ["topic", "records"]
    answer = json.loads(topics.ok("topic", "delete", "life", "--tag", "t1", "--before-seq", "2", "--yes", "--json"))
    assert (answer["deleted"], answer["count"]) == (1, 2)
    assert topics("topic", "rm", "life", "--if-empty", "--yes").returncode == 5
    assert topics.ok("topic", "rm", "life", "--yes") == "life: removed\n"
    assert topics("topic", "rm", "life", "--yes").returncode == 3


def test_lines_are_appended_in_batches_and_read_back_in_pages(topics: Commands) -> None:
    sent = [f'{{"n":{n}}}' for n in range(2500)]
    said = topics.ok("topic", "append", "lines", "--idempotency-key", "k", stdin="\n".join(sent) + "\n\n")
    assert [line.rpartition(" ")[2] for line in said.splitlines()] == ["1000", "2000", "2500"]
    again = topics.ok("topic", "append", "lines", "--idempotency-key", "k", stdin="\n".join(sent))
    assert again.count("were there already") == 3
    got = [json.loads(line) for line in topics.ok("topic", "diff", "lines", "--all").splitlines()]
    assert [record["$seq"] for record in got] == list(range(1, 2501))
    assert [record["data"]["n"] for record in got] == list(range(2500))
    page = json.loads(topics.ok("topic", "diff", "lines", "--from-seq", "10", "--limit", "5", "--json"))
    assert (page["next_from_seq"], len(page["records"])) == (15, 5)


def test_a_line_that_is_no_json_is_named_and_nothing_of_its_batch_is_written(topics: Commands) -> None:
    done = topics("topic", "append", "bad", stdin='1\n2\n{"a":1}]\n')
    assert done.returncode == 2
    assert "line 3 is no JSON value" in done.stderr
    assert topics("topic", "show", "bad").returncode == 3
    assert topics.ok("topic", "append", "bad", "--text", stdin='{"a":1}]\n') == "bad: 1 records, seqs 1 to 1\n"
    assert (
        topics.ok("topic", "append", "bad", "--records", stdin='{"data":1,"tag":"x"}')
        == "bad: 1 records, seqs 2 to 2\n"
    )
    assert topics("topic", "append", "bad", stdin="").returncode == 2


def test_a_time_instead_of_a_seq(topics: Commands) -> None:
    topics.ok("topic", "append", "timely", "1", "2")
    (first, _) = (json.loads(line) for line in topics.ok("topic", "diff", "timely").splitlines())
    wait_until(lambda: time.time() * 1000 > first["$ts"] + 2)
    topics.ok("topic", "append", "timely", "3")
    later = first["$ts"] + 1
    moment = datetime.fromtimestamp(later / 1000, UTC).isoformat()
    for text in (str(later), moment, moment.replace("+00:00", "Z")):
        (record,) = (json.loads(line) for line in topics.ok("topic", "diff", "timely", "--from-ts", text).splitlines())
        assert record["data"] == 3
        (record,) = topics.ok("tail", "timely", "--from-ts", text, "--until-caught-up").splitlines()
        assert json.loads(record)["$seq"] == 3
        assert topics.ok("topic", "seek", "timely", text) == "timely: seq 3; read it with --from-seq 2\n"
    assert json.loads(topics.ok("topic", "seek", "timely", str(later), "--json"))["from_seq"] == 2
    assert "after the last record" in topics.ok("topic", "seek", "timely", "2999-01-01")
    for wrong in (("--from-ts", "soon"), ("--from-ts", "1969-01-01"), ("--from-seq", "0", "--from-ts", "0")):
        assert topics("topic", "diff", "timely", *wrong).returncode == 2


def test_a_group_is_told_what_it_lost(topics: Commands) -> None:
    topics.ok("topic", "create", "shrinks", "--cap-records", "2")
    topics.ok("topic", "append", "shrinks", "1", "2")
    topics.ok("group", "create", "shrinks", "g")
    topics.ok("topic", "append", "shrinks", "3", "4")
    done = topics("group", "fetch", "shrinks", "g")
    assert [json.loads(line)["$seq"] for line in done.stdout.splitlines()] == [3, 4]
    assert done.stderr == "lost: seqs 1 to 2 (cap)\n"


def test_groups(topics: Commands) -> None:
    topics.ok("topic", "append", "grouped", "1", "2", "3")
    records = [json.loads(line) for line in topics.ok("group", "fetch", "grouped", "g", "--limit", "2").splitlines()]
    assert [record["$seq"] for record in records] == [1, 2]
    assert topics.ok("group", "ack", "grouped", "g", "2") == "g: at 2, 1 behind\n"
    assert topics.ok("group", "ack", "grouped", "g", "1") == "g: still at 2, 1 behind\n"
    assert topics.ok("group", "create", "grouped", "h", "--from", "latest") == "h: created, at 3\n"
    assert topics.ok("group", "create", "grouped", "h") == "h: was there, at 3\n"
    assert topics.ok("group", "create", "grouped", "i", "--from", "2") == "i: created, at 2\n"
    assert topics.ok("group", "rm", "grouped", "i", "--yes") == "i: removed\n"
    assert topics.ok("group", "create", "grouped", "i", "--from-ts", "2020-01-01T00:00:00Z") == "i: created, at 0\n"
    assert topics.ok("group", "rm", "grouped", "i", "--yes") == "i: removed\n"
    assert topics("group", "create", "grouped", "i", "--from", "1", "--from-ts", "1").returncode == 2
    assert topics("group", "rm", "grouped", "..", "--yes").returncode == 1
    assert topics.ok("group", "ls", "grouped").split()[-5:] == ["h", "3", "3", "0", "–"]
    rows = [json.loads(line) for line in topics.ok("group", "ls", "grouped", "--json").splitlines()]
    assert [(row["group"], row["lag"]) for row in rows] == [("g", 1), ("h", 0)]
    assert "group.g.lag" in topics.ok("topic", "show", "grouped")
    for to in (("earliest",), ("0",), ("--ts", "1970-01-02T00:00Z")):
        assert topics.ok("group", "seek", "grouped", "h", *to).endswith("at 0, 3 behind\n")
    assert topics.ok("group", "seek", "grouped", "h", "latest") == "h: at 3, 0 behind\n"
    for wrong in ((), ("soon",), ("1", "--ts", "1")):
        assert topics("group", "seek", "grouped", "h", *wrong).returncode == 2
    topics.ok("group", "fetch", "grouped", "g", "--consumer", "a")
    page = json.loads(topics.ok("group", "fetch", "grouped", "g", "--consumer", "b", "--json"))
    assert page["cursor_seq"] == 2
    done = topics("group", "ack", "grouped", "g", "3", "--consumer", "a", "--json")
    assert (done.returncode, json.loads(done.stderr)["error"]["code"]) == (5, "taken_over")
    topics.ok("group", "fetch", "grouped", "g", "--consumer", "a", "--take-over")
    shown = json.loads(topics.ok("group", "show", "grouped", "g", "--json"))
    assert (shown["consumer"], shown["lag"]) == ("a", 1)
    assert "consumer      a" in topics.ok("group", "show", "grouped", "g")
    assert topics("group", "ack", "grouped", "g", "9").returncode == 1
    assert topics.ok("group", "rm", "grouped", "g", "--yes") == "g: removed\n"
    for gone in (("rm", "grouped", "g", "--yes"), ("show", "grouped", "g"), ("ls", "nothing")):
        assert topics("group", *gone).returncode == 3


def test_records_that_are_there_already_are_not_appended(topics: Commands) -> None:
    assert topics.ok("topic", "append", "once", "1", "--dedup-key", "a") == "once: 1 records, seqs 1 to 1\n"
    assert topics.ok("topic", "append", "once", "1", "--dedup-key", "a") == (
        "once: 1 not appended: duplicates of seq 1\n"
    )
    lines = '{"data": 2, "dedup_key": "b"}\n{"data": 3, "dedup_key": "a"}\n'
    assert topics.ok("topic", "append", "once", "--records", stdin=lines) == (
        "once: 1 records, seqs 2 to 2; 1 not appended: duplicates of seq 1\n"
    )
    assert topics("topic", "append", "once", "1", "2", "--dedup-key", "a").returncode == 2


def test_loss_is_said(topics: Commands) -> None:
    topics.ok("topic", "create", "small", "--cap-records", "2")
    topics.ok("topic", "append", "small", "1", "2", "3", "4")
    done = topics("topic", "diff", "small")
    assert "lost: seqs 1 to 2 (cap)" in done.stderr
    assert len(done.stdout.splitlines()) == 2


def test_jobs(topics: Commands) -> None:
    topics.ok("topic", "create", "jobs", "--type", "queue", "--lease-ms", "60000")
    topics.ok("topic", "append", "jobs", "1", "2", "3")
    jobs = [json.loads(line) for line in topics.ok("queue", "claim", "jobs", "--max", "2").splitlines()]
    assert [job["$seq"] for job in jobs] == [1, 2]
    assert topics.ok("queue", "ack", "jobs", "1", "--lease-id", jobs[0]["lease_id"]) == "jobs: 1 acked\n"
    done = topics("queue", "ack", "jobs", "2", "3", "--json")
    assert done.returncode == 5
    assert json.loads(done.stderr)["error"]["seqs"] == [3]
    assert json.loads(done.stdout)["acked"] == 1
    (job,) = json.loads(topics.ok("queue", "claim", "jobs", "--json"))["claimed"]
    assert topics("queue", "nack", "jobs", str(job["$seq"]), "--node", "other").returncode == 5
    assert topics.ok("queue", "extend", "jobs", "3", "--lease-ms", "90000") == "jobs: 1 extended\n"
    assert topics.ok("queue", "nack", "jobs", "3", "--delay-ms", "60000") == "jobs: 1 nacked\n"
    assert topics.ok("queue", "claim", "jobs") == ""
    numbers = json.loads(topics.ok("queue", "stats", "jobs", "--json"))
    assert numbers == {"topic": "jobs", "jobs": 1, "ready": 0, "in_flight": 0, "dead_lettered": 0, "scheduled": 0}
    topics.ok("topic", "create", "nojobs")
    assert topics("queue", "stats", "nojobs").returncode == 5
    assert topics("queue", "claim", "nojobs").returncode == 5


def test_urgent_and_later_jobs_and_dead_letters(topics: Commands) -> None:
    topics.ok(
        *("topic", "create", "work", "--type", "queue", "--max-deliveries", "1", "--dead-letter", "work.dead"),
        *("--priority-age-ms", "0"),
    )
    topics.ok("topic", "append", "work", "1", "2", "--tag", "t:1")
    topics.ok("topic", "append", "work", "3", "--priority", "9")
    topics.ok("topic", "append", "work", "4", "--delay-ms", "3600000")
    topics.ok("topic", "append", "work", "5", "--not-before", "1")
    assert topics("topic", "append", "work", "6", "--delay-ms", "1", "--not-before", "1").returncode != 0
    assert json.loads(topics.ok("queue", "stats", "work", "--json"))["scheduled"] == 1
    jobs = [json.loads(line) for line in topics.ok("queue", "claim", "work", "--max", "9").splitlines()]
    assert [job["data"] for job in jobs] == [3, 1, 2, 5]
    topics.ok("queue", "nack", "work", "1", "2", "3", "--reason", "no bucket")
    topics.ok("queue", "nack", "work", "5", "--no-penalty")
    assert [json.loads(line)["data"] for line in topics.ok("queue", "claim", "work", "--max", "9").splitlines()] == [5]
    letters = [json.loads(line) for line in topics.ok("topic", "diff", "work.dead").splitlines()]
    assert {letter["meta"]["$dead_letter_reason"] for letter in letters} == {"no bucket"}
    assert topics.ok("queue", "redrive", "work.dead", "--to", "work", "--tag-prefix", "t:", "--limit", "1") == (
        "work.dead: 1 moved to work, 1 left\n"
    )
    done = json.loads(topics.ok("queue", "redrive", "work.dead", "--to", "work", "--json"))
    assert done == {"topic": "work.dead", "to": "work", "moved": 2, "remaining": 0, "pending": 0}
    assert len(topics.ok("queue", "claim", "work", "--max", "9").splitlines()) == 3
    assert topics("queue", "redrive", "work.dead", "--to", "nowhere").returncode != 0
    assert topics("queue", "redrive", "work.dead", "--to", "work", "--tag", "a", "--tag-prefix", "b").returncode == 2


def test_routers(topics: Commands) -> None:
    topics.ok("topic", "create", "from")
    assert topics.ok("router", "put", "from", "to", "--tag-prefix", "public:") == "from->to: created\n"
    shown = json.loads(topics.ok("router", "show", "from->to", "--json"))
    assert (shown["source"], shown["dest"], shown["filter"]) == ("from", "to", ["tag", "Glob", "public:*"])
    assert "guarantee" in topics.ok("router", "show", "from->to")
    (row,) = (json.loads(line) for line in topics.ok("router", "ls", "--source", "from", "--json").splitlines())
    assert row["router"] == "from->to"
    assert "from->to" in topics.ok("router", "ls")
    assert topics("router", "put", "to", "from").returncode == 5
    assert topics.ok("router", "rm", "from->to", "--yes") == "from->to: removed\n"
    assert topics("router", "rm", "from->to", "--yes").returncode == 3


@pytest.mark.parametrize(
    ("arguments", "env", "status", "code"),
    [
        (["topic", "show", "nowhere"], {}, 3, "topic_not_found"),
        (["topic", "show", "x"], {"TOPICS_KEY": "wrong"}, 4, "unauthorized"),
        (["topic", "create", "x"], {"TOPICS_KEY": READ_KEY}, 4, "forbidden"),
        (["topic", "create", "x", "--cap-records=-1"], {}, 1, "invalid_request"),
        (["topic", "ls"], {"TOPICS_URL": "http://127.0.0.1:1"}, 6, "unreachable"),
        (["topic", "ls"], {"TOPICS_URL": "ftp://x"}, 2, "usage"),
    ],
)
def test_a_failure_is_a_status_and_json_on_stderr(topics: Commands, arguments, env, status, code) -> None:
    done = topics(*arguments, "--json", **env)
    assert (done.returncode, done.stdout) == (status, "")
    assert json.loads(done.stderr)["error"]["code"] == code
    plain = topics(*arguments, **env)
    assert plain.returncode == status
    assert plain.stderr.startswith("error: ")


def test_what_is_lost_for_good_needs_a_yes(topics: Commands) -> None:
    topics.ok("topic", "append", "keep", "1")
    for arguments in (["topic", "rm", "keep"], ["topic", "delete", "keep", "--before-seq", "9"]):
        done = topics(*arguments)
        assert done.returncode == 2
        assert "--yes" in done.stderr
    assert json.loads(topics.ok("topic", "show", "keep", "--json"))["count"] == 1


# --- keys ---------------------------------------------------------------------------------------------------------


def test_keys_come_from_files_and_the_config(topics: Commands, tmp_path: Path) -> None:
    del topics.env["TOPICS_KEY"]
    assert topics("topic", "ls").returncode == 4
    key = tmp_path / "key"
    key.write_text(f"# of the server\n{ADMIN_KEY}:read:x\n")
    key.chmod(0o604)
    done = topics("topic", "ls", "--key-file", str(key))
    assert (done.returncode, ADMIN_KEY in done.stderr) == (2, False)
    key.chmod(0o600)
    topics.ok("topic", "ls", "--key-file", str(key))
    topics.ok("topic", "ls", "--key-file", "-", stdin=ADMIN_KEY + "\n")
    topics.ok("topic", "ls", TOPICS_KEY_FILE=str(key))
    config = tmp_path / ".config/topics/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'url = "{topics.env.pop("TOPICS_URL")}"\nkey_file = "{key}"\n')
    topics.ok("topic", "ls")
    config.write_text(f'key = "{ADMIN_KEY}"\n')
    config.chmod(0o644)
    assert topics("topic", "ls").returncode == 2
    config.chmod(0o600)
    topics.ok("topic", "ls", TOPICS_URL=topics.server.url)
    config.write_text("port = 4000\n")
    assert "port is not one of" in topics("topic", "ls").stderr


def test_a_key_does_not_stay_on_the_command_line(topics: Commands) -> None:
    del topics.env["TOPICS_KEY"]
    topics.ok("topic", "append", "secret", "1", "--key", ADMIN_KEY)
    for given in (["--key", ADMIN_KEY], [f"--key={ADMIN_KEY}"]):
        process = topics.start("tail", "secret", "--from-seq", "0", *given)
        try:
            assert process.stdout is not None
            assert '"$seq":1' in process.stdout.readline()
            shown = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            assert b"tail\0secret" in shown
            assert ADMIN_KEY.encode() not in shown
        finally:
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        assert (process.returncode, ADMIN_KEY in out + err) == (130, False)


# --- completion ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(topics: Commands, shell) -> None:
    assert "_TOPICS_COMPLETE" in topics.ok("completion", shell)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("topics qu", "queue"),
        ("topics queue na", "nack"),
        ("topics topic show compl", "complete-me"),
        ("topics tail --unt", "--until-caught-up"),
    ],
)
def test_words_are_completed(topics: Commands, words, found) -> None:
    topics.ok("topic", "create", "complete-me")
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1), "_TOPICS_COMPLETE": "bash_complete"}
    # The variable's name comes from the program's.
    code = "from topics.cli import main; main(prog_name='topics')"
    env = topics.env | asked
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert f"plain,{found}" in done.stdout.splitlines()


def test_a_pipe_that_ends_early_is_quiet(topics: Commands) -> None:
    topics.ok("topic", "append", "long", stdin="\n".join(map(str, range(5000))))
    process = topics.start("topic", "diff", "long", "--all")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    wait_until(lambda: process.poll() is not None, "it to end")
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    assert os.WIFEXITED(process.returncode << 8)
