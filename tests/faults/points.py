"""The fault points that the product names, read from its source: a new one is known to the campaign without a list to keep."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import airflow_poison

if TYPE_CHECKING:
    from collections.abc import Iterator

OF_THE_HANDLER = frozenset({"handler.begin", "handler.end"})
"""Points of the tests' own handler: behind its note that it was called, and before it returns."""
NEVER_RAISE = OF_THE_HANDLER | {"delivery.returned.after_records"}
"""Points where a process may die or stand still, and nothing can fail: behind it only memory is written to."""
NOT_ON_DISK = frozenset({"memory.py", "bucket_folder.py", "bucket_store.py"})
"""Modules of stores that are no folders; their points are those of another one, or beside what a folder does."""

NOT_IN_A_BUCKET = frozenset({"memory.py"})
"""The same for a store in a bucket, which has a folder on each node."""


def named_points(without: frozenset[str] = NOT_ON_DISK) -> frozenset[str]:
    """Return the name of every fault point; where a part of the name is the commit's operation, a name for each operation.

    :param without: modules that are left out.
    """
    modules = [ast.parse(path.read_text()) for path in sorted(_sources(without))]
    operations = {name for module in modules for name in _operations(module)}
    return frozenset(point for module in modules for name in _reached(module) for point in _expanded(name, operations))


def _sources(without: frozenset[str]) -> Iterator[Path]:
    paths = [*Path(airflow_poison.__file__).parent.rglob("*.py")]
    missing = without - {path.name for path in paths}
    assert not missing, f"no such modules: {missing}"
    return (path for path in paths if path.name not in without)


def _reached(module: ast.Module) -> Iterator[str]:
    """Yield the argument of each ``reach``; ``*`` stands for what is not constant."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "reach":
            (argument,) = node.args
            if isinstance(argument, ast.Constant):
                yield str(argument.value)
            elif isinstance(argument, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in argument.values)


def _operations(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Commit" and node.args:
            if isinstance(node.args[0], ast.Constant):
                yield str(node.args[0].value)
        elif isinstance(node, ast.keyword) and node.arg == "operation" and isinstance(node.value, ast.Constant) and node.value.value:
            yield str(node.value.value)


_ROWS_OF = frozenset({"claim", "renew"})
"""The operations that write the row of a claim."""


def _expanded(name: str, operations: set[str]) -> Iterator[str]:
    if "*" not in name:
        yield name
        return
    fitting = _ROWS_OF if name.endswith(".after_row") else operations | _ROWS_OF
    yield from (name.replace("*", operation) for operation in fitting)
