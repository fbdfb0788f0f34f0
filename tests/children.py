"""Servers that tests start: their binaries, an address that no other process has, and an end that is sure to come."""

from e2e.cluster.process import REPOSITORY, Child, ReservedPort, accepts, binary, own_address, wait_until

__all__ = ["REPOSITORY", "Child", "ReservedPort", "accepts", "binary", "own_address", "wait_until"]
