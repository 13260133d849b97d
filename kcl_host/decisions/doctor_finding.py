"""What `kcl-host doctor` found out, and what a finding is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from kcl_host.decisions.fleet_looks import FleetSnapshot
from kcl_host.model.access import Identity, Probed, StreamFacts

Level = Literal["ok", "warn", "error", "not_probed"]
Platform = Literal["kubernetes", "ecs", "systemd"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """`advice` says what to do, empty where there is nothing. `exit_code` is what the command ends with, for an error.

    `kind` is one of the words of docs/doctor.md.
    """

    level: Level
    kind: str
    where: str
    message: str
    advice: str = ""
    exit_code: int = 0


class ChildCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A child command. `path` None: not found. `answers` None: it was not started; else `said` tells what was wrong."""

    command: tuple[str, ...]
    path: str | None
    answers: bool | None = None
    said: str = ""


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was found out; what was not asked is empty or None.

    `no_clients` is why AWS was not asked at all. `skew_s`: how far the clock of a service is ahead of ours.
    `platform_grace_s` None: that of the platform by default.
    """

    warnings: tuple[str, ...] = ()
    no_clients: str | None = None
    identities: tuple[Identity, ...] = ()
    probes: tuple[Probed, ...] = ()
    streams: Mapping[str, StreamFacts] = {}
    snapshot: FleetSnapshot | None = None
    snapshot_error: str = ""
    skew_s: Mapping[str, float] = {}
    descriptors: int | None = None
    """The hard limit of open files; None: no limit."""
    platform: Platform | None = None
    platform_grace_s: float | None = None
    children: tuple[ChildCheck, ...] = ()


def ok(kind: str, where: str, message: str) -> Finding:
    return Finding(level="ok", kind=kind, where=where, message=message)


def warn(kind: str, where: str, message: str, advice: str = "") -> Finding:
    return Finding(level="warn", kind=kind, where=where, message=message, advice=advice)


def error(kind: str, where: str, message: str, advice: str, exit_code: int = 1) -> Finding:
    return Finding(level="error", kind=kind, where=where, message=message, advice=advice, exit_code=exit_code)


def unknown(kind: str, where: str, message: str, advice: str = "") -> Finding:
    return Finding(level="not_probed", kind=kind, where=where, message=message, advice=advice)
