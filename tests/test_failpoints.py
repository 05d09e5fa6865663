"""The text of TOPICS_FAILPOINTS."""

import errno

import pytest

from topics.failpoints import NAMES, BadFailpoint, Failpoint, parse


def test_the_whole_grammar():
    text = " wal.sync=error:EIO@3; segment.write=pause:50*2 ;unlink=kill*1@9;wal.write=tear;"
    assert parse(text) == [
        Failpoint("wal.sync", "error", errno.EIO, None, 3),
        Failpoint("segment.write", "pause", 50, 2, 0),
        Failpoint("unlink", "kill", 0, 1, 9),
        Failpoint("wal.write", "tear", 0, None, 0),
    ]
    assert parse("") == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("wal.sink=kill", "'wal.sink' is not known; there are wal.prepare, "),
        ("wal.sync", "must be NAME=ACTION"),
        ("wal.sync=explode", "an action is error:ERRNO, kill, pause:MS"),
        ("wal.sync=error", "must be NAME=ACTION"),
        ("wal.sync=error:EWHAT", "EWHAT is not the name of an error"),
        ("wal.sync=pause:soon", "must be NAME=ACTION"),
        ("wal.sync=kill@-1", "must be NAME=ACTION"),
        ("wal.sync=tear", "only a write can be torn"),
        ("wal.write=kill,wal.sync=kill", "must be NAME=ACTION"),
    ],
)
def test_what_cannot_be_used_is_told(text, said):
    with pytest.raises(BadFailpoint) as caught:
        parse(text)
    assert said in str(caught.value)


def test_every_name_is_explained():
    assert all(NAMES.values())
