"""The MultiLang messages and their lines (protocol/PROTOCOL.md sections 2 to 4, and the extension of section 12).

What the host sends is strict: every key present, `action` first, ASCII only. What it reads is as lenient as the Java
daemon, whose JSON parser coerces scalars and ignores what follows the first value (spec multilang-protocol 1.3). We
accept one thing more: keys that nobody knows, which make Java overlook the line and the shard hang.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from kcl_host.model.records import Record
from kcl_host.model.sequence import MAX_STATE_BYTES, PreparedCheckpoint

CheckpointError = Literal[
    "ThrottlingException",
    "ShutdownException",
    "InvalidStateException",
    "KinesisClientLibDependencyException",
    "IllegalArgumentException",
]
"""The only names a child may see in a checkpoint answer."""

PREPARE_CHECKPOINT: Final = "prepareCheckpoint"
"""The extension by this name: without it the host sends none of its keys and its request is noise."""
_MAX_STATE_TEXT: Final = (MAX_STATE_BYTES + 2) // 3 * 4

_Position = Annotated[str, msgspec.Meta(pattern="^([0-9]+|TRIM_HORIZON|LATEST|AT_TIMESTAMP|SHARD_END)$")]
_SubSequence = Annotated[int, msgspec.Meta(ge=0)]
_BASE64: Final = {"contentEncoding": "base64"}
_State = Annotated[str, msgspec.Meta(extra_json_schema=_BASE64)]
_BoundedState = Annotated[str, msgspec.Meta(max_length=_MAX_STATE_TEXT, extra_json_schema=_BASE64)]
_ActionName = Annotated[
    str, msgspec.Meta(pattern="^(initialize|processRecords|leaseLost|shardEnded|shutdownRequested)$")
]


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="action", rename="camel"):
    """One JSON object on one line. `action` is the tag, encoded first."""

    @property
    def action(self) -> str:
        return str(self.__struct_config__.tag)


class Initialize(_Message, frozen=True, kw_only=True, tag="initialize"):
    """The first action. Position: the lease's checkpoint. All pending keys, or none without prepareCheckpoint."""

    shard_id: str
    sequence_number: str | None
    sub_sequence_number: int | None
    pending_checkpoint_sequence_number: _Position | msgspec.UnsetType | None = msgspec.UNSET
    pending_checkpoint_sub_sequence_number: _SubSequence | msgspec.UnsetType | None = msgspec.UNSET
    pending_checkpoint_state: _State | msgspec.UnsetType | None = msgspec.UNSET


class ProcessRecords(_Message, frozen=True, kw_only=True, tag="processRecords"):
    """Records in the order of the shard, and how far (milliseconds) they are behind its tip; null: not known."""

    records: list[Record]
    millis_behind_latest: int | None


class LeaseLost(_Message, frozen=True, kw_only=True, tag="leaseLost"):
    """Another worker has the lease; nothing can be checkpointed any more."""


class ShardEnded(_Message, frozen=True, kw_only=True, tag="shardEnded"):
    """Every record of a closed shard was delivered; the child must checkpoint now."""


class ShutdownRequested(_Message, frozen=True, kw_only=True, tag="shutdownRequested"):
    """No more records will come; the last chance to checkpoint."""


class CheckpointAnswer(_Message, frozen=True, kw_only=True, tag="checkpoint"):
    """The answer to a request for a checkpoint, prepared or not. The numbers are an echo; `error` null: success."""

    sequence_number: str | None
    sub_sequence_number: int | None
    error: CheckpointError | None


class Status(_Message, frozen=True, kw_only=True, tag="status"):
    """The child is done with an action."""

    response_for: _ActionName


class CheckpointRequest(_Message, frozen=True, kw_only=True, tag="checkpoint"):
    """The child asks for a checkpoint; without a sequence number at the last record delivered."""

    sequence_number: _Position | None = None
    sub_sequence_number: _SubSequence | None = None


class PrepareCheckpointRequest(_Message, frozen=True, kw_only=True, tag=PREPARE_CHECKPOINT):
    """Extension: the first phase of a checkpoint, with what the application wants to find beside it (base64)."""

    sequence_number: _Position | None = None
    sub_sequence_number: _SubSequence | None = None
    application_state: _BoundedState | None = None


