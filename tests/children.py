"""Servers that tests start: their binaries, an address of their own, and a certain end."""

from e2e.cluster.process import REPOSITORY, Child, ReservedPort, accepts, binary, own_address, wait_until

__all__ = ["REPOSITORY", "Child", "ReservedPort", "accepts", "binary", "own_address", "wait_until"]
