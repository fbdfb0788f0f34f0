"""Markup safe from injection: plain strings are escaped on entry, `Markup` is not."""

from __future__ import annotations

import html
from collections.abc import Iterable


class Markup(str):
    """A string that is markup already, because `tag` or `join` made it."""

    __slots__ = ()


def escape(text: str) -> Markup:
    return text if isinstance(text, Markup) else Markup(html.escape(text, quote=True))


def join(parts: Iterable[str]) -> Markup:
    return Markup("".join(escape(p) for p in parts))


def tag(name: str, *children: str, **attributes: object) -> Markup:
    """Returns `<name attribute="…">children</name>`.

    `class_` becomes class, `data_step` data-step; None leaves an attribute out.
    """
    pairs = ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items() if value is not None)
    opening = "".join(f' {key}="{html.escape(_text(value), quote=True)}"' for key, value in pairs)
    return Markup(f"<{name}{opening}>{join(children)}</{name}>")


def percent(fraction: float) -> str:
    """A length as a share of the drawing's width, so that one drawing fits a phone and a desk."""
    return f"{_text(100 * fraction)}%"


def _text(value: object) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
