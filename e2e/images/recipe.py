"""What an image is made from, and the name that follows from it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
FORMAT = "1"  # part of every name: raise it when the way of building changes what comes out


@dataclass(frozen=True, slots=True)
class Recipe:
    """One image: a target of the Dockerfile, the sources copied into it, and packages left out of
    it.
    """

    name: str
    target: str
    sources: tuple[str, ...]
    without: str = ""


_CORE, _LINK = "core/coxswain", "runtime/coxswain_link"
_TRAIN = (_CORE, _LINK, "runtime/coxswain_train")
RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("operator", "operator", (_CORE, _LINK, "operator/coxswain_operator")),
        Recipe("data", "data", (_CORE, _LINK, "runtime/coxswain_coordinator", "runtime/coxswain_data")),
        Recipe("train", "train", _TRAIN),
        Recipe("train-slim", "train", _TRAIN, without="torch"),
    )
}
COMMON = ("Dockerfile", "Dockerfile.d", ".dockerignore", "pyproject.toml", "constraints.txt")


def tag(recipe: Recipe, base: str, root: Path = REPOSITORY) -> str:
    """Twelve digits that change with anything the image is made from.

    `base`: the base image's own tag.
    """
    digest = hashlib.sha256("\0".join((FORMAT, base, recipe.target, recipe.without)).encode())
    for path in files(root, (*COMMON, *recipe.sources)):
        digest.update(f"\0{path.relative_to(root)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]


def files(root: Path, names: Iterable[str]) -> Iterator[Path]:
    """The files of these files and folders that the builder sees, in an order that never changes."""
    for name in names:
        path = root / name
        yield from sorted(p for p in path.rglob("*") if _is_source(p)) if path.is_dir() else (path,)


def _is_source(path: Path) -> bool:
    return path.is_file() and not {"__pycache__", ".mypy_cache"} & set(path.parts)
