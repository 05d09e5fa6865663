"""Commands in a real terminal: tables, questions, a screen that is redrawn, the shell's own completion."""

import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND, Commands
from tests.tools import need
from topics.testing.server import wait_until


class Terminal:
    """A tmux server of its own, with one window of 140 x 40."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._tmux = [need("tmux", always_optional=True), "-S", str(folder / "tmux"), "-f", "/dev/null"]
        # What the shell starts is found as `topics`, as it is for somebody who installed it.
        program = folder / "bin/topics"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
        program.chmod(0o700)
        env = env | {"PATH": f"{program.parent}:{env['PATH']}", "LC_ALL": "C.UTF-8", "TERM": "screen-256color"}
        shell = ["bash", "--norc", "--noprofile"]
        command = [*self._tmux, "new-session", "-d", "-x", "140", "-y", "40", *shell]
        subprocess.run(command, env=env, check=True, timeout=30)

    def type(self, *keys: str) -> None:
        subprocess.run([*self._tmux, "send-keys", *keys], check=True, timeout=30)

    def screen(self) -> str:
        return subprocess.run([*self._tmux, "capture-pane", "-p"], check=True, capture_output=True, text=True).stdout

    def wait_for(self, found: Callable[[str], bool], what: str) -> str:
        wait_until(lambda: found(self.screen()), what)
        return self.screen()

    def close(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], check=False, timeout=30, capture_output=True)


@pytest.fixture
def terminal(topics: Commands, tmp_path: Path) -> Iterator[Terminal]:
    made = Terminal(tmp_path, topics.env)
    yield made
    made.close()


def test_a_table_and_a_question(topics: Commands, terminal: Terminal) -> None:
    topics.ok("topic", "append", "asked", "1", "2")
    terminal.type("topics topic ls --prefix asked", "Enter")
    shown = terminal.wait_for(lambda text: "─" in text and "asked " in text, "the table")
    assert "records" in shown
    terminal.type("clear", "Enter")
    terminal.type("topics topic rm asked; echo status $?", "Enter")
    terminal.wait_for(lambda text: "everything in it? [y/N]:" in text, "the question")
    terminal.type("n", "Enter")
    terminal.wait_for(lambda text: "status 1" in text, "the end")
    assert topics("topic", "show", "asked").returncode == 0
    terminal.type("clear; topics topic rm asked", "Enter")
    terminal.wait_for(lambda text: "everything in it? [y/N]:" in text, "the question")
    terminal.type("y", "Enter")
    terminal.wait_for(lambda text: "asked: removed" in text, "the removal")


def test_the_watch_is_redrawn_and_ends_with_ctrl_c(topics: Commands, terminal: Terminal) -> None:
    pid = topics.server.child("shard", 0)["pid"]
    terminal.type("topics status --watch --interval 0.2; echo status $?", "Enter")
    terminal.wait_for(lambda text: str(pid) in text and "gateway" in text, "the processes")
    topics.ok("shards", "restart", "0")
    new = topics.server.child("shard", 0)["pid"]
    terminal.wait_for(lambda text: str(new) in text and str(pid) not in text, "the new process")
    terminal.type("C-c")
    terminal.wait_for(lambda text: "status 130" in text and "gateway" not in text, "the old screen")


def test_control_characters_of_a_payload_do_not_reach_the_terminal(topics: Commands, terminal: Terminal) -> None:
    topics.ok("topic", "append", "evil", '"\u009b31m red \u2028"')
    terminal.type("topics topic diff evil; topics tail evil --from-seq 0 --until-caught-up", "Enter")
    shown = terminal.wait_for(lambda text: text.count("\\u009b31m red \\u2028") == 2, "both lines")
    assert "next: --from-seq 1 (caught up)" in shown


def test_the_shell_completes(topics: Commands, terminal: Terminal) -> None:
    topics.ok("topic", "create", "unmistakable")
    terminal.type('eval "$(topics completion bash)"; clear; echo loaded', "Enter")
    terminal.wait_for(lambda text: text.count("loaded") == 1 and "eval" not in text, "the script")
    terminal.type("topics top", "Tab", "sho", "Tab", "unmis", "Tab")
    terminal.wait_for(lambda text: "topics topic show unmistakable" in text, "the whole line")
