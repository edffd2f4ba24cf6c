"""What stands between the store and its S3 server in tests: it counts requests, makes each of them slow, and does harm as it is told."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from tools.servers.s3 import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LATE_SECONDS = 0.3
LISTED_LATE = 5
"""So many of the objects written last are missing in a list that is late."""
_XML = {"Content-Type": "application/xml"}
_LISTED = re.compile(rb"<Contents>.*?<Key>(.*?)</Key>.*?</Contents>", re.DOTALL)


class Harm(Enum):
    """What happens to a request."""

    ANSWERED_LATE = "answered late"
    DONE_TWICE = "done twice, and the second answer is told"
    FAILED_BEFORE = "500, and nothing is done"
    BUSY_BEFORE = "503, and nothing is done"
    FAILED_AFTER = "500, after it was done"
    CUT_BEFORE = "the line is cut, and nothing is done"
    CUT_AFTER = "done, and the line is cut instead of an answer"
    LISTED_LATE = "a list lacks what was written last"


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came in."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        """What it is about: ``/bucket/name``."""
        return unquote(urlsplit(self.url).path)

    @property
    def kind(self) -> str:
        """What it does, as ``Objects`` names it."""
        names = {name.lower() for name in self.headers}
        query = urlsplit(self.url).query
        if self.method == "GET" and "list-type" in query:
            return "list"
        if self.method == "PUT" and "uploadId" not in query:
            return "create" if "if-none-match" in names else "copy" if "x-amz-copy-source" in names else "put"
        if self.method == "DELETE" or (self.method == "POST" and "delete" in query):
            return "remove"
        return {"PUT": "part", "POST": "multipart"}.get(self.method, self.method.lower())

    @property
    def commits(self) -> bool:
        """Whether it makes an entry of a log."""
        return self.kind == "create" and self.path.endswith(".json")


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server says."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True, eq=False)
class Proxy:
    """A proxy in front of the server at a port of this machine.

    :ivar requests: how many there were, by kind.
    :ivar delay: seconds before each request goes on.
    :ivar rounds: how often one came when no other one was under way: so many delays somebody waits for who asks side by side where that is possible.
    :ivar plan: says of each request what happens to it.
    :ivar harmed: what has happened.
    :ivar hidden: so many of the objects written last are in no list.
    :ivar denies: whether it denies all access, as for wrong credentials.
    :ivar archived: paths of objects that the server lists, and whose content it refuses, as S3 does with those in an archive.
    :ivar ignores: whether it ignores conditions, as stores and gateways do that do not know them.
    """

    server: int
    url: str = ""
    requests: Counter[str] = field(default_factory=Counter)
    delay: float = 0.0
    rounds: int = 0
    plan: Callable[[Request], Harm | None] = lambda _: None
    harmed: Counter[Harm] = field(default_factory=Counter)
    hidden: int = 0
    denies: bool = False
    archived: set[str] = field(default_factory=set)
    ignores: bool = False
    _under_way: int = 0
    _written: dict[str, None] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)
    _writing: Lock = field(default_factory=Lock)

    @contextmanager
    def counted(self) -> Iterator[Counter[str]]:
        """Count the requests of a block."""
        before, found = self.requests.copy(), Counter[str]()
        yield found
        found.update(self.requests - before)

    def answer(self, request: Request) -> Answer | None:
        """Return what is answered; None: the line is cut."""
        with self._lock:
            self.rounds += not self._under_way
            self._under_way += 1
        try:
            return self._answer(request)
        finally:
            with self._lock:
                self._under_way -= 1

    def _answer(self, request: Request) -> Answer | None:
        with self._lock:
            self.requests[request.kind] += 1
            harm = self.plan(request)
            self.harmed.update([harm] if harm else [])
        time.sleep(self.delay)
        if self.denies:
            return Answer(403, _XML, b"<Error><Code>InvalidAccessKeyId</Code></Error>")
        if request.method == "GET" and request.path in self.archived:
            return Answer(403, _XML, b"<Error><Code>InvalidObjectState</Code></Error>")
        if harm in {Harm.FAILED_BEFORE, Harm.BUSY_BEFORE}:
            return Answer(500 if harm is Harm.FAILED_BEFORE else 503, _XML, b"<Error><Code>InternalError</Code></Error>")
        if harm is Harm.CUT_BEFORE:
            return None
        answer = self.forwarded(request)
        if harm is Harm.DONE_TWICE:
            answer = self.forwarded(request)
        late = max(self.hidden, LISTED_LATE if harm is Harm.LISTED_LATE else 0)
        if late and request.kind == "list":
            answer = self._shortened(answer, late)
        if harm is Harm.ANSWERED_LATE:
            time.sleep(LATE_SECONDS)
        if harm is Harm.FAILED_AFTER:
            return Answer(500, _XML, b"<Error><Code>InternalError</Code></Error>")
        return None if harm is Harm.CUT_AFTER else answer

    def forwarded(self, request: Request) -> Answer:
        """Return what the server answers."""
        if request.method != "PUT":
            return self.asked(request)
        with self._writing:  # moto looks for an object and writes it in two steps: of two that create one at the same time, both would win
            answer = self.asked(request)
            if answer.status < 300:
                self._written.pop(request.path, None)
                self._written[request.path] = None
        return answer

    def asked(self, request: Request) -> Answer:
        """Ask the server."""
        line = HTTPConnection(LOOPBACK, self.server, timeout=60)
        try:
            headers = {name: value for name, value in request.headers.items() if not (self.ignores and name.lower() == "if-none-match")}
            line.request(request.method, request.url, request.body, headers)
            found = line.getresponse()
            return Answer(found.status, dict(found.getheaders()), found.read())
        finally:
            line.close()

    def _shortened(self, answer: Answer, hidden: int) -> Answer:
        with self._writing:
            order = {path.split("/", 2)[2].encode(): number for number, path in enumerate(self._written)}
        listed = sorted((order.get(name, -1), name) for name in _LISTED.findall(answer.body))
        late = {name for _, name in listed[-hidden:]}
        return Answer(answer.status, answer.headers, _LISTED.sub(lambda match: b"" if match[1] in late else match[0], answer.body))


@dataclass(slots=True)
class Seeded:
    """A plan that harms one request in ten; each way comes once before one comes again."""

    seed: int
    _random: random.Random = field(init=False)
    _left: list[Harm] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def __call__(self, request: Request) -> Harm | None:
        if self._random.random() >= 0.1:
            return None
        if not self._left:
            self._left = self._random.sample(list(Harm), len(Harm))
        return self._left.pop()


class _Listener(ThreadingHTTPServer):
    daemon_threads, block_on_close = True, False
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        """Say nothing: who has asked is gone, killed perhaps."""


@contextmanager
def in_front_of(server: int) -> Iterator[Proxy]:
    """Run a proxy in threads of this process."""
    with running(Proxy(server)) as proxy:
        yield proxy


@contextmanager
def running(proxy: Proxy) -> Iterator[Proxy]:
    """Run this proxy in threads of this process."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1  # an answer goes out whole

        def log_message(self, *_: object) -> None:
            pass

        def act(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer = proxy.answer(Request(self.command, self.path, dict(self.headers.items()), body))
            if answer is None:
                self.close_connection = True
                return
            self.send_response_only(answer.status)
            length = {"Content-Length": str(len(answer.body))} if self.command != "HEAD" else {}
            dropped = {"connection", "transfer-encoding", *(name.lower() for name in length)}
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in dropped}
            for name, value in (kept | length).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = act  # noqa: N815

    with _Listener((LOOPBACK, 0), Handler) as listener:
        thread = Thread(target=listener.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        proxy.url = f"http://{LOOPBACK}:{listener.server_port}"
        try:
            yield proxy
        finally:
            listener.shutdown()
            thread.join()
