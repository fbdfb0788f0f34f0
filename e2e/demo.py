"""`make demo`: what examples/kubernetes.yaml needs, put into the cluster of `make cluster`; says
what to type next.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from e2e.cluster.cluster import Cluster
from e2e.cluster.process import REPOSITORY
from e2e.images import Image, Images
from e2e.provision import SYSTEM, load, make_corpus
from e2e.store import PORT, start_store

STATE = REPOSITORY / ".cache" / "cluster"


def main(state: Annotated[Path, typer.Option(help="The cluster's folder.", resolve_path=True)] = STATE) -> None:
    """Builds the images, loads them into the nodes, and starts an S3 server with the corpus."""
    cluster = Cluster(state)
    if cluster.state.plan() is None:
        sys.exit(f"no cluster runs in {state}: start one with `make cluster`")
    images = Images()
    built = images.build("operator", "data", "train")
    for image in built:
        load(cluster, images, image)
    start_store(cluster, state / "s3", make_corpus(), built[1].reference)
    print(_next_lines(cluster, built))


def _next_lines(cluster: Cluster, built: list[Image]) -> str:
    tags = [f"image.{name}.tag={image.tag}" for name, image in zip(("operator", "data", "train"), built, strict=True)]
    flags = " ".join(f"--set {value}" for value in ("image.registry=localhost", *tags))
    return f"""Images and an S3 server (http://s3.demo:{PORT}) are in the cluster. Next:
    export KUBECONFIG={cluster.kubeconfig} PATH={REPOSITORY}/.cache/bin:$PATH
    helm install coxswain charts/coxswain -n {SYSTEM} --create-namespace --wait {flags}
    kubectl apply -f examples/kubernetes.yaml
    kubectl get trainingjobs --watch"""


if __name__ == "__main__":
    typer.run(main)
