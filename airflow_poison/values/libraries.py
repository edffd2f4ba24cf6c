"""Libraries that take long to import, each imported when a function first uses it: a DAG file, a command and the page must not wait for them.

``from airflow_poison.values.libraries import pa`` stands at the top of a module like any other import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import deltalake
    import deltalake.exceptions
    import deltalake.transaction
    import numpy as np
    import obstore
    import obstore.exceptions
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
else:

    class _Library:
        """Stands for a module. With the first attribute it takes over the module's names, so nothing stands between afterwards."""

        def __init__(self, name: str) -> None:
            self.__name__ = name

        def __getattr__(self, attribute: str) -> Any:
            module = import_module(self.__name__)
            self.__dict__ = vars(module)
            return getattr(module, attribute)

        def __reduce__(self) -> tuple[type[_Library], tuple[str]]:
            return _Library, (self.__name__,)

    deltalake, np, obstore = _Library("deltalake"), _Library("numpy"), _Library("obstore")
    pa, pc, pq = _Library("pyarrow"), _Library("pyarrow.compute"), _Library("pyarrow.parquet")

__all__ = ["deltalake", "np", "obstore", "pa", "pc", "pq"]
