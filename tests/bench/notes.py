"""What source and children of a measurement wrote down: answers of Kinesis, and those of the children to their host."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from tests.interop.java_daemon import LoggedProcess


class Answer(msgspec.Struct, frozen=True):
    """One line of the source's notes; times in seconds since the epoch."""

    records: int
    began_s: float
    ended_s: float


class Status(msgspec.Struct, frozen=True):
    """One line of a child's notes: it has answered for everything up to this position of its shard."""

    batch: int
    """Number of the source's answer."""
    index: int
    """Of the record within it."""
    sub: int
    records: int
    at_s: float


NEVER = Status(-1, -1, 0, 0, 0.0)


def answers(file: Path) -> dict[tuple[int, int], Answer]:
    """Of the source, by shard and number of the answer."""
    found: dict[tuple[int, int], Answer] = {}
    for line in _lines(file):
        shard, batch, records, began_ns, ended_ns = map(int, line)
        found[shard, batch] = Answer(records, began_ns / 1e9, ended_ns / 1e9)
    return found


def statuses(folder: Path) -> dict[int, list[Status]]:
    """Of the children of one host by shard, in the order of time; batches without records left out."""
    found: dict[int, list[Status]] = {}
    for file in (folder / "notes").iterdir():
        for number, sub, _, records, at_ns in _lines(file):
            if number != "-":
                shard, batch, index = int(number[32:38]), int(number[38:50]), int(number[50:])
                status = Status(batch, index, int(sub), int(records), int(at_ns) / 1e9)
                found.setdefault(shard, []).append(status)
    for of_shard in found.values():
        of_shard.sort(key=lambda status: status.at_s)
    return found


def _lines(file: Path) -> Iterator[list[str]]:
    """Whole lines only: the last one may be half written."""
    text = file.read_text()
    return (line.split() for line in text[: text.rfind("\n") + 1].splitlines())


def children(folder: Path) -> int:
    """How many the host has started so far."""
    return sum(1 for _ in (folder / "notes").iterdir())


def wait_for_statuses(host: LoggedProcess, folder: Path, shards: int, limit_s: float) -> float:
    """Seconds from the start of the host until each shard has had a batch answered."""
    return host.wait_for(lambda: len(statuses(folder)) == shards, limit_s, f"a batch of each of {shards} shards")


def monotone(of_shard: Sequence[Status]) -> bool:
    """No answer of the source was left out, and none came twice."""
    return all(
        b.batch <= a.batch + 1 and (a.batch, a.index, a.sub) < (b.batch, b.index, b.sub)
        for a, b in itertools.pairwise(of_shard)
    )


def now_s() -> float:
    """The clock of all notes."""
    return time.time()
