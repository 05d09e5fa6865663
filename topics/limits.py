"""Every size, count and wait of the product, in one place.

Values that an operator may change are fields of `Limits`; the rest are constants. The assertions at the end state
the relations the code relies on, so that a change which breaks one fails at import.
"""

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB

# --- names and fields ---------------------------------------------------------------------------------------------
NAME_MAX = 255
META_KEYS_MAX = 64
IDEMPOTENCY_KEY_MAX = 256
NODE_FILTER_MAX = 256
PRIORITY_MAX = 1000

# --- reads --------------------------------------------------------------------------------------------------------
DIFF_LIMIT_DEFAULT = 256
DIFF_LIMIT_MAX = 1000
DIFF_BULK_MAX = 10_000  # of a diff that says it is bulk; a shard renders it in one go, so more would hold up others
DIFF_WAIT_MS_MAX = 30_000
FOLLOW_WAIT_MS_MAX = 30_000  # a gateway asks again after this
BATCH_BYTES_DEFAULT = 1 * MIB
BATCH_BYTES_MAX = 8 * MIB
LIST_PAGE_DEFAULT = 100
LIST_PAGE_MAX = 1000
LIST_STEP = 100  # topics of a page that are looked at in one step

# --- live delivery ------------------------------------------------------------------------------------------------
WATCH_TOPICS_HARD_MAX = 4096  # what an operator may set for one session, or one WebSocket
WATCH_BATCH_BYTES_DEFAULT = 256 * KIB
HEARTBEAT_MS_DEFAULT = 15_000
HEARTBEAT_MS_MIN = 1_000
HEARTBEAT_MS_MAX = 60_000
CURSOR_MAP_TOPICS = 64  # above this an id is a compact token instead of a map of names
CURSOR_BYTES_MAX = 24 * KIB
RETRY_MS = 2_000  # what EventSource is told to wait before it connects again
SLOW_CONSUMER_MS_MAX = 60_000  # what an operator may set
PEER_LOST_MS = (
    120_000  # a peer that acknowledges nothing for so long is gone; a slow one is told first why it has to go
)
STREAM_SEND_BUFFER_BYTES = 128 * KIB  # of the kernel, for each stream
WS_COMMANDS_MAX = 64  # of one WebSocket, under way at once; then it is not read
WS_CREDITS_MAX = 2**32 - 1  # records that a client may let the server send ahead
WS_PING_S = 20.0
WS_FAREWELL_S = 5.0  # for a slow client to take what is under way and the close frame
HELD_LOOK_MS = 1_000  # how often it is looked whether topics are gone whose readers wait for credits
HAND_OUT_NS = 150_000  # sends to live readers before others have a turn; measured, see docs/performance.md
RING_BYTES = 256 * KIB  # of batches that a feed keeps for readers that are about to join it
RING_MS = 250  # how long; what is deleted meanwhile could still be seen
PROGRESS_MS = 1_000  # cursors of open streams are told to their session this often
PROGRESS_CURSORS = 500  # in one message, or a few more
FEED_RETRY_MIN_MS = 20  # while a topic's shard is down, doubling up to the next line
FEED_RETRY_MAX_MS = 1_000

