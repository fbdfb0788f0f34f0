"""Private names that a test or a bench reaches for. `python -m tests.private_names [PATH...]` lists every place.

A test that reads `_private` state, imports a private function or replaces a constant of a module claims how a
part is built, not what it does: it breaks with the next rewrite and notices nothing that users meet. Pass the
constant as an argument, read what the part offers to its callers, or make the name public where others need it.
Names that the same file defines are its own. Exit code 1 when something is found.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

from tests.words import ROOT, in_checkout

FOLDERS = ("tests", "bench", "e2e")
# What namedtuples, os and other packages call so, though all may use it or nothing public gives the same.
OTHERS = frozenset(
    {
        "_replace",
        "_asdict",
        "_fields",
        "_make",
        "_exit",
        "_version",
        "_sleep",
        "_lru_cache_wrapper",
        "_abort_process_group",
    }
)
OTHER_PACKAGES = frozenset({"torch", "os", "sys", "aiohttp", "kubernetes"})
PATCHES = frozenset({"setattr", "delattr", "patch", "object"})


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_" and name not in OTHERS


def _constant(name: str) -> bool:
    return name.isupper() and len(name) > 1


def _defined(tree: ast.Module) -> set[str]:
    """The names that a file defines: functions, classes, variables and attributes of `self`."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            if isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node.value, ast.Name) and node.value.id == "self":
                found.add(node.attr)
    return found


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _named(node: ast.Call, own: set[str]) -> Iterator[str]:
    """What a call names in a string: the target of a patch, or the attribute that getattr and setattr take."""
    patches = isinstance(node.func, ast.Attribute) and node.func.attr in PATCHES
    if not patches and not (isinstance(node.func, ast.Name) and node.func.id in ("getattr", "setattr")):
        return
    for argument in node.args[:2]:
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            last = argument.value.rpartition(".")[2]
            if (
                last not in own
                and argument.value.partition(".")[0] not in OTHER_PACKAGES
                and (_private(last) or (patches and _constant(last)))
            ):
                yield argument.value


def _at(node: ast.AST, own: set[str]) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom):
        yield from (f"{node.module}.{alias.name}" for alias in node.names if _private(alias.name))
    elif isinstance(node, ast.Attribute) and _private(node.attr) and node.attr not in own:
        if _root(node) not in OTHER_PACKAGES and ast.unparse(node.value) not in ("self", "cls"):
            yield ast.unparse(node)
    elif isinstance(node, ast.Call):
        yield from _named(node, own)


def reached(text: str) -> list[tuple[int, str]]:
    """Line and name of each private name of another file that a file reaches for, in order."""
    tree = ast.parse(text)
    own = _defined(tree)
    return sorted({(node.lineno, name) for node in ast.walk(tree) for name in _at(node, own)})  # type: ignore[attr-defined]


def main(paths: list[str]) -> int:
    files = [path for path in in_checkout(paths or FOLDERS) if path.endswith(".py")]
    found = [(path, *place) for path in files for place in reached((ROOT / path).read_text())]
    for path, line, name in found:
        print(f"{path}:{line}: {name} is private to another file, or a constant that is replaced")
    print(f"{len(found)} private names reached for" if found else "no private name is reached for")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
