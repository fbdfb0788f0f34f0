"""Turns the Python standard library of this machine into two sources and a tokenizer, so that a run
needs no download.

    OUTPUT/code/part-*.parquet    the sources of the library, one document a file
    OUTPUT/docs/part-000.jsonl    its documentation: language topics, docstrings by module, plain text files
    OUTPUT/tokenizer.json         a byte-level BPE trained on a sample of both
    OUTPUT/corpus.json            what was made, from what: its presence says that the folder is complete

The same Python gives the same bytes. A complete folder is left alone; an incomplete one never gets
the name OUTPUT.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import platform
import shutil
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VERSION = 1
END_OF_TEXT = "<|endoftext|>"
VOCABULARY = 4096
SAMPLE_CHARACTERS = 3_000_000  # of each source, for the tokenizer: a second of training, not a minute
DOCUMENTS_PER_FILE = 256
DOCUMENTS_PER_ROW_GROUP = 64
OTHER_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
SHORTEST = 200  # characters: empty __init__ files teach nothing


class Document(NamedTuple):
    """One sample: where it came from, and its text."""

    path: str
    text: str


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--output", type=Path, default=Path("runs/corpus"), help="folder to make (default: %(default)s)"
    )
    parser.add_argument("--library", type=Path, default=Path(sysconfig.get_path("stdlib")), help="folder to read")
    options = parser.parse_args(arguments)
    try:
        summary = existing(options.output) or make(options.output, options.library)
    except (OSError, ValueError) as error:
        print(f"make_corpus: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130  # as shells have it
    try:
        describe(options.output, summary)
        print(end="", flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # at its end Python would flush again
        if not isinstance(error, BrokenPipeError):  # a reader that has seen enough needs no words
            print(f"make_corpus: standard output: {error.strerror}", file=sys.stderr)
            return 2
    return 0


def existing(output: Path) -> dict[str, Any] | None:
    """The summary of a complete corpus of this version and this Python; None when there is
    something to do.
    """
    marker = output / "corpus.json"
    if not output.exists():
        return None
    if not marker.is_file():
        raise ValueError(
            f"--output {output}: exists and is no corpus of this program; name another folder or remove it"
        )
    try:
        summary: dict[str, Any] = json.loads(marker.read_text())
        return summary if summary["recipe"] == recipe() and summary["sources"] else None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"--output {output}: its corpus.json is damaged; remove the folder, or name another"
        ) from error


def recipe() -> dict[str, object]:
    """All that the bytes of a corpus depend on, besides the library's own text."""
    return {"version": VERSION, "python": platform.python_version(), "vocabulary": VOCABULARY}