# --- queues -------------------------------------------------------------------------------------------------------
CLAIM_JOBS_HARD_MAX = 10_000  # what an operator may set for one claim
CLAIM_WAIT_MS_MAX = 30_000
CLAIM_BYTES_MAX = 32 * MIB  # of the jobs of one claim together; one job is given whatever its size
NACK_DELAY_MS_MAX = 86_400_000
NACK_REASON_BYTES_MAX = 1024
JOB_PRIORITY_MAX = 9
LIFETIMES_STEP = 256  # records whose own time is over and that go in one step, or a few more
RECORD_TTL_MS_MAX = 10 * 366 * 86_400_000  # of a single record; what is to stay longer has no need of one
JOB_DELAY_MS_MAX = 366 * 86_400_000  # how far ahead a job may be put off when it is written
WORK_BATCH_BYTES = 1 * MIB  # of jobs pushed on a stream in one go
WORK_GONE_MS = 500  # a stream whose queue is deleted waits this long to see what takes its place
DEAD_LETTERS_PER_PASS = 256  # jobs that one claim finds due for the dead-letter topic at most
DEAD_LETTERS_AT_ONCE = 64  # of one shard, on their way
DEAD_LETTER_WAIT_MS = 1_000  # a claim waits this long at most for what it found due
DEAD_LETTER_RETRY_MIN_MS = 50  # while the dead-letter topic refuses a job, doubling up to the next line
DEAD_LETTER_RETRY_MAX_MS = 5_000
REDRIVE_DEFAULT = 1000  # dead letters that one call moves back
REDRIVE_MAX = 10_000
REDRIVE_STEP = 256  # dead letters that begin their way back in one step
REDRIVE_WAIT_MS = 15_000  # it answers after this long at the latest; what is under way then goes on
LEASE_EVENTS_MIN = 1024  # events of the leases log before it is written anew
KEPT_AT_ONCE = 512  # jobs of which the leases log is told in one step when it begins to have those of a queue
KEPT_PART = 512  # entries of jobs in one event, where the leases log is told of more
GIVE_BACK_STEP = 512  # jobs that are given back in one step when the stream that holds them is gone
VERDICT_STEP = 64  # jobs of one ack, nack or extend that are dealt with in one step
RENDER_STEP = 256  # jobs whose texts are put together in one step, or a few more
SETTLE_STEP = 256  # jobs of a queue that become free in one step
PASS_JOBS = 512  # jobs that are dealt in one step; each who gets some counts as 32, and each in a line as four
PORTION_JOBS = PASS_JOBS // 2  # of these, to one who wants more than that: the rest comes in further steps
FILLING_MS = 250  # for as long such a one is kept from what it has, or for a quarter of its lease
LOSE_STEP = 64  # of those who wait for a queue that is deleted are told in one step
COHORT_STEP = 512  # of those who are served together it is asked in one step how much they want
PASS_STEP = 512  # entries that no longer stand, and blocks without a job, that a pass looks past
OVERDUE_STEP = 1024  # jobs that a pass leaves to later ones, as they are due for the dead-letter topic
FORGET_STEP = 256  # jobs that are gone and of which a queue forgets what it knew, in one step

# --- consumer groups ----------------------------------------------------------------------------------------------
GROUPS_PER_TOPIC_MAX = 1000
GROUPS_PER_SHARD_MAX = 10_000
GROUP_CONSUMER_MAX = 128  # characters of a consumer's id
GROUP_LEFT_MAX = 64  # consumers that a group remembers to have been taken over from
GROUP_EVENTS_MIN = 1024  # events of the groups log before it is written anew
GROUP_EVENTS_RECORD = 32  # groups that it then tells of in one record, with each event that comes

# --- blocks -------------------------------------------------------------------------------------------------------
BLOCK_RECORDS_MAX = 256
BLOCK_TEXT_BYTES = 64 * KIB  # a block closes at this many bytes of text; one larger record is a block of its own

# --- the write-ahead log ------------------------------------------------------------------------------------------
WAL_FILE_BYTES = 16 * MIB
WAL_FIRST_FILE_BYTES = 1 * MIB  # the first file of an empty shard is small, so that start-up is quick
WAL_FRAME_MAX = 160 * MIB
WAL_QUEUE_FRAMES_MAX = 65_536
WAL_QUEUE_BYTES_MAX = 256 * MIB
WAL_ROOM_RETRY_MS = 5  # how often a write that opted out of 429 looks whether the queue has emptied
SYNC_TIMER_MS = 5  # an acked `disk` write is synced at the latest this long after its enqueue
CEILING_AHEAD = 65_536  # seqs a `disk` topic reserves durably ahead of its head
RECORD_BYTES_MIN = 40  # a record takes at least this much of the log
QUARANTINE_COPIES_MAX = 64  # damaged stretches of one log file that are set aside one by one; more go as one
SPACE_RESERVE_BYTES = 8 * MIB  # free space kept back so that a checkpoint and control frames still fit
SPACE_SHORT_BYTES = 32 * MIB  # with less free the log is cut as soon as it holds something, and keeps no spare
BATCH_RECORDS_MAX = 1_000_000  # records in one write, whatever an operator sets
UNPACKED_MAX = WAL_FRAME_MAX  # text of a compressed block: one record at most that came in a frame, else far less

