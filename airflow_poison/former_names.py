"""Former names of parameters: they still work, and warn."""

from __future__ import annotations

import warnings
from functools import wraps
from inspect import isfunction, signature
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def renamed(**names: str) -> Callable[[T], T]:
    """Let a function, or all methods of a class, take parameters under their former names, with an AirflowProviderDeprecationWarning.

    :param names: the parameters' names by their former ones.
    """

    def decorate(thing: T) -> T:
        if not isinstance(thing, type):
            return _renamed(thing, names)
        for name, method in list(vars(thing).items()):
            if isfunction(method) and not set(names.values()).isdisjoint(signature(method).parameters):
                setattr(thing, name, _renamed(method, names))
        return thing

    return decorate


def _renamed(function: T, names: dict[str, str]) -> T:
    called: Any = function

    @wraps(called)
    def call(*args: Any, **kwargs: Any) -> Any:
        for former, name in names.items():
            if former in kwargs and name not in kwargs:
                from airflow.exceptions import AirflowProviderDeprecationWarning

                text = f"{called.__qualname__}: the parameter {former!r} is called {name!r} now; the former name will be removed."
                warnings.warn(text, AirflowProviderDeprecationWarning, stacklevel=2)
                kwargs[name] = kwargs.pop(former)
        return called(*args, **kwargs)

    return call  # type: ignore[return-value]  # it takes what the function takes, and former names
