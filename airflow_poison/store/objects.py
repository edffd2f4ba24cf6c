"""The objects of a store: every request that is made, through obstore.

What is written once is written with ``create``, which an answer that gets lost does not deceive: an object that is there already with the very same
content is ours.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from errno import EACCES
from functools import wraps
from io import RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ParamSpec, TypeVar, cast

from airflow_poison.values.errors import StoreUnreachableError
from airflow_poison.values.libraries import obstore
from airflow_poison.values.texts import first_line

if TYPE_CHECKING:
    from obstore import ObjectMeta, ReadableFile
    from obstore.store import ObjectStore

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")
SIDE_BY_SIDE = 16
"""So many requests are under way at the same time where none needs another one's answer."""
_TRIES, _PAUSE, _PATIENCE = 6, 0.1, 10.0
_BUSY_SECONDS, _LONGEST_PAUSE = 30.0, 4.0
"""For so long a store is asked again that answers 503 or 429. obstore gives up when it has asked six times, which is right where nothing answers."""
_BUSY = re.compile(r"\b(503|429)\b|SlowDown")
_CLIENT = re.compile(
    r"(?:aws_|google_|azure_)?(allow_http|allow_invalid_certificates|connect_timeout|read_timeout|timeout|proxy_url|proxy_ca_certificate|proxy_excludes"
    r"|root_certificate|user_agent|default_content_type|http1_only|http2_only|http2_keep_alive_interval|http2_keep_alive_timeout"
    r"|http2_keep_alive_while_idle|http2_max_frame_size|pool_idle_timeout|pool_max_idle_per_host|randomize_addresses)",
    re.IGNORECASE,
)
"""Options of the HTTP client: Delta Lake's writers have them among the store's, obstore has them apart."""
_ENDPOINT = re.compile(r"(?:aws_|azure_(?:storage_)?)?endpoint(?:_url(?:_s3)?)?", re.IGNORECASE)
_ODD = re.compile(r"[\x00-\x1f\x7f]|//|^/|(?:^|/)\.{1,2}(?:/|$)")
_PART = 8 * 1024 * 1024
_OF_AN_OBJECT = frozenset({"get", "head", "copy", "remove"})
"""Requests for which 404 may mean that there is no such object; for others there is no such bucket."""
_CODE = re.compile(r"<Code>(\w+)</Code>")
_MEANINGS = {
    "builder error": "an endpoint without TLS needs the storage option AWS_ALLOW_HTTP: true",
    "/latest/api/token": "there are no credentials, neither in the storage options nor in the environment nor on this machine",
    "NoSuchBucket": "there is no such bucket",
}


class _Patience:
    """Waits while a store says that it is busy."""

    def __init__(self) -> None:
        self._until, self._pause = time.monotonic() + _BUSY_SECONDS, 0.5

    def wait(self, error: StoreUnreachableError) -> None:
        """Wait before the request is made again; raise the error where the store is not busy, or has been for too long."""
        if _BUSY.search(str(error.__cause__)) is None or time.monotonic() + self._pause > self._until:
            raise error
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)


def _patient(request: Callable[P, R]) -> Callable[P, R]:
    @wraps(request)
    def asked(*args: P.args, **kwargs: P.kwargs) -> R:
        patience = _Patience()
        while True:
            try:
                return request(*args, **kwargs)
            except StoreUnreachableError as error:
                patience.wait(error)

    return asked


@dataclass(frozen=True, slots=True)
class Listed:
    """An object as a list has it.

    :param path: below the store's prefix.
    :param size: bytes.
    :param tag: another one for other content.
    """

    path: str
    size: int
    changed_at: datetime
    tag: str

    @property
    def is_odd(self) -> bool:
        """Whether obstore refuses the name: it can be listed and not read."""
        return _ODD.search(self.path) is not None


