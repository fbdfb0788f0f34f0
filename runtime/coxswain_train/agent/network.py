"""The network interface of a trainer on its node's network, where the host's name may stand for another address. No torch."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Callable, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from coxswain import names

Address = IPv4Address | IPv6Address

_SIOCGIFADDR = 0x8915
_LOOPBACK = "127."  # all of these addresses are the loopback interface's, which names one of them
_INET6 = Path("/proc/net/if_inet6")


def interface_environment(inherited: Mapping[str, str], find: Callable[[str], str] | None = None) -> dict[str, str]:
    """What gloo and NCCL need to use the pod's address; a user's own choice stays.

    gloo would take the address of the host's name, often 127.0.0.1; NCCL any interface, also a bridge of the node. Under
    `cox run` that address may go amid a run, with the network that a laptop is in: all pods are on the loopback network.
    """
    address = inherited.get(names.ENV_POD_IP, "")
    if not (inherited.get(names.ENV_HOST_NETWORK) or address.startswith(_LOOPBACK)):
        return {}
    interface = (find or interface_of)(address)
    own = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
    return {name: value for name, value in own.items() if interface and name not in inherited}


def interface_of(address: str, inet6: Path = _INET6) -> str:
    """The name of the interface that has this address; empty without one. `inet6`: the kernel's table of version 6."""
    wanted = ip_address(address)
    found = _ipv4_addresses() if wanted.version == 4 else _ipv6_addresses(inet6.read_text())
    return next((name for name, held in found if _is_same(ip_address(held), wanted)), "")


def _is_same(held: Address, wanted: Address) -> bool:
    return held == wanted or (held.is_loopback and wanted.is_loopback)


def _ipv4_addresses() -> list[tuple[str, str]]:
    """The first address of each interface."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(channel, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # an interface without an address
                continue
            found.append((name, socket.inet_ntoa(answer[20:24])))
    return found


def _ipv6_addresses(table: str) -> list[tuple[str, str]]:
    rows = (line.split() for line in table.splitlines())
    return [(row[5], ":".join(row[0][i : i + 4] for i in range(0, 32, 4))) for row in rows]
