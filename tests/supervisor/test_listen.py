"""The sockets."""

import socket

import pytest

from topics.supervisor.listen import ListenError, address_text, listen


def close(sockets):
    for sock in sockets:
        sock.close()


def test_every_gateway_gets_a_socket_on_the_same_port_and_its_share_of_connections():
    sockets = listen("127.0.0.1", 0, 3)
    port = sockets[0].getsockname()[1]
    assert {sock.getsockname() for sock in sockets} == {("127.0.0.1", port)}
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(120)]
    shares = []
    for sock in sockets:
        sock.setblocking(False)
        taken = []
        try:
            while True:
                taken.append(sock.accept()[0])
        except BlockingIOError:
            shares.append(len(taken))
            close(taken)
    assert sum(shares) == 120
    assert min(shares) > 0
    close([*clients, *sockets])


def test_a_port_that_a_server_of_the_same_user_shares_counts_as_busy():
    first = listen("127.0.0.1", 0, 2)
    port = first[0].getsockname()[1]
    with pytest.raises(ListenError, match=rf"port {port} of 127.0.0.1 is in use; .* TOPICS_PORT \(--port\)"):
        listen("127.0.0.1", port, 2)
    close(first)
    close(listen("127.0.0.1", port, 2))


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_an_address_of_somebody_else_is_named(host):
    with pytest.raises(ListenError, match=rf"TOPICS_HOST \(--host\) {host} is not an address of this machine"):
        listen(host, 0, 1)


def test_ipv6_addresses_are_written_with_brackets():
    try:
        sockets = listen("::1", 0, 1)
    except ListenError:
        pytest.skip("no IPv6 here")
    assert address_text(sockets[0]) == f"[::1]:{sockets[0].getsockname()[1]}"
    close(sockets)
