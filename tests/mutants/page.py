"""Writes the accepted survivors into docs/design/mutants.md: `python -m tests.mutants.page`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from tests.mutants.table import Accepted, load_accepted

PAGE = Path("docs/design/mutants.md")
_BEGIN = "<!-- made by `python -m tests.mutants.page` from tests/mutants/accepted.toml -->\n"


def page(text: str, accepted: list[Accepted]) -> str:
    """The page with its list renewed: all that follows the mark."""
    return text[: text.index(_BEGIN) + len(_BEGIN)] + "\n".join(_lines(accepted)) + "\n"


def _lines(accepted: list[Accepted]) -> Iterator[str]:
    if not accepted:
        yield "\nNone."
    for module, entries in groupby(sorted(accepted, key=lambda entry: entry.module), key=lambda entry: entry.module):
        yield f"\n### `{module}`\n"
        for entry in entries:
            yield f"- {entry.reason}\n"
            yield "  ```diff"
            yield from (f"  - {line}" for line in entry.before.splitlines())
            yield from (f"  + {line}" for line in entry.after.splitlines())
            yield "  ```"


def main(root: Path) -> None:
    path = root / PAGE
    path.write_text(page(path.read_text(), load_accepted(root)))


if __name__ == "__main__":
    main(Path.cwd())
