"""Documents of many lengths, cut from the text of the standard library, in so many sources of JSON lines."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FILES = 4  # of each source: the workers of some peers share files, not lines
MEDIAN, SPREAD, LONGEST = 1500, 1.0, 20_000  # characters of a document; the spread is of its logarithm
SEED = 11


@dataclass(frozen=True, slots=True)
class Corpus:
    """A folder with `tokenizer.json` and, for each source, a folder of JSON lines with the field `text`."""

    folder: Path

    @property
    def sources(self) -> list[str]:
        return sorted(file.name for file in (self.folder / "sources").iterdir())

    @property
    def tokenizer(self) -> Path:
        return self.folder / "tokenizer.json"

    def files(self, source: str) -> list[Path]:
        return sorted((self.folder / "sources" / source).glob("*.jsonl"))

    def texts(self, source: str) -> Iterator[str]:
        for file in self.files(source):
            with file.open() as lines:
                for line in lines:
                    yield json.loads(line)["text"]

    def weights(self) -> list[int]:
        """Shares in thousandths, in the order of `sources`: the first has the most, and none has none."""
        count = len(self.sources)
        return [max(1, 1000 * 2 * (count - n) // (count * (count + 1))) for n in range(count)]


def write(folder: Path, texts: Sequence[str], tokenizer: bytes, sources: int, characters: int) -> Corpus:
    """So many sources of about `characters` each; each is cut elsewhere, so that no two have the same documents."""
    for number in range(sources):
        draw = random.Random(SEED + number)
        where = folder / "sources" / f"s{number:03d}"
        where.mkdir(parents=True)
        pieces = list(_pieces(texts, draw, characters))
        for part in range(FILES):
            lines = (json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in pieces[part::FILES])
            (where / f"part-{part}.jsonl").write_text("".join(lines))
    (folder / "tokenizer.json").write_bytes(tokenizer)
    return Corpus(folder)


def _pieces(texts: Sequence[str], draw: random.Random, characters: int) -> Iterator[str]:
    left = characters
    while left > 0:
        text = draw.choice(texts)
        length = min(LONGEST, max(50, int(math.exp(draw.gauss(math.log(MEDIAN), SPREAD)))))
        start = draw.randrange(max(1, len(text) - length))
        piece = text[start : start + length]
        left -= len(piece)
        yield piece


class Encoder:
    """Text to ids with an end of text behind them; opened in each process at its first use."""

    def __init__(self, tokenizer: Path) -> None:
        self._path, self._tokenizer, self._end = str(tokenizer), None, 0

    def __call__(self, text: str) -> np.ndarray:
        if self._tokenizer is None:
            from tokenizers import Tokenizer

            self._tokenizer = Tokenizer.from_file(self._path)
            self._end = self._tokenizer.token_to_id("<|endoftext|>")
        return np.array([*self._tokenizer.encode(text).ids, self._end], dtype=np.uint16)

    def __getstate__(self) -> dict[str, object]:
        return {"_path": self._path, "_tokenizer": None, "_end": 0}
