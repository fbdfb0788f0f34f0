"""Building the recipes, each once for its content."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.images.base import PYTHON, build_base, own_mirror
from e2e.images.buildah import Buildah
from e2e.images.recipe import RECIPES, REPOSITORY, Recipe, tag
from e2e.images.registry import secrets

FOLDER = REPOSITORY / ".cache" / "images"


@dataclass(frozen=True, slots=True)
class Image:
    """A built image. `size`: without compression, for people."""

    repository: str
    tag: str
    size: str

    @property
    def reference(self) -> str:
        return f"{self.repository}:{self.tag}"


class Images:
    """The images of this checkout as it is now.

    One process builds at a time; the lock ends with its holder.
    """

    def __init__(self, folder: Path = FOLDER) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._buildah = Buildah(folder)

    def build(self, *names: str) -> list[Image]:
        """These recipes, or all. Raises BuildFailed."""
        with self._alone():
            mirror = own_mirror()
            wanted = {recipe: tag(recipe, mirror.tag) for recipe in (RECIPES[name] for name in names or RECIPES)}
            there = self._buildah.images()
            missing = {recipe: mark for recipe, mark in wanted.items() if reference(recipe, mark) not in there}
            if missing:
                self._buildah.tidy()  # what a killed build left
                if mirror.image not in there:
                    build_base(self._buildah, mirror)
                for recipe, mark in missing.items():
                    self._build(recipe, mark, mirror.image)
                there = self._buildah.images()
            return [Image(repository(r), mark, there[reference(r, mark)]) for r, mark in wanted.items()]

    def tidy(self) -> None:
        """Removes what a killed build left."""
        with self._alone():
            self._buildah.tidy()

    def archive(self, image: Image) -> Path:
        """A file for `ctr images import`.

        The large ones are worth removing after use; they come back in seconds.
        """
        path = self._archive_of(image)
        with self._alone():
            if not path.exists():
                path.parent.mkdir(exist_ok=True)
                partial = path.with_suffix(".partial")
                partial.unlink(missing_ok=True)
                self._buildah.run("push", image.reference, f"docker-archive:{partial}:{image.reference}")
                partial.rename(path)
        return path

    def drop_archive(self, image: Image) -> None:
        with self._alone():
            self._archive_of(image).unlink(missing_ok=True)

    def _archive_of(self, image: Image) -> Path:
        return self._folder / "archives" / f"{image.reference.rpartition('/')[2].replace(':', '-')}.tar"

    def python(self, image: Image) -> str:
        """The minor version of the Python inside, such as 3.11."""
        label = f'{{{{index .OCIv1.Config.Labels "{PYTHON}"}}}}'
        return self._buildah.run("inspect", "--type", "image", "--format", label, image.reference).strip()

    def _build(self, recipe: Recipe, mark: str, base: str) -> None:
        arguments = ["--isolation", "chroot", "--layers", "--build-arg", f"BASE={base}"]
        arguments += ["--build-arg", f"WITHOUT={recipe.without}"]
        lists = f"{repository(recipe)}-packages:latest"  # named, so that tidying keeps its layers for the next build
        with secrets(self._folder) as secret:
            self._buildah.run("bud", *arguments, *secret, "--target", "resolve", "--tag", lists, REPOSITORY)
            target = ["--target", recipe.target, "--tag", reference(recipe, mark)]
            self._buildah.run("bud", *arguments, *secret, *target, REPOSITORY)
        self._forget(recipe, mark)

    def _forget(self, recipe: Recipe, mark: str) -> None:
        """Removes what earlier contents of the recipe left."""
        for name in self._buildah.images():
            if name.startswith(f"{repository(recipe)}:") and name != reference(recipe, mark):
                self._buildah.run("rmi", name)
        for archive in self._folder.glob(f"archives/coxswain-{recipe.name}-????????????.tar"):
            archive.unlink()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with (self._folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def repository(recipe: Recipe) -> str:
    return f"localhost/coxswain-{recipe.name}"


def reference(recipe: Recipe, mark: str) -> str:
    return f"{repository(recipe)}:{mark}"
