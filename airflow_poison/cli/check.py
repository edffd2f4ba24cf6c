"""``airflow poison check``: hold queue tables against what a store promises, and mend what needs no guess."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from airflow_poison.cli.stores import opened_store
from airflow_poison.cli.telling import check_output, command, say
from airflow_poison.core.errors import InputError, QueueNotFoundError

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_poison.core.checking.check import CheckResult
    from airflow_poison.core.store import QueueStore


@command
def check(args: Namespace) -> None:
    """Print what is wrong. Ends with exit code 1 when something is, 2 when it could not be checked."""
    output = check_output(args.output)
    if args.accept and not (args.queue and args.repair):
        raise InputError("--accept: expected with --repair, and with the queues whose foreign commits are to stand.")
    if args.accept_loss and not (args.queue and args.repair):
        raise InputError("--accept-loss: expected with --repair, and with the queues that are to go on without what is lost.")
    store = opened_store(args)
    names = _names(store, args.queue)
    done, failed = _repaired(store, names, args, whole=not args.queue) if args.repair else ([], [])
    results = _checked(store, names, whole=not args.queue)
    for text in failed:
        say("error", text)
    if output == "json":
        found: dict[str, object] = {"queues": [result.to_dict() for result in results], "done": done, "failed": failed}
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        from airflow_poison.cli.check_tables import print_check

        print_check(results, done)
    if failed or any(result.findings for result in results):
        raise SystemExit(1)


def _names(store: QueueStore, wanted: list[str]) -> list[str]:
    """Return the queues that are to be checked. Raises QueueNotFoundError."""
    there = list(store.names())
    for name in wanted:
        if name not in there:
            where = f": {store.absence}" if store.absence else f" in {store.uri}. Queues there: {', '.join(there) or 'none yet'}"
            raise QueueNotFoundError(f"There is no queue {name!r}{where}.")
    if not wanted and not there:
        none = f"There is no queue yet: {store.absence}." if store.absence else f"There is no queue in {store.uri}: nothing to check."
        raise InputError(f"{none} Correct --store or --conn-id.")
    return wanted or there


def _repaired(store: QueueStore, names: list[str], args: Namespace, *, whole: bool) -> tuple[list[str], list[str]]:
    from airflow_poison.core.clock import SystemClock
    from airflow_poison.core.passes.repair import repair, repair_store

    done, failed = list(repair_store(store)) if whole else [], list[str]()
    for name in names:
        result = repair(store, name, SystemClock(), accept=args.accept, accept_loss=args.accept_loss)
        done += [f"{name}: {text}" for text in result.done]
        failed += [f"{name}: {text}" for text in result.failed]
    return done, failed


def _checked(store: QueueStore, names: list[str], *, whole: bool) -> list[CheckResult]:
    from pathlib import Path

    from airflow_poison.core.checking.check import check_folder, check_store
    from airflow_poison.core.clock import SystemClock

    if whole:
        return list(check_store(store, SystemClock()))
    return [check_folder(name, str(Path(store.uri, name)), SystemClock()) for name in names]
