# mypy: disable-error-code="import-not-found, import-untyped"
"""Payloads as columns, with those that cannot be read kept apart: never silently null, never an end of the shard."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation

REJECTED = "rejected"
"""Name of the table of rejected rows, unless a transform chooses another."""


class RejectedRows(NamedTuple):
    """A frame to write only if there are any: they were counted while the accepted ones were written."""

    frame: DataFrame
    """The columns of the batch, and `reason`."""
    counted: Observation

    @property
    def number(self) -> int | None:
        """None when nobody knows, because the accepted rows were not looked at."""
        try:
            count = self.counted.get.get("rejected")
        except Exception:  # the client and the classic driver differ in what they raise; the rows are then written
            return None
        return None if count is None else int(count)


class Rows(NamedTuple):
    """What a helper makes of a batch."""

    accepted: DataFrame
    rejected: RejectedRows


def json_rows(batch: DataFrame, schema: str) -> Rows:
    """The fields of JSON objects as columns, after the batch's own columns without `data`.

    `schema` is a DDL string. Rejected: what is no UTF-8, no JSON object, or has a value that does not fit its column.
    Missing fields are null, others are left out. One object per record: what follows it in the record is not looked at.
    """
    from pyspark.sql import functions as F

    corrupt = "_kcl_host_corrupt"
    text = F.col("data").cast("string")
    parsed = F.from_json(
        text, f"{schema}, {corrupt} string", {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": corrupt}
    )
    reason = (
        F.when(F.col("data").isNull(), "no data")
        .when(~F.is_valid_utf8(text), "not UTF-8")
        # Almost every object begins at once: ltrim, which copies the text, is for the others.
        .when(~text.startswith("{") & ~F.ltrim(text).startswith("{"), "not a JSON object")
        .when(
            F.col("_kcl_host_row").isNull() | F.col(f"_kcl_host_row.{corrupt}").isNotNull(), "does not fit the schema"
        )
    )
    marked = batch.withColumn("_kcl_host_row", parsed).withColumn("reason", reason)
    rows = _split(marked, batch.columns)
    return rows._replace(accepted=rows.accepted.drop(corrupt))


def text_rows(batch: DataFrame, column: str = "text") -> Rows:
    """The payload as text in one column, after the batch's own columns without `data`. Rejected: what is no UTF-8."""
    from pyspark.sql import functions as F

    text = F.col("data").cast("string")
    reason = F.when(F.col("data").isNull(), "no data").when(~F.is_valid_utf8(text), "not UTF-8")
    marked = batch.withColumn("_kcl_host_row", F.struct(text.alias(column))).withColumn("reason", reason)
    return _split(marked, batch.columns)


def _split(marked: DataFrame, columns: list[str]) -> Rows:
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    counted = Observation()
    observed = marked.observe(counted, F.count("reason").alias("rejected"))
    kept = [name for name in columns if name != "data"]
    return Rows(
        observed.where(F.col("reason").isNull()).select(*kept, "_kcl_host_row.*"),
        RejectedRows(marked.where(F.col("reason").isNotNull()).select(*columns, "reason"), counted),
    )
