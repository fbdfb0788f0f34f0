"""A loader over millions of files: memory and processor time of a restart and the whole index of a job.

`python -m bench.loader [--files 5000000] [--of files|objects] [--phases prepare,restart]`. The store makes up names and content,
and keeps records and digests in a temporary folder. Each phase is a process of its own. Prints a JSON object a phase.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import resource
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import msgspec
from msgspec.structs import replace

from coxswain.config import SourceConfig, TokenizerConfig
from coxswain.index import BlockEntry, block_key, object_key
from coxswain.planlog import LoaderShare
from coxswain.wire import BLOCKS_IN_MESSAGE, Indexed, SourceBlocks
from coxswain_data.block_map import BlockMap, all_blocks
from coxswain_data.identity import Known
from coxswain_data.index_record import BLOCKS, Counted, ShareRecord, ShareRecords, StoredIndexes
from coxswain_data.indexer import index_share, messages
from coxswain_data.source import Sizes, Source
from coxswain_data.tokenizer import BytesTokenizer
from coxswain_link.object_info import ObjectInfo
from coxswain_link.spool import Spool
from coxswain_link.store import NotFound

SIZE = len(b'{"text": "document-000000000"}\n')
URI = {"files": "file:///corpus", "objects": "s3://corpus/data"}


class Corpus:
    """Files of one line each, a thousand a folder."""

    last_error = ""

    def __init__(self, files: int, uri: str) -> None:
        self._files, self.uri = files, uri

    def corpus(self, wanted: object, may_hold: object) -> Iterator[ObjectInfo]:
        return map(self._info, range(self._files))

    def head(self, path: str) -> ObjectInfo:
        return self._info(int(path[-15:-6]))

    def get_range(self, path: str, start: int, stop: int, etag: str = "") -> bytes:
        return content_of(path)[start:stop]

    def _info(self, number: int) -> ObjectInfo:
        path = f"part-{number // 1000:05d}/document-{number:09d}.jsonl"
        stamp = zlib.crc32(path.encode())
        return ObjectInfo(path, SIZE, f'"{number + 77777:x}-{(1 << 50) + stamp * 1000:x}-{SIZE:x}"')


class Index:
    """Records and digests of an index in a folder; of the other objects, names and sizes alone."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._open = folder, {}

    def put(self, key: str, data: bytes) -> None:
        *_, folder, name = key.split("/")
        if name.endswith(".npz"):
            if folder not in self._open:
                self._open[folder] = (self._folder / folder).open("a")
            self._open[folder].write(f"{name} {len(data)}\n")
        else:
            (self._folder / key.replace("/", "+")).write_bytes(zlib.compress(data, 1))

    def get(self, key: str) -> bytes:
        try:
            return zlib.decompress((self._folder / key.replace("/", "+")).read_bytes())
        except FileNotFoundError as error:
            raise NotFound(key) from error

    def head(self, key: str) -> ObjectInfo:
        raise NotFound(key)

    def exists(self, key: str) -> bool:
        return False

    def list(self, prefix: str) -> list[ObjectInfo]:
        names = [p.name.replace("+", "/") for p in self._folder.glob(f"{prefix.replace('/', '+')}*")]
        found = [ObjectInfo(name, 1, name) for name in names]
        lines = lines_of(self._folder / prefix.split("/")[-2])
        found += [ObjectInfo(prefix + name, int(size), "") for name, size in (line.split() for line in lines)]
        return sorted(found)

    def close(self) -> None:
        for file in self._open.values():
            file.close()


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.is_file() else []


