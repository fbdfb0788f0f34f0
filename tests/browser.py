"""A real browser without a window, spoken to in the DevTools protocol over two pipes: no port, and
it ends with its test.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from typing import IO, Any

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
    "--remote-debugging-pipe", "--disable-background-networking",
)  # fmt: skip
# The protocol reads requests from descriptor 3 and answers on 4.
_SHELL = 'exec 3<&"$0" 4>&"$1" && shift && exec "$@"'


class Page:
    """One page. Fails when the browser answers an error or exits."""

    def __init__(self, requests: IO[bytes], answers: IO[bytes]) -> None:
        self._requests, self._answers, self._count, self._session = requests, answers, 0, ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        self._count += 1
        session = {"sessionId": self._session} if self._session else {}
        request = {"id": self._count, "method": method, "params": parameters, **session}
        self._requests.write(json.dumps(request).encode() + b"\0")
        self._requests.flush()
        answer = self._until(lambda message: message.get("id") == self._count)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, uri: str, *, width: int = 360, height: int = 740, scheme: str = "light") -> None:
        """Returns once it is loaded, in a window of that size and color scheme."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2, mobile=True)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=uri)
        self._until(lambda message: message.get("method") == "Page.loadEventFired")

    def evaluate(self, script: str) -> Any:
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def _until(self, wanted: Any) -> Any:
        while True:
            message = json.loads(self._message())
            if wanted(message):
                return message

    def _message(self) -> bytes:
        out = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            assert byte, "the browser has exited"
            out += byte
        return bytes(out)


@contextlib.contextmanager
def browser() -> Iterator[Page]:
    """A browser with a profile of its own; both are gone afterwards."""
    (there, requests), (answers, back) = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = ["bash", "-c", _SHELL, str(there), str(back), BROWSER, *_FLAGS, f"--user-data-dir={profile}"]
        env = {**os.environ, "TMPDIR": profile}  # it is killed, and leaves its socket there
        process = subprocess.Popen(
            command, pass_fds=(there, back), stderr=subprocess.DEVNULL, start_new_session=True, env=env
        )
        os.close(there)
        os.close(back)
        try:
            with os.fdopen(requests, "wb") as to, os.fdopen(answers, "rb") as of:
                yield (page := Page(to, of))
                page.call("Browser.close") if process.poll() is None else None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its helpers, too
            process.wait(30)
