"""A .properties file -> Settings, with everything that is doubtful about it.

Four steps: entries of the file (entries.py), their keys (names.py), one value per key (values.py, credentials.py, and
the rules for keys that compete, spec configuration 1.5), and what follows from the values taken together (derive.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

import msgspec

from kcl_host.config.credentials import mask_chain, near_region, parse_chain
from kcl_host.config.derive import Derivation
from kcl_host.config.entries import Entry, read_entries
from kcl_host.config.findings import Effective, Finding, InvalidConfiguration, Report
from kcl_host.config.given import Given
from kcl_host.config.keys import KEYS, Key
from kcl_host.config.names import match_name
from kcl_host.config.settings import Settings
from kcl_host.config.values import convert, mask_uri

__all__ = ["Loaded", "load_settings"]


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration that a run is possible with. `findings` are warnings only."""

    settings: Settings
    findings: tuple[Finding, ...]
    origins: tuple[Effective, ...]
    """Every key in the order of keys.py, save those that are of no use any more and were not given."""
    log_level: str = "INFO"
    log_format: Literal["text", "json"] = "text"


def load_settings(
    path: str | None,
    *,
    environ: Mapping[str, str],
    overrides: Mapping[str, str] = {},
    strict: bool = False,
    random_suffix: str,
    hostname: str,
    known_regions: Collection[str] = (),
) -> Loaded:
    """The configuration of the file, `overrides` (key -> text) going before it; without `path` of these alone.

    `strict` makes errors of what the Java daemon passes over in silence: unknown keys, numbers and booleans that are
    none. `hostname` and `random_suffix` make the default worker id. `known_regions` empty: region names are not
    checked. Raises ConfigurationError when the file cannot be read, InvalidConfiguration with all errors otherwise.
    """
    report = Report(path, strict=strict)
    entries = read_entries(path, report) if path is not None else []
    misspelt: dict[str, str] = {}
    typed = _by_key(entries, report, misspelt)
    typed |= _by_key((Entry(name=n, value=v.strip(), line=None) for n, v in overrides.items()), report, misspelt)
    of_stream: dict[str, dict[str, Given]] = {"": {}}
    for (key, stream), entry in typed.items():
        if one := _read_value(key, entry, report, known_regions):
            of_stream.setdefault(stream, {})[key.name] = one
    for values in of_stream.values():
        _drop_losers(values, report)
    given = of_stream.pop("")
    derivation = Derivation(
        given, of_stream, environ=environ, report=report, misspelt=misspelt, known_regions=known_regions
    )
    settings = derivation.settings(worker_id=f"{hostname}-{random_suffix}")
    origins = _origins(given, derivation, report) + _origins_of_streams(of_stream, report)
    if settings is None or report.has_errors:
        raise InvalidConfiguration(report.findings, origins)
    return Loaded(
        settings=settings,
        findings=report.findings,
        origins=origins,
        log_level=derivation.value("logLevel", "INFO"),
        log_format=derivation.value("logFormat", "text"),
    )


def _by_key(entries: Iterable[Entry], report: Report, misspelt: dict[str, str]) -> dict[tuple[Key, str], Entry]:
    """The entry that counts for each key and stream ("": for all): of two spellings the nested one.

    Collects near misses in `misspelt`.
    """
    found: dict[tuple[Key, str], Entry] = {}
    for entry in entries:
        match = match_name(entry.name)
        if match.key is None:
            (report.error if match.fatal else report.lenient)(entry.name, match.problem, entry.line)
            if match.suggestion:
                misspelt.setdefault(match.suggestion, f"{report.place(entry.line)} has {entry.name}")
            continue
        other = found.get((match.key, match.stream))
        if other and match.key.kind == "credentials":
            report.error(entry.name, f"{entry.name} and {_at(other)} are the same key", entry.line)
        elif other:
            winner, loser = (entry, other) if match.nested else (other, entry)
            text = f"{loser.name} is ignored, {_at(winner)} sets the same thing and wins"
            report.warning(loser.name, text, loser.line)
        if not other or match.nested:
            found[match.key, match.stream] = entry
    return found


def _at(entry: Entry | Given) -> str:
    return f"{entry.name} (line {entry.line})" if entry.line else entry.name


def _read_value(key: Key, entry: Entry, report: Report, known_regions: Collection[str]) -> Given | None:
    """The typed value of one entry, its findings reported; None when a problem ends the run anyway."""
    name, line = entry.name, entry.line
    if key.status == "not supported":
        report.error(name, f"{name} is not supported; remove the line. {key.meaning}", line)
        return None
    if key.kind == "credentials":
        chain = parse_chain(entry.value, known_regions)
        for text in chain.errors:
            report.error(name, f"{name}: {text}", line)
        for text in chain.warnings:
            report.warning(name, f"{name}: {text}", line)
        value: Any = None if chain.errors else chain.providers
        is_set = True
    else:
        converted = convert(key, entry.value)
        if converted.problem:
            separator = "" if converted.problem.startswith(":") else " "
            (report.error if converted.fatal else report.lenient)(name, f"{name}{separator}{converted.problem}", line)
        value, is_set = converted.value, converted.is_set
    if key.kind == "region" and value and known_regions and value not in known_regions:
        report.warning(name, f"{name} = {value} is not a known region{near_region(value, known_regions)}", line)
    if key.note:
        report.warning(name, f"{name} has no effect: {key.note}", line)
    elif key.status == "not yet":
        report.warning(name, f"{name} has no effect yet: this release of kcl-host understands it only", line)
    return Given(key=key, name=name, text=entry.value, value=value, is_set=is_set, line=line)


def _drop_losers(given: dict[str, Given], report: Report) -> None:
    """Where two keys set one thing, only the winner stays (spec configuration 1.5)."""
    for winner in list(given.values()):
        for name in winner.key.beats if winner.value is not None else ():
            if loser := given.pop(name, None):
                if loser.text != winner.text:
                    text = f"{name} is ignored, {_at(winner)} sets the same thing and wins"
                    report.warning(name, text, loser.line)


def _origins(given: Mapping[str, Given], derivation: Derivation, report: Report) -> tuple[Effective, ...]:
    """The effective value of each key: as derived, else as given, else the default."""
    rows: list[Effective] = []
    for key in KEYS:
        one = given.get(key.name)
        value: str | None
        if key.name in derivation.derived:
            value, origin = derivation.derived[key.name]
        elif one and (one.value is not None or key.note):
            value, origin = _shown(one), report.place(one.line) if one.line else "override"
        elif key.note:
            continue
        else:
            value, origin = key.default, "default"
        rows.append(Effective(key=key.name, value=value, origin=origin, status=key.status))
    return tuple(rows)


def _origins_of_streams(of_stream: Mapping[str, Mapping[str, Given]], report: Report) -> tuple[Effective, ...]:
    return tuple(
        Effective(
            key=one.name,
            value=_shown(one),
            origin=report.place(one.line) if one.line else "override",
            status=one.key.status,
        )
        for _, values in sorted(of_stream.items())
        for one in values.values()
    )


def _shown(one: Given) -> str:
    if one.key.secret:
        return mask_chain(one.text)
    value: Any = one.value
    if isinstance(value, bool):
        return str(value).lower()
    if one.key.kind == "enum":
        return str(value)
    return mask_uri(one.text) if one.key.kind == "uri" else one.text
