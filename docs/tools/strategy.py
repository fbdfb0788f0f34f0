"""The table of published settings, from docs/results/strategy.json to Markdown."""

from __future__ import annotations

from typing import Any

_HEAD = (
    "| setting | lengths, longest | chosen | predicted step | best homogeneous | worst | FlexSP's way |",
    "|---|---|---|---|---|---|---|",
)


def table(result: dict[str, Any]) -> str:
    return "\n".join([*_HEAD, *map(_row, result["figures"]["results"])])


def _row(row: dict[str, Any]) -> str:
    times = (row["best_homogeneous_over_chosen"], row["worst_homogeneous_over_chosen"], row["flexsp_over_chosen"])
    best, worst, flexsp = ("" if value is None else f"{value:.2f} x" for value in times)
    seconds = f"{row['seconds']:.2f} s" if row["homogeneous"] else ""
    lengths = f"{row['lengths']}, {row['context'] // 1024}K"
    return f"| {row['setting']} | {lengths} | {row['chosen']} | {seconds} | {best} | {worst} | {flexsp} |"
