"""Which servers to believe, and the client's own certificate: contexts of TLS from PEM texts, without a file of them."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


class _Context(ssl.SSLContext):
    """Asks each server for a certificate of `server_name`, where that is given, instead of its address."""

    server_name: str | None = None

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        return super().wrap_bio(incoming, outgoing, server_side, self.server_name or server_hostname, session)


@dataclass(frozen=True, slots=True)
class Trust:
    """PEM texts: of the authorities to believe (None: those of the system), of the client's certificate and its key."""

    authorities: bytes | None = None
    verify: bool = True
    identity: bytes | None = field(default=None, repr=False)
    server_name: str | None = None
    """What the server's certificate must name, where that is not its address."""

    def context(self) -> ssl.SSLContext:
        """Raises OSError for texts that are no PEM, or a key of another certificate."""
        context = _Context(ssl.PROTOCOL_TLS_CLIENT)
        context.server_name = self.server_name
        if self.authorities is None:
            context.load_default_certs()
        else:
            with _as_file(self.authorities) as path:
                context.load_verify_locations(path)
        if not self.verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if self.identity is not None:
            with _as_file(self.identity) as path:
                context.load_cert_chain(path)
        return context


SYSTEM = Trust()
"""The authorities of the system, without a certificate of the client's own."""


@contextmanager
def _as_file(text: bytes) -> Iterator[str]:
    """A path to it that ends with this process: OpenSSL reads certificates of a client from files only."""
    descriptor = os.memfd_create("pem")
    try:
        os.write(descriptor, text)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
