"""Data files: blocks and index come back, a lost index is made anew, damage stays in sight, tag lookups are scans."""

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.strategies import Draft, block_of, facts, record_lists, texts
from topics.core.block import BadBlock, Block
from topics.core.blockform import flags_from_mask
from topics.core.chunk import DataFile
from topics.core.extras import Extras
from topics.core.match import TagMatch
from topics.core.requests import quoted
from topics.core.tags import Pattern
from topics.shards import datafile
from topics.shards.datafile import PACK, SEGMENT, BadFile, Index, Stored
from topics.shards.files import File
from topics.testing.faulty_files import FaultyFiles

SEED = 0x5EED
some = settings(max_examples=25, deadline=None)
many = settings(max_examples=80, deadline=None)


def text(seq: int, ts: int, size: int = 20) -> bytes:
    return b'{"$seq":%d,"$ts":%d,"data":"%b"}' % (seq, ts, b"x" * size)


def plain_block(first_seq: int, n: int, ts: int = 1000, tag: bytes = b'"t"') -> Block:
    block = Block(first_seq, ts)
    for seq in range(first_seq, first_seq + n):
        block.add(text(seq, ts), ts, tag, b'"n"', len(b'{"$seq":%d,"$ts":%d' % (seq, ts)), 0)
    return block


def stored(blocks: list[Block], topic_id: int = 7, dead: int = 0) -> list[Stored]:
    return [Stored(topic_id, 1, block, dead) for block in blocks]


def new_file(blocks: list[Stored], kind: str = SEGMENT) -> tuple[FaultyFiles, DataFile]:
    files = FaultyFiles()
    info = DataFile(3, kind, "f.data", SEED, 7 if kind == SEGMENT else 0)
    datafile.write_data_file(files, info, blocks)
    return files, info


def get(files: FaultyFiles, path: str) -> bytes:
    file = files.open(path)
    return file.read_at(0, file.size())


def put(files: FaultyFiles, path: str, data: bytes) -> None:
    files.unlink(path)
    files.create(path).write_at(0, [data])


def read_back(files: FaultyFiles, info: DataFile) -> list[tuple[int, int, Block, int]]:
    handle = files.open(info.path)
    return [
        (
            entry.topic_id,
            entry.epoch,
            datafile.decode_frame(handle.read_at(chunk.offset, chunk.length), info.seed),
            datafile.read_flags(handle, chunk),
        )
        for entry, chunk in datafile.chunks_of(info, datafile.read_index(files, info))
    ]


# -- round trips


@given(st.lists(st.tuples(st.integers(1, 9), record_lists(40), st.integers(0)), min_size=1, max_size=5), st.booleans())
@some
def test_what_is_stored_comes_back(pieces, packed):
    items, seq = [], 1
    for topic_id, records, dead in pieces:
        block = block_of(seq, 1000, records)
        items.append(Stored(topic_id if packed else 7, topic_id, block, dead % 2 ** len(records)))
        seq = block.last_seq + 1
    files, info = new_file(items, PACK if packed else SEGMENT)
    assert info.size == len(get(files, "f.data"))
    found = read_back(files, info)
    assert [(topic, epoch, facts(block), dead) for topic, epoch, block, dead in found] == [
        (item.topic_id, item.epoch, facts(item.block), item.dead) for item in items
    ]
    index = datafile.read_index(files, info)
    assert index.ts == sum((item.block.ts for item in items), array("I"))
    assert index.sizes == sum((item.block.sizes() for item in items), array("I"))
    assert index.lost_bytes == 0
    for (_, chunk), item in zip(datafile.chunks_of(info, index), items, strict=True):
        assert (chunk.first_seq, chunk.last_seq) == (item.block.first_seq, item.block.last_seq)
        assert chunk.tagged == bool(item.block.tags)
        assert (chunk.sizes, chunk.ts) == (item.block.sizes(), item.block.ts)
        extras = item.block.extras or Extras()
        assert chunk.ranks == (item.block.priorities if extras.ranked else None)
        assert chunk.dues == extras.dues
        frame = files.open(info.path).read_at(chunk.offset, chunk.length)
        texts = datafile.decode_texts(frame, info.seed)
        assert [texts.record(i) for i in range(len(texts))] == [item.block.record(i) for i in range(len(texts))]
        assert (texts.first_seq, texts.last_seq) == (item.block.first_seq, item.block.last_seq)


def test_large_files_are_written_in_pieces():
    blocks = [Block(seq, 0) for seq in range(1, 41)]
    for block in blocks:
        block.add(text(block.first_seq, 0, 60_000), 0, b"", b"", 17, 0)
    files, info = new_file(stored(blocks))
    assert sum("write" in call for call in files.trace) == 4
    assert len(read_back(files, info)) == 40