# --- checkpoints and segments -------------------------------------------------------------------------------------
CHECKPOINT_WAL_BYTES = 64 * MIB
UNSTORED_BYTES_MAX = 4 * CHECKPOINT_WAL_BYTES  # logged since the last checkpoint began, and so in memory
LARGE_WRITE_WAIT_MS = 2_000  # a large write waits this long for a checkpoint or the log before it may be refused
CHECKPOINT_INTERVAL_MS = 60_000
PACK_TOPIC_BYTES = 1 * MIB  # a topic shares pack files until it has this much of its own
TAIL_CACHE_BYTES = 32 * MIB
UNPACKED_CACHE_BYTES = 8 * MIB  # of compressed blocks that were read and are kept as they were before
BOOK_KEY_MAX = 1024  # characters of a key of a shard's own books
IDEMPOTENCY_KEYS_MAX = 1_000_000  # remembered keys of one shard; above it new keys are throttled

# --- the cold tier ------------------------------------------------------------------------------------------------
COLD_COPY_BYTES = 1 * MIB  # of a segment that are copied in one go
COLD_COPY_BYTES_PER_S = 64 * MIB  # of all that are moved
COLD_MOVES = 16  # segments that one checkpoint takes over
COLD_CHECK_MS = 500  # how often the shard looks for something to move
COLD_RETRY_MIN_MS = 1_000  # while the cold directory cannot be used, doubling up to the next line
COLD_RETRY_MAX_MS = 15_000
COLD_READ_THREADS = 4  # reads of cold segments under way at once
COLD_READ_MS_MAX = 10_000  # a read that takes longer is refused
COLD_SEAL_MS = 2_000  # a segment's worth of new records is sealed after this, so that older ones may move
COLD_MARK_BYTES_MAX = 4 * KIB

# --- backups ------------------------------------------------------------------------------------------------------
BACKUP_HOLD_MS = 120_000  # files of a shard hold still for this long at most
BACKUP_REFILL_MS = 10_000  # a backup waits this long at most for copies that are made again after a crash
BACKUP_LOG_BYTES = UNSTORED_BYTES_MAX // 4  # or until the log has grown by this much
BACKUP_PAUSE_MS = 2_000  # what goes from shard to shard stops for this long at most, if it cannot end
BACKUP_TRIES = 5
BACKUP_COPY_BYTES = 1 * MIB  # read and written at once
BACKUP_FRESH_MS = 1_000  # a file changed so recently may change again without showing it

# --- checking what is on disk -------------------------------------------------------------------------------------
FINDINGS_MAX = 1000  # rows of damage that a check shows; more are counted

# --- RPC ----------------------------------------------------------------------------------------------------------
RPC_CHUNK_BYTES = 512 * KIB  # an answer of 1,000 records is one frame; a small message waits for one chunk at most
RPC_HEAD_MAX = 1 * MIB
RPC_BODY_MAX = 160 * MIB
RPC_INFLIGHT_MAX = 32_768  # a stream holds one or two open for as long as it lives
RPC_SEND_QUEUE_BYTES = 32 * MIB
RPC_CREDITS_DEFAULT = 64
RPC_UNHEARD_MAX = 1024  # answers of one connection that can still turn out to have reached nobody
RPC_HELLO_TIMEOUT_MS = 5_000
RPC_JOIN_BYTES = 8 * KIB  # messages up to this size are copied into one send; larger ones go as separate buffers
RPC_SEND_BATCH_BYTES = 512 * KIB  # one send takes at most this much, so that a new small message waits for no more
RPC_SLICE_MESSAGES = 16  # requests a server handles before other tasks get a turn and the answers leave
RPC_SLICE_NS = 1_000_000  # the same, of long ones; a turn costs more than most calls, so 16 short ones stay below
RPC_DECODE_BYTES = 16 * KIB  # of small messages that are decoded before others have a turn
RPC_SEND_WAIT_MS = 10_000  # a call that finds the send queue full this long is refused
RPC_PARTIAL_BYTES = 2 * RPC_BODY_MAX  # unfinished bodies under way on one connection, one direction
RPC_SWEEP_MS = 25  # deadlines fire at most this late, never early
RPC_LOOK_AGAIN_MS = 1_000  # how often a call that is long under way is looked at before its deadline
RPC_BACKOFF_MIN_MS = 10  # after a failed connect calls fail at once for this long, doubling up to the next line
RPC_BACKOFF_MAX_MS = 1_000
RPC_CONNECTIONS_MAX = 256  # of one server: every gateway has one, the supervisor one, the rest are for tools
RPC_SOCKET_BYTES = 512 * KIB  # asked of the kernel for what is sent and not read: an answer of 1,000 records fits
RPC_READ_BYTES = 64 * KIB  # taken from a socket at once; a larger buffer would be mapped and unmapped for every read
RPC_BACKLOG = 128  # connections the kernel holds for a server that is busy

