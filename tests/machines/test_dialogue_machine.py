"""The dialogue under hypothesis: any order of calls and lines, and host and child driven against each other."""

from __future__ import annotations

import json

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kcl_host.errors import ChildError
from kcl_host.model.records import Record
from kcl_host.model.sequence import AT_TRIM_HORIZON
from kcl_host.multilang.dialogue import (
    AWAITED,
    TRANSITIONS,
    ActionDone,
    ActionUnanswered,
    CheckpointRequested,
    Dialogue,
    Happening,
    LocalProtocolError,
    Noise,
    PrepareCheckpointRequested,
    RemoteProtocolError,
    State,
)

ACTIONS = ("initialize", "processRecords", "shutdownRequested", "leaseLost", "shardEnded")
PATHS: dict[State, tuple[Happening, ...]] = {State.NEW: ()}
"""A shortest way to each state."""

while len(PATHS) < len(State):
    for _state, _way in list(PATHS.items()):
        for _happening, _after in TRANSITIONS[_state].items():
            PATHS.setdefault(_after, (*_way, _happening))


def happen(dialogue: Dialogue, happening: Happening) -> None:
    match happening:
        case Happening.INITIALIZE:
            dialogue.initialize("s", AT_TRIM_HORIZON)
        case Happening.PROCESS_RECORDS:
            dialogue.process_records([], 0)
        case Happening.SHUTDOWN_REQUESTED:
            dialogue.shutdown_requested()
        case Happening.LEASE_LOST:
            dialogue.lease_lost()
        case Happening.SHARD_ENDED:
            dialogue.shard_ended()
        case Happening.CHECKPOINT:
            dialogue.receive(b'{"action":"checkpoint"}\n')
        case Happening.STATUS:
            dialogue.receive(f'{{"action":"status","responseFor":"{dialogue.awaiting}"}}\n'.encode())
        case Happening.EOF:
            dialogue.receive(b"")
        case Happening.BREACH:
            dialogue.receive(b'{"action":"status","responseFor":"nobody"}\n')


@pytest.mark.parametrize("happening", Happening)
@pytest.mark.parametrize("state", State)
def test_every_pair_is_in_the_table_or_an_error(state: State, happening: Happening) -> None:
    dialogue = Dialogue()
    for step in PATHS[state]:
        try:
            happen(dialogue, step)
        except ChildError:
            assert dialogue.state is State.FAILED
    assert dialogue.state is state
    after = TRANSITIONS[state].get(happening)
    try:
        happen(dialogue, happening)
    except ChildError:
        assert dialogue.state is (State.CLOSED if state is State.CLOSED else State.FAILED)
        assert after in (None, State.FAILED)
    except LocalProtocolError:
        assert after is None and dialogue.state is state
    else:
        assert dialogue.state is after


class AnyOrder(RuleBasedStateMachine):
    """Whatever the host calls and the child writes: a known state, or the right side is blamed."""

    def __init__(self) -> None:
        super().__init__()
        self.dialogue = Dialogue(max_line_bytes=200, extensions=("prepareCheckpoint",))
        self.failed = False

    def call(self, happening: Happening) -> None:
        before = self.dialogue.state
        try:
            happen(self.dialogue, happening)
        except LocalProtocolError:
            assert not self.failed and self.dialogue.state is before
        except (RemoteProtocolError, ActionUnanswered):
            self.failed = self.dialogue.state is State.FAILED
            assert self.failed or before is State.CLOSED
        else:
            assert not self.failed

    @rule(happening=st.sampled_from(Happening))
    def something_happens(self, happening: Happening) -> None:
        self.call(happening)

    @rule(action=st.sampled_from(ACTIONS))
    def a_status_of_any_action(self, action: str) -> None:
        self.write(json.dumps({"action": "status", "responseFor": action}).encode() + b"\n")

    @rule(state=st.none() | st.text(max_size=20))
    def a_request_to_prepare(self, state: str | None) -> None:
        self.write(json.dumps({"action": "prepareCheckpoint", "applicationState": state}).encode() + b"\n")

    @rule(data=st.one_of(st.binary(max_size=250), st.text('{}[]":, \r\nactionstatus', max_size=80).map(str.encode)))
    def write(self, data: bytes) -> None:
        awaited = self.dialogue.awaiting
        closed = self.dialogue.state is State.CLOSED
        try:
            events = self.dialogue.receive(data)
        except LocalProtocolError:
            assert closed and data
        except (RemoteProtocolError, ActionUnanswered) as e:
            self.failed = True
            assert all(isinstance(event, Noise | CheckpointRequested | ActionDone) for event in e.events)
        else:
            done = [e for e in events if isinstance(e, ActionDone)]
            assert len(done) <= 1
            assert all(e.action == awaited for e in done)

    @invariant()
    def consistent(self) -> None:
        assert (self.dialogue.awaiting is not None) == (self.dialogue.state in AWAITED)
        assert self.failed == (self.dialogue.state is State.FAILED)
        assert not (self.dialogue.is_idle and self.dialogue.awaiting)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=100, stateful_step_count=30)


