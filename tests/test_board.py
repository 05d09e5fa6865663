"""The board, also from several processes at once."""

import os
import signal
import subprocess
import sys

import pytest

from topics.board import PROGRESS_WHOLE, BadBoard, Board, ChildState, Phase
from topics.errors import TopicsError


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "board")


def test_what_one_process_writes_another_reads(path):
    ours = Board.create(path, shards=3, gateways=2, keys=4, started_ms=1234)
    theirs = Board.open(path)
    assert (theirs.shard_count, theirs.gateway_count, theirs.key_count, theirs.started_ms) == (3, 2, 4, 1234)
    ours.shard(2).set("bytes_live", 2**63)
    assert theirs.shard(2).get("bytes_live") == 2**63
    assert os.stat(path).st_mode & 0o777 == 0o600
    ours.close()
    theirs.close()


def test_no_two_cells_are_the_same(path):
    board = Board.create(path, shards=2, gateways=2, keys=2)
    slots = [board.shard(0), board.shard(1), board.gateway(0), board.gateway(1)]
    slots += [board.watch_shard(0), board.watch_shard(1), board.watch_gateway(0), board.watch_gateway(1)]
    value = 0
    for slot in slots:
        for field in slot.values():
            value += 1
            slot.set(field, value)
    board.set_phase(Phase.READY)
    for gateway in range(2):
        for key in range(2):
            board.add_to_key(gateway, key, "key_requests", 1000 * gateway + 100 * key + 1)
            board.add_to_key(gateway, key, "key_streams", 1000 * gateway + 100 * key + 2)
    assert [number for slot in slots for number in slot.values().values()] == list(range(1, value + 1))
    assert board.phase is Phase.READY
    assert (board.shard_count, board.gateway_count, board.key_count) == (2, 2, 2)
    assert board.key_total(0, "key_requests") == 1 + 1001
    assert board.key_total(1, "key_streams") == 102 + 1102


def test_totals_are_over_all_slots_that_have_the_field(path):
    board = Board.create(path, shards=2, gateways=2)
    board.shard(0).set("topics", 3)
    board.shard(1).set("topics", 4)
    board.gateway(0).set("streams", 1)
    board.gateway(1).set("streams", 1)
    assert (board.total("topics"), board.total("streams")) == (7, 2)


def test_add_never_goes_below_zero(path):
    slot = Board.create(path, shards=1, gateways=1).gateway(0)
    assert [slot.add("streams", 2), slot.add("streams", -3), slot.get("streams")] == [2, 0, 0]


def test_a_dead_gateway_loses_its_connections_and_nobody_else_loses_anything(path):
    board = Board.create(path, shards=1, gateways=2, keys=3)
    board.shard(0).set("topics", 5)
    for gateway in range(2):
        board.gateway(gateway).set("streams", 7)
        board.add_to_key(gateway, 2, "key_streams", 7)
    board.clear_gateway(0)
    assert (board.total("streams"), board.key_total(2, "key_streams"), board.total("topics")) == (7, 7, 5)
    assert board.gateway(0).values() == dict.fromkeys(board.gateway(0).values(), 0)


def test_readiness(path):
    board = Board.create(path, shards=4, gateways=1)
    assert board.readiness() == (Phase.STARTING, 0.0, 0, [])
    for shard, state, progress in ((0, ChildState.READY, 1.0), (1, ChildState.STARTING, 0.5), (3, ChildState.DOWN, 0)):
        board.watch_shard(shard).set("state", state)
        board.watch_shard(shard).set("replay_progress", int(progress * PROGRESS_WHOLE))
        board.watch_shard(shard).set("topics", 2)
    assert board.readiness() == (Phase.STARTING, 0.5, 6, [1, 3])  # shard 2 is not served


def test_another_file_is_not_taken_for_a_board(path):
    for content in (b"", b"x" * 64):
        with open(path, "wb") as file:
            file.write(content)
        with pytest.raises(BadBoard, match="is not a board"):
            Board.open(path)


CREATE = """
import sys
from topics.board import Board
board, shard = Board.open(sys.argv[1]), int(sys.argv[2])
made = 0
for _ in range(2000):
    with board.locked():
        if board.total("topics") < 1000:
            board.shard(shard).add("topics", 1)
            made += 1
print(made)
"""


def test_a_cap_is_exact_over_processes(path):
    board = Board.create(path, shards=4, gateways=1)
    run = [sys.executable, "-c", CREATE, path]
    racers = [subprocess.Popen([*run, str(n)], stdout=subprocess.PIPE) for n in range(4)]
    made = [int(racer.communicate()[0]) for racer in racers]
    assert sum(made) == board.total("topics") == 1000


HOLD = """
import signal, sys
from topics.board import Board
with Board.open(sys.argv[1]).locked():
    print("held", flush=True)
    signal.pause()
"""


def test_the_lock_of_a_killed_process_is_free(path):
    board = Board.create(path, shards=1, gateways=1)
    with subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        holder.send_signal(signal.SIGKILL)
        with board.locked():
            pass


def test_a_lock_that_is_not_let_go_of_is_waited_for_only_so_long(path):
    board, other = Board.create(path, shards=1, gateways=1), Board.open(path)
    with other.locked(), pytest.raises(TopicsError) as refused, board.locked():
        raise AssertionError
    assert refused.value.code == "not_ready"
    with board.locked():
        pass


def test_shards_have_counted_when_every_one_that_is_served_has(path):
    board = Board.create(path, shards=3, gateways=1)
    board.watch_shard(0).set("state", ChildState.STARTING)
    board.watch_shard(2).set("state", ChildState.READY)
    board.shard(0).set("counted", 1)
    assert not board.all_counted()
    board.shard(2).set("counted", 1)
    assert board.all_counted()
    board.watch_shard(2).set("state", ChildState.DOWN)
    assert board.all_counted()  # what it said stands
