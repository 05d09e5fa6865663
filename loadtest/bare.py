"""The least a Python HTTP server can do for W3: find the answer's bytes in a file, `pread` them, send them.

    python -m loadtest.bare PORT FOLDER

FOLDER holds, for each topic, the bodies of its diffs as one file and, in `NAME.index`, where each begins and ends. Two
processes share the port, as two gateways do. It shows what the rest of our read path costs.
"""

import json
import os
import re
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Any

import httptools
import trio

RECEIVE_BYTES = 65_536
PROCESSES = 2
FROM_SEQ = re.compile(rb'"from_seq":(\d+)')
Index = dict[str, tuple[int, dict[int, tuple[int, int]]]]


class Request:
    """What httptools tells of one request."""

    def __init__(self) -> None:
        self.url = b""
        self.body = b""
        self.complete = False

    def on_message_begin(self) -> None:
        self.url = self.body = b""
        self.complete = False

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete = True


def open_answers(folder: Path) -> Index:
    answers: Index = {}
    for path in folder.glob("*.index"):
        places = {int(seq): (start, end) for seq, (start, end) in json.loads(path.read_text()).items()}
        answers[path.stem] = (os.open(path.with_suffix(".bodies"), os.O_RDONLY), places)
    return answers


async def serve_connection(answers: Index, stream: trio.SocketStream) -> None:
    request = Request()
    parser: Any = httptools.HttpRequestParser(request)
    async with stream:
        while data := await stream.receive_some(RECEIVE_BYTES):
            parser.feed_data(data)
            if request.complete:
                found = FROM_SEQ.search(request.body)
                assert found is not None
                fd, places = answers[request.url.decode().split("/")[3]]
                start, end = places[int(found[1])]
                head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (
                    end - start
                )
                await stream.send_all(head + os.pread(fd, end - start, start))


async def serve(port: int, folder: Path) -> None:
    answers = open_answers(folder)
    listener = trio.socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    await listener.bind(("127.0.0.1", port))
    listener.listen()
    await trio.serve_listeners(partial(serve_connection, answers), [trio.SocketListener(listener)])


def main(argv: list[str]) -> None:
    for _ in range(PROCESSES - 1):
        if os.fork() == 0:
            _end_with_parent()
            break
    trio.run(serve, int(argv[0]), Path(argv[1]))


def _end_with_parent() -> None:
    import ctypes
    import signal

    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
