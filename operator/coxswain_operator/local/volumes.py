"""Volumes of a pod as folders, and their mount paths in arguments and environment."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coxswain.errors import Refused
from coxswain_operator.local.objects import write_atomically
from coxswain_operator.views import Manifest

RUN_VOLUME = "run"  # this emptyDir is the work directory itself, where a user finds the run's files

Lookup = Callable[[str, str], Manifest | None]  # kind, name -> object


@dataclass(frozen=True, slots=True)
class Mounts:
    """Folders of this machine by path in the container.

    `paths` match with all that lies below them, `parents` only as a whole.
    """

    paths: Mapping[str, str]
    parents: Mapping[str, str]

    def resolve(self, text: str) -> str:
        """Replaces the longest mount path at the start of `text`."""
        for path in sorted(self.paths, key=len, reverse=True):
            if text == path or text.startswith(path + "/"):
                return self.paths[path] + text[len(path) :]
        return self.parents.get(text, text)


class NotMountable(Exception):
    """A ConfigMap or Secret does not exist yet; the pod waits for it, as with a kubelet."""


def mount(pod: Manifest, folder: Path, workdir: Path, lookup: Lookup) -> dict[str, Path]:
    """Makes every volume of a pod; returns folders by volume name.

    Raises NotMountable, or Refused for an unsupported kind.
    """
    folders = {}
    for volume in pod["spec"].get("volumes", ()):
        name = volume["name"]
        folders[name] = workdir if name == RUN_VOLUME and "emptyDir" in volume else _make(volume, folder / name, lookup)
    return folders


def mount_paths(container: dict[str, Any], folders: dict[str, Path], views: Path) -> Mounts:
    """The container's mounts. A parent of mounts (`/etc/coxswain/secrets`) is a folder of links."""
    paths, parents = {}, {}
    for item in container.get("volumeMounts", ()):
        target = folders[item["name"]] / item.get("subPath", "")
        mounted = Path(item["mountPath"])
        paths[str(mounted)] = str(target)
        parents[str(mounted.parent)] = str(_link(views / str(mounted.parent).strip("/"), mounted.name, target))
    return Mounts(paths, parents)


def unmount(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _make(volume: dict[str, Any], folder: Path, lookup: Lookup) -> Path:
    if "hostPath" in volume:
        return Path(volume["hostPath"]["path"])
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if "emptyDir" in volume:
        return folder
    for source in volume["projected"]["sources"] if "projected" in volume else (volume,):
        _fill(folder, source, volume["name"], lookup)
    return folder


def _fill(folder: Path, source: dict[str, Any], volume: str, lookup: Lookup) -> None:
    if "configMap" in source:
        spec, kind, name = source["configMap"], "ConfigMap", source["configMap"]["name"]
    elif "secret" in source:
        spec, kind = source["secret"], "Secret"
        name = spec.get("secretName") or spec["name"]
    else:
        kinds = ", ".join(sorted(source.keys() - {"name"}))
        raise Refused(
            "UnsupportedVolume",
            f"volume {volume!r}: {kinds} needs Kubernetes; here: emptyDir, configMap, secret, hostPath",
        )
    holder = lookup(kind, name)
    if holder is None:
        if spec.get("optional"):
            return
        raise NotMountable(f"volume {volume!r}: {kind} {name!r} does not exist")
    for key, content in _contents(holder, spec.get("items")).items():
        write_atomically(folder / key, content, 0o600 if kind == "Secret" else 0o644)


def _contents(holder: Manifest, items: list[dict[str, str]] | None) -> dict[str, bytes]:
    """Files of a ConfigMap or Secret: all keys, or the chosen ones under their paths."""
    files = {k: v.encode() for k, v in holder.get("data", {}).items()}
    if holder["kind"] == "Secret":
        files = {k: base64.b64decode(v) for k, v in holder.get("data", {}).items()}
    files |= {k: base64.b64decode(v) for k, v in holder.get("binaryData", {}).items()}
    if items is None:
        return files
    if missing := [i["key"] for i in items if i["key"] not in files]:
        raise NotMountable(f"{holder['kind']} {holder['metadata']['name']!r} has no key {missing[0]!r}")
    return {i["path"]: files[i["key"]] for i in items}


def _link(folder: Path, name: str, target: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / name
    if not link.is_symlink():
        link.symlink_to(target, target_is_directory=True)
    return folder