def test_both_twins_are_durable_before_anybody_refers_to_them():
    files, info = new_file(stored([plain_block(1, 5)]))
    files.sync_dir(".")
    for seed in range(10):
        survivor = files.crash(seed)
        assert datafile.decode_index(get(survivor, "f.idx"), 3).lost_bytes == 0
        assert len(read_back(survivor, info)) == 1


def test_left_overs_of_a_checkpoint_that_was_cut_short_are_replaced():
    files, info = new_file(stored([plain_block(1, 5)]))
    datafile.write_data_file(files, info, stored([plain_block(9, 2)]))
    assert [block.first_seq for _, _, block, _ in read_back(files, info)] == [9]


def test_a_flag_is_flipped_in_place_and_nothing_else_changes():
    files, info = new_file(stored([plain_block(1, 9), plain_block(10, 4)], dead=0b1))
    before = get(files, "f.data")
    (_, chunk), _ = datafile.chunks_of(info, datafile.read_index(files, info))
    handle = files.open("f.data")
    handle.write_at(chunk.offset + chunk.length - 9, [flags_from_mask(0b1_0000_0101, 9)])
    assert [dead for _, _, _, dead in read_back(files, info)] == [0b1_0000_0101, 0b1]
    changed = [at for at, (a, b) in enumerate(zip(before, get(files, "f.data"), strict=True)) if a != b]
    assert changed == [chunk.offset + chunk.length - 9 + 2, chunk.offset + chunk.length - 9 + 8]


# -- the index


@given(st.binary(max_size=300), st.integers(0, 2**64 - 1))
@many
def test_arbitrary_bytes_are_no_index(data, file_id):
    with pytest.raises(BadFile):
        datafile.decode_index(data, file_id)


@pytest.fixture(scope="module")
def segment() -> tuple[FaultyFiles, DataFile]:
    blocks = [plain_block(seq, 3, ts=seq, tag=b'"t%d"' % (seq % 2)) for seq in range(1, 16, 3)]
    return new_file(stored(blocks, dead=0b10))


def test_every_flip_and_every_truncation_of_an_index_is_found(segment):
    data = get(segment[0], "f.idx")
    for at in range(len(data)):
        with pytest.raises(BadFile):
            datafile.decode_index(data[:at] + bytes((data[at] ^ 0x40,)) + data[at + 1 :], 3)
        with pytest.raises(BadFile):
            datafile.decode_index(data[:at], 3)


def test_the_index_of_another_file_is_refused(segment):
    with pytest.raises(BadFile):
        datafile.decode_index(get(segment[0], "f.idx"), 4)


def checked(head: tuple[int, ...], tail: bytes = b"") -> bytes:
    """An index whose checksum holds, whatever it says."""
    import struct

    import xxhash

    data = struct.pack("<8sIIQQQQQQ", b"TOPICSIX", *head) + tail
    return data + struct.pack("<Q", xxhash.xxh3_64_intdigest(data))


@pytest.mark.parametrize(
    ("head", "tail"),
    [
        ((1, 2**32 - 1, 0, 0, 0, 0, 3, 0), b""),
        ((1, 0, 2**61, 0, 0, 0, 3, 0), b""),
        ((1, 0, 0, 2**60, 0, 0, 3, 0), b""),
        ((1, 0, 0, 0, 2**64 - 1, 0, 3, 0), b""),
        ((2, 0, 0, 0, 0, 0, 3, 0), b""),
        ((1, 0, 1, 0, 0, 0, 3, 0), bytes(8)),  # a record that no entry has
    ],
)
def test_an_index_that_checks_but_makes_no_sense_is_refused_without_allocating(head, tail):
    with pytest.raises(BadFile):
        datafile.decode_index(checked(head, tail), 3)


def test_an_index_without_entries_is_fine():
    nothing = Index([], array("I"), array("I"), 0, 64, 0, {})
    assert datafile.decode_index(checked((1, 0, 0, 0, 0, 64, 3, 0)), 3) == nothing


@pytest.mark.parametrize("spoil", ["missing", "empty", "flipped", "cut", "foreign"])
def test_a_lost_index_is_made_anew_as_it_was(segment, spoil, caplog):
    files, info = segment[0].clone(), segment[1]
    good = get(files, "f.idx")
    files.unlink("f.idx")
    if spoil != "missing":
        foreign = new_file(stored([plain_block(1, 1)]))[0]
        kinds = {"empty": b"", "flipped": b"\xff" + good[1:], "cut": good[:-9], "foreign": get(foreign, "f.idx") + b"x"}
        put(files, "f.idx", kinds[spoil])
    assert datafile.read_index(files, info) == datafile.decode_index(good, 3)
    assert get(files, "f.idx") == good
    assert "made anew" in caplog.text


