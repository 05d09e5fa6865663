"""Records that are known again."""

import json

from loadtest.records import DATA_BYTES, Write, batch, data


def test_records_have_their_size_and_differ():
    made = {data(producer, index, number) for producer in (0, 63) for index in (0, 999) for number in (0, 10**9)}
    assert {len(one) for one in made} == {DATA_BYTES}
    assert len(made) == 6  # only the first of a batch carries the number
    assert all(json.loads(one) for one in made)


def body_of(request: bytes) -> list[dict[str, object]]:
    head, _, body = request.partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head
    return list(json.loads(body)["records"])


def test_a_write_carries_its_number_in_the_first_record():
    write = Write(["orders"], producer=7, size=3)
    for number in (0, 12, 3):
        request = bytes(write.render(number))
        assert request.startswith(b"POST /v0/topics/orders?return_seqs=false HTTP/1.1\r\n")
        expected = [data(7, 0, number), *batch(7, 3)[1:]]
        assert body_of(request) == [{"data": json.loads(one)} for one in expected]


def test_a_write_with_several_topics_goes_round():
    write = Write(["a", "b"], producer=0, size=1, key="secret")
    requests = [bytes(write.render(number)) for number in range(3)]
    assert [request.split(b"?")[0].rpartition(b"/")[2] for request in requests] == [b"a", b"b", b"a"]
    assert body_of(requests[2]) == [{"data": json.loads(data(0, 0, 2))}]
    assert all(b"\r\nauthorization: Bearer secret\r\n" in request for request in requests)
