"""Clients and a worker against a real server."""

import time
from collections.abc import Iterator
from math import inf

import httpx
import pytest
import trio

from topics.client import ApiError, AsyncClient, Client, Job, Retries, Worker
from topics.testing.server import Server

AT_ONCE = Retries(first_s=0.0, longest_s=0.0, total_s=10.0)


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("client"), shards=1) as started:
        yield started.start().wait_ready()


@pytest.fixture
def topics(server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@pytest.fixture
def queue(topics, request) -> str:
    name: str = request.node.name[:200].replace("[", ".").replace("]", "")
    topics.put_topic(name, type="queue")
    return name


def counts(topics: Client, queue: str) -> tuple[int, int]:
    numbers = topics.state(queue)["queue"]
    return numbers["ready"], numbers["in_flight"]


async def until(found) -> None:
    """The time-out only bounds a failing test."""
    with trio.fail_after(30):
        while not await trio.to_thread.run_sync(found):
            await trio.sleep(0.01)


def test_topics_and_records(topics):
    assert topics.put_topic("c.log", ttl_ms=0)["created"]
    assert topics.append("c.log", [{"data": 1}, {"data": 2, "tag": "x"}])["seqs"] == [1, 2]
    assert [record["data"] for record in topics.diff("c.log")["records"]] == [1, 2]
    assert topics.delete("c.log", match="x")["deleted"] == 1
    assert [topic["topic"] for topic in topics.topics("c.")] == ["c.log"]
    assert topics.remove_topic("c.log")["deleted"]


def test_numbers_that_python_cannot_hold_are_infinite_and_hide_nothing(server, topics):
    body = b'{"records":[{"data":1e400},{"data":%b},{"data":3}]}' % (b"9" * 5000)
    answer = httpx.post(f"{server.url}/v0/topics/c.huge", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 201
    assert [record["data"] for record in topics.read("c.huge")] == [inf, inf, 3]


def test_all_records_are_read_and_then_followed(topics):
    topics.append("c.read", [{"data": number} for number in range(7)])
    assert [record["data"] for record in topics.read("c.read", limit=3)] == list(range(7))
    assert [record["$seq"] for record in topics.read("c.read", 5)] == [6, 7]
    following = topics.follow("c.read", 6)
    assert next(following)["$seq"] == 7
    topics.append("c.read", [{"data": "new"}])
    assert next(following)["data"] == "new"


def test_what_a_cap_took_is_told(topics):
    topics.append("c.gap", [{"data": number} for number in range(5)], config={"cap_records": 2})
    gap, *kept = topics.read("c.gap", 1)
    assert gap["tombstone"]["reason"] == "cap"
    assert (gap["tombstone"]["gap_from"], gap["tombstone"]["gap_to"]) == (2, kept[0]["$seq"] - 1)
    assert kept[-1]["data"] == 4


def test_groups(topics):
    topics.append("grouped", [{"data": n} for n in range(4)])
    page = topics.group_fetch("grouped", "g", limit=2, consumer="a", start="earliest")
    assert [record["data"] for record in page["records"]] == [0, 1]
    assert topics.group_ack("grouped", "g", page["next_from_seq"], consumer="a")["lag"] == 2
    assert topics.group_fetch("grouped", "g", consumer="b")["cursor_seq"] == 2
    assert topics.group_seek("grouped", "g", "latest", consumer="b")["cursor_seq"] == 4
    with pytest.raises(ApiError) as refused:
        topics.group_fetch("grouped", "g", consumer="a")
    assert (refused.value.status, refused.value.code) == (409, "taken_over")
    assert topics.group("grouped", "g")["consumer"] == "b"
    assert topics.put_group("grouped", "h", "latest")["created"]
    assert [group["group"] for group in topics.groups("grouped")] == ["g", "h"]
    assert topics.remove_group("grouped", "h")["deleted"]


@pytest.mark.parametrize("name", [".", "..", "..."])
def test_names_that_mean_the_way_up_reach_no_other_route(topics, name):
    head = topics.append("up", [{"data": 1}])["last_seq"]
    calls = (
        lambda: topics.remove_group("up", name),
        lambda: topics.put_group("up", name, "latest"),
        lambda: topics.group_ack("up", name, 1),
        lambda: topics.remove_topic(name),
        lambda: topics.router(name),
    )
    for call in calls:
        with pytest.raises(ApiError) as refused:
            call()
        assert (refused.value.status, refused.value.code) == (400, "invalid_request")
    assert topics.state("up")["head_seq"] == head


async def test_groups_with_trio(server):
    async with AsyncClient(server.url) as topics:
        await topics.append("trio-grouped", [{"data": n} for n in range(4)])
        await topics.put_group("trio-grouped", "g")
        page = await topics.group_fetch("trio-grouped", "g", wait_ms=1000)
        assert len(page["records"]) == 4
        assert (await topics.group_ack("trio-grouped", "g", 3))["lag"] == 1
        assert (await topics.group_seek("trio-grouped", "g", {"ts": 0}))["cursor_seq"] == 0
        assert (await topics.group("trio-grouped", "g"))["lag"] == 4
        assert len(await topics.groups("trio-grouped")) == 1
        assert (await topics.remove_group("trio-grouped", "g"))["deleted"]


def test_routers(topics):
    assert topics.put_router("c.copy", "c.from", "c.to", preserve_tag=False)["created"]
    assert topics.router("c.copy")["dest"] == "c.to"
    assert [router["router"] for router in topics.routers("c.")] == ["c.copy"]
    topics.append("c.from", [{"data": 1}])
    assert next(topics.follow("c.to"))["data"] == 1
    assert topics.remove_router("c.copy")["deleted"]
    assert not topics.remove_router("c.copy")["deleted"]


async def test_a_time_instead_of_a_seq(server, topics):
    topics.append("c.timely", [{"data": 1}, {"data": 2}])
    ts = topics.diff("c.timely")["records"][0]["$ts"]
    async with AsyncClient(server.url) as client:
        for read, where in (
            (topics.diff("c.timely", from_ts=ts), topics.seek("c.timely", ts)),
            (await client.diff("c.timely", from_ts=ts), await client.seek("c.timely", ts)),
        ):
            assert [record["data"] for record in read["records"]] == [1, 2]
            assert (where["seq"], where["from_seq"]) == (1, 0)
        assert [record["data"] async for record in client.read("c.timely", from_ts=ts, limit=1)] == [1, 2]
    assert [record["data"] for record in topics.read("c.timely", from_ts=ts, limit=1)] == [1, 2]
    assert topics.diff("c.timely", from_ts=ts + 3_600_000)["next_from_seq"] == 2


def test_jobs(topics, queue):
    topics.append(queue, [{"data": number} for number in range(3)])
    jobs = topics.claim(queue, "w", 3, lease_ms=60_000)
    assert [job.data for job in jobs] == [0, 1, 2]
    assert topics.ack(queue, "w", jobs[:1])["acked"] == 1
    assert topics.nack(queue, "w", jobs[1:2])["nacked"] == 1
    assert list(topics.extend(queue, "w", [jobs[2].seq], lease_ms=1000)["deadlines"]) == ["3"]
    (again,) = topics.claim(queue, "w")
    assert topics.ack(queue, "w", [jobs[1]])["skipped"] == [2]  # another lease of the same job
    assert topics.ack(queue, "w", [again])["acked"] == 1


async def test_trio_reads_and_follows(server):
    async with AsyncClient(server.url) as topics:
        await topics.append("c.trio.read", [{"data": number} for number in range(5)])
        assert [record["data"] async for record in topics.read("c.trio.read", limit=2)] == list(range(5))
        following = topics.follow("c.trio.read", 5)
        await topics.append("c.trio.read", [{"data": "new"}])
        assert (await anext(following))["data"] == "new"
        await following.aclose()  # type: ignore[attr-defined]
        assert (await topics.put_router("c.trio", "c.trio.read", "c.trio.to"))["created"]
        assert (await topics.router("c.trio"))["source"] == "c.trio.read"
        assert [router["router"] async for router in topics.routers("c.trio")] == ["c.trio"]
        assert (await topics.remove_router("c.trio"))["deleted"]


async def test_every_job_is_done_and_several_at_a_time(server, topics, queue):
    topics.append(queue, [{"data": number} for number in range(50)])
    done, together, most = [], 0, 0

    async def work(job: Job) -> None:
        nonlocal together, most
        together += 1
        most = max(most, together)
        await trio.sleep(0.005)
        together -= 1
        done.append(job.data)

    worker = Worker(server.url, queue, work, concurrency=8)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run)
        await until(lambda: len(done) == 50)
        worker.stop()
    assert sorted(done) == list(range(50))
    assert 2 <= most <= 8
    assert (worker.done, counts(topics, queue)) == (50, (0, 0))


async def test_a_plain_function_may_give_back_a_coroutine(server, topics, queue):
    topics.append(queue, [{"data": 1}])
    done = []

    async def work(job: Job, where: str) -> None:
        await trio.lowlevel.checkpoint()
        done.append((job.data, where))

    worker = Worker(server.url, queue, lambda job: work(job, "here"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run)
        await until(lambda: worker.done or worker.failed)
        worker.stop()
    assert (done, worker.failed) == ([(1, "here")], 0)


@pytest.mark.parametrize("style", ["thread", "blocked"])
async def test_a_lease_is_kept_for_as_long_as_the_job_runs(server, topics, queue, style):
    """Also by a job that does not let the event loop go on."""
    topics.append(queue, [{"data": 1}])
    rivals: list[Job] = []

    def block(job: Job) -> None:
        ends = time.monotonic() + 2.0
        with Client(server.url) as rival:
            while time.monotonic() < ends:
                rivals.extend(rival.claim(queue, "rival"))
                time.sleep(0.05)

    async def hold_up(job: Job) -> None:
        block(job)

    worker = Worker(server.url, queue, block if style == "thread" else hold_up, lease_ms=500)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run)
        await until(lambda: worker.done)
        worker.stop()
    assert rivals == []
    assert topics.state(queue)["count"] == 0


async def test_a_job_that_fails_comes_back(server, topics, queue):
    topics.append(queue, [{"data": 1}])
    deliveries: list[int] = []

    async def work(job: Job) -> None:
        deliveries.append(job.deliveries)
        if job.deliveries < 3:
            raise ValueError("not yet")

    worker = Worker(server.url, queue, work, backoff=AT_ONCE)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run)
        await until(lambda: worker.done)
        worker.stop()
    assert (deliveries, worker.failed) == ([1, 2, 3], 2)