# -- damage in the data file


def spoil_data(files: FaultyFiles, at: int, size: int = 1) -> None:
    data = bytearray(get(files, "f.data"))
    for i in range(at, at + size):
        data[i] ^= 0xFF
    put(files, "f.data", bytes(data))


@pytest.mark.parametrize("with_index", [True, False])
@pytest.mark.parametrize("victim", range(5))
def test_a_block_that_does_not_check_is_refused_and_its_neighbours_are_not(segment, victim, with_index):
    """It keeps its entry, also when the index is made anew: whoever reads it finds out which records are lost."""
    files, info = segment[0].clone(), segment[1]
    index = datafile.read_index(files, info)
    entry = index.entries[victim]
    spoil_data(files, entry.offset + entry.frame_len - 20)  # in the last text
    if not with_index:
        files.unlink("f.idx")
    again = datafile.read_index(files, info)
    assert again == index
    handle = files.open("f.data")
    for number, (_, chunk) in enumerate(datafile.chunks_of(info, again)):
        frame = handle.read_at(chunk.offset, chunk.length)
        if number == victim:
            with pytest.raises(BadBlock):
                datafile.decode_frame(frame, SEED)
            with pytest.raises(BadBlock):
                datafile.decode_texts(frame, SEED)
        else:
            assert datafile.decode_frame(frame, SEED).first_seq == chunk.first_seq


@pytest.mark.parametrize("victim", range(5))
@pytest.mark.parametrize("at", [0, 4, 8, 16, 24, 40, 72])
def test_good_blocks_are_found_behind_one_that_cannot_be_told_apart(segment, victim, at, caplog):
    files, info = segment[0].clone(), segment[1]
    entries = datafile.read_index(files, info).entries
    spoil_data(files, entries[victim].offset + at, 3)
    files.unlink("f.idx")
    index = datafile.read_index(files, info)
    assert index.entries == entries[:victim] + entries[victim + 1 :]
    assert index.lost_bytes == entries[victim].frame_len
    assert f"{index.lost_bytes} bytes can no longer be read" in caplog.text
    caplog.clear()
    assert datafile.read_index(files, info).lost_bytes == index.lost_bytes
    assert "can no longer be read" in caplog.text, "said at every start, not only when the index is made"


def test_whatever_byte_is_spoiled_an_index_can_be_made_anew():
    """Also where blocks tell more of their records than a plain one does: a start must not fail over it."""
    first, last = plain_block(1, 2), plain_block(5, 2)
    terms = plain_block(3, 2)
    terms.need_extras().due(0, 9000)
    terms.need_extras().origins[1] = bytes(16)
    terms.need_extras().expire(1, 8000)
    files, info = new_file(stored([first, terms, last]))
    data, entries = get(files, "f.data"), datafile.read_index(files, info).entries
    for at in range(entries[1].offset, entries[2].offset):
        spoiled = data[:at] + bytes((data[at] ^ 0x0F,)) + data[at + 1 :]
        index = datafile.rebuild_index(files, info, spoiled)
        assert [entry for entry in index.entries if entry.offset != entries[1].offset] == [entries[0], entries[2]]


def test_every_truncation_of_a_data_file_keeps_the_blocks_before_it(segment):
    files, info = segment
    data = get(files, "f.data")
    entries = datafile.read_index(files, info).entries
    for size in range(0, len(data), 7):
        found = [offset for offset, _, _ in datafile.read_frames(data[:size], info)]
        whole = [entry.offset for entry in entries if entry.offset + entry.frame_len <= size]
        assert found[: len(whole)] == whole
        assert len(found) <= len(whole) + 1


@given(st.binary(max_size=400))
@many
def test_arbitrary_bytes_hold_no_block(data):
    info = DataFile(1, PACK, "f.data", SEED)
    assert list(datafile.read_frames(data, info)) == []
    with pytest.raises(BadBlock):
        datafile.decode_frame(data, SEED)
    with pytest.raises(BadBlock):
        datafile.decode_texts(data, SEED)


# -- tags

tags = st.one_of(st.sampled_from(["", "a", "ab", "abc", "abd", "b", 'a"', "a\\", "\x00", "é", "\U0010ffff"]), texts)
matches = st.builds(TagMatch, st.sampled_from(["Eq", "Glob"]), tags)


