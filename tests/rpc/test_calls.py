"""Calls and replies, errors, tasks, cancellation and deadlines, over memory streams and Unix sockets."""

import logging

import pytest
import trio
import trio.testing

from topics.errors import INTERNAL, TOPIC_FULL, TopicsError, topic_not_found
from topics.rpc import BodyTooLarge, Call, DeadlineExceeded, HeadTooLarge, PeerLost
from topics.testing.rpc_pair import rpc_pair, until

MIB = 1024 * 1024


def echo(call):
    call.reply(call.head, call.body)


async def test_a_call(open_pair):
    async with open_pair({"echo": echo}) as connection:
        reply = await connection.call("echo", {"a": [1, "ü", None, b"\xff"]}, b"body")
        assert reply.head == {"a": [1, "ü", None, b"\xff"]}
        assert reply.body == b"body"


@pytest.mark.parametrize("size", [0, 1, 8191, 8192, 8193, 65_535, 65_536, 65_537, 3 * MIB + 17])
async def test_bodies_of_any_size(open_pair, size):
    body = bytes(range(256)) * (size // 256 + 1)
    async with open_pair({"echo": echo}) as connection:
        assert (await connection.call("echo", {}, body[:size])).body == body[:size]


async def test_a_body_of_many_buffers(open_pair):
    pieces = [b"%d," % n for n in range(100_000)]
    async with open_pair({"echo": lambda call: call.reply({}, [memoryview(call.body), b"end"])}) as connection:
        reply = await connection.call("echo", {}, pieces)
        assert reply.body == b"".join(pieces) + b"end"


async def test_thousands_of_concurrent_calls(open_pair):
    async with open_pair({"echo": echo}) as connection:
        wrong = []

        async def caller(n):
            for turn in range(3):
                body = bytes([n % 256]) * (n % 300 if n % 50 else 100_000)
                reply = await connection.call("echo", {"n": n, "turn": turn}, body, deadline_ms=60_000)
                if reply != ({"n": n, "turn": turn}, body):
                    wrong.append(n)

        async with trio.open_nursery() as nursery:
            for n in range(3000):
                nursery.start_soon(caller, n)
        assert wrong == []
        assert connection.calls == {}
        assert connection.outbox.queued_bytes == 0


async def test_replies_may_come_late_and_in_any_order(open_pair):
    waiting: list[Call] = []
    async with open_pair({"wait": waiting.append}) as connection, trio.open_nursery() as nursery:
        order = []

        async def caller(n):
            order.append((await connection.call("wait", {"n": n})).head["n"])

        for n in range(3):
            nursery.start_soon(caller, n)
        await until(lambda: len(waiting) == 3)
        by_number = {call.head["n"]: call for call in waiting}
        for n in (2, 0, 1):
            by_number[n].reply({"n": n})
            await trio.testing.wait_all_tasks_blocked()
        assert order == [2, 0, 1]


async def test_topics_errors_arrive_as_they_were(open_pair):
    def raises(call):
        raise topic_not_found("a")

    def fails(call):
        call.fail(TopicsError(TOPIC_FULL, "no room", {"cap": 3}))

    async def later(call):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 0)
            raise topic_not_found("b")

    handlers = {"raises": raises, "fails": fails, "later": lambda call: call.run(later, call)}
    async with open_pair(handlers) as connection:
        found = []
        for method in handlers:
            with pytest.raises(TopicsError) as caught:
                await connection.call(method, {})
            found.append((caught.value.code, caught.value.message, caught.value.detail))
        assert found[0] == ("topic_not_found", 'topic "a" does not exist', {"topic": "a"})
        assert found[1] == ("topic_full", "no room", {"cap": 3})
        assert found[2][2] == {"topic": "b"}


async def test_other_errors_keep_their_insides_to_the_log(open_pair, caplog):
    def broken(call):
        raise ValueError("secret")

    async def broken_task(call):
        raise ValueError("secret")

    handlers = {"broken": broken, "task": lambda call: call.run(broken_task, call)}
    async with open_pair(handlers) as connection:
        for method in (*handlers, "unknown"):
            with pytest.raises(TopicsError) as caught:
                await connection.call(method, {})
            assert caught.value.code == INTERNAL
            assert "secret" not in repr(caught.value)
        assert caplog.text.count("ValueError: secret") == 2
        assert not connection.lost


