"""Space that nobody needs goes back when it is asked for."""

import os
from pathlib import Path

import topics


def used(folder: Path) -> int:
    return sum(os.path.getsize(path) for path in folder.rglob("*") if path.is_file())


def test_what_was_deleted_evicted_and_done_is_freed(tmp_path):
    with topics.open(tmp_path, segment_max_events=100) as db:
        records = [{"data": "x" * 1000} for _ in range(100)]
        db.put_topic("capped", cap_records=100)
        db.put_topic("jobs", type="queue", lease_ms=600_000)
        for _ in range(10):
            for topic in ("deleted", "capped", "jobs"):
                db.append(topic, records)
            db.compact()  # so that each batch has a segment of its own
        db.delete("deleted", before_seq=801)
        jobs = db.claim("jobs", "w", 1000)
        db.ack("jobs", "w", jobs)
        before = used(tmp_path)
        told = db.compact()
        assert told["segments_removed"] >= 8 + 10
        assert told["bytes_freed"] > 18 * 100 * 1000
        assert before - used(tmp_path) >= 0.9 * told["bytes_freed"]
        assert db.state("deleted")["count"] == 200
        assert db.compact()["segments_removed"] == 0
