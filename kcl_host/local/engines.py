"""Both embedded engines together: what `kcl-host demo`, `kcl-host local` and tests start."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from types import TracebackType

from kcl_host.local.dynamodb import REGION, DynamoDbEngine
from kcl_host.local.kinesis import KinesisEngine


class Engines:
    """Kinesis and DynamoDB on 127.0.0.1, each on a thread of its own, from `start()` to `stop()` or as a context.

    Port 0: any free one. Raises OSError when a port is taken. Usable once.
    """

    def __init__(
        self, kinesis_port: int = 0, dynamodb_port: int = 0, *, clock: Callable[[], float] = time.time
    ) -> None:
        """`clock` is the Kinesis stand-in's, in epoch seconds."""
        self.kinesis = KinesisEngine(port=kinesis_port, clock=clock)
        try:
            self.dynamodb = DynamoDbEngine(port=dynamodb_port)
        except OSError:
            self.kinesis.stop()
            raise

    @property
    def kinesis_endpoint(self) -> str:
        return self.kinesis.endpoint

    @property
    def dynamodb_endpoint(self) -> str:
        return self.dynamodb.endpoint

    def start(self) -> None:
        self.kinesis.start()
        self.dynamodb.start()

    def stop(self) -> None:
        """Streams and tables are gone afterwards. May be called again."""
        self.dynamodb.stop()
        self.kinesis.stop()

    def __enter__(self) -> Engines:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def properties_lines(self) -> list[str]:
        """What a .properties file needs to use these engines, credentials aside."""
        return [
            f"kinesisEndpoint = {self.kinesis_endpoint}",
            f"dynamoDBEndpoint = {self.dynamodb_endpoint}",
            f"regionName = {REGION}",
            "metricsLevel = NONE",  # There is no CloudWatch here.
        ]

    def environment(self) -> dict[str, str]:
        """Environment variables for clients that insist on credentials and a region; what they say is not checked."""
        return {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "AWS_DEFAULT_REGION": REGION}

    # What callers in this process do most

    def create_stream(self, name: str, shard_count: int) -> None:
        """Raises ServiceError."""
        self.kinesis.create_stream(name, shard_count)

    def split_shard(self, stream_name: str, shard_id: str) -> None:
        """In the middle. Raises ServiceError."""
        self.kinesis.split_shard(stream_name, shard_id)

    def merge_shards(self, stream_name: str, shard_id: str, adjacent_shard_id: str) -> None:
        """Raises ServiceError."""
        self.kinesis.merge_shards(stream_name, shard_id, adjacent_shard_id)

    def put_records(self, stream_name: str, records: Iterable[tuple[str, bytes]]) -> list[str]:
        """Stores (partition key, data) pairs; returns their sequence numbers. Raises ServiceError."""
        return self.kinesis.put_records(stream_name, records)
