"""One user of a data directory at a time, server or program."""

import os
import signal

import pytest

import topics
from tests.embedded.program import program
from topics.errors import TopicsError
from topics.testing.server import DEADLINE_S, Server, send_signal, wait_until

HOLD = """
with topics.open(path) as db:
    db.append("t", [{"data": "held"}], config={"durable": True})
    say(os.getpid())
    sys.stdin.read()
"""


def test_no_path_is_not_the_current_directory():
    assert refusal("").code == "invalid_request"


def refusal(path) -> TopicsError:
    with pytest.raises(TopicsError) as caught:
        topics.open(path)
    return caught.value


def test_a_directory_of_a_running_server_is_refused(tmp_path):
    with Server(tmp_path, shards=1) as server:
        server.start().wait_ready()
        error = refusal(server.data)
        assert error.code == "not_ready"
        assert f"another server (pid {server.process.pid}) uses the data directory" in error.message
        assert server.stop() == 0
        with topics.open(server.data) as db:
            assert list(db.topics()) == []


def test_a_server_is_refused_while_a_program_has_it_open(tmp_path):
    with topics.open(tmp_path / "data") as db, Server(tmp_path, shards=1) as server:
        db.append("t", [{"data": 1}])
        assert server.start().wait_end() == 1
        assert f"a program with topics.open (pid {os.getpid()}) uses the data directory" in server.lines()[-1]["msg"]


def test_a_second_program_is_refused_until_the_first_is_gone(tmp_path):
    with program(tmp_path, HOLD) as holder:
        pid = holder.hear()
        assert f"a program with topics.open (pid {pid})" in refusal(tmp_path).message
        holder.kill()
        with topics.open(tmp_path) as db:
            assert [record["data"] for record in db.read("t")] == ["held"]


def test_twice_in_one_program(tmp_path):
    with topics.open(tmp_path / "d"):
        (tmp_path / "link").symlink_to(tmp_path / "d")
        assert "this program has" in refusal(tmp_path / "link").message
        with topics.open(tmp_path / "other"):
            pass
    with topics.open(tmp_path / "d"):
        pass


def test_what_cannot_be_opened_leaves_it_free(tmp_path):
    (tmp_path / "FORMAT").write_text("topics 999\n")
    assert "newer" in refusal(tmp_path).message
    (tmp_path / "FORMAT").unlink()
    with topics.open(tmp_path) as db:
        db.append("t", [{"data": 1}])
    os.rename(tmp_path / "shard-00", tmp_path / "away")
    assert "shard-00" in refusal(tmp_path).message
    os.rename(tmp_path / "away", tmp_path / "shard-00")
    (tmp_path / "shard-00" / "snapshot.1").write_bytes(b"damaged")
    assert refusal(tmp_path).code == "not_ready"


def test_commands_that_look_at_a_server_say_that_there_is_none(tmp_path):
    from click.testing import CliRunner

    from topics.cli import main

    with topics.open(tmp_path):
        result = CliRunner().invoke(main, ["status", "--data-dir", str(tmp_path)])
        assert result.exit_code != 0
        assert f"a program with topics.open (pid {os.getpid()})" in result.output
        result = CliRunner().invoke(main, ["verify", str(tmp_path)])
        assert f"a program with topics.open (pid {os.getpid()})" in result.output
    assert CliRunner().invoke(main, ["verify", str(tmp_path)]).exit_code == 0


FORKED = """
import time
db = topics.open(path)
db.append("t", [{"data": 1}])
child = os.fork()
if not child:
    try:
        db.diff("t")
    except topics.errors.TopicsError as error:
        say([error.code, error.message])
    db.close()
    time.sleep(600)
db.close()
say(child)
sys.stdin.read()
"""


def test_a_forked_child_has_no_database_and_holds_no_lock(tmp_path):
    with program(tmp_path, FORKED) as parent:
        heard = [parent.hear(), parent.hear()]
        (child,) = [each for each in heard if isinstance(each, int)]
        (told,) = [each for each in heard if isinstance(each, list)]
        try:
            assert told[0] == "not_ready"
            assert "forked" in told[1]
            with topics.open(tmp_path) as db:  # the child still runs
                assert db.state("t")["count"] == 1
        finally:
            send_signal(child, signal.SIGKILL)


def test_a_stopped_holder_gives_it_back(tmp_path):
    with program(tmp_path, HOLD) as holder:
        holder.hear()
        holder.process.terminate()
        holder.process.wait(timeout=DEADLINE_S)

        def opened() -> bool:
            with topics.open(tmp_path) as db:
                return bool(db.state("t")["count"] == 1)

        assert wait_until(opened, "the directory")
