"""kcl-host without its pause between two reads of a shard, which stands for the read limits of Kinesis.

What the host could do takes a source without such limits, and this: there is no setting for it. It is the counterpart
of java/UnpacedDaemon.java. Nor is there anything to wake a read that waits for room, since the pause is longer: it
looks again every FULL_S.
"""

from __future__ import annotations

import math

from kcl_host.__main__ import main
from kcl_host.decisions.pacing import ReadBudget
from kcl_host.retrieval import polling
from kcl_host.retrieval.polling import PollingSource

FULL_S = 0.005


def run_once(source: PollingSource) -> float | None:
    pause_s = paced(source)
    return None if pause_s is None else min(pause_s, FULL_S)


if __name__ == "__main__":
    vars(polling)["pause_after_answer_s"] = lambda settings, millis_behind_latest: 0.0
    PollingSource._budget = ReadBudget(tokens=1.0, at_s=-math.inf, per_s=1e9)
    paced, PollingSource.run_once = PollingSource.run_once, run_once  # type: ignore[method-assign, assignment]
    main()
