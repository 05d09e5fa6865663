"""kill -9 of shards and gateways under writers that send the same records again and again: each is there once."""

import random
import threading

import pytest

from tests.system.client import Client

WRITERS, KILLS = 6, 8
ROUNDS_A_KILL = 10
NEW_KEYS_A_ROUND = 7
EVERYBODY = (("shard", 0), ("shard", 0), ("gateway", 0), ("gateway", 1))


class Killings:
    """How many there were: writers go on until the last, however quick they are."""

    done = 0


def write(server, seed: int, killings: Killings, told: list[tuple[str, int]], failures: list[BaseException]) -> None:
    """Batches of keys that all writers share, without an idempotency key: what is lost is simply sent again."""
    chance = random.Random(seed)
    try:
        with Client(server) as client:
            turn = 0
            while killings.done < KILLS or turn < KILLS * ROUNDS_A_KILL:
                # All are about the same keys at any time; the quickest stay where they are until the next kill.
                turn = min(turn + 1, (killings.done + 1) * ROUNDS_A_KILL)
                low = turn * NEW_KEYS_A_ROUND
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
    killings = Killings()
    told: list[tuple[str, int]] = []
    failures: list[BaseException] = []
    with Client(server) as client:
        client.put("t", durability="fsync")
        threads = [
            threading.Thread(target=write, args=(server, seed + n, killings, told, failures), daemon=True)
            for n in range(WRITERS)
        ]
        for thread in threads:
            thread.start()
        for victim in [*EVERYBODY, *chance.choices(EVERYBODY, k=KILLS - len(EVERYBODY))]:
            server.wait_back(*victim, server.kill(*victim))
            killings.done += 1
        for thread in threads:
            thread.join(120)
        assert not failures, failures
        records, lost = client.read_all("t")
        assert lost == []
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
