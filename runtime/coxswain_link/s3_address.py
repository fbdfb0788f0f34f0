"""Refuses what no request to an S3 server can name: obstore would end the process instead of raising an error."""

from __future__ import annotations

import re
from ipaddress import ip_address
from urllib.parse import urlsplit

from coxswain.errors import Refused
from coxswain.uris import BUCKET

_URL = re.compile(
    r"https?://([^/@]*@)?([A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]+)?(/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*)?"
)
_REGION = re.compile(r"[A-Za-z0-9._-]+")


def check_url(name: str, url: str) -> None:
    """`name`: the field or variable that has it."""
    if not (url.isascii() and url.isprintable() and _URL.fullmatch(url) and _has_host(url)):
        shown = re.sub("//[^/@]*@", "//", url)
        raise Refused(
            "InvalidEndpoint",
            f"{name} {shown!r}: allowed are http:// or https://, a host, and perhaps a port and a path, such as "
            "http://minio.storage:9000, without spaces; correct it",
        )


def with_bucket(url: str, bucket: str) -> str:
    """The server's address with the bucket before its host, as obstore takes it. Raises Refused where both are no name."""
    scheme, _, rest = url.partition("://")
    user, at, host = rest.rpartition("@")
    found = f"{scheme}://{user}{at}{bucket}.{host}"
    if not (_URL.fullmatch(found) and _has_host(found)):
        raise Refused(
            "InvalidEndpoint",
            f"endpoint.addressingStyle 'Virtual': bucket {bucket!r} before the host of endpoint.url is no host; allowed are a "
            "server with a name, not an address, and a bucket of letters, digits, '.' and '-'; correct them, or use Path",
        )
    return found


def check_bucket(uri: str, bucket: str) -> None:
    if not re.fullmatch(BUCKET, bucket):
        raise Refused(
            "InvalidBucket",
            f"uri {uri!r}, bucket {bucket!r}: allowed are letters, digits, '.', '-' and '_'; correct it",
        )


def check_region(name: str, region: str) -> None:
    if not _REGION.fullmatch(region):
        raise Refused(
            "InvalidRegion",
            f"{name} {region!r}: allowed are letters, digits, '.', '-' and '_', such as us-east-1; correct it",
        )


def is_sendable(text: str) -> bool:
    """Whether a header can have it."""
    return text.isascii() and text.isprintable()


def _has_host(url: str) -> bool:
    """Whether host and port are such: a host whose last part is a number is an address."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
        if ":" in host or host.rpartition(".")[2].isdigit():
            ip_address(host)
    except ValueError:
        return False
    return bool(host)