def make(output: Path, library: Path) -> dict[str, Any]:
    """Builds the corpus beside `output` and moves it there whole."""
    partial = output.with_name(f"{output.name}.partial-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    (partial / "docs").mkdir(parents=True)
    (partial / "code").mkdir()
    try:
        summary = build(partial, library)
        (partial / "corpus.json").write_text(json.dumps(summary, indent=1))
        if output.exists():
            shutil.rmtree(output)  # another Python's corpus: `existing` has checked that it is ours
        partial.rename(output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return summary


def build(folder: Path, library: Path) -> dict[str, Any]:
    code = shuffled(code_documents(library))
    docs = shuffled([*topic_documents(), *docstring_documents(code), *text_documents(library)])
    if not code or not docs:
        raise ValueError(f"--library {library}: no Python sources found there; name the folder of a standard library")
    write_parquet(folder / "code", code)
    write_jsonl(folder / "docs" / "part-000.jsonl", docs)
    tokenizer = train_tokenizer([*sample(code), *sample(docs)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return {"recipe": recipe(), "sources": {"code": measure(tokenizer, code), "docs": measure(tokenizer, docs)}}


def shuffled(documents: Iterable[Document]) -> list[Document]:
    """An order that is fixed but has nothing to do with folders, so that every row group looks like
    the whole.
    """
    return sorted(documents, key=lambda d: hashlib.sha256(d.path.encode()).digest())


def code_documents(library: Path) -> Iterator[Document]:
    for path in sorted(library.rglob("*.py")):
        relative = path.relative_to(library)
        if not OTHER_FOLDERS & set(relative.parts) and relative.parts[0] != "pydoc_data":
            yield from read(path, relative)


def text_documents(library: Path) -> Iterator[Document]:
    for path in sorted(library.rglob("*")):
        relative = path.relative_to(library)
        if path.suffix in {".txt", ".rst"} and not OTHER_FOLDERS & set(relative.parts):
            yield from read(path, relative)


def read(path: Path, relative: Path) -> Iterator[Document]:
    """The file as a document; nothing where it is not UTF-8 or too short."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return
    if len(text) >= SHORTEST:
        yield Document(relative.as_posix(), text)


def topic_documents() -> Iterator[Document]:
    """The chapters of the language reference that `help()` shows."""
    try:
        from pydoc_data.topics import topics
    except ImportError:  # some distributions leave it out
        return
    for name, text in sorted(topics.items()):
        yield Document(f"topics/{name}", text)


def docstring_documents(code: Iterable[Document]) -> Iterator[Document]:
    """One document a module: its docstring, then those of its classes and functions, each below its
    name.
    """
    for path, text in code:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old modules have odd escapes
            try:
                tree = ast.parse(text)
            except SyntaxError:
                continue
        body = "\n\n".join(docstrings(tree, path.removesuffix(".py").replace("/", ".")))
        if len(body) >= SHORTEST:
            yield Document(f"help/{path}", body + "\n")


def docstrings(node: ast.AST, name: str) -> Iterator[str]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        if text := ast.get_docstring(node):
            yield f"{name}\n{'-' * len(name)}\n{text}"
        for child in node.body:
            yield from docstrings(child, f"{name}.{getattr(child, 'name', '')}")


def write_parquet(folder: Path, documents: list[Document]) -> None:
    for part, start in enumerate(range(0, len(documents), DOCUMENTS_PER_FILE)):
        chosen = documents[start : start + DOCUMENTS_PER_FILE]
        table = pa.table({"path": [d.path for d in chosen], "text": [d.text for d in chosen]})
        path = folder / f"part-{part:03d}.parquet"
        pq.write_table(table, path, compression="zstd", row_group_size=DOCUMENTS_PER_ROW_GROUP)


def write_jsonl(path: Path, documents: list[Document]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for document in documents:
            file.write(json.dumps(document._asdict(), ensure_ascii=False) + "\n")


def sample(documents: list[Document]) -> Iterator[str]:
    """Whole documents from the front of the shuffled order, until there are enough characters."""
    taken = 0
    for document in documents:
        if taken >= SAMPLE_CHARACTERS:
            return
        taken += len(document.text)
        yield document.text


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """A byte-level BPE as in GPT-2: any text decodes to itself, indentation is one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def measure(tokenizer: Tokenizer, documents: list[Document]) -> dict[str, int]:
    """Documents, tokens, and percentiles of the documents' lengths in tokens, the end-of-text token
    included.
    """
    lengths = np.array([len(e) + 1 for e in tokenizer.encode_batch([d.text for d in documents])])
    percentiles = {f"p{p}": int(np.percentile(lengths, p, method="nearest")) for p in (10, 50, 90, 99)}
    return {"documents": len(documents), "tokens": int(lengths.sum()), **percentiles, "longest": int(lengths.max())}


def describe(output: Path, summary: dict[str, Any]) -> None:
    print(f"corpus in {output}, from the standard library of Python {summary['recipe']['python']}")
    columns = ("documents", "tokens", "p10", "p50", "p90", "p99", "longest")
    print("source " + "".join(f"{c:>11}" for c in columns))
    for name, numbers in summary["sources"].items():
        print(f"{name:7}" + "".join(f"{numbers[c]:>11,}" for c in columns))


if __name__ == "__main__":
    sys.exit(main())
