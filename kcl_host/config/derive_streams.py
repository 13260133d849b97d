"""The streams of a configuration: one, or several with values of their own, and how each is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from kcl_host.config.given import Given, Values
from kcl_host.config.values import split_command
from kcl_host.model.shard import StreamIdentifier

STREAM_ARN: Final = re.compile(r"arn:aws[a-z-]*:kinesis:([a-z0-9-]+):([0-9]{12}):stream/([a-zA-Z0-9_.-]+)")
_CONSUMER_ARN: Final = re.compile(
    r"arn:aws[a-z-]*:kinesis:[a-z0-9-]+:[0-9]{12}:stream/([a-zA-Z0-9_.-]+)/consumer/[a-zA-Z0-9_.-]+:[0-9]+"
)
_STREAM_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_CONSUMER_NAME_KEY: Final = "fanoutConfig.consumerName"
_CONSUMER_ARN_KEY: Final = "fanoutConfig.consumerArn"


class StreamDerivation(Values):
    """`_streams` comes first, `_reading` last: it needs what goes for all streams."""

    def _streams(self) -> None:
        several = [name for name in ("streamNames", "streamArns") if name in self._given]
        one = [name for name in ("streamName", "streamArn") if name in self._given]
        if several and one:
            text = f"{several[0]} and {one[0]} exclude each other: leases of one stream and of several look different"
            self._report.error(several[0], text, self._line(several[0]))
        elif several:
            self._put("multi_stream", True)
            self._several_streams()
        else:
            self._one_stream()

    def _one_stream(self) -> None:
        name, arn, account = self.value("streamName"), self.value("streamArn"), None
        if arn is not None:
            match = self._arn("streamArn", arn)
            if not match:
                return
            account, arn_name = match[2], match[3]
            if name is not None and name != arn_name:
                self._warn("streamName", "streamName is ignored, streamArn names another stream and wins")
            name = arn_name
            self.derived["streamName"] = (name, "derived")
        if name is None:
            self._missing(("streamName", "streamArn"), "set one of them, or streamNames or streamArns for several")
        elif not _STREAM_NAME.fullmatch(name):
            text = f"streamName = {name!r} cannot be a stream: letters, digits and _ . - only, at most 128"
            self._report.error("streamName", text, self._line("streamName"))
        self._put("streams", [{"name": name, "arn": arn, "account": account}])

    def _several_streams(self) -> None:
        streams: dict[tuple[str, str | None], dict[str, Any]] = {}
        for text in self.value("streamNames", ()):
            stream = self._stream_of("streamNames", text)
            if stream is not None:
                streams[stream.name, stream.account] = msgspec.structs.asdict(stream)
        for arn in self.value("streamArns", ()):
            if match := self._arn("streamArns", arn):
                streams[match[3], match[2]] = {"name": match[3], "account": match[2], "arn": arn}
        if not streams:
            self._missing(("streamNames", "streamArns"), "name at least one stream")
        self._put("streams", list(streams.values()))
        for text in self.value("streamIdentifiersForLeaseCleanup", ()):
            stream = self._stream_of("streamIdentifiersForLeaseCleanup", text)
            if stream is not None and not stream.is_multi_stream:
                problem = f"streamIdentifiersForLeaseCleanup: {text} is not of the form account:name:creation epoch"
                self._report.error("streamIdentifiersForLeaseCleanup", problem)

    def _stream_of(self, key: str, text: str) -> StreamIdentifier | None:
        """A stream given by its name, or as account:name:epoch; None, and an error, when it cannot be one."""
        try:
            stream = StreamIdentifier.parse(text)
        except ValueError as error:
            self._report.error(key, f"{key}: {error}", self._line(key))
            return None
        if _STREAM_NAME.fullmatch(stream.name):
            return stream
        problem = f"{key}: {stream.name!r} cannot be a stream: letters, digits and _ . - only, at most 128"
        self._report.error(key, problem, self._line(key))
        return None

    def _arn(self, key: str, text: str) -> re.Match[str] | None:
        match = STREAM_ARN.fullmatch(text)
        if not match:
            problem = f"{key} = {text} is not of the form arn:aws:kinesis:REGION:ACCOUNT:stream/NAME"
            self._report.error(key, problem, self._line(key))
        return match

    def _mode(self, asked: str, name: str) -> tuple[Literal["POLLING", "FANOUT"], str]:
        """The mode that `asked` means, and why; `name` is the key that says so."""
        polling = [one.name for one in self._given.values() if one.key.bean == "pollingConfig" and one.is_set]
        if asked == "DEFAULT":
            return ("POLLING", f"{polling[0]} is set") if polling else ("FANOUT", "no polling key is set")
        return "POLLING" if asked == "POLLING" else "FANOUT", f"{name} = {asked}"

    def _reading(self) -> None:
        """What each stream has of its own, and the keys that are of no use for the modes in use."""
        is_multi = self._tree.get("multi_stream", False)
        streams = self._tree.get("streams", ())
        for stream in streams if is_multi else ():
            self._own_values(stream, self._of_stream.get(stream["name"], {}))
        names = {stream["name"] for stream in streams}
        for name, values in self._of_stream.items():
            for one in values.values():
                if not is_multi:
                    self._report.lenient(
                        one.name, f"{one.name} is ignored, it needs streamNames or streamArns", one.line
                    )
                elif name not in names:
                    text = f"{one.name} is ignored, neither streamNames nor streamArns names {name}"
                    self._report.lenient(one.name, text, one.line)
        retrieval = self._tree["retrieval"]
        modes = {retrieval["mode"], *(s["retrieval"]["mode"] for s in streams if "retrieval" in s)}
        if len(modes) == 1:
            mode, reason = retrieval["mode"], retrieval["mode_reason"]
            for one in self._given.values():
                polls = one.key.bean == "pollingConfig" and one.is_set
                if polls if mode == "FANOUT" else one.name.startswith("fanoutConfig."):
                    text = f"{one.name} is ignored, the retrieval mode is {mode} ({reason})"
                    self._report.warning(one.name, text, one.line)
        if "FANOUT" in modes:
            self._consumer(is_multi)

    def _own_values(self, stream: dict[str, Any], own: Mapping[str, Given]) -> None:
        value = {name: one.value for name, one in own.items() if one.value is not None}
        if "executableName" in value:
            stream["command"] = split_command(value["executableName"])
        if "initialPositionInStreamExtended" in value:
            timestamp_s = value["initialPositionInStreamExtended"]
            stream["initial_position"] = {"kind": "AT_TIMESTAMP", "timestamp_s": timestamp_s}
        elif "initialPositionInStream" in value:
            stream["initial_position"] = {"kind": value["initialPositionInStream"]}
        retrieval = dict(self._tree["retrieval"])
        if "retrievalMode" in value:
            mode = self._mode(value["retrievalMode"], own["retrievalMode"].name)
            retrieval["mode"], retrieval["mode_reason"] = mode
        for name, field in ((_CONSUMER_NAME_KEY, "consumer_name"), (_CONSUMER_ARN_KEY, "consumer_arn")):
            if name not in value:
                continue
            retrieval[field] = value[name]
            if retrieval["mode"] == "POLLING":
                text = f"{own[name].name} is ignored, the stream is polled ({retrieval['mode_reason']})"
                self._report.warning(own[name].name, text, own[name].line)
            elif field == "consumer_arn":
                self._check_consumer_arn(own[name], stream["name"])
            else:
                self._check_consumer_name(own[name].name, value[name], own[name].line)
        if retrieval != self._tree["retrieval"]:
            stream["retrieval"] = retrieval

    def _consumer(self, is_multi: bool) -> None:
        """The consumer of all streams that have none of their own."""
        arn = self._given.get(_CONSUMER_ARN_KEY)
        if arn is not None and arn.value is not None and is_multi:
            text = f"{arn.name} is the consumer of one stream; write {arn.name}.STREAM"
            self._report.error(arn.name, text, arn.line)
        elif arn is not None and arn.value is not None:
            if self._tree.get("streams"):
                self._check_consumer_arn(arn, self._tree["streams"][0]["name"])
        elif (name := self._tree["retrieval"].get("consumer_name")) is not None:
            source = _CONSUMER_NAME_KEY if _CONSUMER_NAME_KEY in self._given else "applicationName"
            self._check_consumer_name(source, name, self._line(source))

    def _check_consumer_arn(self, arn: Given, stream: str) -> None:
        match = _CONSUMER_ARN.fullmatch(arn.value)
        if not match:
            form = "arn:aws:kinesis:REGION:ACCOUNT:stream/NAME/consumer/NAME:TIME"
            self._report.error(arn.name, f"{arn.name} = {arn.value} is not of the form {form}", arn.line)
        elif match[1] != stream:
            self._report.error(arn.name, f"{arn.name} = {arn.value} is a consumer of another stream", arn.line)

    def _check_consumer_name(self, source: str, name: str, line: int | None) -> None:
        if not _STREAM_NAME.fullmatch(name):
            text = f"{source}: {name!r} cannot be a fan-out consumer: letters, digits and _ . - only, at most 128"
            self._report.error(_CONSUMER_NAME_KEY if source == "applicationName" else source, text, line)
