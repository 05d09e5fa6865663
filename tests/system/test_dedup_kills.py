"""kill -9 of shards and gateways under writers that send the same records again and again: each is there once."""

import random
import threading

import pytest

from tests.system.client import Client

WRITERS, ROUNDS, KEYS = 6, 60, 400


def write(server, seed: int, told: list[tuple[str, int]], failures: list[BaseException]) -> None:
    """Batches of keys that all writers share, without an idempotency key: what is lost is simply sent again."""
    chance = random.Random(seed)
    try:
        with Client(server) as client:
            for turn in range(ROUNDS):
                low = turn * KEYS // ROUNDS  # all are about the same keys at any time
                keys = [f"k{low + chance.randrange(40)}" for _ in range(chance.randint(1, 12))]
                answer = client.append("t", {"records": [{"data": key, "dedup_key": key} for key in keys]})
                duplicates = {one["index"]: one["seq"] for one in answer.get("duplicates", ())}
                assert len(duplicates) + answer["count"] == len(keys)
                seqs = iter(answer["seqs"])
                told += [(key, duplicates[i] if i in duplicates else next(seqs)) for i, key in enumerate(keys)]
    except BaseException as error:
        failures.append(error)


@pytest.mark.slow
def test_each_key_is_there_once_whoever_is_killed(serve):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    server = serve(shards=1, gateways=2)
    chance = random.Random(seed)
    told: list[tuple[str, int]] = []
    failures: list[BaseException] = []
    with Client(server) as client:
        client.put("t", durability="fsync")
        threads = [
            threading.Thread(target=write, args=(server, seed + n, told, failures), daemon=True) for n in range(WRITERS)
        ]
        for thread in threads:
            thread.start()
        kills = 0
        while any(thread.is_alive() for thread in threads) and kills < 12:
            victim = chance.choice((("shard", 0), ("shard", 0), ("gateway", 0), ("gateway", 1)))
            server.wait_back(*victim, server.kill(*victim))
            kills += 1
        for thread in threads:
            thread.join(120)
        assert not failures, failures
        assert kills >= 3
        records, at = [], 0
        while True:
            page = client.diff("t", from_seq=at, limit=1000)
            assert page["tombstone"] is None
            records += page["records"]
            at = page["next_from_seq"]
            if page["caught_up"]:
                break
        found = {record["data"]: record["$seq"] for record in records}
        assert len(found) == len(records), "a record is there twice"
        assert [(key, seq, found[key]) for key, seq in told if found[key] != seq] == []
        # Also after a stop in good order, when a checkpoint has the keys and the log has not.
        assert server.stop() == 0
        server.start().wait_ready()
        some = sorted(found)[:50]
        answer = client.append("t", {"records": [{"data": key, "dedup_key": key} for key in some]})
        assert (answer["count"], answer["seqs"], answer["deduped"]) == (0, [], True)
        assert [one["seq"] for one in answer["duplicates"]] == [found[key] for key in some]
