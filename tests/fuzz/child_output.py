"""Whatever a child writes on stdout: lines, messages, the dialogue, and what its requests for checkpoints come to."""

from __future__ import annotations

import json
from random import Random
from typing import NamedTuple

from kcl_host.decisions.checkpoint import CheckpointState, Refused, Write, entering_shard_end, parse_state, resolve
from kcl_host.errors import ChildError
from kcl_host.model.sequence import AT_TRIM_HORIZON, ExtendedSequenceNumber
from kcl_host.multilang.dialogue import (
    ActionDone,
    CheckpointRequested,
    Dialogue,
    Event,
    Noise,
    PrepareCheckpointRequested,
)
from kcl_host.multilang.messages import PREPARE_CHECKPOINT
from tests.fuzz.driver import Target
from tests.fuzz.mutation import disturbed, mutated, nasty_number, nasty_text

ACTIONS = ("initialize", "processRecords", "leaseLost", "shardEnded", "shutdownRequested")
MAX_LINE_BYTES = 30_000
POSITIONS = CheckpointState(last=ExtendedSequenceNumber("5"), largest_permitted=ExtendedSequenceNumber("9" * 56, 3))


class Written(NamedTuple):
    """`chunks` as they are read. The dialogue has had `actions` done before, and has the next one open if `is_open`."""

    actions: tuple[str, ...]
    is_open: bool
    extended: bool
    chunks: tuple[bytes, ...]


def make(rng: Random) -> Written:
    actions = ("initialize", *["processRecords"] * rng.randrange(2), *[rng.choice(ACTIONS[2:])] * rng.randrange(2))
    data = b"".join(_line(rng, rng.choice(actions)) for _ in range(rng.randrange(1, 5)))
    if rng.random() < 0.5:
        data = mutated(rng, data)
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice((0, 0, 1, 3))))
    chunks = [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    return Written(actions, rng.random() < 0.8, rng.random() < 0.5, tuple(filter(None, chunks)))


def _line(rng: Random, action: str) -> bytes:
    number = rng.choice((nasty_text(rng), str(nasty_number(rng)), "6", "9" * 56))
    message = rng.choice(
        (
            {"action": "status", "responseFor": action},
            {"action": "checkpoint", "sequenceNumber": number, "subSequenceNumber": nasty_number(rng)},
            {"action": "checkpoint", "sequenceNumber": None},
            {"action": "prepareCheckpoint", "sequenceNumber": number, "applicationState": rng.choice(("aGk=", number))},
        )
    )
    if rng.random() < 0.4:
        message = disturbed(rng, message)
    value = ["checkpoint", message] if rng.random() < 0.05 else message
    line = json.dumps(value, ensure_ascii=rng.random() < 0.5).encode("utf-8", "replace")
    return line + rng.choice((b"\n", b"\n", b"\r\n", b"\r", b"", b"\n\n", b" trailing\n"))


def run(written: Written) -> None:
    whole, piecewise = (_events(written, chunks) for chunks in ((b"".join(written.chunks),), written.chunks))
    assert whole == piecewise, "what is read depends on how it is cut into chunks"


def _events(written: Written, chunks: tuple[bytes, ...]) -> list[Event]:
    dialogue = Dialogue(MAX_LINE_BYTES, (PREPARE_CHECKPOINT,) if written.extended else ())
    for index, action in enumerate(written.actions):
        _begin(dialogue, action)
        if index < len(written.actions) - 1 or not written.is_open:
            dialogue.receive(f'{{"action":"status","responseFor":"{action}"}}\n'.encode())
    events: list[Event] = []
    try:
        for chunk in (*filter(None, chunks), b""):
            events += dialogue.receive(chunk)
    except ChildError as error:
        events += error.events  # type: ignore[attr-defined]
    for event in events:
        _serve(dialogue, event)
    return events


def _begin(dialogue: Dialogue, action: str) -> None:
    match action:
        case "initialize":
            dialogue.initialize("shardId-000000000000", AT_TRIM_HORIZON)
        case "processRecords":
            dialogue.process_records([], 0)
        case "leaseLost":
            dialogue.lease_lost()
        case "shardEnded":
            dialogue.shard_ended()
        case _:
            dialogue.shutdown_requested()


def _serve(dialogue: Dialogue, event: Event) -> None:
    if isinstance(event, Noise):
        assert len(event.line) <= 500 and event.size_bytes <= MAX_LINE_BYTES
    elif isinstance(event, CheckpointRequested):
        state = parse_state(event.application_state) if isinstance(event, PrepareCheckpointRequested) else None
        error = state.error if isinstance(state, Refused) else None
        for positions in (POSITIONS, entering_shard_end(POSITIONS)):
            decision = resolve(positions, event.sequence_number, event.sub_sequence_number)
            if isinstance(decision, Write):
                assert positions.last < decision.position <= positions.largest_permitted, "a position out of range"
            elif isinstance(decision, Refused):
                error = decision.error
                assert len(decision.reason) < 2500, "a reason that fills the log"
        line = dialogue.answer_checkpoint(event, error)
        assert line.endswith(b"\n") and line.count(b"\n") == 1 and line.isascii()
        json.loads(line)
    else:
        assert isinstance(event, ActionDone)


TARGET = Target("child-output", make, run)
