"""Children that break the protocol, or stretch it, against the real dialogue."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hosted_child import HostedChild

from kcl_host.errors import ChildExited, ChildMisbehaved

NASTY = Path(__file__).parent / "children" / "nasty.py"


def nasty(*arguments: str) -> list[str]:
    return [sys.executable, "-I", "-S", str(NASTY), *arguments]


def test_a_whole_life() -> None:
    with HostedChild(nasty("well_behaved")) as hosted:
        hosted.initialize()
        hosted.actions.process_records([], 0)
        hosted.actions.shutdown_requested()
        hosted.actions.lease_lost()
        assert hosted.actions.end() == 0


def test_null_is_noise() -> None:
    with HostedChild(nasty("sends_null")) as hosted:
        hosted.initialize()
        hosted.actions.process_records([], 0)


def test_the_status_of_another_action_fails_this_one() -> None:
    with HostedChild(nasty("answers_another_action")) as hosted, pytest.raises(ChildMisbehaved, match="leaseLost"):
        hosted.initialize()


def test_a_second_status_never_answers_the_next_action() -> None:
    with HostedChild(nasty("answers_twice")) as hosted, pytest.raises(ChildMisbehaved, match="initialize"):
        hosted.initialize()
        hosted.actions.process_records([], 0)


def test_an_exit_is_told_with_its_status() -> None:
    with HostedChild(nasty("exits_in_the_middle")) as hosted, pytest.raises(ChildExited, match="ended with status 7"):
        hosted.initialize()


@pytest.mark.parametrize("error", [None, "ThrottlingException"])
def test_a_checkpoint_is_answered_before_the_status(error: str | None) -> None:
    request = '{"action":"checkpoint","sequenceNumber":"12","subSequenceNumber":3}'
    with HostedChild(nasty("checkpoints", request), error) as hosted:
        hosted.initialize()
        hosted.actions.process_records([], 0)
        hosted.actions.end()
        assert hosted.checkpoints == [("12", 3, True)]
        assert json.loads(hosted.stderr[0].removeprefix("answer ")) == {
            "action": "checkpoint",
            "sequenceNumber": "12",
            "subSequenceNumber": 3,
            "error": error,
        }
