"""The records that are written: 285 bytes of JSON, each telling who wrote it when, so that it is known again."""

from loadtest.http import post

DATA_BYTES = 285
PRODUCER_DIGITS, INDEX_DIGITS, NUMBER_DIGITS = 6, 5, 12
_OPENING = b'{"id":"'
_MIDDLE = b'","type":"resize","w":256,"h":256,"trace":"0123456789abcdef","url":"s3://bucket/'
_CLOSING = b'.png"}'
_ID_BYTES = PRODUCER_DIGITS + INDEX_DIGITS + NUMBER_DIGITS
_FILL = b"a" * (DATA_BYTES - len(_OPENING) - _ID_BYTES - len(_MIDDLE) - len(_CLOSING))
_REST = _MIDDLE + _FILL + _CLOSING


def data(producer: int, index: int = 0, number: int = 0) -> bytes:
    """The payload of record `index` in a producer's write `number`. Only the first of a batch carries the number."""
    return b"%b%06d%05d%012d%b" % (_OPENING, producer, index, number if index == 0 else 0, _REST)


def batch(producer: int, size: int) -> list[bytes]:
    return [data(producer, index) for index in range(size)]


class Write:
    """A request that appends one batch, rendered once; each send only sets the number and, if need be, the topic."""

    def __init__(self, topics: list[str], producer: int, size: int, key: str = "", durability: str = "") -> None:
        """`durability` is what the topics get if these writes make them."""
        self.topics = topics
        self.producer = producer
        self.size = size
        config = b'"config":{"durability":"%b"},' % durability.encode() if durability else b""
        body = b'{%b"records":[%b]}' % (config, b",".join(b'{"data":%b}' % one for one in batch(producer, size)))
        self._tail = bytearray(post("?return_seqs=false", body, key=key).removeprefix(b"POST "))
        self._at = self._tail.index(_OPENING) + len(_OPENING) + PRODUCER_DIGITS + INDEX_DIGITS
        self._fixed = self._request(topics[0]) if len(topics) == 1 else None
        if self._fixed is not None:
            self._at += len(self._fixed) - len(self._tail)

    def _request(self, topic: str) -> bytearray:
        return bytearray(b"POST /v0/topics/" + topic.encode()) + self._tail

    def topic_of(self, number: int) -> str:
        return self.topics[number % len(self.topics)]

    def render(self, number: int) -> bytearray:
        """The bytes of write `number`, good until the next call."""
        digits = b"%012d" % number
        if self._fixed is not None:
            self._fixed[self._at : self._at + NUMBER_DIGITS] = digits
            return self._fixed
        self._tail[self._at : self._at + NUMBER_DIGITS] = digits
        return self._request(self.topic_of(number))
