"""The code of a handler as a short text that changes when the code does: 12 hexadecimal digits.

A handler that is imported has the source of its module, and what is shipped with it. One that travels by value has its compiled code: the bytes,
names and constants of its functions, and of those of its own file that they use, but neither places in files nor pickled bytes, which differ from
run to run.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import zipfile
from hashlib import sha256
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from airflow_poison.core.delivery.handlers import MANGLED_PREFIX, HandlerRef, is_importable, load_handler
from airflow_poison.core.delivery.transform import Transformation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

log = logging.getLogger(__name__)
DIGITS = 12
_CONSTANTS = str | bytes | int | float | complex | bool | type(None) | type(Ellipsis)


def code_of(handler: HandlerRef | Transformation, given: object = None, shipped: Sequence[str] = ()) -> str:
    """Return the code of a checked handler or transformation; empty where it cannot be told, which stops no pass.

    :param given: the function itself, where it is at hand: it need not be unpacked then.
    :param shipped: files on this machine that are shipped with it (``py_files``).
    """
    try:
        parts = [*_parts(handler, given), *map(_shipped, shipped)]
    except Exception as error:  # noqa: BLE001  (whatever objects of users raise that are looked into)
        log.warning(
            "The code of handler %s cannot be told (%s: %s): no redrive follows a new version of it.", handler.name, type(error).__name__, error
        )
        return ""
    return sha256("\x1e".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:DIGITS]


def is_imported(handler: HandlerRef | Transformation) -> bool:
    """Whether a handler is imported by its name: its code is the same in every process, whatever its module computes."""
    return _ref(handler).by_value is None


def _parts(handler: HandlerRef | Transformation, given: object) -> Iterator[str]:
    ref = _ref(handler)
    if isinstance(handler, Transformation):
        given = handler.function
    function = given if callable(given) else load_handler(ref)
    if ref.by_value is None:
        yield ref.name
    else:
        yield _stable(function, {})
    yield from _sources(function, ref)
    if isinstance(handler, Transformation):
        yield f"{handler.schema}, {handler.mixes_rows}"


def _ref(handler: HandlerRef | Transformation) -> HandlerRef:
    """Return how a handler travels. A function of a transformation need not be packed for that: it is called where it is."""
    if isinstance(handler, HandlerRef):
        return handler
    if isinstance(handler.function, str | HandlerRef):
        return handler.ref()
    return HandlerRef(handler.name, None if is_importable(handler.function, handler.name) else b"")


def _sources(function: object, ref: HandlerRef) -> Iterator[str]:
    """Yield the sources of the module that a handler is named of, and of the one that defines it, as far as they can be imported."""
    defined = function
    while isinstance(defined, functools.partial):
        defined = defined.func
    modules = (ref.name.partition(":")[0], getattr(defined, "__module__", None) or type(defined).__module__)
    for module in dict.fromkeys(modules):
        if ref.by_value is None or _is_there(module):
            yield _source(module)


def _source(module: str) -> str:
    """Return a module's source; of one without, its file's."""
    spec = importlib.util.find_spec(module) if _is_there(module) else None
    loader: Any = None if spec is None else spec.loader
    try:
        source = loader.get_source(module)
    except (AttributeError, ImportError, OSError):
        source = None
    if source is not None:
        return str(source)
    origin = None if spec is None else spec.origin
    return sha256(Path(origin).read_bytes()).hexdigest() if origin and Path(origin).is_file() else module


def _is_there(module: str) -> bool:
    """Whether a module can be imported elsewhere, too."""
    if module == "__main__" or module.startswith(MANGLED_PREFIX):
        return False
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _shipped(path: str) -> str:
    """Return what is in a file that is shipped; of an archive, the names and sums of its members: it may have been packed anew."""
    if not zipfile.is_zipfile(path):
        return sha256(Path(path).read_bytes()).hexdigest() if Path(path).is_file() else ""
    with zipfile.ZipFile(path) as archive:
        return _listed(f"{each.filename}:{each.CRC}" for each in archive.infolist() if not each.is_dir() and not each.filename.endswith(".pyc"))


def _listed(parts: Iterable[str]) -> str:
    return f"[{','.join(sorted(parts))}]"


# Code that travels by value -------------------------------------------------------------------------------------------


def _stable(thing: object, seen: dict[int, object]) -> str:
    """Return a thing as a text that is the same in every process, as far as it is code, or a constant that code has.

    :param seen: what has been looked into, kept so that nothing else gets its id. Constants are left out: whether two that are equal are one object
        differs from process to process.
    """
    if isinstance(thing, _CONSTANTS):
        return f"{type(thing).__name__}:{thing!r}"
    if isinstance(thing, CodeType):
        return _code(thing, seen)
    if isinstance(thing, tuple | frozenset):
        return _container(thing, seen)
    if id(thing) in seen:
        return "again"
    seen[id(thing)] = thing
    return _container(thing, seen) if isinstance(thing, list | set | dict) else _callable(thing, seen)


def _container(thing: object, seen: dict[int, object]) -> str:
    match thing:
        case tuple() | list():
            return f"{type(thing).__name__}({','.join(_stable(each, seen) for each in thing)})"
        case dict():
            return f"dict{_listed(f'{_stable(key, seen)}={_stable(value, seen)}' for key, value in thing.items())}"
        case set() | frozenset():
            return f"{type(thing).__name__}{_listed(_stable(each, seen) for each in thing)}"
    raise AssertionError(thing)  # pragma: no cover


def _callable(thing: object, seen: dict[int, object]) -> str:
    match thing:
        case FunctionType():
            return _function(thing, seen)
        case MethodType():
            return f"method({_stable(thing.__func__, seen)},{_stable(thing.__self__, seen)})"
        case functools.partial():
            return f"partial({_stable(thing.func, seen)},{_stable(thing.args, seen)},{_stable(thing.keywords, seen)})"
        case ModuleType():
            return f"module:{thing.__name__}"
        case type():
            return _class(thing, seen)
        case _:
            return _instance(thing, seen)


def _instance(thing: object, seen: dict[int, object]) -> str:
    """Return an object: its class and its constants. What else it holds may differ from process to process."""
    held = getattr(thing, "__dict__", None) or {name: getattr(thing, name, None) for name in getattr(type(thing), "__slots__", ())}
    constants = (
        {name: value for name, value in held.items() if isinstance(value, _CONSTANTS)} if len(seen) == 1 or not _is_there(_home(thing)) else {}
    )
    return f"{_class(type(thing), seen)}({_stable(constants, seen)})"


def _home(thing: object) -> str:
    return type(thing).__module__


def _code(code: CodeType, seen: dict[int, object]) -> str:
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    constants = ",".join(_stable(each, seen) for each in code.co_consts)
    return f"code({code.co_code.hex()},{code.co_flags},{code.co_exceptiontable.hex()},{names},{constants})"


def _function(function: FunctionType, seen: dict[int, object]) -> str:
    """Return a function: its code, its defaults, what it closes over, and what its file defines that it uses."""
    used = {name: function.__globals__[name] for name in sorted(_names(function.__code__)) if name in function.__globals__}
    closed = [_cell(each) for each in function.__closure__ or ()]
    parts = (function.__code__, function.__defaults__, function.__kwdefaults__, closed, used)
    return f"function({','.join(_own(each, function.__module__, seen) for each in parts)})"


def _own(thing: object, module: str, seen: dict[int, object]) -> str:
    """Return a part of a function. What other modules define is only named: it is not what travels by value."""
    if isinstance(thing, dict):
        return f"used{_listed(f'{name}={_own(value, module, seen)}' for name, value in thing.items())}"
    home = getattr(thing, "__module__", None)
    if isinstance(thing, FunctionType | type) and home != module:
        return f"{home}:{thing.__qualname__}"
    return _stable(thing, seen)


def _names(code: CodeType) -> set[str]:
    """Return the names that code, and the functions in it, look up."""
    inner = (_names(each) for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*inner)


def _cell(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # nothing is in it yet
        return None


def _class(kind: type, seen: dict[int, object]) -> str:
    """Return a class: the code of its methods and its constants where it is a part of what travels by value, else its name."""
    if _is_there(kind.__module__):
        return f"{kind.__module__}:{kind.__qualname__}"
    functions = {name: getattr(each, "fget", None) or getattr(each, "__func__", each) for name, each in vars(kind).items() if _is_method(each)}
    constants = {name: each for name, each in vars(kind).items() if isinstance(each, _CONSTANTS) and not name.startswith("__")}
    return f"class({kind.__qualname__},{_stable(functions, seen)},{_stable(constants, seen)})"


def _is_method(thing: object) -> bool:
    return isinstance(thing, FunctionType | property | staticmethod | classmethod)
