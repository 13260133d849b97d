"""Registered fan-out consumers; what they subscribe to is in subscribe.py."""

from __future__ import annotations

from typing import Any, Final

from kcl_host.local.account import ACCOUNT, Account, name_in
from kcl_host.local.kinesis_request import KinesisRequest, Operation, need
from kcl_host.local.service_error import ServiceError, in_use, not_found
from kcl_host.local.stream import LocalStream, StreamConsumer

MAX_CONSUMERS: Final = 20
MAX_CREATING: Final = 5


class ConsumerOperations:
    def __init__(self, account: Account) -> None:
        self._account = account
        self.by_name: dict[str, Operation] = {
            "DeregisterStreamConsumer": self._deregister_consumer,
            "DescribeStreamConsumer": self._describe_consumer,
            "ListStreamConsumers": self._list_consumers,
            "RegisterStreamConsumer": self._register_consumer,
        }

    def _register_consumer(self, request: KinesisRequest, now_s: float) -> dict[str, Any]:
        stream, name = self._account.stream(request), need(request.consumer_name, "consumerName")
        if name in stream.consumers:
            raise in_use(f"Consumer {name} under stream {stream.arn} already exists.")
        creating = sum(now_s < consumer.active_s for consumer in stream.consumers.values())
        if len(stream.consumers) >= MAX_CONSUMERS or creating >= MAX_CREATING:
            raise ServiceError("LimitExceededException", f"Too many consumers under stream {stream.arn}.")
        arn = f"{stream.arn}/consumer/{name}:{int(now_s)}"
        consumer = StreamConsumer(
            name=name, arn=arn, created_s=now_s, active_s=now_s + self._account.durations.register_s
        )
        stream.consumers[name] = consumer
        return {"Consumer": {**_consumer(consumer, now_s), "ConsumerStatus": "CREATING"}}

    def _describe_consumer(self, request: KinesisRequest, now_s: float) -> dict[str, Any]:
        stream, consumer = self.consumer_of(request)
        return {"ConsumerDescription": {**_consumer(consumer, now_s), "StreamARN": stream.arn}}

    def _list_consumers(self, request: KinesisRequest, now_s: float) -> dict[str, Any]:
        stream = self._account.stream(request)
        names = sorted(name for name in stream.consumers if name > (request.next_token or ""))
        limit = request.max_results or 100
        more = {"NextToken": names[limit - 1]} if len(names) > limit else {}
        return {"Consumers": [_consumer(stream.consumers[name], now_s) for name in names[:limit]], **more}

    def _deregister_consumer(self, request: KinesisRequest, now_s: float) -> None:
        stream, consumer = self.consumer_of(request)
        del stream.consumers[consumer.name]

    def consumer_of(self, request: KinesisRequest) -> tuple[LocalStream, StreamConsumer]:
        """The consumer that a request names, by ARN or by stream and name. Raises ServiceError."""
        if request.consumer_arn is not None:
            stream_arn, _, name_and_epoch = request.consumer_arn.partition("/consumer/")
            stream, name = self._account.stream_named(name_in(stream_arn)), name_and_epoch.partition(":")[0]
        else:
            stream, name = self._account.stream(request), need(request.consumer_name, "consumerName")
        consumer = stream.consumers.get(name)
        if consumer is None or request.consumer_arn not in (None, consumer.arn):
            raise not_found(f"Consumer {request.consumer_arn or name}, account {ACCOUNT} not found.")
        return stream, consumer


def _consumer(consumer: StreamConsumer, now_s: float) -> dict[str, Any]:
    return {
        "ConsumerName": consumer.name,
        "ConsumerARN": consumer.arn,
        "ConsumerStatus": "CREATING" if now_s < consumer.active_s else "ACTIVE",
        "ConsumerCreationTimestamp": consumer.created_s,
    }
