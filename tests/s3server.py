"""A real S3 server for tests: versitygw over a temporary folder, over TLS if it gets an authority.

with S3Server() as s3:
    name = s3.bucket("corpus")
    open_store(f"s3://{name}/", EndpointConfig(url=s3.endpoint_url, region=s3.region, secret="s3"), s3.secrets_dir)
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

import boto3
import trustme

from tests.children import Child, ReservedPort, accepts, binary, own_address


class S3Server:
    """One server, up within the `with` block; nothing is left behind it."""

    access_key = "coxswain-test"
    secret_key = "coxswain-test-secret"
    region = "us-east-1"

    def __init__(self, authority: trustme.CA | None = None) -> None:
        """`authority`: signs the server's certificate, and is `ca.crt` of the mounted Secret."""
        self._authority = authority

    def __enter__(self) -> S3Server:
        self._folder = tempfile.TemporaryDirectory(prefix="coxswain-s3-")
        root = Path(self._folder.name)
        self.data = root / "data"  # a folder for each bucket
        self.data.mkdir()
        self._write_secret(root / "secrets" / "s3")
        self.secrets_dir = root / "secrets"
        address = own_address()
        self._port = ReservedPort(address)
        listen = f"{address}:{self._port.number}"
        self.endpoint_url = f"{'https' if self._authority else 'http'}://{listen}"
        self._child = Child(self._command(listen, self.data, self._certificate(root, address)), root / "log")
        self.pid = self._child.process.pid
        self._child.wait_until(lambda: accepts(address, self._port.number))
        return self

    def _command(self, listen: str, data: Path, certificate: list[str | Path]) -> list[str | Path]:
        keys = ["--access", self.access_key, "--secret", self.secret_key, "--region", self.region]
        return [binary("versitygw"), "--quiet", "--port", listen, *keys, *certificate, "posix", data]

    def _certificate(self, root: Path, address: str) -> list[str | Path]:
        """The options that name the server's certificate and its key."""
        if self._authority is None:
            return []
        issued = self._authority.issue_cert(address)
        issued.cert_chain_pems[0].write_to_path(root / "server.crt")
        issued.private_key_pem.write_to_path(root / "server.key")
        return ["--cert", root / "server.crt", "--key", root / "server.key"]

    def _write_secret(self, folder: Path) -> None:
        """A mounted endpoint Secret, as services see it."""
        folder.mkdir(parents=True)
        (folder / "AWS_ACCESS_KEY_ID").write_text(self.access_key)
        (folder / "AWS_SECRET_ACCESS_KEY").write_text(self.secret_key)
        if self._authority is not None:
            self._authority.cert_pem.write_to_path(folder / "ca.crt")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.stop()
        self._folder.cleanup()

    def client(self) -> Any:
        """A boto3 client with the server's own keys."""
        keys = {"aws_access_key_id": self.access_key, "aws_secret_access_key": self.secret_key}
        believed = self.secrets_dir / "s3" / "ca.crt" if self._authority else None
        return boto3.client("s3", endpoint_url=self.endpoint_url, region_name=self.region, verify=believed, **keys)

    def bucket(self, name: str) -> str:
        """Makes the bucket and returns its name."""
        self.client().create_bucket(Bucket=name)
        return name