async def test_a_reply_that_cannot_travel_is_an_error_at_the_caller(open_pair, set_limits, caplog):
    set_limits(RPC_HEAD_MAX=1000, RPC_BODY_MAX=100_000)
    handlers = {
        "head": lambda call: call.reply({"x": "y" * 1000}),
        "body": lambda call: call.reply({}, bytes(100_001)),
        "type": lambda call: call.reply({"x": object()}),
        "detail": lambda call: call.fail(TopicsError(TOPIC_FULL, "full", {"x": object()})),
    }
    async with open_pair(handlers) as connection:
        codes = []
        for method in handlers:
            with pytest.raises(TopicsError) as caught:
                await connection.call(method, {})
            codes.append(caught.value.code)
        assert codes == ["payload_too_large", "payload_too_large", "internal", "topic_full"]


async def test_a_call_that_is_too_large_is_refused_here(open_pair, set_limits):
    set_limits(RPC_HEAD_MAX=1000, RPC_BODY_MAX=100_000)
    async with open_pair({"echo": echo}) as connection:
        with pytest.raises(HeadTooLarge):
            await connection.call("echo", {"x": "y" * 1000})
        for body in (bytes(100_001), [bytes(60_000), bytes(60_000)]):
            with pytest.raises(BodyTooLarge):
                await connection.call("echo", {}, body)
        assert connection.calls == {}
        assert (await connection.call("echo", {}, bytes(100_000))).body == bytes(100_000)


async def test_a_body_too_large_is_refused_above_the_easy_path_too(set_limits):
    set_limits(RPC_BODY_MAX=10 * MIB)
    async with rpc_pair({"echo": echo}) as connection:
        with pytest.raises(BodyTooLarge):
            await connection.call("echo", {}, bytes(10 * MIB + 1))
        assert connection.calls == {}


async def test_a_call_is_answered_once(open_pair, caplog):
    seen = []

    def twice(call):
        call.reply({"n": 1})
        seen.append(call.finished)
        call.reply({"n": 2})

    async with open_pair({"twice": twice}) as connection:
        assert (await connection.call("twice", {})).head == {"n": 1}
        assert seen == [True]
        assert "already answered" in caplog.text


async def test_cancellation_reaches_callbacks_and_tasks(open_pair):
    events = []
    calls: list[Call] = []
    ended = trio.Event()

    async def work(call):
        try:
            await trio.sleep_forever()
        finally:
            events.append("task cancelled")
            ended.set()

    def handler(call):
        calls.append(call)
        call.on_cancel(lambda: events.append("callback"))
        call.run(work, call)

    async with open_pair({"work": handler, "echo": echo}) as connection, trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            nursery.start_soon(cancel_when, scope, lambda: calls)
            await connection.call("work", {})
        await ended.wait()
        assert events == ["callback", "task cancelled"]
        assert calls[0].cancelled
        assert calls[0].finished
        calls[0].reply({"late": True})  # silently dropped
        calls[0].on_cancel(lambda: events.append("at once"))
        assert events[-1] == "at once"
        assert (await connection.call("echo", {"still": "works"})).head == {"still": "works"}


async def cancel_when(scope, condition):
    await until(lambda: condition())
    scope.cancel()


async def test_cancelling_a_call_whose_body_is_still_being_sent(open_pair):
    async with open_pair({"echo": echo}) as connection:
        for _ in range(5):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(connection.call, "echo", {}, bytes(20 * MIB))
                    for _ in range(5):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()
        reply = await connection.call("echo", {}, bytes(MIB))
        assert len(reply.body) == MIB
        assert connection.decoder.unfinished_bytes == 0


async def test_a_failing_callback_harms_nobody(open_pair, caplog):
    calls: list[Call] = []

    def handler(call):
        calls.append(call)
        call.on_cancel(lambda: 1 / 0)

    async with open_pair({"wait": handler, "echo": echo}) as connection, trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            nursery.start_soon(cancel_when, scope, lambda: calls)
            await connection.call("wait", {})
        await connection.call("echo", {})
        assert "ZeroDivisionError" in caplog.text


