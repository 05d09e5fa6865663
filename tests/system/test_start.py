"""From the command to a ready server on an empty data directory: measured and printed, not judged."""

import socket
import time

from topics.testing.server import wait_until


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def first_bytes(port, path):
    """The status line, or nothing while nobody listens."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            return sock.recv(64)
    except ConnectionError:
        return b""


def test_start_to_ready_on_an_empty_data_directory(serve):
    times = []
    for n in range(5):
        port = free_port()
        server = serve.make(f"s{n}", port=port)
        began = time.monotonic()
        server.start()
        while b" 200 " not in first_bytes(port, "/v0/ready"):
            assert server.process.poll() is None, server.text()
            time.sleep(0.005)
        times.append(time.monotonic() - began)
        assert server.wait_ready().port == port
        assert server.stop() == 0
    print("start to /v0/ready:", ", ".join(f"{seconds * 1000:.0f} ms" for seconds in times))


def test_the_port_answers_before_the_shards_are_ready(serve):
    """Nothing is refused from the moment that the supervisor listens: connections wait for the first gateway."""
    port = free_port()
    server = serve.make(port=port).start()
    wait_until(lambda: first_bytes(port, "/v0/health"), "the port")  # its first answer, and it is a good one
    assert b" 200 " in first_bytes(port, "/v0/health")
    assert first_bytes(port, "/v0/ready").split()[1] in (b"200", b"503")
    server.wait_ready()
    assert b" 200 " in first_bytes(port, "/v0/ready")
