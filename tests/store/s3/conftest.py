"""A bucket of a real S3 server, and stores in it, each with a folder of its own as another node has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from airflow_poison.store.bucket_store import BucketStore
from tests.given import proxy
from tests.given.tables import CONTROL
from tools.servers import s3 as server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from airflow_poison.store.queue_table import QueueTable


@dataclass(frozen=True)
class Bucket:
    """A bucket, and the way to it.

    :param client: boto3's, which goes to the server itself.
    """

    name: str
    proxy: proxy.Proxy
    client: Any
    folder: Path

    @property
    def direct(self) -> dict[str, str]:
        """How a store is told of the server itself."""
        return server.options(f"http://{server.LOOPBACK}:{self.proxy.server}")

    @property
    def options(self) -> dict[str, str]:
        """How a store is told of it."""
        return server.options(self.proxy.url)

    def store(self, node: str = "node", **options: str) -> BucketStore:
        """Return a store as a new process has it; on a new node where that has no folder yet."""
        return BucketStore(f"s3://{self.name}/queues", self.options | options, node=self.folder / node)

    def queue(self, node: str = "node") -> QueueTable:
        """Return the queue as a new process opens it."""
        return self.store(node).open("orders")

    def made(self, node: str = "node") -> QueueTable:
        """Return a new queue."""
        return self.store(node).create("orders", CONTROL)

    def listed(self, prefix: str = "") -> list[str]:
        """Return the names of all objects below the queue."""
        whole = f"queues/orders/{prefix}"
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=whole)
        return [each["Key"].removeprefix("queues/orders/") for page in pages for each in page.get("Contents", [])]

    def versions(self) -> list[int]:
        """Return the versions that the log has entries of."""
        return [int(name[11:31]) for name in self.listed("_delta_log/") if name.endswith(".json")]


@pytest.fixture(scope="session")
def server_port() -> Iterator[int]:
    """The server of all these tests."""
    with server.running() as port:
        yield port


@pytest.fixture(scope="session")
def client(server_port: int) -> Any:
    """Boto3's client of the server."""
    import boto3  # type: ignore[import-untyped]

    url = f"http://{server.LOOPBACK}:{server_port}"
    return boto3.client("s3", endpoint_url=url, aws_access_key_id="x", aws_secret_access_key="x", region_name="us-east-1")


@pytest.fixture
def bucket(server_port: int, client: Any, tmp_path: Path) -> Iterator[Bucket]:
    """A new bucket."""
    name = f"bucket-{uuid4().hex}"
    client.create_bucket(Bucket=name)
    with proxy.in_front_of(server_port) as way:
        yield Bucket(name, way, client, tmp_path)