@dataclass(eq=False, slots=True)
class Objects:
    """The objects whose names begin with a prefix.

    :param uri: ``s3://bucket/prefix``; what errors name.
    :param client: obstore's.
    :param prefix: of the names that ``client`` is given.
    :ivar requests: how many there were, by kind.
    """

    uri: str
    client: ObjectStore
    prefix: str = ""
    requests: Counter[str] = field(default_factory=Counter)

    @classmethod
    def at(cls, uri: str, options: Mapping[str, str]) -> Objects:
        """Return the objects below a URI.

        :param options: as Delta Lake's writers name them (``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL`` …), in capitals or not; others come from the
            environment.
        Raises StoreUnreachableError for an unknown URI or option, and where obstore is not installed.
        """
        try:
            from obstore.store import from_url
        except ImportError as error:
            raise StoreUnreachableError(
                f"The store {uri} is in an object store, which needs the package obstore. Install airflow-poison[object-store] where the task runs."
            ) from error
        settings = {**{name: value for name, value in os.environ.items() if name.startswith(("AWS_", "GOOGLE_", "AZURE_"))}, **options}
        client = {match[1].lower(): _setting(value) for name, value in settings.items() if (match := _CLIENT.fullmatch(name))}
        if is_unencrypted(settings):
            client.setdefault("allow_http", True)  # that is what was asked for
        config = {name.lower(): value for name, value in options.items() if not _CLIENT.fullmatch(name)}
        if (endpoint := config.pop("aws_endpoint_url_s3", None)) is not None:  # obstore does not know it under this name
            config["aws_endpoint"] = endpoint
        try:
            made = from_url(
                re.sub("^s3a://", "s3://", uri),
                config=cast("Any", config),
                client_options=cast("Any", {"timeout": "30s", "connect_timeout": "2s", **client}),
                retry_config={"max_retries": 5, "retry_timeout": timedelta(seconds=30)},
            )
        except Exception as error:
            raise StoreUnreachableError(
                f"The store {uri} cannot be opened: {first_line(error)}. Check the URI and the storage options of the connection."
            ) from error
        return cls(uri, made)

    def below(self, name: str) -> Objects:
        """Return the objects of a folder."""
        return Objects(f"{self.uri}/{name}", self.client, f"{self.prefix}{name}/", self.requests)

    @_patient
    def get(self, path: str) -> bytes | None:
        """Return an object; None when there is none."""
        with self._named("get"):
            try:
                return bytes(obstore.get(self.client, self.prefix + path).bytes())
            except FileNotFoundError:
                return None

    @_patient
    def is_there(self, path: str) -> bool:
        """Whether there is an object of this name."""
        with self._named("head"):
            try:
                obstore.head(self.client, self.prefix + path)
            except FileNotFoundError:
                return False
            return True

    @_patient
    def put(self, path: str, content: bytes) -> None:
        """Write an object, also over another one."""
        with self._named("put"):
            obstore.put(self.client, self.prefix + path, content)

    @_patient
    def upload(self, path: str, file: Path) -> None:
        """Write an object with the content of a file, a large one in parts: memory stays at a few of them. Raises FileNotFoundError."""
        with file.open("rb") as content, self._named("put"):
            obstore.put(self.client, self.prefix + path, content)

    @_patient
    def download(self, path: str, file: Path) -> Listed:
        """Write the content of an object into a new file, part by part, and return it as a list has it.

        Raises FileNotFoundError, and PermissionError for an object that this user may not read, or that is archived.
        """
        try:
            with self._named("get"), file.open("wb") as target:
                found = obstore.get(self.client, self.prefix + path)
                for part in found.stream(min_chunk_size=_PART):
                    target.write(part)
        except StoreUnreachableError as error:
            if (refused := _refused(error)) is None:
                raise
            raise refused from error
        return self._listed(found.meta)

    @_patient
    def opened(self, path: str) -> BinaryIO:
        """Return an object as a file whose parts are fetched as they are read. Raises FileNotFoundError."""
        with self._named("get"):
            return cast("BinaryIO", _Opened(obstore.open_reader(self.client, self.prefix + path)))

    @_patient
    def may_be_read(self, path: str) -> bool:
        """Whether this user may read an object, and it is not archived."""
        try:
            with self._named("get"):
                obstore.get(self.client, self.prefix + path)
        except FileNotFoundError:
            return True
        except StoreUnreachableError as error:
            if _refused(error) is None:
                raise
            return False
        return True

    @_patient
    def create(self, path: str, content: bytes) -> bool:
        """Write an object unless there is one of this name; True when it is there with this content.

        An answer may be lost after the object was written: the same is written again, and what is there is compared with it.

        :param content: with something in it that no other process writes.
        """
        until = time.monotonic() + _PATIENCE
        for more in reversed(range(_TRIES)):
            try:
                with self._named("create"):
                    obstore.put(self.client, self.prefix + path, content, mode="create")
            except obstore.exceptions.AlreadyExistsError:
                return self.get(path) == content
            except StoreUnreachableError:
                if not more or time.monotonic() > until:
                    raise
                time.sleep(_PAUSE * (_TRIES - more))
            else:
                return True
        raise AssertionError  # pragma: no cover  (the last try returns or raises)

    @_patient
    def refuses_to_replace(self, path: str) -> bool:
        """Whether the store refuses to create an object that is there, as ``If-None-Match: *`` asks it to.

        One request where the object is there, two where it is not; more where answers are lost. An object that was written although its answer was
        lost is found by the next request, which is then refused: the store looks at the condition. Only a request that succeeds after another one
        has succeeded shows that it does not.

        Raises StoreUnreachableError.
        """
        there, until = False, time.monotonic() + _PATIENCE
        for more in reversed(range(_TRIES)):
            try:
                with self._named("create"):
                    obstore.put(self.client, self.prefix + path, b"", mode="create")
            except obstore.exceptions.AlreadyExistsError:
                return True
            except StoreUnreachableError:
                if not more or time.monotonic() > until:
                    raise
                time.sleep(_PAUSE * (_TRIES - more))
            else:
                if there:
                    return False
                there = True
        raise StoreUnreachableError(f"The object store {self.uri} has answered one of {_TRIES} requests to create {path!r}. Run the task again.")

    @_patient
    def copy(self, source: str, target: str) -> None:
        """Copy an object within the store. Raises FileNotFoundError."""
        with self._named("copy"):
            obstore.copy(self.client, self.prefix + source, self.prefix + target)

    @_patient
    def remove(self, paths: Sequence[str]) -> None:
        """Remove objects; nothing happens for those that are gone."""
        if not paths:
            return
        with self._named("remove"):
            try:
                obstore.delete(self.client, [self.prefix + path for path in paths])
            except FileNotFoundError:
                if len(paths) > 1:
                    for path in paths:
                        self.remove([path])

    def list(self, prefix: str, after: str | None = None) -> Iterator[Listed]:
        """Yield the objects whose names begin with a folder's, in no order; a store may not have heard yet of the newest.

        :param after: only those behind this name.
        """
        patience, offset = _Patience(), None if after is None else self.prefix + after
        while True:
            try:
                with self._named("list"):
                    for some in obstore.list(self.client, self.prefix + prefix, offset=offset, chunk_size=1_000):
                        for each in some:
                            offset = each["path"]
                            yield self._listed(each)
            except StoreUnreachableError as error:
                patience.wait(error)
            else:
                return

    def list_all(self, prefix: str) -> Sequence[Listed]:
        """Return the objects of a folder, also those whose names obstore refuses, which are odd: one of them ends its list. Of S3 alone.

        Raises StoreUnreachableError, which elsewhere names the first odd one.
        """
        found: dict[str, Listed] = {}
        try:
            for each in self.list(prefix):
                found[each.path] = each
        except StoreUnreachableError as error:
            if not isinstance(error.__cause__, obstore.exceptions.InvalidPathError):
                raise
            if not self.uri.startswith(("s3://", "s3a://")):
                raise StoreUnreachableError(
                    f"{self.uri} has an object with a name that object stores' clients do not read, and no list of the others can be had with it: "
                    f"{first_line(error.__cause__)}. Rename or remove that object, or name another folder."
                ) from error
        else:
            return list(found.values())
        found |= {each.path: each for each in self._list_by_arrow(prefix) if each.path not in found}
        odd = max(path for path in found if found[path].is_odd)
        if behind := [path for path in found if path > odd]:
            found |= {each.path: each for each in self.list(prefix, min(behind))}
        looked_at = side_by_side(self.look_at, [each.path for each in found.values() if not each.tag and not each.is_odd])
        found |= {each.path: each for each in looked_at if each is not None}
        return [each for each in found.values() if each.tag or each.is_odd]

    @_patient
    def look_at(self, path: str) -> Listed | None:
        """Return what an object is now; None: it is not there."""
        with self._named("head"):
            try:
                return self._listed(obstore.head(self.client, self.prefix + path))
            except FileNotFoundError:
                return None

    def _list_by_arrow(self, prefix: str) -> Iterator[Listed]:
        """Yield the objects of a folder of S3, without tags."""
        from pyarrow import fs

        config = {name.removeprefix("aws_"): str(value) for name, value in cast("Any", self.client).config.items()}
        scheme, _, host = config.get("endpoint", "").rpartition("://")
        wanted = {
            "access_key": config.get("access_key_id"),
            "secret_key": config.get("secret_access_key"),
            "session_token": config.get("session_token"),
            "region": config.get("region") or config.get("default_region"),
            "endpoint_override": host or None,
            "scheme": scheme or None,
        }
        given: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
        place = f"{self.uri.partition('://')[2].partition('/')[0]}/"
        with self._named("list"):
            for each in fs.S3FileSystem(**given).get_file_info(fs.FileSelector(f"{place}{self.prefix}{prefix}", recursive=True)):
                if each.type == fs.FileType.File:
                    changed_at = each.mtime or datetime.fromtimestamp(0, UTC)
                    yield Listed(each.path.removeprefix(place).removeprefix(self.prefix), each.size, changed_at, "")

    def _listed(self, meta: ObjectMeta) -> Listed:
        return Listed(meta["path"].removeprefix(self.prefix), meta["size"], meta["last_modified"], _tag(meta))

    def signed(self, path: str, within: timedelta) -> str:
        """Return a URL with which an object can be read without credentials. Raises StoreUnreachableError."""
        with self._named("sign"):
            return obstore.sign(cast("Any", self.client), "GET", self.prefix + path, within)

    @contextmanager
    def _named(self, kind: str) -> Iterator[None]:
        """Count a request, and turn what it raises into an error of this package. Raises FileNotFoundError and AlreadyExistsError as they are."""
        self.requests[kind] += 1
        try:
            yield
        except obstore.exceptions.AlreadyExistsError:
            raise
        except (obstore.exceptions.BaseError, OSError) as error:
            if isinstance(error, OSError) and error.errno:  # of a file of this machine
                raise
            if isinstance(error, FileNotFoundError) and kind in _OF_AN_OBJECT and "NoSuchBucket" not in str(error):
                raise
            raise StoreUnreachableError(
                f"The object store {self.uri} does not answer as it should: {_cause(error)}. Check the endpoint, the bucket, the credentials "
                "and their rights (get, put, list, delete), then run the task again: what has been committed counts, and nothing is done twice."
            ) from error


