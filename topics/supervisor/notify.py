"""The systemd notification protocol: a datagram to the socket that NOTIFY_SOCKET names, if it names one."""

import socket
from collections.abc import Mapping
from contextlib import suppress


class Notifier:
    def __init__(self, address: str | None) -> None:
        self._address = "\0" + address[1:] if address and address.startswith("@") else address

    def send(self, **fields: str | int) -> None:
        """`send(READY=1, STATUS="…")`. Whether anybody listens is none of our business."""
        if not self._address:
            return
        text = "\n".join(f"{name}={value}" for name, value in fields.items())
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.setblocking(False)
            sock.sendto(text.encode(), self._address)


def ping_interval_s(environ: Mapping[str, str], pid: int) -> float:
    """How often the watchdog wants to hear from us: twice within its time. 0 if it does not."""
    meant_for = environ.get("WATCHDOG_PID") or str(pid)
    limit_us = environ.get("WATCHDOG_USEC") or ""
    return int(limit_us) / 2e6 if limit_us.isdecimal() and meant_for == str(pid) else 0.0
