"""The base image where no registry is: a small Debian (or what this machine runs) from the
machine's own package mirror.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from e2e.images.buildah import Buildah, BuildFailed, run

PYTHON = "dev.coxswain.python"  # label of the base: the minor version of its Python, such as 3.11
PACKAGES = "python3,python3-venv,ca-certificates"
# What no program reads, and what would carry this machine's settings along.
SUPERFLUOUS = (
    "var/cache/apt", "var/lib/apt/lists", "var/log", "usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info",
    "etc/resolv.conf", "etc/hostname", "etc/apt/sources.list",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mirror:
    url: str
    suite: str

    @property
    def tag(self) -> str:
        text = "\0".join((self.url, self.suite, PACKAGES, PYTHON, *SUPERFLUOUS))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def image(self) -> str:
        return f"localhost/coxswain-base:{self.tag}"


def own_mirror() -> Mirror:
    """Where this machine's own packages come from.

    Raises BuildFailed on a machine without apt's sources.
    """
    lines = run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Identifier: Packages"])
    return first_mirror(lines)


def first_mirror(lines: str) -> Mirror:
    """The first whole release (not its updates) among lines of address, release and component."""
    for url, suite, component in (line.split() for line in lines.splitlines()):
        if component == "main" and "-" not in suite:
            return Mirror(url, suite)
    raise BuildFailed(
        f"apt knows no release with a component main to make a base image from; it lists: {lines or 'nothing'}"
    )


def build_base(buildah: Buildah, mirror: Mirror) -> None:
    """Makes `mirror.image`; some forty seconds and 130 MB."""
    tree, context = buildah.folder / "tmp" / "base", buildah.folder / "tmp" / "base-context"
    for folder in (tree, context):
        shutil.rmtree(folder, ignore_errors=True)
    context.mkdir(parents=True)
    run(["debootstrap", "--variant=minbase", f"--include={PACKAGES}", mirror.suite, tree, mirror.url])
    for name in SUPERFLUOUS:
        _remove(tree / name)
    python = (tree / "usr/bin/python3").readlink().name.removeprefix("python")
    run(["tar", "--numeric-owner", "--exclude=./dev/*", "-C", tree, "-cf", context / "base.tar", "."])
    shutil.rmtree(tree)
    (context / "Dockerfile").write_text(f'FROM scratch\nADD base.tar /\nLABEL {PYTHON}="{python}"\n')
    buildah.run("bud", "--isolation", "chroot", "--tag", mirror.image, context)
    shutil.rmtree(context)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
        path.mkdir()
    else:
        path.unlink(missing_ok=True)
