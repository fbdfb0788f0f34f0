"""The example program that makes the main job's corpus."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

PROGRAM = Path(__file__).parents[2] / "examples" / "make_corpus.py"


@pytest.fixture(scope="module")
def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_corpus", PROGRAM)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_corpus"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small standard library: 300 modules, a test folder, an installed package, a file that is not UTF-8."""
    root = tmp_path_factory.mktemp("library")
    for number in range(300):
        text = (
            f'"""Module {number}."""\n\n'
            + f"def f{number}(x):\n    '''Adds {number}.'''\n    return x + {number}\n" * (5 + number % 40)
        )
        (root / f"m{number:03d}.py").write_text(text)
    for other in ("test", "site-packages"):
        (root / other).mkdir()
        (root / other / "left_out.py").write_text("left_out = 1\n" * 100)
    (root / "latin.py").write_bytes(b"# \xe9\n" * 100)
    (root / "empty.py").touch()
    return root


@pytest.fixture(scope="module")
def corpus(program: ModuleType, library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output: Path = tmp_path_factory.mktemp("made") / "corpus"
    assert program.main(["--library", str(library), "--output", str(output)]) == 0
    return output


def content(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_the_same_library_gives_the_same_bytes(
    program: ModuleType, library: Path, corpus: Path, tmp_path: Path
) -> None:
    assert program.main(["--library", str(library), "--output", str(tmp_path / "again")]) == 0
    assert content(tmp_path / "again") == content(corpus)


def test_code_lies_in_parquet_row_groups_of_at_most_64_documents(corpus: Path) -> None:
    files = [pq.ParquetFile(path) for path in sorted((corpus / "code").iterdir())]
    groups = [f.metadata.row_group(g).num_rows for f in files for g in range(f.num_row_groups)]
    assert groups == [64, 64, 64, 64, 44]
    assert files[0].metadata.row_group(0).column(0).compression == "ZSTD"


def test_modules_are_taken_but_tests_installed_packages_and_odd_files_are_not(corpus: Path) -> None:
    paths = pq.read_table(corpus / "code").column("path").to_pylist()
    assert sorted(paths) == [f"m{n:03d}.py" for n in range(300)]


def test_documentation_is_json_lines_with_topics_and_docstrings(corpus: Path) -> None:
    lines = [json.loads(line) for line in (corpus / "docs" / "part-000.jsonl").read_text().splitlines()]
    texts = {line["path"]: line["text"] for line in lines}
    assert texts["help/m007.py"].startswith("m007\n----\nModule 7.\n\nm007.f7\n-------\nAdds 7.")
    assert any(path.startswith("topics/") for path in texts)


def test_the_tokenizer_gives_back_any_text_and_knows_end_of_text(program: ModuleType, corpus: Path) -> None:
    tokenizer = Tokenizer.from_file(str(corpus / "tokenizer.json"))
    text = "def f(x):\n\treturn 'é→🚣'  \n"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.token_to_id(program.END_OF_TEXT) is not None
    assert tokenizer.get_vocab_size() <= program.VOCABULARY


def test_the_summary_counts_documents_and_tokens(
    corpus: Path, program: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    program.main(["--output", str(corpus)])
    code = json.loads((corpus / "corpus.json").read_text())["sources"]["code"]
    assert code["documents"] == 300
    assert code["p50"] < code["p90"] < code["longest"] < code["tokens"]
    assert f"{code['tokens']:,}" in capsys.readouterr().out


def test_a_complete_corpus_is_left_alone(program: ModuleType, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "make", lambda *_: pytest.fail("made again"))
    assert program.main(["--output", str(corpus)]) == 0


def test_a_corpus_of_another_python_is_made_again(
    program: ModuleType, library: Path, corpus: Path, tmp_path: Path
) -> None:
    old = tmp_path / "corpus"
    old.mkdir()
    (old / "corpus.json").write_text(json.dumps({"recipe": {"version": 0}, "sources": {}}))
    assert program.main(["--library", str(library), "--output", str(old)]) == 0
    assert content(old) == content(corpus)


def test_a_folder_that_is_no_corpus_is_refused_and_kept(
    program: ModuleType, library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    assert program.main(["--library", str(library), "--output", str(tmp_path)]) == 2
    assert content(tmp_path) == {"mine.txt": b"precious"}
    assert f"--output {tmp_path}" in capsys.readouterr().err


@pytest.mark.parametrize("damaged", ["", "{}", "[1]"])
def test_a_corpus_whose_summary_is_damaged_is_refused_in_a_sentence_and_kept(
    program: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], damaged: str
) -> None:
    (tmp_path / "corpus.json").write_text(damaged)
    assert program.main(["--output", str(tmp_path)]) == 2
    assert content(tmp_path) == {"corpus.json": damaged.encode()}
    assert capsys.readouterr().err.startswith(f"make_corpus: --output {tmp_path}: its corpus.json is damaged; remove")


def test_a_reader_that_has_gone_costs_no_traceback_and_no_corpus(corpus: Path) -> None:
    """`make_corpus.py | true`: the pipe has no reader when the summary is printed."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, str(PROGRAM), "--output", str(corpus)]
    ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (corpus / "corpus.json").is_file()


def test_a_summary_that_cannot_be_printed_is_said_in_one_line_and_costs_no_corpus(corpus: Path) -> None:
    command = [sys.executable, str(PROGRAM), "--output", str(corpus)]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (2, "make_corpus: standard output: No space left on device\n")
    closed = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *command], capture_output=True, text=True, timeout=60)
    assert (closed.returncode, closed.stderr) == (0, "")
    assert (corpus / "corpus.json").is_file()


def test_an_interrupted_build_leaves_nothing_and_no_traceback(
    program: ModuleType, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: list[str]) -> Tokenizer:
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "train_tokenizer", interrupted)
    assert program.main(["--library", str(library), "--output", str(tmp_path / "corpus")]) == 130
    assert list(tmp_path.iterdir()) == []


def test_an_empty_library_is_refused_by_name(
    program: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(["--library", str(tmp_path), "--output", str(tmp_path / "corpus")]) == 2
    assert f"--library {tmp_path}: no Python sources" in capsys.readouterr().err
