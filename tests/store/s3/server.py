"""An S3 server in a process of its own: moto's, which keeps all objects in memory. It ends with the process that has started it."""

from __future__ import annotations

import logging
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LOOPBACK = "127.0.0.1"


@contextmanager
def running() -> Iterator[int]:
    """Run a server; its port."""
    with subprocess.Popen([sys.executable, "-m", __spec__.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
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
