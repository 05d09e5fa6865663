"""Message ids over kill -9: those of records, and those of copies that are made again, are what they were."""

from typing import Any

import pytest

from tests.system.client import Client


def ids_of(client, topic, count):
    """Of so many records; their ids sort as their seqs."""
    records: list[dict[str, Any]] = []
    at = 0
    while len(records) < count:
        page = client.diff(topic, from_seq=at, limit=1000, wait_ms=2000)
        assert page["tombstone"] is None
        records += page["records"]
        at = page["next_from_seq"]
    found = {record["$seq"]: record["$id"] for record in records}
    assert list(found.values()) == sorted(set(found.values()))
    return found


@pytest.mark.slow
def test_ids_are_the_same_after_a_crash(serve):
    server = serve(shards=2, gateways=1)
    with Client(server) as client:
        client.put("source", durability="fsync", message_ids=True)
        for dest in ("copy", "copy.2"):
            client.put(dest, durability="fsync", message_ids=True)
        for source, dest in (("source", "copy"), ("copy", "copy.2")):
            client._insist("PUT", f"/v0/routers/{source}-{dest}", {"source": source, "dest": dest})
        seen: dict[str, dict[int, str]] = {}
        for turn in range(4):
            records = [{"data": f"{turn}.{n}"} for n in range(100)]
            client.append("source", {"records": records, "idempotency_key": f"k{turn}"})
            client.append("copy", {"records": [{"data": "direct"}], "idempotency_key": f"d{turn}"})
            counts = {"source": 100 * (turn + 1), "copy": 101 * (turn + 1), "copy.2": 101 * (turn + 1)}
            for topic, count in counts.items():
                found = ids_of(client, topic, count)
                assert seen.get(topic, {}).items() <= found.items(), f"ids of {topic} changed"
                seen[topic] = found
            for shard in range(2):
                server.wait_back("shard", shard, server.kill("shard", shard))
        for topic, before in seen.items():
            assert ids_of(client, topic, len(before)) == before
