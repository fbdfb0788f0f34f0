"""The Cluster seam over a real API server."""

from coxswain_operator.kubernetes.access import find_access
from coxswain_operator.kubernetes.cluster import KubernetesCluster
from coxswain_operator.kubernetes.connection import Connection

__all__ = ["Connection", "KubernetesCluster", "find_access"]
