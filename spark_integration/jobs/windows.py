"""Windows of time over records: what is counted in them, and the columns that come out. No effects."""

import re
from dataclasses import dataclass
from typing import Any

from spark_integration.options import BadOption

QUANTILE_ACCURACY = 10_000  # of percentile_approx: a rank is off by at most one in so many


@dataclass(frozen=True)
class Measure:
    """How records become windows."""

    window: str = "1 minute"
    slide: str | None = None  # windows that overlap begin so far apart
    by_tag: bool = True
    value: str | None = None  # where a number is in the data, such as $.amount
    quantiles: tuple[float, ...] = (0.5, 0.95, 0.99)

    def __post_init__(self) -> None:
        if self.value is not None and not re.fullmatch(r"\$[^'\\]*", self.value):
            raise BadOption(f"value must be a JSON path such as $.amount, not {self.value!r}")
        if not all(0 <= quantile <= 1 for quantile in self.quantiles):
            raise BadOption(f"quantiles lie between 0 and 1, not {', '.join(map(str, self.quantiles))}")


def quantile_name(quantile: float) -> str:
    return f"p{quantile * 100:g}".replace(".", "_")


def windows(rows: Any, measure: Measure) -> Any:
    """One row for each topic, tag and window that has records."""
    number = "CAST(NULL AS DOUBLE)"
    if measure.value is not None:
        number = f"try_cast(get_json_object(data, '{measure.value}') AS DOUBLE)"
    tag = "tag" if measure.by_tag else "CAST(NULL AS STRING) AS tag"
    chosen = rows.selectExpr("topic", tag, "seq", "ts", "octet_length(data) AS size", f"{number} AS value")
    grouped = chosen.groupBy(_window(measure), "topic", "tag")
    return _measured(grouped, measure).selectExpr(
        "topic", "tag", "window.start AS window_start", "window.end AS window_end", *_names(measure)
    )


def _window(measure: Measure) -> Any:
    from pyspark.sql import functions

    return functions.window("ts", measure.window, measure.slide)


def _measured(grouped: Any, measure: Measure) -> Any:
    from pyspark.sql import functions as f

    wanted = [f.count("*").alias("count"), f.sum("size").alias("bytes")]
    wanted += [f.min("seq").alias("first_seq"), f.max("seq").alias("last_seq")]
    if measure.value is not None:
        wanted.append(f.count("value").alias("values"))
        wanted += [getattr(f, name)("value").alias(name) for name in ("sum", "min", "max")]
        quantiles = f.percentile_approx("value", list(measure.quantiles), QUANTILE_ACCURACY)
        wanted.append(quantiles.alias("quantiles"))
    return grouped.agg(*wanted)


def _names(measure: Measure) -> list[str]:
    names = ["count", "bytes", "first_seq", "last_seq"]
    if measure.value is not None:
        names += ["values", "sum", "min", "max"]
        each = enumerate(measure.quantiles)
        names += [f"quantiles[{index}] AS {quantile_name(quantile)}" for index, quantile in each]
    return names


def as_records(rows: Any) -> Any:
    """Windows as records: times in milliseconds, the tag that of the window."""
    from pyspark.sql import functions as f

    times = [f.unix_millis(name).alias(name) for name in ("window_start", "window_end")]
    rest = [name for name in rows.columns if name not in ("window_start", "window_end")]
    return rows.select(f.to_json(f.struct(*times, *rest)).alias("data"), "tag")
