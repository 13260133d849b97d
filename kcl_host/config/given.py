"""What a configuration gives, and the tree that is made of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from kcl_host.config.findings import Report
from kcl_host.config.keys import Key


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """A key as it was given. `value` None: the text is of no use, the default applies."""

    key: Key
    name: str
    text: str
    value: Any
    is_set: bool
    """Whether Java's field differs from the default of its type; decides retrievalMode = DEFAULT."""
    line: int | None


class Values:
    """The values of one configuration and the tree that becomes Settings; whoever derives the tree builds on this.

    `derived` tells (value, origin) of what is neither given nor a default.
    """

    def __init__(
        self,
        given: Mapping[str, Given],
        of_stream: Mapping[str, Mapping[str, Given]],
        *,
        environ: Mapping[str, str],
        report: Report,
        misspelt: Mapping[str, str],
        known_regions: Collection[str],
    ) -> None:
        self.derived: dict[str, tuple[str | None, str]] = {}
        self._given = given
        self._of_stream = of_stream
        self._environ = environ
        self._report = report
        self._misspelt = misspelt
        self._known_regions = known_regions
        self._tree: dict[str, Any] = {}

    def value(self, name: str, default: Any = None) -> Any:
        """The value of a key, `default` when it has none."""
        one = self._given.get(name)
        return default if one is None or one.value is None else one.value

    def _put(self, path: str, value: Any) -> None:
        *parents, field = path.split(".")
        node = self._tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[field] = value

    def _line(self, name: str) -> int | None:
        one = self._given.get(name)
        return one.line if one else None

    def _warn(self, name: str, text: str) -> None:
        self._report.warning(name, text, self._line(name))

    def _missing(self, names: tuple[str, ...], text: str) -> None:
        """A required key has no value; says so unless its text was refused already."""
        given = [self._given[name] for name in names if name in self._given]
        if given:
            if not self._report.has_error_about(given[0].name):
                self._report.error(given[0].name, f"{given[0].name} needs a value: {text}", given[0].line)
            return
        near = "".join(
            f" ({self._misspelt[name]}: names are case-sensitive)" for name in names if name in self._misspelt
        )
        self._report.error(names[0], f"{' or '.join(names)} is missing: {text}{near}")
