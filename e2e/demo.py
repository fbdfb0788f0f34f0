"""`make demo`: what examples/kubernetes.yaml needs, put into the cluster of `make cluster`; says
what to type next.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from coxswain_cli.progress import amount
from e2e.cluster import preflight
from e2e.cluster.cluster import Cluster
from e2e.cluster.process import REPOSITORY
from e2e.images import Image, Images
from e2e.images.build import FOLDER
from e2e.images.buildah import BuildFailed
from e2e.progress import Progress, disk
from e2e.provision import SYSTEM, lack, make_corpus
from e2e.store import PORT, start_store

STATE = REPOSITORY / ".cache" / "cluster"
IMAGES = ("operator", "data", "train")


def main(state: Annotated[Path, typer.Option(help="The cluster's folder.", resolve_path=True)] = STATE) -> None:
    """Builds the images, loads them into the nodes, and starts an S3 server with the corpus."""
    cluster = Cluster(state)
    if cluster.state.plan() is None:
        sys.exit(f"no cluster runs in {state}: start one with `make cluster`")
    machine = preflight.look()
    if missing := preflight.demo_lacks(machine):
        sys.exit("\n".join(("the images cannot be built yet:", *missing)))
    print(first_lines(preflight.demo_room(machine)), flush=True)
    progress = Progress(len(IMAGES) * (1 + len(cluster.nodes)) + 1, lambda: disk(FOLDER, cluster.state.root))
    try:
        built = [_into_nodes(cluster, Images(), name, progress) for name in IMAGES]
    except BuildFailed as failure:
        sys.exit(str(failure))
    with progress.part("start the S3 server with the corpus"):
        start_store(cluster, state / "s3", make_corpus(), built[1].reference)
    print(f"Images and cluster took {amount(progress.most)}B of disk.\n{_next_lines(cluster, built)}")


def first_lines(scarce: list[str]) -> str:
    """What a first `make demo` takes, and what is scarce here."""
    takes = f"This takes {preflight.DEMO_DISK} GB under .cache and ten to fifteen minutes on two cores"
    return "\n".join((f"{takes}; again, only what has changed.", *scarce))


def _into_nodes(cluster: Cluster, images: Images, name: str, progress: Progress) -> Image:
    """Builds an image and loads it into every node; the archive in between is removed."""
    with progress.part(f"build image {name}"):
        (image,) = images.build(name)
    for node in cluster.nodes:
        with progress.part(f"load image {name} ({image.size}) into {node.name}"):
            if lack(node, image):
                node.load_image(images.archive(image))
    images.drop_archive(image)
    return image


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
