"""Data loading beside MosaicML Streaming, LitData, Grain and Hugging Face datasets, in turns on one machine.

    python -m bench.loading [--sources 2,64] [--ranks 1x2,4x2] [--batches 200] [--systems mosaic] [--write]

Each reads the same documents with the same tokenizer and weights, as its own guide says (readers/*.py). Prints a JSON object
a figure on standard error, and one of all at the end; `--write` keeps it in docs/results, from which `make generate` writes
the tables. Peers are installed into .cache/loading.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from bench.loading import corpus, measure, services
from bench.loading.corpus import Corpus
from bench.loading.environments import OURS, SYSTEMS, python_of
from bench.loading.ranks import DOCUMENTS, TOKENS, Place, Shape
from bench.recorded import ROOT, keep
from examples.make_corpus import existing, make

CHARACTERS = 24_000_000  # of all sources together
BEHIND = 12  # batches, from whose middle each goes on
SERVICES = {"coxswain, services": TOKENS, "coxswain, services, large steps": 8 * TOKENS}  # tokens a rank in a step


def measured(options: argparse.Namespace, base: Path, scratch: Path) -> Iterator[dict[str, Any]]:
    for count in map(int, options.sources.split(",")):
        found = _corpus(base, scratch / f"corpus-{count}", count)
        places = [Place(name, found, scratch / f"{name}-{count}") for name in options.systems.split(",")]
        for place in places:
            yield {"case": f"{count} sources", "system": place.system, **measure.prepare(place)}
        for ranks, workers in (map(int, shape.split("x")) for shape in options.ranks.split(",")):
            case = {"case": f"{count} sources, {ranks} ranks", "workers": workers}
            for _ in range(options.rounds):
                for place in places:
                    if place.system != "bare" or ranks == 1:
                        shape = Shape(ranks, workers, options.batches // ranks)
                        yield case | {"system": place.system, **measure.cost(place, shape)}
            for name, tokens in SERVICES.items() if "coxswain" in options.systems else ():
                steps = max(2, options.batches * TOKENS // (2 * ranks * tokens))
                used = services.cost(found, scratch / f"services-{count}-{tokens}", ranks, tokens, steps)
                yield case | {"system": name, **used}


def continued(systems: list[str], base: Path, scratch: Path) -> Iterator[dict[str, Any]]:
    """What each goes on with behind its own state, with the same ranks and with others."""
    found = _corpus(base, scratch / "corpus-resumed", 4)
    for system in systems:
        if system == "bare":
            continue
        place = Place(system, found, scratch / f"{system}-resumed")
        measure.prepare(place)
        two = Shape(2, 2, BEHIND)
        cases = {
            "as before": two, "other workers": Shape(2, 1, BEHIND),
            "half the ranks": Shape(1, 2, BEHIND, 2 * DOCUMENTS, 2 * TOKENS),
            "twice the ranks": Shape(4, 2, BEHIND, DOCUMENTS // 2, TOKENS // 2),
        }  # fmt: skip
        whole = measure.read(place, two)
        yield {
            "system": system,
            **{name: measure.resumed(place, whole, after, scratch) for name, after in cases.items()},
        }


def _corpus(base: Path, folder: Path, sources: int) -> Corpus:
    code = [
        text for file in sorted((base / "code").glob("*.parquet")) for text in pq.read_table(file)["text"].to_pylist()
    ]
    docs = [json.loads(line)["text"] for line in (base / "docs" / "part-000.jsonl").open()]
    return corpus.write(folder, [*code, *docs], (base / "tokenizer.json").read_bytes(), sources, CHARACTERS // sources)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the ranks go as well
    options = _options()
    names = options.systems.split(",")
    for name in names:
        python_of(name)
    base = ROOT / ".cache" / "loading" / "corpus"
    if existing(base) is None:
        make(base, Path(json.__file__).parents[1])
    scratch = Path(tempfile.mkdtemp(prefix="coxswain-loading-"))
    try:
        rows = [_shown(row) for row in measured(options, base, scratch)] if options.sources else []
        resumes = [_shown(row) for row in continued(names, base, scratch)] if options.resume else []
    finally:
        shutil.rmtree(scratch)
    figures = {"rounds": options.rounds, "batches": options.batches, "rows": rows, "resumes": resumes}
    print(json.dumps(figures))
    if options.write:
        keep("loading", "Data loading beside its peers", "make bench-loading", figures)


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", default="2,64", help="numbers of sources; empty: none of these cases")
    parser.add_argument("--ranks", default="1x2,4x2", help="ranks x processes of each that read")
    parser.add_argument("--batches", type=int, default=400, help="of all ranks, measured")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--systems", default=",".join((OURS[0], *SYSTEMS[2:], OURS[1])))
    parser.add_argument("--no-resume", dest="resume", action="store_false", help="leave out what each goes on with")
    parser.add_argument("--write", action="store_true", help="also into docs/results/loading.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
