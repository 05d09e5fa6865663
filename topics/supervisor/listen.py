"""The TCP port: one SO_REUSEPORT socket per gateway, which spreads connections far better than a shared one.

The supervisor binds them and keeps them open while a gateway restarts, so that connections wait instead of being
reset. SO_REUSEPORT would also let a second server of the same user join a busy port unnoticed; so the first socket
binds and listens without it, which fails if anybody holds the port, and gets the option only then, to let its
siblings in.

With socket activation systemd has bound the port and hands it down. All gateways accept from that one socket then; and
since systemd keeps it, connections wait even while the whole server restarts.
"""

import errno
import socket
from collections.abc import Mapping

BACKLOG = 1024
FIRST_FD = 3  # where systemd's begin


class ListenError(Exception):
    """The port cannot be had; the message names it."""


def listen(host: str, port: int, count: int) -> list[socket.socket]:
    """`count` listening sockets on one port; port 0 picks a free one."""
    family, address = _resolve(host, port)
    sockets: list[socket.socket] = []
    try:
        for n in range(count):
            sock = socket.socket(family, socket.SOCK_STREAM)
            sockets.append(sock)
            _listen(sock, address, alone=n == 0)
            address = sock.getsockname()
    except OSError as error:
        for sock in sockets:
            sock.close()
        raise ListenError(_explain(host, port, error)) from None
    return sockets


def inherited(environ: Mapping[str, str], pid: int) -> socket.socket | None:
    """The listening socket that systemd passed to this process, if it did (sd_listen_fds)."""
    if environ.get("LISTEN_PID") != str(pid) or not environ.get("LISTEN_FDS", "").isdecimal():
        return None
    count = int(environ["LISTEN_FDS"])
    if count == 0:
        return None
    if count > 1:
        raise ListenError(f"systemd hands down {count} sockets; topics takes one: keep a single ListenStream=")
    try:
        sock = socket.socket(fileno=FIRST_FD)
        sock.set_inheritable(False)
        listening = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise ListenError(f"LISTEN_FDS names a socket that cannot be used: {error.strerror}") from None
    if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM or not listening:
        sock.close()
        raise ListenError("the socket of systemd is no listening TCP socket: use ListenStream= with a port, Accept=no")
    return sock


def address_text(sock: socket.socket) -> str:
    """host:port, with brackets around an IPv6 address."""
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _resolve(host: str, port: int) -> tuple[int, tuple[str, int]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise ListenError(f"TOPICS_HOST (--host) {host} is not an address of this machine: {error}") from None
    family, _, _, _, address = found[0]
    return family, address  # type: ignore[return-value]  # of AF_INET and AF_INET6 alike


def _listen(sock: socket.socket, address: tuple[str, int], *, alone: bool) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # TIME_WAIT of an earlier server does not matter
    if not alone:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(address)
    sock.listen(BACKLOG)
    if alone:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)


def _explain(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use; choose another with TOPICS_PORT (--port), or 0 for any free one"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"TOPICS_HOST (--host) {host} is not an address of this machine"
    return f"cannot listen on {host} port {port}: {error.strerror}"
