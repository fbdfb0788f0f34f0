"""The formats that a source may have, one file each."""

from __future__ import annotations

from coxswain.errors import Refused
from coxswain_data.formats.base import Format
from coxswain_data.formats.jsonl import JsonlObject
from coxswain_data.formats.parquet import ParquetObject
from coxswain_data.formats.tar import TarObject
from coxswain_data.formats.text import TextObject
from coxswain_data.formats.tokenbin import TokenBinObject

FORMATS: dict[str, Format] = {
    "Parquet": ParquetObject,
    "Jsonl": JsonlObject,
    "Text": TextObject,
    "Tar": TarObject,
    "TokenBin": TokenBinObject,
}


def format_named(name: str, source: str) -> Format:
    if name not in FORMATS:
        raise Refused(
            "FormatNotSupported",
            f"source {source!r}: format {name} cannot be read by this version; allowed are {', '.join(FORMATS)}",
        )
    return FORMATS[name]
