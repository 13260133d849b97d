# mypy: disable-error-code="import-not-found, import-untyped"
"""The client of a Connect server without pandas, which would be a third of the memory of a child that never uses it.

pyspark imports pandas with its client, for createDataFrame and toPandas. While the client is imported it is given
stand-ins instead; the first use of one imports the real thing. Everybody else gets the real pandas from the start.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import logging
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

_log = logging.getLogger(__name__)

_MODULES: Final = ("pandas", "pandas.api", "pandas.api.types")


class _StandIn(ModuleType):
    """While the client is imported its names are stand-ins too, for annotations; later they are pandas' own."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return importlib.metadata.version(self.__name__)
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            return _called_later(self.__name__, name)
        return getattr(importlib.import_module(self.__name__), name)


def _called_later(module: str, name: str) -> type:
    """What is a type to annotations, and to whoever calls it the function or class of that name."""

    def call(cls: type, *args: Any, **kwargs: Any) -> Any:
        return getattr(importlib.import_module(module), name)(*args, **kwargs)

    return type(name, (), {"__new__": call})


def import_client() -> None:
    """Imports the client of pyspark; with pandas where it is there already, or cannot be left out."""
    try:
        with _without_pandas():
            importlib.import_module("pyspark.sql.connect.session")
    except Exception as error:  # another version of pyspark wants more of pandas: then it gets all of it
        _log.debug("pyspark was imported with pandas: %s", error)
        importlib.import_module("pyspark.sql.connect.session")


@contextlib.contextmanager
def _without_pandas() -> Iterator[None]:
    if "pandas" in sys.modules or importlib.util.find_spec("pandas") is None:
        yield
        return
    stand_ins = {name: _StandIn(name) for name in _MODULES}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name, module in stand_ins.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
