"""No other process gets a reserved port until its server listens on it, and while that server restarts."""

from __future__ import annotations

import socket

import pytest

from tests.children import ReservedPort, own_address


def test_no_two_reservations_have_the_same_port() -> None:
    held = [ReservedPort(own_address()) for _ in range(300)]
    assert len({port.number for port in held}) == len(held)


def test_another_socket_cannot_take_a_reserved_port_until_it_is_given_back() -> None:
    port = ReservedPort(own_address())
    number = port.number
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((own_address(), number))
    del port
    with socket.socket() as other:
        other.bind((own_address(), number))


def test_a_server_that_reuses_addresses_listens_on_it_again_and_again() -> None:
    port = ReservedPort(own_address())
    for _ in range(2):
        with (
            socket.create_server((own_address(), port.number)) as server,
            socket.create_connection((own_address(), port.number), 5) as client,
        ):
            server.accept()[0].close()
            assert client.recv(1) == b""