Action: TypeAlias = Initialize | ProcessRecords | LeaseLost | ShardEnded | ShutdownRequested
HostMessage: TypeAlias = Action | CheckpointAnswer
ChildMessage: TypeAlias = Status | CheckpointRequest | PrepareCheckpointRequest

_ENCODER: Final = msgspec.json.Encoder()
_HOST_DECODER: Final[msgspec.json.Decoder[HostMessage]] = msgspec.json.Decoder(HostMessage)


def encode_line(message: HostMessage | ChildMessage) -> bytes:
    """The message as one line of ASCII JSON, terminator included."""
    try:
        line = _ENCODER.encode_lines((message,))
        if line.isascii():
            return line
    except UnicodeEncodeError:
        pass  # a lone surrogate, which UTF-8 cannot carry but \u escapes can
    # msgspec writes raw UTF-8. The detour costs 70 ms for 13 MB, less than escaping its output by a regex.
    return json.dumps(msgspec.to_builtins(message), separators=(",", ":")).encode("ascii") + b"\n"


def with_prepared(message: Initialize, prepared: PreparedCheckpoint | None) -> Initialize:
    """The message with the keys of the extension prepareCheckpoint; null when nothing is prepared."""
    state = None if prepared is None else prepared.state
    return msgspec.structs.replace(
        message,
        pending_checkpoint_sequence_number=None if prepared is None else prepared.position.sequence_number,
        pending_checkpoint_sub_sequence_number=None if prepared is None else prepared.position.sub_sequence_number,
        pending_checkpoint_state=None if state is None else b64encode(state).decode("ascii"),
    )


def decode_host_line(line: str | bytes) -> HostMessage:
    """A line of the host, as a child would read it. Raises msgspec.ValidationError or DecodeError."""
    return _HOST_DECODER.decode(line)


class _Number(str):
    """A JSON number by its text: where a string belongs Java keeps the digits as they were written."""


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODER: Final = json.JSONDecoder(parse_int=_Number, parse_float=_Number, parse_constant=_no_constant)
_BLANKS: Final = b" \t"


def decode_child_line(line: bytes) -> ChildMessage | None:
    """The message on a line of the child, None for everything else, which the protocol calls noise.

    `response_for` is empty when the child sent null or nothing. Malformed UTF-8 is replaced. Whether an extension is
    switched on is not known here.
    """
    line = line.lstrip(_BLANKS)
    if line[:1] not in (b"{", b"["):  # an empty slice, `null` and plain text as well
        return None
    try:
        value, _ = _DECODER.raw_decode(line.decode(errors="replace"))  # what follows the value does not matter
    except (ValueError, RecursionError):
        return None
    action, fields = _action_of(value)
    try:
        match action:
            case "status":
                return Status(response_for=_text(fields.get("responseFor")) or "")
            case "checkpoint":
                return CheckpointRequest(
                    sequence_number=_text(fields.get("sequenceNumber")),
                    sub_sequence_number=_integer(fields.get("subSequenceNumber")),
                )
            case "prepareCheckpoint":
                return PrepareCheckpointRequest(
                    sequence_number=_text(fields.get("sequenceNumber")),
                    sub_sequence_number=_integer(fields.get("subSequenceNumber")),
                    application_state=_text(fields.get("applicationState")),
                )
    except ValueError:
        pass
    return None


def _action_of(value: dict[str, Any] | list[Any]) -> tuple[Any, dict[str, Any]]:
    """Action and keys of `{"action": NAME, ...}`, or of Jackson's wrapper form `[NAME, {...}]`."""
    if isinstance(value, dict):
        return value.get("action"), value
    if len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], dict):
        return value[0], value[1]
    return None, {}


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return str(value)
    raise ValueError("an object or an array where a string belongs")


_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")


def _integer(value: Any) -> int | None:
    """A Java Long: fractions of a number are cut off, a string must be an integer or empty."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError("not a number")
    text = value.strip()
    if not text and not isinstance(value, _Number):
        return None
    if _INTEGER.fullmatch(text):
        number = int(text)
    elif isinstance(value, _Number):
        try:
            number = int(float(text))
        except OverflowError:
            raise ValueError("out of range") from None
    else:
        raise ValueError("not an integer")
    if not -(2**63) <= number < 2**63:
        raise ValueError("out of range")
    return number