class _Opened(RawIOBase):
    """What obstore reads, with all that a file of Python's has."""

    def __init__(self, reader: ReadableFile) -> None:
        self._reader = reader

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place, from the beginning, from here, or from the end."""
        return self._reader.seek(offset, whence)

    def tell(self) -> int:
        """Return the place."""
        return self._reader.tell()

    def readinto(self, buffer: Any) -> int:
        """Read what fits into a buffer."""
        part = memoryview(self._reader.read(len(buffer)))
        buffer[: len(part)] = part
        return len(part)


def _refused(error: StoreUnreachableError) -> PermissionError | None:
    """Return the store's refusal (403) of one object; None for any other error."""
    cause = error.__cause__
    if not isinstance(cause, obstore.exceptions.PermissionDeniedError):
        return None
    return PermissionError(EACCES, f"the object store refuses it ({_cause(cause)})")


def is_unencrypted(options: Mapping[str, str]) -> bool:
    """Whether options name an endpoint without TLS."""
    return any(_ENDPOINT.fullmatch(name) and value.startswith("http://") for name, value in options.items())


def side_by_side(act: Callable[[T], R], of: Iterable[T]) -> list[R]:
    """Return what a function of requests returns for each of these, some at a time. Raises what the first of them raises."""
    wanted = list(of)
    if len(wanted) <= 1:
        return [act(each) for each in wanted]
    with ThreadPoolExecutor(min(SIDE_BY_SIDE, len(wanted)), "poison-objects") as pool:
        return list(pool.map(act, wanted))


def copy_of(objects: Objects, prefix: str, folder: str) -> None:
    """Copy objects into a folder, with the times at which they were written; those that go meanwhile are left out."""

    def fetch(each: Listed) -> None:
        place = Path(folder, each.path)
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            objects.download(each.path, place)
        except FileNotFoundError:
            place.unlink()
        else:
            os.utime(place, (each.changed_at.timestamp(),) * 2)

    side_by_side(fetch, objects.list(prefix))


def _tag(meta: ObjectMeta) -> str:
    return meta["e_tag"] or f"{meta['size']}-{meta['last_modified'].timestamp()}"


def _setting(value: str) -> object:
    return value.lower() == "true" if value.lower() in {"true", "false"} else value


def _cause(error: BaseException) -> str:
    """Return the text of an answer, without XML and repetitions, with its meaning where the text lacks it."""
    text = str(error)
    code = "".join(_CODE.findall(text)[:1])
    meant = next((f"; {meaning}" for sign, meaning in _MEANINGS.items() if sign in text), "")
    cause = re.sub("^.*(?=Error performing )", "", first_line(error, 1_000)).partition("<")[0].rstrip(" :")
    return cause[:500] + (f" ({code})" if code else "") + meant
