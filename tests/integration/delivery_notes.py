"""What the children of a fleet noted (children/timed.py): who got which records when, and what was checkpointed."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import msgspec


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """One event of one child; `at_s` is monotonic, the same clock in all processes of a machine."""

    at_s: float
    worker: str
    shard: str
    event: str
    numbers: list[str | None] = []
    error: str | None = None


class Notes:
    """The file to which all of them append, read as it grows."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._decoder = msgspec.json.Decoder(Note)
        self._notes: list[Note] = []
        self._read_bytes = 0

    def all(self, *events: str, since_s: float = 0.0, worker: str | None = None) -> list[Note]:
        """In the order in which they were written."""
        if self.file.exists():
            with self.file.open("rb") as file:
                file.seek(self._read_bytes)
                new = file.read()
            new = new[: new.rfind(b"\n") + 1]
            self._read_bytes += len(new)
            self._notes += map(self._decoder.decode, new.splitlines())
        return [
            note
            for note in self._notes
            if note.at_s >= since_s
            and (not events or note.event in events)
            and (worker is None or note.worker == worker)
        ]

    def delivering(self, since_s: float) -> dict[str, str]:
        """By shard the worker whose child got records last, since then."""
        return {note.shard: note.worker for note in self.all("records", since_s=since_s)}

    def last_events(self, worker: str) -> dict[str, str]:
        """By shard what the worker's child noted last."""
        return {note.shard: note.event for note in self.all(worker=worker)}

    def elsewhere(self, old: Collection[str], since_s: float) -> dict[str, Note]:
        """By shard the first batch since then that went to anybody but the old owners."""
        return {n.shard: n for n in reversed(self.all("records", since_s=since_s)) if n.worker not in old}

    def gap_s(self, first: Note, old: Collection[str]) -> float:
        """From the last batch of a shard that the old owners got to the first that the new one got."""
        batches = (n for n in self.all("records") if n.shard == first.shard and n.worker in old)
        return first.at_s - max(n.at_s for n in batches if n.at_s < first.at_s)

    def repeated(self, since_s: float = 0.0) -> int:
        """Deliveries, since then, of records that had been delivered before."""
        delivered: set[tuple[str, str | None]] = set()
        repeated = 0
        for note in self.all("records"):
            numbers = {(note.shard, number) for number in note.numbers}
            repeated += len(numbers & delivered) if note.at_s >= since_s else 0
            delivered |= numbers
        return repeated