class Coordinator:
    """Answers with the blocks that were sent to it; keeps them packed on disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def post(self, number: int, message: Indexed) -> None:
        (self._folder / f"message-{number:05d}").write_bytes(zlib.compress(msgspec.json.encode(message), 1))

    def get(self, path: str, type_: object, **query: object) -> SourceBlocks:
        sent = sorted(self._folder.glob("message-*"))
        file = sent[query["from"] // BLOCKS_IN_MESSAGE]
        total = (len(sent) - 1) * BLOCKS_IN_MESSAGE + len(_sent(sent[-1]))
        return SourceBlocks("docs", _sent(file), total)


def _sent(file: Path) -> tuple[BlockEntry, ...]:
    return msgspec.json.decode(zlib.decompress(file.read_bytes()), type=Indexed).blocks


def content_of(path: str) -> bytes:
    return b'{"text": "%s"}\n' % path[-24:-6].encode()


def prepare(folder: Path, of: str, files: int) -> None:
    """Writes what a start leaves: records, names of indexes, digests. A start itself builds an index a file, some 0.3 ms."""
    store, corpus, tokenizer = Index(folder), Corpus(files, URI[of]), BytesTokenizer()
    records = ShareRecords(StoredIndexes(store), f"{URI[of]} Jsonl:text {tokenizer.hash}")  # type: ignore[arg-type]
    infos = corpus.corpus(None, None)
    while some := list(islice(infos, BLOCKS)):
        digests = {i.path: hashlib.blake2b(content_of(i.path), digest_size=16).hexdigest() for i in some}
        named = [prepared(tokenizer, info, digests[info.path] if of == "files" else info.etag) for info in some]
        record = ShareRecord(records, named)
        for entry in named:
            record.add(entry.key, Counted(entry.key, entry.etag, 1, 0, 19, 19, 5))
            store.put(object_key(entry.key), b"index")
        record.save()
        known = {i.path: Known(i.etag, digests[i.path]) for i in some}
        name = hashlib.sha256(URI[of].encode()).hexdigest()
        store.put(f"index/files/{name}/{named[0].key}.json", msgspec.json.encode(known))
    store.close()


def prepared(tokenizer: BytesTokenizer, info: ObjectInfo, etag: str) -> BlockEntry:
    entry = BlockEntry(info.path, 0, 0, SIZE, SIZE, etag)
    return replace(entry, key=block_key(entry, tokenizer.hash, "Jsonl:text"))


def index(folder: Path, of: str, files: int, share: int = 0, shares: int = 1) -> object:
    config = SourceConfig(
        name="docs", uri=URI[of], weight=1, source="docs", format="Jsonl", text_field="text", include="**",
        tokenizer=TokenizerConfig(kind="bytes"),
    )  # fmt: skip
    store, source = Index(folder), Source(config, Corpus(files, URI[of]), Spool(), Sizes())  # type: ignore[arg-type]
    source.keep_identities(store)  # type: ignore[arg-type]
    share_ = LoaderShare("loader-0", "docs", share, shares)
    indexed = index_share(source, BytesTokenizer(), store, share_, StoredIndexes(store))  # type: ignore[arg-type]
    for number, message in enumerate(messages(indexed)):
        Coordinator(folder).post(number, message)
    store.close()
    return indexed, source


def block_map(folder: Path) -> object:
    return BlockMap(all_blocks(Coordinator(folder), "docs", 0.0))  # type: ignore[arg-type]


def measured(name: str, files: int, work: Callable[..., object], *args: object) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF)
    resident, began = _resident(), time.monotonic()
    kept = work(*args)
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found = {
        "phase": name, "files": files, "seconds": round(time.monotonic() - began, 1), "cpu_seconds": round(cpu, 1),
        "cpu_us_a_file": round(cpu / files * 1e6, 1), "peak_mib": round(after.ru_maxrss / 1024),
        "peak_bytes_a_file": round((after.ru_maxrss * 1024 - resident) / files),
        "kept_bytes_a_file": round((_resident() - resident) / files),
    }  # fmt: skip
    print(json.dumps(found), flush=True)
    del kept


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=5_000_000)
    parser.add_argument("--of", choices=URI, default="files")
    parser.add_argument("--phases", default="prepare,restart,restart as one of two,block map")
    args = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        phases = [
            ("prepare", prepare, folder, args.of, args.files),
            ("restart", index, folder, args.of, args.files),
            ("restart as one of two", index, folder, args.of, args.files, 1, 2),
            ("block map", block_map, folder),
        ]
        for phase, work, *rest in phases:
            if phase not in args.phases.split(","):
                continue
            child = spawn.Process(target=measured, args=(phase, args.files, work, *rest))
            child.start()
            child.join()


if __name__ == "__main__":
    main()
