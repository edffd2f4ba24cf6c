"""The tables of parameters in docs/reference/airflow.md, made of signatures and docstrings.

``python -m tools.parameter_tables`` writes them; with ``--check`` it shows what differs.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
import sys
from datetime import timedelta
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_poison.passes.declaration import ReceiveOptions

if TYPE_CHECKING:
    from collections.abc import Collection

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "airflow.md"
HEADER = "| parameter | type | default | meaning |\n|---|---|---|---|\n"
SECTION = re.compile(r"^## `(?P<title>[^`]+)`\n\n`(?P<module>airflow_poison[\w.]*)`.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
TABLE = re.compile(re.escape(HEADER) + r"(?:\|.*\n)*")
FURTHER = re.compile(r"What is not described here is as in (.*?)\.(?:\s|$)", re.DOTALL)
"""How a function names the operators that describe the parameters that it hands to them."""
DOCUMENTED = re.compile(r"^:param (\w+): (.*(?:\n[ ]+\S.*)*)", re.MULTILINE)

DECORATORS = {"@task.receive": ("receive_task", "ReceiveDecoratedOperator"), "@task.send": ("send_task", "SendDecoratedOperator")}
"""By name: the function that is called, and the operator that takes the parameters that it does not name."""
REFUSED = {
    "@task.receive": {"python_callable", "task_id", "op_args", "op_kwargs", "handler", "kwargs"},
    "@task.send": {"python_callable", "op_args", "op_kwargs", "messages", "path", "table", "dataframe", "kwargs"},
    "QueuePoisonGoneSensor": {"queue_names", "match"},
}
"""What is inherited and not taken."""
TYPES = {
    "Targets": "notifier, function, or a list of them",
    "HandlerLike": "text or function",
    "TransformLike": "text or function",
    "Sequence[Entry]": "list",
}
CONFIGURED = {"deferrable": "`[operators] default_deferrable`"}
"""Defaults that Airflow's configuration gives."""


def with_tables(page: str) -> str:
    """Return a page with the tables of its sections as the code has them. Raises LookupError for a parameter that is not documented."""

    def written(section: re.Match[str]) -> str:
        return TABLE.sub(lambda _: HEADER + "".join(rows(section["title"], section["module"]).values()), section[0], count=1)

    return SECTION.sub(written, page)


def rows(title: str, module: str) -> dict[str, str]:
    """Return the rows of a section's table, by parameter."""
    loaded = importlib.import_module(module)
    found: dict[str, str] = {}
    for name in DECORATORS.get(title, (title,)):
        for parameter, row in parameters(getattr(loaded, name), REFUSED.get(title, ())).items():
            found.setdefault(parameter, row)
    return found


def parameters(thing: Any, refused: Collection[str] = ()) -> dict[str, str]:
    """Return the rows of a function, or of a class with what it inherits in this project, what is inherited first.

    Raises LookupError for a parameter that is not documented, and for what is documented and no parameter.
    """
    taken: dict[str, Parameter] = {}
    for base in _bases(thing):
        taken = {**inspect.signature(base).parameters, **taken}
    said = _described(thing)
    if ReceiveOptions.__annotations__.keys() <= taken.keys():
        first: dict[str, str] = {name: said[name] for name in ("queue_name", "handler", "policy") if name in said}
        said = {**first, **_described(ReceiveOptions), **said}
    if further := FURTHER.search(inspect.cleandoc(thing.__doc__ or "")):
        for operator in re.findall(r"\w+Operator", further[1]):
            said = {**_described(getattr(sys.modules[thing.__module__], operator)), **said}
        said = {name: said[name] for name in taken if name in said}
    others = {name for name, parameter in taken.items() if parameter.kind is Parameter.VAR_KEYWORD}
    if wrong := (taken.keys() - others ^ said.keys() - others) - {*refused, "python_callable"}:
        raise LookupError(f"{thing.__qualname__}: {', '.join(sorted(wrong))}: a parameter without ':param', or ':param' of what is none")
    return {name: _row(taken[name], " ".join(text.split())) for name, text in said.items() if name not in refused}


def _bases(thing: Any) -> list[Any]:
    """Return a function, or a class with those of this project that it inherits parameters from."""
    bases = getattr(thing, "__mro__", (thing,))
    return [base for base in bases if base is thing or (base.__module__.startswith("airflow_poison.") and "__init__" in vars(base))]


def _described(thing: Any) -> dict[str, str]:
    """Return what docstrings say of parameters; of one that is described twice, what the class itself says."""
    said: dict[str, str] = {}
    for base in _bases(thing):
        said = {**dict(DOCUMENTED.findall(inspect.cleandoc(base.__doc__ or ""))), **said}
    return said


def _row(parameter: Parameter, meaning: str) -> str:
    templated = " *t*" if "(templated" in meaning else ""
    shown = meaning.replace(" (templated)", "").replace("``", "`").replace("|", "\\|")
    if parameter.kind is Parameter.VAR_KEYWORD:
        return f"| others | | | {shown} |\n"
    return f"| `{parameter.name}`{templated} | {_type(str(parameter.annotation))} | {_default(parameter)} | {shown} |\n"


def _type(annotation: str) -> str:
    wanted = annotation.removesuffix(" | None")
    return TYPES.get(wanted) or f"`{wanted.replace(' | ', ' or ')}`"


def _default(parameter: Parameter) -> str:
    given = parameter.default
    if parameter.name in CONFIGURED:
        return CONFIGURED[parameter.name]
    if given is Parameter.empty:
        return "required"
    if given is None or given == ():
        return "none"
    if isinstance(given, timedelta):
        return f"{given / timedelta(minutes=1):g} min" if given else "0"
    if isinstance(given, int | float) and not isinstance(given, bool):
        return f"{given:,}".removesuffix(".0")
    return f"`{given}`" if given != "" else "empty"


if __name__ == "__main__":
    page = PAGE.read_text()
    made = with_tables(page)
    if "--check" not in sys.argv:
        PAGE.write_text(made)
    elif made != page:
        sys.stdout.writelines(difflib.unified_diff(page.splitlines(keepends=True), made.splitlines(keepends=True), "the page", "the code", n=0))
        sys.exit("docs/reference/airflow.md is not as the code is. Run: make tables")
