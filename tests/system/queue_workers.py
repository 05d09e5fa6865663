"""A worker process for tests: `python -m tests.system.queue_workers URL QUEUE NODE FILE`.

It notes every job that it has done in a file of its own, before it acknowledges it.
"""

import sys

import trio

from topics.client import Job, Worker


def main(url: str, queue: str, node: str, path: str) -> None:
    with open(path, "a", buffering=1) as file:

        async def work(job: Job) -> None:
            await trio.sleep(0.002)
            file.write(f"{job.data}\n")

        trio.run(Worker(url, queue, work, node=node, concurrency=4, lease_ms=2000, wait_ms=1000).run)


if __name__ == "__main__":
    main(*sys.argv[1:])
