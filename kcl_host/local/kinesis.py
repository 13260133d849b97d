"""The embedded Kinesis: the service stand-in over HTTP/1.1 and HTTP/2 on 127.0.0.1."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kcl_host.local.aws_json import AwsJsonFront
from kcl_host.local.faults import Faults
from kcl_host.local.http import HttpAnswer, HttpServer
from kcl_host.local.kinesis_service import KinesisService
from kcl_host.local.service_error import ServiceError, throttled
from kcl_host.local.subscribe import Subscriptions

if TYPE_CHECKING:
    from kcl_host.local.certificate import Certificate

CONTENT_TYPE: Final = "application/x-amz-json-1.1"
_DATA_OPERATIONS: Final = frozenset({"GetRecords", "GetShardIterator", "PutRecord", "PutRecords"})


class KinesisEngine(KinesisService):
    """A KinesisService with faults in front, served from `start()` to `stop()`."""

    def __init__(
        self, *, port: int = 0, clock: Callable[[], float] = time.time, certificate: Certificate | None = None
    ) -> None:
        """With a certificate by TLS, in cleartext without. Raises OSError when the port is taken."""
        super().__init__(clock)
        self.faults = Faults()
        self.subscriptions = Subscriptions(self._account, self._consumers, self.faults, self.fault_keys)
        self.front = AwsJsonFront(
            content_type=CONTENT_TYPE,
            target_prefix="Kinesis_20131202",
            operate=self._operate,
            keys_of=self.fault_keys,
            throttle_error=_throttled,
            faults=self.faults,
        )
        tls = None if certificate is None else certificate.server_context()
        self._server = HttpServer(self.front.handle, port=port, name="local-kinesis", tls=tls)
        self.endpoint = self._server.url
        self.start = self._server.start
        self.stop = self._server.stop

    @property
    def max_streams(self) -> int:
        """How many requests an HTTP/2 client may have under way on one connection made from now on."""
        return self._server.max_streams

    @max_streams.setter
    def max_streams(self, limit: int) -> None:
        self._server.max_streams = limit

    def _operate(self, operation: str, body: bytes) -> HttpAnswer:
        if operation == "SubscribeToShard":
            return self.subscriptions.answer(body)
        return HttpAnswer(200, self.serve(operation, body), {"Content-Type": CONTENT_TYPE})


def _throttled(operation: str) -> ServiceError:
    if operation in _DATA_OPERATIONS:
        return throttled("Rate exceeded, as was asked for")
    return ServiceError("LimitExceededException", "Rate exceeded, as was asked for")
