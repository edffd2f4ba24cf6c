"""The bucket of an episode over an object store: a proxy in a process of its own, which does harm while there is a storm and keeps what verbs remove.

Nothing can be killed between the copy that the checker gets of an object and its removal: the proxy does both, and nobody kills it.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from html import unescape
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from tests.faults.keeping import is_history, kept_in
from tests.faults.ledger import append
from tests.faults.world import RETENTION_IN_A_BUCKET
from tests.given.proxy import Answer, Harm, Proxy, Request, running
from tools.servers.s3 import LOOPBACK, options

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

URI = "s3://bucket/queues"
_BUCKET, _BELOW = "/bucket", "/bucket/queues/"
_HARMED = 0.15
"""The share of the requests that are harmed in a storm."""
_SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=x/20130101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=x"}
"""What the server wants to see; it looks at nothing of it but the names."""
_KEYS = re.compile(rb"<Key>(.*?)</Key>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Bucket:
    """An empty bucket, and the way to it.

    :param folder: the episode's.
    """

    url: str
    folder: Path

    @property
    def options(self) -> Mapping[str, str]:
        """How a store is told of it."""
        return options(self.url)

    def storm(self) -> None:
        """Let the proxy do harm from now on."""
        _storm(self.folder).touch()

    def calm(self) -> None:
        """Let it do none from now on."""
        _storm(self.folder).unlink(missing_ok=True)


@contextmanager
def made(server: int, folder: Path, seed: int) -> Iterator[Bucket]:
    """Make a bucket in a server that has nothing else from now on, and run the proxy in front of it."""
    line = HTTPConnection(LOOPBACK, server, timeout=60)
    for method, path in (("POST", "/moto-api/reset"), ("PUT", _BUCKET)):
        line.request(method, path, headers=_SIGNED)
        line.getresponse().read()
    line.close()
    command = [sys.executable, "-m", __name__, str(server), str(folder), str(seed)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Bucket(process.stdout.readline().strip(), folder)
        finally:
            process.stdin.close()


def mirror(folder: Path, options: Mapping[str, str]) -> None:
    """Copy all objects below the store into the folder that the checker reads, with the times at which they were written."""
    import os

    import obstore
    from obstore.store import from_url

    config = {name.lower(): value for name, value in options.items() if name != "AWS_ALLOW_HTTP"}
    client = from_url(URI, config=cast("Any", config), client_options={"allow_http": True})
    for each in (each for some in obstore.list(client) for each in some):
        place = Path(folder, "store", each["path"])
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(obstore.get(client, each["path"]).bytes())
        os.utime(place, (each["last_modified"].timestamp(),) * 2)


class _Keeping(Proxy):
    """Puts aside what is removed, where the checker finds it, and tells the ledger."""

    folder: Path

    def forwarded(self, request: Request) -> Answer:
        if request.kind == "remove":
            for path in self._removed(request):
                self._keep(path)
        return super().forwarded(request)

    @staticmethod
    def _removed(request: Request) -> list[str]:
        if request.method == "DELETE":
            return [request.path]
        return [f"{_BUCKET}/{unescape(name.decode())}" for name in _KEYS.findall(request.body)]

    def _keep(self, path: str) -> None:
        name = Path(path.removeprefix(_BELOW))
        if not path.startswith(_BELOW) or not is_history(name):
            return
        found = self.asked(Request("GET", quote(path), _SIGNED, b""))
        if found.status != 200:
            return
        place = kept_in(self.folder) / name
        place.parent.mkdir(parents=True, exist_ok=True)
        beside = place.with_name(f".{place.name}")
        beside.write_bytes(found.body)
        beside.replace(place)
        path, kept = str(Path(*name.parts[1:])), RETENTION_IN_A_BUCKET.total_seconds()
        append(str(self.folder), "removed", 0, queue=name.parts[0], path=path, at=time.time(), kept=kept)


@dataclass(slots=True)
class _Storm:
    """A plan that harms some requests while there is a storm."""

    folder: Path
    chance: random.Random

    def __call__(self, request: Request) -> Harm | None:
        if self.chance.random() >= _HARMED or not _storm(self.folder).exists():
            return None
        harms = [harm for harm in Harm if request.kind == "list" or harm is not Harm.LISTED_LATE]
        harm = self.chance.choice(harms)
        append(str(self.folder), "injected", 0, what=harm.name, request=request.kind)
        return harm


def _storm(folder: Path) -> Path:
    return folder / "storm"


def serve(server: int, folder: Path, seed: int) -> None:
    """Tell the URL, and answer until nobody holds the other end of the standard input any more."""
    proxy = _Keeping(server, plan=_Storm(folder, random.Random(seed)))
    proxy.folder = folder
    with running(proxy):
        sys.stdout.write(f"{proxy.url}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