# --- HTTP ---------------------------------------------------------------------------------------------------------
HTTP_URL_BYTES = 8 * KIB
HTTP_HEAD_BYTES = 32 * KIB  # request line and headers together
HTTP_HEADERS_MAX = 128
HTTP_METHOD_BYTES = 32
HTTP_RECEIVE_BYTES = 64 * KIB
HTTP_AHEAD_BYTES = 64 * KIB  # read ahead of a request under way (pipelining), then the client has to wait
HTTP_PIPELINED_MAX = 16  # answered in a row before other connections get a turn
HTTP_BYTES_PER_S = 16 * KIB  # a client that sends a body, or takes an answer, more slowly on the whole is cut off
HTTP_ACCEPTS_PER_WAKE = 8
HTTP_READY_PER_TURN = 32  # connections whose requests are looked at before the loop goes on
HEAP_LARGE_BYTES = 32 * MIB  # a gateway gets only larger buffers from the kernel one by one
HEAP_FREE_BYTES = 64 * MIB  # so much free memory it keeps for the next ones
HTTP_SEND_BYTES = 256 * KIB  # of a larger answer so much is sent at a time
HTTP_JOIN_BYTES = 64 * KIB  # head and body up to this size leave as one buffer, larger ones as several
HTTP_LINGER_BYTES = 16 * MIB  # read and dropped after a refusal, so that the client sees it instead of a reset
WS_MESSAGE_BYTES = 8 * MIB  # one command of a WebSocket
NULLS_BYTES_MAX = 32 * KIB  # of a body in which a null may stand for an optional field that is not there
REQUEST_BODY_BYTES = 1 * MIB  # of a request that is no append; and of all in an append that is not its records
APPEND_MEMBERS_MAX = 64  # of a large append, lists of records included
BODY_PART_BYTES = 64 * KIB  # what comes in smaller parts is gathered to parts of about this size
BODY_JOIN_BYTES = 1 * MIB  # a body up to this size is put together in the loop; of larger ones the parts are passed on
HTTP_BODIES_BYTES = 512 * MIB  # of request bodies that one gateway holds at once
HTTP_FREE_BODY_BYTES = 64 * KIB  # a body up to this size is not counted there
INFLATE_PART_BYTES = 256 * KIB  # of a body come out of the inflater at once
INFLATE_THREADS = 4  # each may hold an inflated body that is not counted yet
GZIP_MIN_BYTES = 1 * KIB  # smaller answers are not worth compressing
GZIP_THREAD_BYTES = 32 * KIB  # above this, compression and inflation happen in a thread
HTTP_KNOWN_PATHS = 4096  # whose routes are remembered; then all are forgotten
COMPACT_MS = 600_000  # a shard may take so long for a compaction
CALL_DEADLINE_MS = 30_000  # a shard that does not answer this long counts as down
READY_DEADLINE_MS = 1_000  # a shard that says nothing this long counts as down in a readiness probe
METRICS_DEADLINE_MS = 250
METRICS_TOPICS_MAX = 1000  # rows of the per-topic block

