"""Where a bucket cannot be reached, the error says of which store, and what to do; soon."""

from __future__ import annotations

import os
import socket
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from airflow_poison.store import objects
from airflow_poison.store.bucket_store import BucketStore
from airflow_poison.store.objects import Objects
from airflow_poison.values.errors import StoreUnreachableError
from tests.given.proxy import Harm
from tests.given.tables import CONTROL, send
from tools.servers.s3 import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.store.s3.conftest import Bucket

pytestmark = pytest.mark.long

SOON = 20.0  # seconds; a second or two but where nobody answers at all
VERBS: dict[str, Callable[[BucketStore], object]] = {
    "create": lambda store: store.create("orders", CONTROL),
    "open": lambda store: store.open("orders"),
    "names": lambda store: store.names(),
}


@pytest.fixture(params=VERBS)
def verb(request: pytest.FixtureRequest) -> Callable[[BucketStore], object]:
    return VERBS[request.param]


@pytest.fixture(autouse=True)
def _no_credentials_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)


@contextmanager
def told(uri: str, cause: str) -> Iterator[None]:
    """Expect an error that says where, why and what to do."""
    begun = time.monotonic()
    with pytest.raises(StoreUnreachableError) as raised:
        yield
    text = str(raised.value)
    assert uri in text
    assert cause in text
    assert "Check the" in text
    assert "<" not in text
    assert time.monotonic() - begun < SOON


@pytest.fixture
def nobody() -> Iterator[str]:
    """The URL of a port of which this process sees to it that nobody listens there."""
    with socket.socket() as held:
        held.bind((LOOPBACK, 0))
        yield f"http://{LOOPBACK}:{held.getsockname()[1]}"


def test_no_server(bucket: Bucket, nobody: str, verb: Callable[[BucketStore], object]) -> None:
    with told(f"s3://{bucket.name}/queues", nobody):
        verb(bucket.store(AWS_ENDPOINT_URL=nobody))


@pytest.mark.campaign
def test_a_server_that_takes_no_connection(bucket: Bucket) -> None:
    with socket.socket() as deaf, socket.socket() as first, socket.socket() as second:
        deaf.bind((LOOPBACK, 0))
        deaf.listen(0)
        for caller in (first, second):  # the queue of callers is full
            caller.settimeout(0)
            caller.connect_ex(deaf.getsockname())
        with told(f"s3://{bucket.name}/queues", "error sending request"):
            bucket.store(AWS_ENDPOINT_URL=f"http://{LOOPBACK}:{deaf.getsockname()[1]}").names()


def test_no_bucket(bucket: Bucket, tmp_path: Path, verb: Callable[[BucketStore], object]) -> None:
    with told("s3://other/queues", "there is no such bucket"):
        verb(BucketStore("s3://other/queues", bucket.options, node=tmp_path))


def test_wrong_credentials(bucket: Bucket, verb: Callable[[BucketStore], object]) -> None:
    bucket.proxy.denies = True
    with told(f"s3://{bucket.name}/queues", "403 Forbidden"):
        verb(bucket.store())
    with told(f"s3://{bucket.name}/queues", "(InvalidAccessKeyId)"):
        bucket.store().names()


def test_no_credentials(bucket: Bucket, nobody: str, tmp_path: Path) -> None:
    keyless = {name: value for name, value in bucket.options.items() if "KEY" not in name}
    with told(f"s3://{bucket.name}/queues", "there are no credentials"):
        BucketStore(f"s3://{bucket.name}/queues", keyless | {"AWS_METADATA_ENDPOINT": nobody}, node=tmp_path).names()


def test_an_endpoint_without_tls_that_nobody_has_allowed(bucket: Bucket) -> None:
    with told(f"s3://{bucket.name}/queues", "AWS_ALLOW_HTTP"):
        bucket.store(AWS_ALLOW_HTTP="false").names()


def test_a_server_that_goes_away_before_a_commit(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "_PATIENCE", 1.0)
    monkeypatch.setattr(objects, "_BUSY_SECONDS", 1.0)
    queue = bucket.made()
    bucket.proxy.plan = lambda request: Harm.BUSY_BEFORE if request.commits else None
    with told(queue.uri, "503"):
        send(queue, 1)
    bucket.proxy.plan = lambda _: None
    assert not send(queue, 1).repeated
    assert bucket.versions() == [0, 1]


@pytest.mark.parametrize("kind", ["list", "get", "create"])
def test_a_store_that_is_busy_for_longer_than_obstore_asks_is_asked_again(bucket: Bucket, tmp_path: Path, kind: str) -> None:
    """obstore gives up after about a second; a store that throttles may need half a minute."""
    there = bucket.store()._objects
    there.put("a/b", b"content")
    until = time.monotonic() + 4
    bucket.proxy.plan = lambda request: Harm.BUSY_BEFORE if request.kind == kind and time.monotonic() < until else None
    acts: dict[str, Callable[[], object]] = {
        "list": lambda: [each.path for each in there.list("a/")],
        "get": lambda: there.get("a/b"),
        "create": lambda: there.create("a/c", b"new"),
    }
    assert acts[kind]() in (["a/b"], b"content", True)
    assert time.monotonic() >= until


def test_an_option_that_nobody_knows(bucket: Bucket) -> None:
    with told(f"s3://{bucket.name}/queues", "aws_acces_key"):
        bucket.store(AWS_ACCES_KEY="x")


@pytest.mark.parametrize(
    "options",
    [
        {"AWS_ENDPOINT_URL": "{url}", "AWS_ALLOW_HTTP": "true", "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "us-east-1"},
        {"aws_endpoint": "{url}", "allow_http": "True", "aws_access_key_id": "x", "aws_secret_access_key": "x", "aws_default_region": "us-east-1"},
        {"endpoint": "{url}", "access_key_id": "x", "SECRET_ACCESS_KEY": "x", "region": "us-east-1", "session_token": "x"},
        {
            "AWS_ENDPOINT_URL_S3": "{url}",
            "aws_allow_http": "true",
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false",
            "AWS_CONDITIONAL_PUT": "etag",
            "timeout": "20s",
            "CONNECT_TIMEOUT": "3s",
            "read_timeout": "9s",
            "pool_idle_timeout": "9s",
            "pool_max_idle_per_host": "9",
            "http1_only": "true",
            "allow_invalid_certificates": "false",
            "user_agent": "x",
            "randomize_addresses": "false",
        },
    ],
)
def test_options_are_named_as_delta_lake_names_them(bucket: Bucket, options: dict[str, str]) -> None:
    found = Objects.at(f"s3a://{bucket.name}/queues", {name: value.format(url=bucket.proxy.url) for name, value in options.items()})
    assert found.create("a", b"1")
    assert found.get("a") == b"1"
