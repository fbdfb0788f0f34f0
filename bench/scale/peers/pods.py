"""The pod of a rival's job: our trainer's, but for what names it and finds it."""

from __future__ import annotations

from bench.scale.control_plane import Manifest
from bench.scale.coxswain import OTHERS, pods_of

RESTARTS = 10  # more than a bench has
_OURS_ALONE = ("hostname", "subdomain")  # rivals set their own, for their own Service


def template(container: str) -> Manifest:
    """A pod template whose main container has the name that the rival knows."""
    spec = {key: value for key, value in pods_of("j", 1, "any")[-1]["spec"].items() if key not in _OURS_ALONE}
    first, *rest = spec["containers"]
    return {"spec": {**spec, "containers": [{**first, "name": container}, *rest]}}


def count(trainers: int) -> int:
    """As many pods as our job of so many trainers has, all of them like trainers."""
    return trainers + OTHERS
