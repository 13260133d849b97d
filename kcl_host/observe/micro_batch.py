"""Metrics that a child reports: lines of its stderr, so that neither the dialogue nor any other channel is touched.

    kcl-host-metrics {"RecordsCommitted": 1000, "Execute.Time": 230.5}

A child writes them only when the host announced KCL_HOST_METRICS=stderr; they do not show in the log. The names are
those of the operation MicroBatch in the catalogue.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from kcl_host.observe.catalogue import BY_NAME

ANNOUNCED: Final = ("KCL_HOST_METRICS", "stderr")
OPERATION: Final = "MicroBatch"
_MARK: Final = "kcl-host-metrics "
_points: Final = msgspec.json.Decoder(dict[str, float])


def points_of(line: str) -> dict[str, float] | None:
    """The points of such a line, by name; without those that nobody knows. None for any other line."""
    if not line.startswith(_MARK):
        return None
    try:
        points = _points.decode(line[len(_MARK) :])
    except msgspec.MsgspecError:
        return None
    return {name: value for name, value in points.items() if (OPERATION, name) in BY_NAME and math.isfinite(value)}