async def test_why_a_job_failed_is_told_by_its_dead_letter_and_it_can_go_back(server, topics, queue):
    dead = f"{queue}.dead"
    topics.put_topic(queue, max_deliveries=1, dead_letter=dead)
    topics.append(queue, [{"data": 1, "priority": 6}, {"data": 2, "delay_ms": 3_600_000}])

    async def work(job: Job) -> None:
        assert job.priority == 6
        raise ValueError("no such\nbucket " + "é" * 2000)

    worker = Worker(server.url, queue, work, backoff=AT_ONCE)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run)
        await until(lambda: worker.failed)
        worker.stop()
    await until(lambda: not topics.claim(queue, "w") and topics.state(queue)["queue"]["dead_lettered"] == 1)
    (letter,) = topics.diff(dead)["records"]
    reason = letter["meta"]["$dead_letter_reason"]
    assert reason.startswith("ValueError: no such bucket éé")
    assert 900 < len(reason.encode()) <= 1024
    assert topics.redrive(dead, queue, limit=5)["moved"] == 1
    (job,) = topics.claim(queue, "w")
    assert (job.data, job.deliveries, job.priority, job.meta) == (1, 1, 6, {})
    assert topics.nack(queue, "w", [job], reason="not now", penalty=False)["nacked"] == 1
    async with AsyncClient(server.url) as client:
        (job,) = await client.claim(queue, "w")
        assert job.deliveries == 1
        assert (await client.nack(queue, "w", [job], reason="no"))["nacked"] == 1
        await until(lambda: topics.claim(queue, "w") == [] and topics.state(dead)["count"])
        assert (await client.redrive(dead, queue, match=["tag", "Eq", "x"]))["remaining"] == 0
        assert (await client.redrive(dead, queue))["moved"] == 1


