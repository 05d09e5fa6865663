"""What tests do to servers hits nobody else, and waits for nothing for ever."""

import signal
import subprocess
import sys
import threading

import pytest

from topics.testing.server import (
    DEADLINE_S,
    Server,
    alive,
    command_of,
    join,
    send_group_signal,
    send_signal,
    wait_until,
)

HOLD = "import sys; held = open(sys.argv[1]); print('held', flush=True); input()"


@pytest.mark.parametrize("pid", [0, -1])
def test_a_signal_is_for_one_process(pid):
    with pytest.raises(AssertionError, match=f"SIGCONT is for one process, and {pid} is none"):
        send_signal(pid, signal.SIGCONT)  # which would do us no harm


@pytest.mark.parametrize("pid", [0, 1, -1])
def test_a_signal_to_a_group_is_for_one_group(pid):
    with pytest.raises(AssertionError, match=f"SIGCONT is for one group, and {pid} leads none of ours"):
        send_group_signal(pid, signal.SIGCONT)


@pytest.mark.parametrize("send", [send_signal, send_group_signal])
def test_who_is_gone_gets_no_signal(send):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as process:
        send(process.pid, signal.SIGKILL)
        assert process.wait(timeout=DEADLINE_S) == -signal.SIGKILL
    send(process.pid, signal.SIGKILL)


def test_a_child_without_a_process_is_waited_for(tmp_path, monkeypatch):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        server, pids = Server(tmp_path), [0, 0, process.pid]
        monkeypatch.setattr(server, "child", lambda kind, index: {"pid": pids.pop(0)})
        assert server.kill("shard", 0) == process.pid
        assert process.wait(timeout=DEADLINE_S) == -signal.SIGKILL


def test_a_wait_that_ends_says_what_it_was_for():
    with pytest.raises(AssertionError, match=r"waited 0\.0 s for the end of 3"):
        wait_until(lambda: False, lambda: f"the end of {1 + 2}", 0.0)


def test_threads_that_do_not_end_are_named():
    go_on = threading.Event()
    ended, stays = threading.Thread(target=int), threading.Thread(target=go_on.wait, args=(DEADLINE_S,), name="stays")
    ended.start()
    stays.start()
    with pytest.raises(AssertionError, match=r"waited 0\.0 s for threads to end: .*stays"):
        join(ended, stays, seconds=0.0)
    go_on.set()
    join(ended, stays)


def test_what_holds_the_lock_is_ended_and_named(tmp_path):
    with Server(tmp_path) as server:
        server.data.mkdir()
        (server.data / "LOCK").touch()
        command = [sys.executable, "-c", HOLD, str(server.data / "LOCK")]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as orphan:
            assert orphan.stdout is not None
            assert orphan.stdout.readline() == b"held\n"
            assert server._left() == {orphan.pid: command_of(orphan.pid)}
            assert HOLD in command_of(orphan.pid)
            server.close()
            assert not alive(orphan.pid)
    assert command_of(orphan.pid) == ""