# --- watch sessions -----------------------------------------------------------------------------------------------
WATCH_ID_MAX = 4 + 128  # characters of a wid, which begins with `wid_`, or of the id of a stream
WATCH_DEFINITION_BYTES = 1 * MIB
WATCH_TAKEOVER_MS = 1_000  # a new stream waits this long for the final cursors of the one it takes over from
WATCH_SEND_RETRY_MS = 5  # how often a stream that begins looks for room in a full send queue
WATCH_COLLECT_MS = 100  # sessions that are over are looked for this often
WATCH_COLLECT_MAX = 300  # and so many are removed at a time
WATCH_SAVE_BYTES = 1 * MIB  # of cursors that a stopping shard stores in one write

# --- routers ------------------------------------------------------------------------------------------------------
CONTROL_LOCK_MS = 10_000  # a change of routers waits this long for others that are being made
CONTROL_LOCK_RETRY_MS = 2
HOPS_MAX = 8  # routers with `allow_cycle` pass a record on that came over fewer than this many
FORWARD_RECORDS = 1000  # of a source that are looked at for one message
FORWARD_BYTES = 1 * MIB
FORWARD_RETRY_MIN_MS = 10  # while a destination refuses copies or is down, doubling up to the next line
FORWARD_RETRY_MAX_MS = 1_000
FORWARD_SKIPPED_MAX = 1000  # records that were not forwarded before the destination is told how far the router is
FORWARD_POSITIONS = 1024  # places that a source remembers, to put copies back where they were
ATTACH_WAIT_MS = 1_000  # a new router is answered for at the latest after this; its place is pinned before
MARK_MS = 100  # how far copies have come is logged this often
SETTLE_MS = 50  # a read waits this long at most for copies of what was there when it came
STORE_WAIT_MS = 5_000  # before a checkpoint, for destinations on other shards to store copies of what is dead
RETIRE_WAIT_MS = 250  # and the removal of a router, for copies of what was committed before it
REFILL_WAIT_MS = 2_000  # and this long for copies that are made again after a crash
DOUBT_MS = 1_000  # a topic whose copies are to come again asks this often whether its router is still there
DERIVED_HOPS_MAX = 16  # topics along a chain that a read waits for

# --- the board ----------------------------------------------------------------------------------------------------
BOARD_LOCK_MS = 250  # the lock is held for microseconds; longer than this, its holder has been stopped
BOARD_LOCK_RETRY_US = 50

# --- the supervisor -----------------------------------------------------------------------------------------------
HEALTH_DEADLINE_MS = 5_000  # of one look at a child; at most a third of TOPICS_STUCK_MS
STUCK_MISSES_MIN = 2  # a machine that was asleep makes one look fail, not two
FIRST_ANSWER_TIMES = (
    4  # until its first answer a child has so many times TOPICS_STUCK_MS: it may have to wait for a CPU
)

# --- the shard's loop ---------------------------------------------------------------------------------------------
YIELD_AFTER_NS = 1_000_000
TAKE_IN_NS = 100  # for a record of a large write, when it is durable
CROWD_NS = 300_000  # for commands that waited together, beside what else there is in a turn
GC_THRESHOLDS = (2_000, 0, 1_000_000)  # of a shard: net new objects, then every other time the ones before them, too
GC_CALLS = 128  # after so many there is a young collection, while much waits (topics/shards/young.py)
GC_IN_FLIGHT = 256  # frames of the log that are not durable: so much
INLINE_VIEWS = 2  # blocks whose records are rendered one by one (with tags, without meta …) in the step of a read
INLINE_HOLES = 8  # blocks that records may be missing from, rendered in such a step
WAKE_AT_ONCE = 16  # readers of one topic that are woken without a look at the clock
THREAD_BODY_BYTES = 384 * KIB  # bodies above this are decoded and rendered in a thread
INLINE_BODY_BYTES = 8 * KIB  # bodies up to this never are; between the two it depends on their records
INLINE_RECORDS = 300  # a millisecond of the loop, with tags or meta
INLINE_PLAIN_RECORDS = 1_000  # the same of data alone
PIECE_BYTES = 256 * KIB  # of a large body that are decoded at once
LARGE_WORK_NICE = 10  # how far threads that do large work give way to all others; see topics/aside.py
LARGE_WORK_TURN_NS = 20_000_000  # for how long such a thread would like to have a processor
SHORT_TURN_NS = 100_000  # and for how long everybody else; the least that Linux knows
INLINE_DELETES = 256  # matches that are deleted in one turn of the loop; more are counted in slices
DELETE_BYTES_MAX = 64 * MIB  # the seqs of one match delete, encoded
SHARD_BODIES_BYTES = 256 * MIB  # of large bodies that wait for a thread or for one another in one shard
INLINE_UNPACK_BYTES = 128 * KIB  # of compressed blocks in one turn: about half a millisecond of gzip; else in a thread
INLINE_BLOCKS = 8  # stored blocks that a diff reads in one turn of the loop
SWITCH_INTERVAL_S = 1e-4
AGING_TICK_MS = 50
LAG_PRESSURE_MS = 100  # the loop is this late on the whole: coalesce, and hold low priorities back
LAG_HIGH_MS = 2_000  # writes are refused
THROTTLE_NOTICE_MS = 250  # readers whose topic waited this long for its turn are told
THROTTLE_NOTICE_EVERY_MS = 5_000
UNAVAILABLE_NOTICE_EVERY_MS = 15_000  # a stream is told that the records it is to send cannot be read


