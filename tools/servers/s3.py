"""An S3 server in a process of its own: moto's, which keeps all objects in memory. It ends with the process that has started it."""

from __future__ import annotations

import logging
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LOOPBACK = "127.0.0.1"
ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def running(environment: Mapping[str, str] | None = None) -> Iterator[int]:
    """Run a server; its port.

    :param environment: of its process; None: that of this one.
    """
    command = [sys.executable, "-m", __spec__.name]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT, start_new_session=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.stdin.close()


def options(url: str, secret: str = "x") -> dict[str, str]:
    """Return how a store is told of a server, or of what stands in front of it."""
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": secret, "AWS_REGION": "us-east-1"}
    return {"AWS_ENDPOINT_URL": url, "AWS_ALLOW_HTTP": "true", **keys}


def client_of(options: Mapping[str, str]) -> Any:
    """Return boto3's client of a server.

    :param options: of a store there.
    """
    import boto3  # type: ignore[import-untyped]

    key, secret = options["AWS_ACCESS_KEY_ID"], options["AWS_SECRET_ACCESS_KEY"]
    url, region = options["AWS_ENDPOINT_URL"], options["AWS_REGION"]
    return boto3.client("s3", endpoint_url=url, aws_access_key_id=key, aws_secret_access_key=secret, region_name=region)


def make_bucket(options: Mapping[str, str], name: str) -> None:
    """Make a bucket.

    :param options: of a store there.
    """
    client_of(options).create_bucket(Bucket=name)


def serve() -> None:
    """Tell the port, and answer until nobody holds the other end of the standard input any more."""
    from moto.moto_server.threaded_moto_server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(LOOPBACK, 0, verbose=False)
    server.start()
    sys.stdout.write(f"{server.get_host_and_port()[1]}\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    serve()