def tagged_segment(names: list[str | None], per_block: int = 100) -> tuple[FaultyFiles, DataFile]:
    drafts = [Draft(b"{}", 0, quoted(name) if name is not None else b"", b"", 0, 0) for name in names]
    starts = range(0, len(drafts), per_block)
    return new_file(stored([block_of(1 + at, 0, drafts[at : at + per_block]) for at in starts]))


def find(files: FaultyFiles, info: DataFile, match: TagMatch) -> list[int]:
    return datafile.find_tags(files.open("f.idx"), info, Pattern(match))


@given(
    st.lists(st.none() | tags, min_size=1, max_size=60), st.lists(matches, min_size=1, max_size=6), st.integers(1, 5)
)
@many
def test_find_tags_is_a_scan(names, asked, stretch):
    files, info = tagged_segment(names, per_block=7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datafile, "STRETCH", stretch)
        patch.setattr(datafile, "SLICE_BYTES", 16 * stretch)
        for match in asked:
            assert find(files, info, match) == [seq for seq, name in enumerate(names, 1) if match.matches(name)]


@pytest.mark.parametrize("count", [1, 2, 127, 128, 129, 255, 257, 1000])
def test_find_tags_around_the_sizes_of_its_reads(count):
    names: list[str | None] = [f"k{i % 50:03d}" for i in range(count)]
    files, info = tagged_segment(names)
    asked = [TagMatch("Eq", f"k{i:03d}") for i in (0, 1, 25, 49, 50)]
    asked += [TagMatch("Glob", prefix) for prefix in ("", "k", "k0", "k00", "k04", "k049", "j", "l", "k050")]
    for match in asked:
        assert find(files, info, match) == [seq for seq, name in enumerate(names, 1) if match.matches(name)]


class CountingFile:
    """Counts the reads of a file."""

    def __init__(self, inner: File) -> None:
        self._inner = inner
        self.reads: list[int] = []

    def read_at(self, offset: int, size: int) -> bytes:
        self.reads.append(size)
        return self._inner.read_at(offset, size)

    def size(self) -> int:
        return self._inner.size()


def count_reads(files: FaultyFiles, info: DataFile, match: TagMatch) -> tuple[int, list[int]]:
    file = CountingFile(files.open("f.idx"))
    return len(datafile.find_tags(file, info, Pattern(match))), file.reads  # type: ignore[arg-type]


def test_find_tags_takes_few_and_bounded_reads():
    names: list[str | None] = [f"tenant{i % 10}:job-{i:06d}" for i in range(10_000)]
    files, info = tagged_segment(names, per_block=250)
    found, reads = count_reads(files, info, TagMatch("Eq", "tenant3:job-000123"))
    assert (found, len(reads) <= 28, max(reads) <= 8192) == (1, True, True)
    found, reads = count_reads(files, info, TagMatch("Glob", "tenant3:"))
    assert (found, len(reads) <= 50, max(reads) <= datafile.SLICE_BYTES) == (1000, True, True)
    found, reads = count_reads(files, info, TagMatch("Glob", ""))
    assert (found, len(reads) <= 50, max(reads) <= datafile.SLICE_BYTES) == (10_000, True, True)


@pytest.mark.parametrize(
    "match", [TagMatch("Eq", "a"), TagMatch("Glob", "a"), TagMatch("Eq", "z"), TagMatch("Glob", "z")]
)
def test_a_segment_without_such_tags_is_passed_over_at_once(match):
    files, info = tagged_segment([f"k{i}" for i in range(2000)])
    found, reads = count_reads(files, info, match)
    assert found == 0
    assert len(reads) <= 5


def test_a_segment_without_tags_and_a_pack_have_no_run():
    files, info = tagged_segment([None] * 10)
    assert count_reads(files, info, TagMatch("Glob", "")) == (0, [64])
    files, info = new_file(stored([plain_block(1, 5)]), PACK)
    assert datafile.read_index(files, info).tag_count == 0


def test_equal_tags_are_stored_once():
    one, info = tagged_segment(["same-tag"] * 500)
    other, _ = tagged_segment(["same-tag"])
    assert len(get(one, "f.idx")) - len(get(other, "f.idx")) < 500 * (8 + 16) + 56 * 5
    assert find(one, info, TagMatch("Eq", "same-tag")) == list(range(1, 501))


def test_a_run_in_a_spoiled_index_is_refused_not_misread(segment):
    files, info = segment[0].clone(), segment[1]
    good = get(files, "f.idx")
    for size in range(len(good) - 8):
        put(files, "f.idx", good[:size])
        try:
            assert find(files, info, TagMatch("Glob", "")) == list(range(1, 16))
        except BadFile:
            continue
    put(files, "f.idx", b"X" + good[1:])
    with pytest.raises(BadFile):
        find(files, info, TagMatch("Glob", ""))
