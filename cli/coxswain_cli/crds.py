"""`cox crds`: prints the CustomResourceDefinitions."""

from __future__ import annotations

from coxswain.api.crd import crds, to_yaml


def crds_command() -> None:
    """Print the CRDs as YAML, for `kubectl apply --server-side --filename -`."""
    print("---\n".join(to_yaml(crd) for crd in crds()), end="")
