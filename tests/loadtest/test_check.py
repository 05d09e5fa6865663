"""A server that is fast and wrong fails: everything acked is read back."""

import pytest

from loadtest.producers import Ledger, append_load, check, paced_load, writes_for
from loadtest.workload import WrongAnswer
from tests.loadtest.stand_in import Records, StandIn, serving

TOPICS = ["one", "two"]


def load_and_check(stand_in: StandIn, batch: int) -> int:
    with serving(stand_in) as address:
        load = append_load(address, writes_for(TOPICS, 4, batch), processes=2, each=3)
        check(address, load.ledgers)
        return load.records


@pytest.mark.parametrize("batch", [1, 1200])
def test_an_honest_server_passes(batch):
    assert load_and_check(StandIn(), batch) == 4 * 3 * batch


def drop_in_the_middle(records: Records) -> None:
    del records[2]


def drop_the_last(records: Records) -> None:
    del records[-1]


def drop_and_close_the_gap(records: Records) -> None:
    del records[2]
    for seq, record in enumerate(records, 1):
        record["$seq"] = seq


def swap_payloads(records: Records) -> None:
    records[1]["data"], records[2]["data"] = records[2]["data"], records[1]["data"]


def deliver_out_of_order(records: Records) -> None:
    records[1], records[2] = records[2], records[1]


def change_a_byte(records: Records) -> None:
    records[3]["data"]["w"] = 257


def deliver_twice(records: Records) -> None:
    records.insert(1, records[0])


def add_what_nobody_sent(records: Records) -> None:
    records.append({"$seq": records[-1]["$seq"] + 1, "data": 1})


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize(
    "lie",
    [
        drop_in_the_middle,
        drop_the_last,
        drop_and_close_the_gap,
        swap_payloads,
        deliver_out_of_order,
        change_a_byte,
        deliver_twice,
        add_what_nobody_sent,
    ],
)
def test_a_lying_server_is_caught(lie, batch):
    with pytest.raises(WrongAnswer):
        load_and_check(StandIn(lie), batch)


def test_a_seq_that_two_writes_got_is_caught():
    ledgers = [Ledger(write) for write in writes_for(["one"], 2, 1)]
    for ledger in ledgers:
        ledger.firsts.append(1)
    with serving(StandIn()) as address, pytest.raises(WrongAnswer, match="given to two writes"):
        check(address, ledgers)


def test_a_hole_in_the_acked_seqs_is_caught():
    [ledger] = [Ledger(write) for write in writes_for(["one"], 1, 1)]
    ledger.firsts.extend([1, 3])
    with serving(StandIn()) as address:
        append_load(address, writes_for(["one"], 1, 1), processes=1, each=3)
        with pytest.raises(WrongAnswer, match="acked seqs go from 1 to 3"):
            check(address, [ledger])


def test_producers_with_several_topics_go_round():
    with serving(StandIn()) as address:
        load = append_load(address, writes_for([f"t{n}" for n in range(6)], 2, 1), processes=1, each=3)
        check(address, load.ledgers)
        assert {ledger.write.topic_of(number) for ledger in load.ledgers for number in range(3)} == {
            f"t{n}" for n in range(6)
        }


def test_paced_writes_are_all_sent_and_acked():
    with serving(StandIn()) as address:
        load = paced_load(address, writes_for(["one"], 2, 1), rate=200, seconds=0.1)
        check(address, load.ledgers)
    assert load.records == len(load.latencies) == len(load.lateness) == 20


def test_a_refusal_ends_the_load():
    with serving(StandIn(status=503)) as address, pytest.raises(WrongAnswer, match="503"):
        append_load(address, writes_for(["one"], 2, 1), processes=2, each=1)
