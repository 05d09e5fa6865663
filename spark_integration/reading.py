"""One partition: the records of a stretch, page by page, and what is done about those that are gone.

Deleted records are absent silently, as the API says. Records lost to capacity or age, a topic that was removed or made
anew, and a head below what was planned are data loss: the read fails, or with `failOnDataLoss=false` goes on and says
so on stderr.
"""

import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from spark_integration.options import ReadOptions
from spark_integration.pages import Batches, Record, decode_page
from spark_integration.planning import Stretch
from spark_integration.server import NoTopic, Topics

PAGE_BYTES = 8 * 1024 * 1024
RECREATED = "recreated"


class DataLoss(Exception):
    """Records that the query has to read are not there any more."""


def read_stretch(options: ReadOptions, batches: Batches, stretch: Stretch) -> Iterator[pa.RecordBatch]:
    query: dict[str, Any] = {
        "bulk": True,
        "limit": options.fetch_records,
        "max_batch_bytes": PAGE_BYTES,
        "include_tags": "tag" in batches.columns or options.tag_prefix is not None,
        "include_meta": "meta" in batches.columns,
        "include_data": "data" in batches.columns,
    }
    if options.nodes:
        query["node"] = list(options.nodes)
    after = stretch.after
    with Topics(options.server) as topics:
        while after < stretch.until:
            try:
                page = decode_page(topics.page(stretch.topic, {"from_seq": after, **query}))
            except NoTopic:
                _lost(options, f"{stretch.topic} does not exist any more")
                return
            gap = page.tombstone
            if gap is not None and gap.reason == RECREATED:
                _lost(options, f"{stretch.topic} was made anew: its head is {page.head_seq}, {after} was read before")
                return  # what is there now is of another life, the records of this stretch are gone
            if gap is not None and gap.gap_from <= stretch.until:
                last = min(gap.gap_to, stretch.until)
                if options.lost_as_rows:
                    yield batches.lost(stretch.topic, gap.gap_from, last, gap.reason)
                else:
                    _lost(options, f"{stretch.topic} has lost seq {gap.gap_from} to {last} ({gap.reason})")
            wanted = _wanted(options, stretch, page.records)
            if wanted:
                yield batches.batch(stretch.topic, wanted)
            if page.next_from_seq <= after:
                _lost(options, f"{stretch.topic} ends at seq {page.head_seq} now, it had {stretch.until} before")
                return
            after = page.next_from_seq


def _wanted(options: ReadOptions, stretch: Stretch, records: list[Record]) -> list[Record]:
    while records and records[-1].seq > stretch.until:
        records.pop()
    if options.nodes:
        records = [record for record in records if record.node not in options.nodes]
    if options.tag_prefix is not None:
        prefix = options.tag_prefix
        records = [record for record in records if record.tag is not None and record.tag.startswith(prefix)]
    return records


def _lost(options: ReadOptions, what: str) -> None:
    if options.fail_on_loss:
        raise DataLoss(f"{what}. Set failOnDataLoss=false to go on with what is left.")
    print(f"topics: data loss, going on: {what}", file=sys.stderr, flush=True)
