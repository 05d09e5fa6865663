from hypothesis import given
from hypothesis import strategies as st

from spark_integration.planning import Cut, Stretch, admit, cut

seqs = st.integers(0, 10**12)
topic_names = st.sampled_from("abcde")


@given(st.dictionaries(topic_names, st.tuples(seqs, seqs)), st.integers(1, 50), st.integers(1, 10**6))
def test_pieces_cover_exactly_what_was_asked_for(edges, least, records):
    stretches = [Stretch(topic, low, low + size % (50 * records)) for topic, (low, size) in edges.items()]
    pieces = cut(stretches, Cut(least, records))
    for stretch in stretches:
        own = [piece for piece in pieces if piece.topic == stretch.topic]
        assert [piece.after for piece in own[1:]] == [piece.until for piece in own[:-1]]
        assert all(0 < piece.size <= records for piece in own)
        assert sum(piece.size for piece in own) == stretch.size
        if own:
            assert (own[0].after, own[-1].until) == (stretch.after, stretch.until)
    total = sum(stretch.size for stretch in stretches)
    assert len(pieces) >= min(least, total)


@given(
    st.dictionaries(topic_names, st.tuples(seqs, st.integers(-10, 10**6)), min_size=1),
    st.one_of(st.none(), st.integers(1, 10**5)),
)
def test_a_batch_keeps_to_its_limit_and_always_gets_on(edges, most):
    starts = {topic: start for topic, (start, _) in edges.items()}
    heads = {topic: max(0, start + more) for topic, (start, more) in edges.items()}
    rounds = 0
    while True:
        ends = admit(starts, heads, most)
        assert set(ends) == set(heads)
        moved = sum(max(0, ends[topic] - starts[topic]) for topic in heads)
        waiting = sum(max(0, heads[topic] - starts[topic]) for topic in heads)
        assert moved == waiting if most is None else moved == min(most, waiting)
        assert all(ends[topic] <= heads[topic] for topic in heads)
        if ends == heads or (rounds := rounds + 1) > 20:
            return
        starts = ends


def test_every_topic_gets_its_share():
    assert admit({"a": 0, "b": 100}, {"a": 900, "b": 200}, 100) == {"a": 90, "b": 110}


def test_no_topic_is_passed_over_for_ever_when_there_are_more_topics_than_a_batch_takes():
    """Each of the small ones has a record more every time; the large one and the last ones are read all the same."""
    starts = {f"small{n:02}": 0 for n in range(20)} | {"z.large": 0}
    heads = dict.fromkeys(starts, 1) | {"z.large": 10_000}
    for _ in range(100):
        starts = admit(starts, heads, 5)
        heads = {topic: head + (topic != "z.large") for topic, head in heads.items()}
    assert starts["z.large"] > 400
    starts, heads = {f"t{n:02}": 0 for n in range(20)}, {f"t{n:02}": 10 for n in range(20)}
    for _ in range(100):
        starts = admit(starts, heads, 5)
        heads = {topic: head + 1 for topic, head in heads.items()}
    assert min(starts.values()) > 20
