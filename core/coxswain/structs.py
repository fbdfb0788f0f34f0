"""Structs that are decoded in several threads, and what a damaged object raises."""

from __future__ import annotations

import sys

import msgspec

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises for bytes that are no JSON, no text, of another shape, or nested without end."""


def prepare(module: str) -> None:
    """Completes msgspec's view of each struct of a module. Call it as the module's last line.

    msgspec 0.22 does so when a struct is first decoded. Where two threads do that at once, one of them meets a view that is half
    complete, and the process ends with SIGSEGV.
    """
    for value in [*vars(sys.modules[module]).values()]:
        if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__ == module:
            msgspec.json.Decoder(value)