async def test_deadlines(autojump_clock):
    calls: list[Call] = []
    async with rpc_pair({"wait": calls.append, "echo": echo}) as connection:
        for deadline_ms in (1, 40, 3000):
            started = trio.current_time()
            with pytest.raises(DeadlineExceeded):
                await connection.call("wait", {}, deadline_ms=deadline_ms)
            late_ms = (trio.current_time() - started) * 1000 - deadline_ms
            assert 0 <= late_ms < 26
            assert calls[-1].deadline_ms == deadline_ms
            await trio.sleep(0.1)
            assert calls[-1].cancelled
        with pytest.raises(DeadlineExceeded):
            await connection.call("echo", {}, deadline_ms=0)
        assert connection.calls == {}
        await trio.sleep(100)  # with no deadline open the sweeper sleeps
        assert (await connection.call("echo", {"x": 1}, deadline_ms=50)).head == {"x": 1}


async def test_the_server_keeps_the_deadline_by_itself(autojump_clock):
    """Its client may be stopped: a call past its deadline is cancelled without being told."""
    calls: list[Call] = []
    async with rpc_pair({"wait": calls.append}) as connection, trio.open_nursery() as nursery:
        nursery.start_soon(expect, DeadlineExceeded, connection, "wait", 1000)
        await until(lambda: calls)
        connection.outbox.wake = None  # the client's writer never runs again
        await trio.sleep(1.1)
        assert calls[0].cancelled


async def expect(error, connection, method, deadline_ms=None):
    with pytest.raises(error):
        await connection.call(method, {}, deadline_ms=deadline_ms)


async def test_closing_ends_calls_on_both_sides(open_pair):
    calls: list[Call] = []
    cancelled = []

    def handler(call):
        calls.append(call)
        call.on_cancel(lambda: cancelled.append(call))

    async with open_pair({"wait": handler}) as connection:
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(expect, PeerLost, connection, "wait")
            await until(lambda: len(calls) >= 10)
            await connection.aclose()
        with pytest.raises(PeerLost):
            await connection.call("wait", {})
        await until(lambda: len(cancelled) >= 10)


async def test_a_task_that_fails_while_its_connection_closes_is_logged(caplog):
    async def stubborn(call):
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("during cleanup")

    calls: list[Call] = []

    def handler(call):
        calls.append(call)
        call.run(stubborn, call)

    caplog.set_level(logging.ERROR)
    async with rpc_pair({"wait": handler}) as connection, trio.open_nursery() as nursery:
        nursery.start_soon(expect, PeerLost, connection, "wait")
        await until(lambda: calls)
        await trio.testing.wait_all_tasks_blocked()
        await connection.aclose()
        await trio.testing.wait_all_tasks_blocked()
    assert "during cleanup" in caplog.text


async def test_an_answer_that_crosses_with_the_callers_end_is_known_to_have_reached_nobody(open_pair):
    unheard: list[int] = []
    scope = trio.CancelScope()

    def answer(call):
        number = call.head["n"]
        call.if_unheard(lambda: unheard.append(number))
        call.reply({"n": number})
        if number == 2:
            scope.cancel()  # the caller goes before it has read that

    async with open_pair({"answer": answer, "echo": echo}) as connection:
        await connection.call("answer", {"n": 1})
        with scope:
            await connection.call("answer", {"n": 2})
        assert scope.cancelled_caught
        await connection.call("answer", {"n": 3})
        await until(lambda: unheard == [2])


async def test_answers_that_may_reach_nobody_are_not_kept_for_ever(set_limits):
    set_limits(RPC_UNHEARD_MAX=3)
    kept: list[int] = []

    def answer(call):
        call.if_unheard(lambda: None)
        call.reply({})
        kept.append(len(call._link._answered))

    async with rpc_pair({"answer": answer}) as connection:
        for _ in range(10):
            await connection.call("answer", {})
    assert max(kept) == 3
