"""MkDocs hooks: README and its kin join the site, and a link to a source file leads to a page with that source.

Links in the repository are relative to their file, so that they work in a checkout. These hooks turn them
into links of the site.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
# Pages at the root of the checkout, and what they are called in the site.
TOP = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
_LINK = re.compile(r"(?P<head>\]\()(?P<target>[^)#:\s]+)(?P<anchor>#[^)]*)?\)")
_CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LANGUAGES = {
    ".py": "python",
    ".yaml": "yaml",
    ".toml": "toml",
    ".json": "json",
    ".sh": "bash",
    "Dockerfile": "dockerfile",
}


def on_files(files: Files, config: Any) -> Files:
    """Adds README and its kin, then every file of the checkout that a page links to."""
    for path in (*TOP, *_linked()):
        files.append(File.generated(config, uri_of(path), content=_page(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    return relinked(markdown, path_of(page.file.src_uri))


def relinked(text: str, path: str) -> str:
    """The text of the file `path` of the checkout, with links to the same files within the site."""
    here = posixpath.dirname(uri_of(path))

    def link(match: re.Match[str]) -> str:
        target = _resolved(path, match["target"])
        if not (ROOT / target).is_file():
            return match[0]  # mkdocs names it
        return f"{match['head']}{posixpath.relpath(uri_of(target), here or '.')}{match['anchor'] or ''})"

    return _LINK.sub(link, text)


def uri_of(path: str) -> str:
    """Where a file of the checkout lies in the site."""
    if path in TOP:
        return TOP[path]
    if path.startswith("docs/") and not path.startswith(("docs/tools/", "docs/results/")):
        return path.removeprefix("docs/")
    return f"source/{path}" if path.endswith(".md") else f"source/{path}.md"


def path_of(uri: str) -> str:
    """The file of the checkout that lies there."""
    for path, top in TOP.items():
        if uri == top:
            return path
    if not uri.startswith("source/"):
        return f"docs/{uri}"
    path = uri.removeprefix("source/")
    return path if (ROOT / path).is_file() else path.removesuffix(".md")


def _linked() -> list[str]:
    """Files outside docs/ that a page links to, and those that these link to."""
    waiting = [*TOP, *(file.relative_to(ROOT).as_posix() for file in sorted(DOCS.rglob("*.md")))]
    found: dict[str, None] = {}
    while waiting:
        for target in _targets(waiting.pop()):
            if uri_of(target).startswith("source/") and target not in found:
                found[target] = None
                waiting += [target] if target.endswith(".md") else []
    return sorted(found)


def _targets(path: str) -> Iterator[str]:
    text = _CODE.sub("", (ROOT / path).read_text())
    targets = (_resolved(path, match["target"]) for match in _LINK.finditer(text))
    return (target for target in targets if (ROOT / target).is_file())


def _resolved(path: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


def _page(path: str) -> str:
    """A page as it is; source with its path above it."""
    text = (ROOT / path).read_text()
    if path.endswith(".md"):
        return text
    language = _LANGUAGES.get(Path(path).suffix or Path(path).name, "text")
    return (
        f"---\nsearch: {{exclude: true}}\n---\n\n# {path}\n\n~~~~ {{.{language} linenums=1}}\n{text.rstrip()}\n~~~~\n"
    )
