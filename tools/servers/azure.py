"""Azurite, the emulator of Azure's object store, in a process of its own, with all objects in memory. It needs Node, and npm's registry once."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import shutil
import subprocess
import urllib.request
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from tools.servers.maven import TOOLS
from tools.servers.s3 import LOOPBACK
from tools.servers.spark import ServerError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_VERSION = "3.35.0"
_API = "2021-08-06"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account of the emulator, and the key that its documentation names."""


@contextmanager
def running() -> Iterator[str]:
    """Run a server; the address of its account."""
    command = [str(_installed()), "--silent", "--skipApiVersionCheck", "--inMemoryPersistence", "--disableTelemetry"]
    with subprocess.Popen([*command, "--blobHost", LOOPBACK, "--blobPort", "0"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            said = next(found for line in process.stdout if (found := re.search(r"listens on (http://\S+)", line)))
            yield f"{said[1]}/{ACCOUNT}"
        finally:
            process.terminate()
            process.communicate()


def options(url: str, *, by_token: bool = False) -> dict[str, str]:
    """Return how a store reaches a server.

    :param by_token: with a token for an hour in place of the account's key; Azurite removes no objects with one.
    """
    secret = {"AZURE_STORAGE_SAS_TOKEN": _token()} if by_token else {"AZURE_STORAGE_ACCOUNT_KEY": KEY}
    return {"AZURE_STORAGE_ENDPOINT": url, "AZURE_ALLOW_HTTP": "true", "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, **secret}


def make_container(url: str, name: str) -> None:
    """Make a container."""
    now = format_datetime(datetime.now(UTC), usegmt=True)
    signed = _signature(
        "\n".join(["PUT", *[""] * 11, f"x-ms-date:{now}", f"x-ms-version:{_API}", f"/{ACCOUNT}/{ACCOUNT}/{name}", "restype:container"])
    )
    headers = {"x-ms-date": now, "x-ms-version": _API, "Authorization": f"SharedKey {ACCOUNT}:{signed}", "Content-Length": "0"}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/{name}?restype=container", method="PUT", headers=headers)):
        pass


def put(url: str, path: str, content: bytes) -> None:
    """Write an object, of any name.

    :param path: the container and the name.
    """
    headers = {"x-ms-blob-type": "BlockBlob", "x-ms-version": _API}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/{quote(path)}?{_token()}", data=content, method="PUT", headers=headers)):
        pass


def _token() -> str:
    end = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    given = {"sp": "rwdlac", "ss": "b", "srt": "sco", "st": "", "se": end, "sip": "", "spr": "https,http", "sv": _API}
    signed = _signature("\n".join([ACCOUNT, *given.values(), "", ""]))
    return urlencode({name: value for name, value in given.items() if value} | {"sig": signed})


def _signature(text: str) -> str:
    return base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()).decode()


def _installed() -> Path:
    """Return the program, fetched where it is not here yet. Raises ServerError."""
    there = TOOLS / f"azurite-{_VERSION}"
    if not there.exists():
        npm = shutil.which("npm")
        if npm is None:
            raise ServerError("There is no Node (npm) here, which fetches Azurite. Install Node 20.")
        making = there.with_name(f"{there.name}.{os.getpid()}")
        making.mkdir(parents=True)
        subprocess.run([npm, "install", "--no-audit", "--no-fund", "--silent", f"azurite@{_VERSION}"], cwd=making, check=True)
        try:
            making.rename(there)
        except OSError:  # another process was faster
            shutil.rmtree(making)
    return there / "node_modules/.bin/azurite-blob"
