"""The registered consumer of a stream, which fan-out reads through: found, registered, waited for.

It is never deregistered: other workers of the application use it, as Java's do. Found once and shared by all shards.
Source: KCL 3.5.1 FanOutConsumerRegistration; spec retrieval 4.1. Where we differ: a registration that is limited waits
too before it is tried again (5 a second for the whole account), one DescribeStreamSummary does, and none is made at the
start, when the ARN of the stream is known. A start does not wait in here for a limited account: it is repeated
(decisions/start_pacing.py).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kcl_host.aws.faults import Resource, translated
from kcl_host.config.settings import RetrievalSettings
from kcl_host.errors import ConsumerGone, StreamNotFound, SubscriptionInUse, Throttled, Unavailable
from kcl_host.model.shard import StreamSummary

if TYPE_CHECKING:
    from mypy_boto3_kinesis.client import KinesisClient

_log = logging.getLogger(__name__)

JITTER_S: Final = 0.1
"""As Java adds to a wait after LimitExceededException."""
_ACTIVE: Final = "ACTIVE"
_T = TypeVar("_T")


class StreamConsumer:
    """Shared state: the ARN, guarded by `_lock`, which is held while it is being found out: whoever else needs it waits
    for the same answer instead of asking as well."""

    def __init__(
        self,
        client: KinesisClient,
        stream_name: str,
        describe_stream: Callable[[], StreamSummary],
        settings: RetrievalSettings,
        *,
        jitter: Callable[[], float],
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """`jitter` gives numbers in [0, 1). `sleep` may return early, when the worker stops."""
        self._client = client
        self._describe_stream = describe_stream
        self._settings = settings
        self._jitter = jitter
        self._sleep = sleep
        self._resource = Resource("kinesis", stream_name)
        self._lock = threading.Lock()
        self._arn: str | None = None
        self._is_patient = True
        """Whether a request that is limited is made again in here."""

    def __repr__(self) -> str:
        return f"<StreamConsumer {self._arn or self._settings.consumer_arn or self._settings.consumer_name}>"

    def arn(self) -> str:
        """The ARN of the consumer, ACTIVE at least once; found out or registered at the first call.

        Raises Throttled, Unavailable, ConsumerGone, AccessError, StreamNotFound.
        """
        with self._lock:
            if self._arn is None:
                self._arn = self._settings.consumer_arn or self._find()
            return self._arn

    def prepare(self, stream_arn: str | None = None) -> None:
        """As `arn`. A host that starts knows `stream_arn`: then a request that is limited is not made again in here."""
        with self._lock:
            if self._arn is None:
                self._is_patient = stream_arn is None
                try:
                    self._arn = self._settings.consumer_arn or self._find(stream_arn)
                finally:
                    self._is_patient = True

    def is_there(self, arn: str) -> bool:
        """Whether a consumer that a subscription did not find exists, after all; False: another one has its place now.

        Raises StreamNotFound when the stream is gone, ConsumerGone when the ARN was configured, or as `arn` does.
        """
        with self._lock:
            if self._arn != arn:
                return False
            try:
                if self._patiently(lambda: self._describe(ConsumerARN=arn))["ConsumerStatus"] != "DELETING":
                    return True
            except StreamNotFound:
                pass
            self._stream_arn()
            if self._settings.consumer_arn:
                raise ConsumerGone(
                    f"the fan-out consumer {arn} does not exist: register it again and name the new one by "
                    "fanoutConfig.consumerArn, or remove that key"
                )
            _log.warning("fan-out consumer is gone", extra={"action": "consumer_gone", "consumer": arn})
            self._arn = None
            self._arn = self._find()
            return False

    # Under the lock

    def _find(self, stream_arn: str | None = None) -> str:
        stream_arn, name = stream_arn or self._stream_arn(), self._settings.consumer_name or ""

        def describe() -> Any:
            return self._describe(StreamARN=stream_arn, ConsumerName=name)

        try:
            consumer = self._patiently(describe)
        except StreamNotFound:
            consumer = self._register(stream_arn, name)
        for _ in range(self._settings.describe_consumer_attempts):
            if consumer is not None and consumer["ConsumerStatus"] == _ACTIVE:
                extra = {"action": "consumer_found", "consumer": consumer["ConsumerARN"]}
                _log.info("fan-out consumer is active", extra=extra)
                return str(consumer["ConsumerARN"])
            self._sleep(self._settings.registration_backoff_s)
            try:
                consumer = self._patiently(describe)
            except StreamNotFound:
                consumer = self._register(stream_arn, name)  # It was being deleted, and is gone now.
        status = consumer["ConsumerStatus"] if consumer else "unknown"
        raise Unavailable(f"the fan-out consumer {name} of {self._resource} is not ACTIVE yet but {status}")

    def _register(self, stream_arn: str, name: str) -> Any:
        """What was registered; None when somebody else was faster."""

        def register() -> Any:
            with translated(self._resource, {"ResourceInUseException": SubscriptionInUse}):
                return self._client.register_stream_consumer(StreamARN=stream_arn, ConsumerName=name)["Consumer"]

        try:
            consumer = self._patiently(register, self._settings.register_consumer_attempts)
        except SubscriptionInUse:
            return None
        extra = {"action": "consumer_registered", "consumer": consumer["ConsumerARN"]}
        _log.info(
            "fan-out consumer registered; kcl-host never deregisters it, and AWS bills it while used", extra=extra
        )
        return consumer

    def _stream_arn(self) -> str:
        return self._patiently(self._describe_stream, self._settings.describe_summary_attempts).arn

    def _describe(self, **names: str) -> Any:
        with translated(self._resource):
            return self._client.describe_stream_consumer(**names)["ConsumerDescription"]

    def _patiently(self, request: Callable[[], _T], attempts: int | None = None) -> _T:
        """Asks again after a wait while the account is limited; raises the last Throttled."""
        attempts = attempts or self._settings.describe_consumer_attempts
        for attempt in range(1, attempts + 1):
            try:
                return request()
            except Throttled:
                if attempt == attempts or not self._is_patient:
                    raise
                self._sleep(self._settings.registration_backoff_s + JITTER_S * self._jitter())
        raise AssertionError("there is at least one attempt")
