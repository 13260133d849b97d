"""What KPL aggregates cost on one core, against aws-kinesis-agg's deaggregator, and what their absence costs.

`python -m tests.bench.aggregates` prints the median and the range of several runs, in CPU time of this thread. The
kinds are measured in turn, so that whatever else the machine does meets all of them.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from base64 import b64encode
from collections.abc import Callable
from functools import partial
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table

from kcl_host.decisions.deaggregation import Deaggregated, deaggregate_in_pieces
from kcl_host.model.records import Record
from kcl_host.model.shard import HashKeyRange
from tests.bench.report import Spread, machine
from tests.kpl import User, aggregate

AGGREGATES, USERS = 100, 100
SIZES = (100, 1000)
PLAIN, PLAIN_BYTES = 10_000, 1024
HALF = HashKeyRange(0, 2**127)
Work = Callable[[], object]


class _Wire(msgspec.Struct, gc=False, rename="pascal"):
    data: str
    partition_key: str
    sequence_number: str


@click.command()
@click.option("--runs", default=15, show_default=True, help="Of each kind.")
def main(runs: int) -> None:
    """User records per second, and the price of looking for aggregates where there are none."""
    console = Console(width=118)
    console.print(_aggregates_table(runs), _plain_table(runs))


def _aggregates_table(runs: int) -> Table:
    table = Table(title=f"{machine()}, {runs} runs", title_justify="left")
    for name in ("aggregates of 100", "thousand user records/s", "from", "to", "ratio to aws-kinesis-agg"):
        table.add_column(name, justify="left" if name.startswith("agg") else "right")
    theirs = _their_deaggregator()
    for size in SIZES:
        one_key, many_keys = _aggregates(size, 1), _aggregates(size, USERS)
        works: dict[str, Work] = {
            "one key, whole hash range": partial(_ours, one_key, None),
            "one key, half of it": partial(_ours, one_key, HALF),
            "100 keys, whole": partial(_ours, many_keys, None),
            "100 keys, half": partial(_ours, many_keys, HALF),
            "aws-kinesis-agg": partial(theirs, [_event(record) for record in one_key]),
        }
        times = _measured(works, runs)
        reference_s = statistics.median(times["aws-kinesis-agg"])
        for name, taken in times.items():
            rates = Spread.of([AGGREGATES * USERS / t / 1000 for t in taken])
            ratio = reference_s / statistics.median(taken)
            table.add_row(f"{size} B, {name}", *rates.texts(",.0f"), f"{ratio:.2f}")
    return table


def _plain_table(runs: int) -> Table:
    """The same answer parsed, without and with the look at the prefix of each record."""
    rng = random.Random(1)
    body = msgspec.json.encode(
        [_Wire(b64encode(rng.randbytes(PLAIN_BYTES)).decode(), "p", str(10**55 + n)) for n in range(PLAIN)]
    )
    decode = msgspec.json.Decoder(list[_Wire]).decode

    def parse() -> list[Record]:
        return [Record(r.data, r.partition_key, r.sequence_number, 0) for r in decode(body)]

    times = _measured({"parsed": parse, "and looked through": lambda: _ours(parse(), HALF)}, runs)
    table = Table(title=f"{PLAIN:,} plain records of {PLAIN_BYTES} B in one answer", title_justify="left")
    for name in ("", "median ms", "from", "to", "ratio"):
        table.add_column(name, justify="right" if name else "left")
    for name, taken in times.items():
        spread = Spread.of([t * 1000 for t in taken])
        ratio = statistics.median(taken) / statistics.median(times["parsed"])
        table.add_row(name, *spread.texts(".1f"), f"{ratio:.3f}")
    return table


def _measured(works: dict[str, Work], runs: int) -> dict[str, list[float]]:
    """Seconds of CPU of each run of each kind; a first round is not counted."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for run in range(runs + 1):
        for name, work in works.items():
            started_s = time.thread_time()
            work()
            if run:
                times[name].append(time.thread_time() - started_s)
    return times


def _ours(records: list[Record], hash_key_range: HashKeyRange | None) -> list[Deaggregated]:
    return list(deaggregate_in_pieces(records, 0, hash_key_range))


def _aggregates(size: int, keys: int) -> list[Record]:
    rng = random.Random(size)
    users = [User(rng.randbytes(size), n % keys) for n in range(USERS)]
    data = b64encode(aggregate(users, [f"key {n}" for n in range(keys)])).decode()
    return [Record(data, "p", str(10**55 + n), 0) for n in range(AGGREGATES)]


def _event(record: Record) -> dict[str, Any]:
    """A record in the shape that aws-kinesis-agg takes, which is that of an AWS Lambda function."""
    names = ("eventVersion", "eventID", "eventName", "eventSource", "eventSourceARN", "awsRegion", "invokeIdentityArn")
    kinesis = {
        "kinesisSchemaVersion": "1.0",
        "data": record.data,
        "partitionKey": record.partition_key,
        "sequenceNumber": record.sequence_number,
        "approximateArrivalTimestamp": 0,
    }
    return {"kinesis": kinesis, **dict.fromkeys(names, "")}


def _their_deaggregator() -> Callable[[list[dict[str, Any]]], object]:
    path = list(sys.path)
    try:
        from aws_kinesis_agg.deaggregator import deaggregate_records  # puts two folders in front of sys.path
    finally:
        sys.path[:] = path
    found: Callable[[list[dict[str, Any]]], object] = deaggregate_records
    return found


if __name__ == "__main__":
    main()
