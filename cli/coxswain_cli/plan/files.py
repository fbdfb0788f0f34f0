"""Reads files of numbers and writes results: shared by the commands of `cox plan`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from coxswain.errors import Refused
from coxswain.exits import Exit
from coxswain_cli.replacing import write_whole

MOST_BYTES = 1 << 28  # some forty million lengths


@contextmanager
def refusals() -> Iterator[None]:
    """Ends a command that is refused with one line on standard error."""
    try:
        yield
    except Refused as refused:
        print(f"{refused.reason}: {refused.message}", file=sys.stderr)
        raise typer.Exit(Exit.USER_FAULT) from None


def on_terminal() -> bool:
    """Whether JSON on standard output would bury the table."""
    return sys.stdout.isatty()


def read_bytes(path: Path, named: str, form: str) -> bytes:
    """Of a whole file, and no more than MOST_BYTES of one that has no end, as devices have none."""
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise Refused("BadFile", f"{named}: {error.strerror}; give {form}") from None
    if len(raw) > MOST_BYTES:
        raise Refused("BadFile", f"{named} has more than {MOST_BYTES} bytes; give {form} of at most so many")
    return raw


def read_numbers(path: Path, option: str, type_: type[int] | type[float]) -> list[Any]:
    """Reads a JSON array, or numbers separated by white space; names the first bad entry."""
    form = "a JSON array of numbers or one number a line"
    try:
        text = read_bytes(path, f"--{option} {path}", form).decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise Refused("BadFile", f"--{option} {path}: {error}; give {form}") from None
    if text.startswith("[") != text.endswith("]"):
        raise Refused("BadFile", f"--{option} {path}: the JSON array is cut off; give the whole array")
    words = [w for w in re.split(r"[\s,]+", text.removeprefix("[").removesuffix("]")) if w]
    if not words:
        raise Refused("BadFile", f"--{option} {path}: no numbers; give {form}")
    return [_number(word, f"--{option} {path}: entry {place}", type_) for place, word in enumerate(words)]


def _number(word: str, where: str, type_: type[int] | type[float]) -> int | float:
    try:
        return type_(word)
    except ValueError:  # also an integer of more than 4,300 digits
        want = "an integer" if type_ is int else "a number"
        raise Refused("BadFile", f"{where} is {word[:40]!r}; it must be {want}") from None


def write_text(output: Path | None, text: str, option: str = "output") -> None:
    """Writes to the file of an option, or to standard output."""
    if output is None:
        print(text)
        return
    try:
        write_whole(output, text + "\n")
    except OSError as error:
        raise Refused("BadFile", f"--{option} {output}: {error.strerror}; give a path that can be written") from None
