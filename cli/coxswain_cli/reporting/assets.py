"""The styles and the script that pictures and pages carry within themselves."""

from __future__ import annotations

from importlib.resources import files


def asset(name: str) -> str:
    return files("coxswain_cli.reporting").joinpath(name).read_text(encoding="utf-8")
