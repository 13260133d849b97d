"""The embedded Kinesis: the service stand-in over HTTP on 127.0.0.1."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from kcl_host.local.aws_json import AwsJsonFront
from kcl_host.local.faults import Faults
from kcl_host.local.http import HttpAnswer, HttpServer
from kcl_host.local.kinesis_service import KinesisService
from kcl_host.local.service_error import ServiceError, throttled

CONTENT_TYPE: Final = "application/x-amz-json-1.1"
_DATA_OPERATIONS: Final = frozenset({"GetRecords", "GetShardIterator", "PutRecord", "PutRecords"})


class KinesisEngine(KinesisService):
    """A KinesisService with faults in front, served from `start()` to `stop()`."""

    def __init__(self, *, port: int = 0, clock: Callable[[], float] = time.time) -> None:
        """Raises OSError when the port is taken."""
        super().__init__(clock)
        self.faults = Faults()
        self.front = AwsJsonFront(
            content_type=CONTENT_TYPE,
            target_prefix="Kinesis_20131202",
            operate=self._operate,
            keys_of=self.fault_keys,
            throttle_error=_throttled,
            faults=self.faults,
        )
        self._server = HttpServer(self.front.handle, port=port, name="local-kinesis")
        self.endpoint = self._server.url
        self.start = self._server.start
        self.stop = self._server.stop

    def _operate(self, operation: str, body: bytes) -> HttpAnswer:
        return HttpAnswer(200, self.serve(operation, body), {"Content-Type": CONTENT_TYPE})


def _throttled(operation: str) -> ServiceError:
    if operation in _DATA_OPERATIONS:
        return throttled("Rate exceeded, as was asked for")
    return ServiceError("LimitExceededException", "Rate exceeded, as was asked for")
