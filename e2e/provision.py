"""What the tests share: a cluster, the images in it, an S3 server with the corpus, and the operator
by its chart.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from e2e.cluster.cluster import Cluster
from e2e.cluster.namespaces import run
from e2e.cluster.node import Node
from e2e.cluster.process import REPOSITORY, Argument, binary
from e2e.images import Image, Images
from e2e.images.torch import torch_folder
from e2e.store import start_store

CORPUS = REPOSITORY / "runs" / "corpus"
CHART = REPOSITORY / "charts" / "coxswain"
SYSTEM = "coxswain-system"
TORCH = "/opt/torch"  # in trainers of the slim image

T = TypeVar("T")


@dataclass(frozen=True)
class Site:
    """`torch`: the prepared packages on this machine, for trainers whose image has none."""

    cluster: Cluster
    operator: Image
    data: Image
    train: Image
    torch: Path

    @property
    def store(self) -> Path:
        """The S3 server's buckets, as folders."""
        return self.cluster.state.root / "s3"

    def kubectl(self, *arguments: Argument, stdin: str = "") -> str:
        return self.cluster.kubectl(*arguments, stdin=stdin)

    def helm(self, *arguments: Argument) -> str:
        return run([binary("helm"), "--kubeconfig", self.cluster.kubeconfig, *arguments], deadline=600)

    def values(self) -> list[str]:
        """Helm values of this site: its images, by their tags, and torch from the node for the slim one."""
        images = {"operator": self.operator, "data": self.data, "train": self.train}
        tags = [f"image.{name}.tag={image.tag}" for name, image in images.items()]
        own = ["image.registry=localhost", "image.train.repository=coxswain-train-slim"]
        return [*own, f"podTemplates.hostPaths[0]={self.torch}", *tags]

    def install(self, *settings: str) -> None:
        """Installs by Helm, as docs/install.md says; returns when both operators are ready."""
        flags = [part for value in (*self.values(), *settings) for part in ("--set", value)]
        self.helm(
            "upgrade",
            "--install",
            "coxswain",
            CHART,
            "-n",
            SYSTEM,
            "--create-namespace",
            *flags,
            "--wait",
            "--timeout=5m",
        )

    def torch_overlay(self) -> dict[str, Any]:
        """For `trainers.template.spec`: the prepared packages, mounted read-only."""
        mount = {"name": "torch", "mountPath": TORCH, "readOnly": True}
        trainer = {"name": "trainer", "env": [{"name": "PYTHONPATH", "value": TORCH}], "volumeMounts": [mount]}
        volume = {"name": "torch", "hostPath": {"path": str(self.torch), "type": "Directory"}}
        return {"containers": [trainer], "volumes": [volume]}


def provision(cluster: Cluster) -> Site:
    """Puts images and store into a running cluster."""
    images = Images()
    operator, data, train = images.build("operator", "data", "train-slim")
    for image in (operator, data, train):
        load(cluster, images, image)
    site = Site(cluster, operator, data, train, torch_folder(images.python(train)))
    start_store(cluster, site.store, make_corpus(), data.reference)
    return site


def load(cluster: Cluster, images: Images, image: Image) -> None:
    """Loads the image into every node that lacks it."""
    for node in cluster.nodes:
        if lack(node, image):
            node.load_image(images.archive(image))


def lack(node: Node, image: Image) -> bool:
    return image.reference not in node.ctr("images", "ls", "-q").split()


def make_corpus() -> Path:
    """The example's corpus; a complete one is left as it is."""
    program = REPOSITORY / "examples" / "make_corpus.py"
    subprocess.run([sys.executable, program, "--output", CORPUS], check=True, stdout=subprocess.DEVNULL)
    return CORPUS


def eventually(look: Callable[[], T | None], what: str, deadline: float) -> T:
    """The first value of `look` that is true; AssertionError naming `what` after `deadline`
    seconds.
    """
    end = time.monotonic() + deadline
    while not (value := look()):
        assert time.monotonic() < end, f"not within {deadline:g} s: {what}"
        time.sleep(0.25)
    return value


def becomes(look: Callable[[], set[str]], expected: set[str], deadline: float) -> None:
    """Waits until these names are there and no others; AssertionError with both differences after `deadline` seconds."""
    end = time.monotonic() + deadline
    while (found := look()) != expected:
        more, fewer = sorted(found - expected), sorted(expected - found)
        assert time.monotonic() < end, f"after {deadline:g} s {more} are still there, and {fewer} are missing"
        time.sleep(0.25)