async def test_stop_lets_finish_what_runs_and_cancel_gives_back(server, topics, queue):
    topics.append(queue, [{"data": number} for number in range(4)])
    started = []

    async def work(job: Job) -> None:
        started.append(job)
        await trio.sleep(0.3 if job.data == 0 else 3600)

    worker = Worker(server.url, queue, work, concurrency=2, lease_ms=3_600_000, grace_s=1.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run)
        await until(lambda: len(started) == 2)
        worker.stop()
    assert worker.done == 1
    assert counts(topics, queue) == (3, 0)
    assert [job.deliveries for job in topics.claim(queue, "next", 3)] == [1, 1, 1]  # it was not the job's fault


async def test_a_job_that_another_worker_has_is_let_go(server, topics, queue):
    topics.append(queue, [{"data": 1}])
    running, cancelled = trio.Event(), trio.Event()

    async def work(job: Job) -> None:
        running.set()
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    worker = Worker(server.url, queue, work, node="mine", lease_ms=300)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run)
        await running.wait()
        topics.nack(queue, "mine", [1])  # as if it had been away for too long
        assert topics.claim(queue, "other", lease_ms=60_000)
        with trio.fail_after(30):
            await cancelled.wait()
        worker.stop()
    assert counts(topics, queue) == (0, 1)


async def test_a_worker_outlives_a_restart_of_the_server(tmp_path):
    with Server(tmp_path, shards=1) as server:
        server.start().wait_ready()
        async with AsyncClient(server.url) as topics:
            await topics.put_topic("q", type="queue", durable=True)
            done: list[int] = []

            async def work(job: Job) -> None:
                done.append(job.data)

            worker = Worker(server.url, "q", work, lease_ms=2000, wait_ms=500)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(worker.run)
                await topics.append("q", [{"data": 1}])
                await until(lambda: done == [1])
                await trio.to_thread.run_sync(server.kill, "shard", 0)
                await trio.to_thread.run_sync(server.kill, "gateway", 0)
                await topics.append("q", [{"data": 2}])
                await until(lambda: 2 in done)
                worker.stop()
            assert set(done) == {1, 2}
