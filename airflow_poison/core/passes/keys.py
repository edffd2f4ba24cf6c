"""Run keys: the name under which a pass or a send is remembered, so that running it again is safe."""

from __future__ import annotations

import hashlib


def run_key(*parts: object) -> str:
    """Return 32 hexadecimal digits for what identifies a run: store, queue, DAG, run, task, map index. Never the try number."""
    return hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).hexdigest()[:32]
