"""A cluster made of this machine: objects are files, containers are processes."""

from coxswain_operator.local.cluster import LocalCluster

__all__ = ["LocalCluster"]
