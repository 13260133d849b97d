"""What is wrong or doubtful about a configuration, each with its place and what to do."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Literal

import msgspec

from kcl_host.errors import ConfigurationError


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One remark. `message` is complete in itself and begins with the place; `line` is None outside a file."""

    severity: Literal["error", "warning"]
    key: str
    line: int | None
    message: str


class Effective(msgspec.Struct, frozen=True, kw_only=True):
    """The value of one key as it takes effect. `value` is masked where it is secret, None when there is none.

    `origin` is `FILE:LINE`, `default`, `derived`, `environment NAME` or `override`.
    """

    key: str
    value: str | None
    origin: str
    status: str


class InvalidConfiguration(ConfigurationError):
    """The configuration is wrong. The message has one line per error; `findings` has the warnings too."""

    def __init__(self, findings: tuple[Finding, ...], origins: tuple[Effective, ...] = ()) -> None:
        super().__init__("\n".join(f.message for f in findings if f.severity == "error"))
        self.findings = findings
        self.origins = origins


class Report:
    """Collects findings about one file (None: there is no file)."""

    def __init__(self, path: str | None, *, strict: bool) -> None:
        self._path = path
        self._strict = strict
        self._findings: list[Finding] = []

    @property
    def findings(self) -> tuple[Finding, ...]:
        """In the order of the file; what belongs to no line comes last."""
        return tuple(sorted(self._findings, key=lambda f: (f.line is None, f.line or 0)))

    @property
    def has_errors(self) -> bool:
        return any(f.severity == "error" for f in self._findings)

    def has_error_about(self, key: str) -> bool:
        return any(f.severity == "error" and f.key == key for f in self._findings)

    def place(self, line: int | None) -> str:
        """`FILE:LINE`, or as much of it as is known."""
        return f"{self._path}:{line}" if self._path and line else self._path or "configuration"

    def error(self, key: str, text: str, line: int | None = None) -> None:
        self._add("error", key, text, line)

    def warning(self, key: str, text: str, line: int | None = None) -> None:
        self._add("warning", key, text, line)

    def lenient(self, key: str, text: str, line: int | None = None) -> None:
        """What the Java daemon passes over in silence: a warning, in strict mode an error."""
        self._add("error" if self._strict else "warning", key, text, line)

    def _add(self, severity: Literal["error", "warning"], key: str, text: str, line: int | None) -> None:
        self._findings.append(Finding(severity=severity, key=key, line=line, message=f"{self.place(line)}: {text}"))


def log_findings(findings: Iterable[Finding], logger: logging.Logger) -> None:
    """Writes each finding as one log line, at the level of its severity."""
    for finding in findings:
        logger.log(
            logging.ERROR if finding.severity == "error" else logging.WARNING,
            finding.message,
            extra={"action": "configuration", "key": finding.key, "line": finding.line},
        )