PHASES = {"none": [], "made": ["checkpoint"], "prepared and made": ["prepareCheckpoint", "checkpoint"]}


class ModelChild:
    """The child's end, written from PROTOCOL.md alone: one line in, lines out."""

    def __init__(self, checkpoints: list[str]) -> None:
        self.checkpoints = checkpoints  # for each action: "none", "made" or "prepared and made"
        self.seen: list[str] = []
        self.answers: list[dict[str, object]] = []
        self.largest: str | None = None
        self._open: str | None = None
        self._left: list[str] = []

    def read(self, line: bytes) -> bytes:
        message = json.loads(line)
        if message["action"] == "checkpoint":
            self.answers.append(message)
            assert self._open, "an answer without a request"
            return self._ask() if self._left else self._status(self._open)
        assert self._open is None, "two actions at once"
        self.seen.append(message["action"])
        if message["action"] == "processRecords":
            self.largest = message["records"][-1]["sequenceNumber"]
        self._left = PHASES[self.checkpoints.pop(0) if self.checkpoints else "none"][:]
        if self._left:
            self._open = message["action"]
            return self._ask()
        return self._status(message["action"])

    def _ask(self) -> bytes:
        return json.dumps({"action": self._left.pop(0), "sequenceNumber": self.largest}).encode() + b"\n"

    def _status(self, action: str) -> bytes:
        self._open = None
        return b"\n" + json.dumps({"action": "status", "responseFor": action}).encode() + b"\n"


@given(
    batches=st.integers(0, 4),
    ending=st.sampled_from([["leaseLost"], ["shardEnded"], ["shutdownRequested", "leaseLost"]]),
    checkpoints=st.lists(st.sampled_from(list(PHASES)), max_size=8),
    cuts=st.lists(st.integers(1, 20), min_size=1),
)
def test_two_ends(batches: int, ending: list[str], checkpoints: list[str], cuts: list[int]) -> None:
    """Whatever the child asks for and however the pipe cuts it, each action ends with its own status."""
    dialogue, child = Dialogue(extensions=("prepareCheckpoint",)), ModelChild(list(checkpoints))
    plan = ["initialize"] + ["processRecords"] * batches + ending
    asked: list[CheckpointRequested] = []
    for index, action in enumerate(plan):
        match action:
            case "initialize":
                line = dialogue.initialize("s", AT_TRIM_HORIZON)
            case "processRecords":
                record = Record(data="", partition_key="k", sequence_number=str(index), approximate_arrival_timestamp=0)
                line = dialogue.process_records([record], 0)
            case "leaseLost":
                line = dialogue.lease_lost()
            case "shardEnded":
                line = dialogue.shard_ended()
            case _:
                line = dialogue.shutdown_requested()
        to_host = child.read(line)
        done: list[str] = []
        while to_host:
            cut = cuts[len(to_host) % len(cuts)]
            chunk, to_host = to_host[:cut], to_host[cut:]
            for event in dialogue.receive(chunk):
                assert not isinstance(event, Noise)
                if isinstance(event, ActionDone):
                    done.append(event.action)
                else:
                    asked.append(event)
                    assert event.allowed == (action not in ("initialize", "leaseLost"))
                    error = None if event.allowed else "InvalidStateException"
                    to_host += child.read(dialogue.answer_checkpoint(event, error))
        assert done == [action]
        assert dialogue.awaiting is None
    assert dialogue.state is State.FINISHED
    assert child.seen == plan
    assert [a["sequenceNumber"] for a in child.answers] == [e.sequence_number for e in asked]
    kinds = ["prepareCheckpoint" if isinstance(e, PrepareCheckpointRequested) else "checkpoint" for e in asked]
    assert kinds == [kind for phases in checkpoints[: len(plan)] for kind in PHASES[phases]]
    assert dialogue.receive(b"") == []
