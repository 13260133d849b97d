"""What the children of a fleet were told (journaling_child.py), and what a fleet of KCL workers must never do.

A tenure is what one child did with one shard. `complaints` says in words what was lost, came twice without a crash that
explains it, came out of order, before its parents, or to two workers at a time; nothing when all went as promised.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

Stored = Mapping[str, Sequence[int]]
"""Every sequence number that the stream holds, by shard id, in order."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """`numbers`: of the records; where `initialized`, the checkpoint; where `checkpointed`, the last that it covers."""

    at_s: float
    worker: str
    shard: str
    event: str
    numbers: list[str]


class Tenure(msgspec.Struct, kw_only=True):
    """The events of one child, oldest first."""

    child: str
    events: list[Event]

    @property
    def worker(self) -> str:
        return self.events[0].worker

    @property
    def shard(self) -> str:
        return self.events[0].shard

    @property
    def started_s(self) -> float:
        return self.events[0].at_s

    @property
    def found(self) -> int:
        """The checkpoint that it began with; -1: the beginning of the shard."""
        number = self.events[0].numbers[0]
        return int(number) if number.isdigit() else -1

    def deliveries(self) -> Iterator[tuple[int, float]]:
        """Each record, and when it came."""
        for event in self.events:
            if event.event == "records":
                yield from ((int(number), event.at_s) for number in event.numbers)

    @property
    def last_delivery_s(self) -> float | None:
        return max((at_s for _, at_s in self.deliveries()), default=None)

    @property
    def checkpoint(self) -> int:
        """The last record whose checkpoint was confirmed to the child; -1: none."""
        numbers = (int(n) for event in self.events if event.event == "checkpointed" for n in event.numbers)
        return max(numbers, default=-1)

    def __repr__(self) -> str:
        return f"{self.shard} at {self.worker}"


class Journal:
    """The files of all children in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._decoder = msgspec.json.Decoder(Event)

    def tenures(self) -> list[Tenure]:
        """Oldest first."""
        found = []
        for file in self.folder.iterdir():
            text = file.read_bytes()
            if events := [self._decoder.decode(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]:
                found.append(Tenure(child=file.stem, events=events))
        return sorted(found, key=lambda tenure: tenure.started_s)

    def delivering(self, since_s: float) -> dict[str, str]:
        """By shard the worker whose child got records last, since then (monotonic)."""
        events = [e for tenure in self.tenures() for e in tenure.events if e.event == "records" and e.at_s >= since_s]
        return {event.shard: event.worker for event in sorted(events, key=lambda event: event.at_s)}

    def delivered(self) -> dict[str, set[int]]:
        got: dict[str, set[int]] = defaultdict(set)
        for tenure in self.tenures():
            got[tenure.shard].update(number for number, _ in tenure.deliveries())
        return got

    def missing(self, stored: Stored) -> dict[str, list[int]]:
        """What no child has got; empty when nothing."""
        got = self.delivered()
        lost = {shard: [n for n in numbers if n not in got.get(shard, ())] for shard, numbers in stored.items()}
        return {shard: numbers for shard, numbers in lost.items() if numbers}


def complaints(
    tenures: Sequence[Tenure], stored: Stored, parents: Mapping[str, Sequence[str]], killed: Mapping[str, float]
) -> list[str]:
    """What should not have happened. `killed`: when each worker that crashed did so, monotonic seconds."""
    of_shard: dict[str, list[Tenure]] = defaultdict(list)
    for tenure in tenures:
        of_shard[tenure.shard].append(tenure)
    found = []
    for shard, numbers in stored.items():
        got = {number for tenure in of_shard[shard] for number, _ in tenure.deliveries()}
        found += [f"{shard}: {len(lost)} records lost, first {lost[0]}"] if (lost := sorted(set(numbers) - got)) else []
    for tenure in tenures:
        found += _out_of_order(tenure)
    for in_turn in of_shard.values():
        found += _handovers(in_turn, killed)
    return [*found, *_before_parents(of_shard, parents)]


def _out_of_order(tenure: Tenure) -> Iterator[str]:
    numbers = [number for number, _ in tenure.deliveries()]
    if numbers != sorted(set(numbers)):
        yield f"{tenure}: not in order"
    if numbers and numbers[0] <= tenure.found:
        yield f"{tenure}: got {numbers[0]}, which its checkpoint {tenure.found} covers"


def _handovers(in_turn: Sequence[Tenure], killed: Mapping[str, float]) -> Iterator[str]:
    """Between those who had a shard one after the other."""
    before: set[int] = set()
    checkpoint, last_s, holder = -1, 0.0, None
    for tenure in in_turn:
        numbers = {number for number, _ in tenure.deliveries()}
        if tenure.started_s < last_s:
            yield f"{tenure}: began {last_s - tenure.started_s:.3f} s before {holder} got its last records"
        if tenure.found < checkpoint:
            yield f"{tenure}: went back to {tenure.found}, {holder} had checkpointed {checkpoint}"
        crashed = holder is not None and killed.get(holder.worker, float("inf")) <= tenure.started_s
        if (again := numbers & before) and not crashed:
            yield f"{tenure}: {len(again)} records again, and {holder} had not crashed"
        before |= numbers
        checkpoint = max(checkpoint, tenure.checkpoint)
        last_s = max(last_s, tenure.last_delivery_s or 0.0)
        holder = tenure if numbers or holder is None else holder


def _before_parents(of_shard: Mapping[str, Sequence[Tenure]], parents: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """A child shard's first record comes only after the first delivery of each of its parents' records."""
    first_s: dict[str, dict[int, float]] = defaultdict(dict)
    for shard, in_turn in of_shard.items():
        for tenure in in_turn:
            for number, at_s in tenure.deliveries():
                first_s[shard].setdefault(number, at_s)
    for shard, of_parents in parents.items():
        began_s = min(first_s[shard].values(), default=float("inf"))
        for parent in of_parents:
            ended_s = max(first_s[parent].values(), default=0.0)
            if began_s < ended_s:
                yield f"{shard} began {ended_s - began_s:.3f} s before its parent {parent} was delivered"
