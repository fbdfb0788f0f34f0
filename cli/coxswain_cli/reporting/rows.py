"""Draws bars in rows over time: the one renderer of the report's steps and of the pictures of plans.

Horizontal places are percentages of the drawing: it fits any width while letters and rows keep their size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from coxswain_cli.reporting.bars import Bar
from coxswain_cli.reporting.formatting import seconds
from coxswain_cli.reporting.markup import Markup, join, percent, tag

ROW = 22.0  # pixels
TALL = 480.0  # pixels that rows share before they become thinner than a pixel a row
TALLEST = 1024.0
LETTERS = 14.0  # pixels that a number needs
LABEL_FROM = 0.07  # share of the width from which a bar has room for its number


@dataclass(frozen=True, slots=True)
class Block:
    """Equal bars of successive rows."""

    top: int
    rows: int
    bar: Bar


def row_height(count: int) -> float:
    return min(ROW, max(TALL, min(TALLEST, count)) / max(1, count))


def are_thin(count: int) -> bool:
    """Whether so many rows leave no room for numbers: then what touches and looks alike is one shape."""
    return row_height(count) < LETTERS


def shapes(rows: Sequence[tuple[Bar, ...]], length: float) -> Markup:
    """Every bar as a `rect`, 100 % wide being `length` seconds."""
    height = row_height(len(rows))
    if not are_thin(len(rows)):
        return join(_bar(Block(i, 1, bar), height, length) for i, row in enumerate(rows) for bar in row)
    return join(_bar(block, height, length) for block in blocks([tuple(joined(row)) for row in rows]))


def names(count: int) -> tuple[tuple[int, float], ...]:
    """Numbers of rows with the pixel of their middles: of all rows, or of every 2nd, 4th, 8th ... where rows are thin."""
    height, every = row_height(count), 1
    while every * height < LETTERS:
        every *= 2
    return tuple((row, (row + 0.5) * height) for row in range(0, count, every))


def blocks(rows: Sequence[tuple[Bar, ...]]) -> Iterator[Block]:
    """A ring over neighbours is one block, not a bar a row."""
    begun: dict[Bar, int] = {}
    for number, row in enumerate([*rows, ()]):
        ended = [bar for bar in begun if bar not in row]
        yield from (Block(begun[bar], number - begun[bar], bar) for bar in ended)
        begun = {bar: begun.get(bar, number) for bar in row}


def joined(row: Iterable[Bar]) -> Iterator[Bar]:
    """Packs of one replica that follow each other without a gap as one bar."""
    run = list[Bar]()
    for bar in row:
        if run and not (bar.look == run[-1].look == "d1" and bar.start - run[-1].stop <= 1e-9 * bar.stop):
            yield _one(run)
            run = []
        run.append(bar)
    if run:
        yield _one(run)


def _one(run: Sequence[Bar]) -> Bar:
    if len(run) == 1:
        return run[0]
    stop = run[-1].stop
    words = (
        f"{len(run)} packs one after the other, tasks {run[0].label} to {run[-1].label}: {seconds(stop - run[0].start)}"
    )
    return replace(run[0], stop=stop, label="", words=words)


def _bar(block: Block, height: float, length: float) -> Markup:
    bar, share = block.bar, (block.bar.stop - block.bar.start) / length
    gap = 2.0 if height >= LETTERS else 0.0
    shape = tag(
        "rect", tag("title", bar.words), x=percent(bar.start / length), width=percent(share),
        y=block.top * height + gap / 2, height=block.rows * height - gap, class_=bar.look,
    )  # fmt: skip
    if not bar.label or share < LABEL_FROM or height < LETTERS:
        return shape
    middle = percent((bar.start + bar.stop) / 2 / length)
    return join((shape, tag("text", bar.label, x=middle, y=(block.top + 0.5) * height, class_=bar.look)))
