"""On a node's network torch.distributed uses the interface that has the pod's address, and nothing else changes."""

from __future__ import annotations

import fcntl
import socket
from pathlib import Path

import pytest

from coxswain_train.agent.network import interface_environment, interface_of

POD = {"POD_IP": "10.0.0.7", "PATH": "/bin"}
ON_HOST = {**POD, "COXSWAIN_HOST_NETWORK": "true"}
INET6 = """\
00000000000000000000000000000001 01 80 10 80       lo
fd000000000000000000000000000002 04 40 00 82     eth0
fe8000000000000000fc00fffe000001 04 40 20 80     eth1
"""


@pytest.mark.parametrize(
    ("inherited", "added"),
    [
        (POD, {}),
        (ON_HOST, {"GLOO_SOCKET_IFNAME": "eno1", "NCCL_SOCKET_IFNAME": "=eno1"}),
        ({**ON_HOST, "NCCL_SOCKET_IFNAME": "ib"}, {"GLOO_SOCKET_IFNAME": "eno1"}),
        ({**ON_HOST, "GLOO_SOCKET_IFNAME": "ib0", "NCCL_SOCKET_IFNAME": "ib"}, {}),
        ({**ON_HOST, "POD_IP": "10.0.0.8"}, {}),
        ({"PATH": "/bin"}, {}),
    ],
    ids=["own network", "the node's", "a choice for NCCL", "both chosen", "no interface has the address", "no pod"],
)
def test_the_interface_of_the_pods_address_is_given_to_gloo_and_nccl(
    inherited: dict[str, str], added: dict[str, str]
) -> None:
    assert interface_environment(inherited, {"10.0.0.7": "eno1", "10.0.0.8": ""}.__getitem__) == added


def test_trainers_of_one_machine_meet_on_its_loopback_network_whatever_its_name_stands_for() -> None:
    """On a laptop its name may stand for an address that goes with the network it is in: every world was lost then."""
    own = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
    assert interface_environment({"POD_IP": "127.64.0.7"}) == own
    assert interface_environment({"POD_IP": "127.64.0.7", **own, "GLOO_SOCKET_IFNAME": "eth0"}) == {}


def test_an_address_belongs_to_the_interface_that_has_it() -> None:
    assert interface_of("127.0.0.1") == interface_of("127.64.0.7") == "lo"
    assert interface_of("192.0.2.1") == ""  # of no machine


def test_an_interface_is_asked_for_by_all_of_a_name_as_long_as_the_kernel_allows(monkeypatch):
    name, asked = "a23456789012345", list[bytes]()

    def ioctl(_, __, request):
        asked.append(request.rstrip(b"\0"))
        return bytes(20) + socket.inet_aton("192.0.2.7") + bytes(8)

    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, name)])
    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    assert (interface_of("192.0.2.7"), asked) == (name, [name.encode()])


@pytest.mark.parametrize(
    ("address", "name"), [("::1", "lo"), ("fd00::2", "eth0"), ("fe80::fc:ff:fe00:1", "eth1"), ("2001:db8::1", "")]
)
def test_addresses_of_version_6_are_read_from_the_kernels_table(tmp_path: Path, address: str, name: str) -> None:
    (tmp_path / "if_inet6").write_text(INET6)
    assert interface_of(address, tmp_path / "if_inet6") == name
    assert interface_of("2001:db8::1") == "", "of no machine"