@dataclass(frozen=True, slots=True)
class Limits:
    """What an operator may set (TOPICS_MAX_…, TOPICS_SEGMENT_…, TOPICS_HOT_…, TOPICS_WATCH_…)."""

    batch_records: int = 10_000
    record_bytes: int = 1 * MIB
    body_bytes: int = 64 * MIB
    meta_bytes: int = 16 * KIB
    tag_bytes: int = 256
    node_bytes: int = 128
    read_records: int = DIFF_LIMIT_MAX
    watch_topics: int = 256
    claim_jobs: int = 1000
    segment_events: int = 10_000
    segment_bytes: int = 64 * MIB
    segment_age_ms: int = 3_600_000
    hot_retain_segments: int = 4
    hot_retain_bytes: int = 0
    watch_session_ttl_ms: int = 300_000
    buffer_grace_ms: int = 5_000  # a reader stalled for longer is told `from_seq_too_old` if it lost records meanwhile
    slow_consumer_ms: int = 30_000  # a reader that takes nothing for this long is let go; its session stays

    @property
    def request_bytes(self) -> int:
        """How large the body of a request may be that is no append: it is decoded in the loop."""
        return min(self.body_bytes, REQUEST_BODY_BYTES)


assert BLOCK_RECORDS_MAX <= 0xFFFF
assert SLOW_CONSUMER_MS_MAX < PEER_LOST_MS
assert WATCH_ID_MAX + 2 <= BOOK_KEY_MAX
assert BATCH_BYTES_DEFAULT <= BATCH_BYTES_MAX
assert WAL_FIRST_FILE_BYTES <= WAL_FILE_BYTES <= CHECKPOINT_WAL_BYTES
assert Limits().body_bytes * 2 < WAL_FRAME_MAX <= RPC_BODY_MAX
assert Limits().body_bytes * 2 <= WAL_QUEUE_BYTES_MAX // 2  # so the largest write fits into a queue half full
assert Limits().meta_bytes < 0xFFFF - 4 * KIB  # block columns keep meta lengths in 16 bits, with room for stamps
assert 2 * BLOCK_TEXT_BYTES <= INLINE_UNPACK_BYTES < UNPACKED_CACHE_BYTES
assert RPC_JOIN_BYTES < RPC_CHUNK_BYTES <= RPC_SEND_BATCH_BYTES < RPC_SEND_QUEUE_BYTES // 4
assert RPC_BODY_MAX <= RPC_PARTIAL_BYTES
assert INLINE_BODY_BYTES <= THREAD_BODY_BYTES
assert DELETE_BYTES_MAX < WAL_FRAME_MAX
assert SPACE_RESERVE_BYTES < SPACE_SHORT_BYTES
assert Limits().body_bytes <= SHARD_BODIES_BYTES
assert Limits().body_bytes * 2 <= HTTP_BODIES_BYTES
