"""The operations of consumer groups, for the document."""

from topics import errors
from topics.gateway.openapi import bodies, replies
from topics.gateway.openapi.operation import STORES, Operation

NO_GROUP = (errors.TOPIC_NOT_FOUND, errors.GROUP_NOT_FOUND)
GROUP = {
    "group": "billing",
    "cursor_seq": 17,
    "head_seq": 18,
    "earliest_seq": 1,
    "lag": 1,
    "consumer": "billing-7c9f",
    "created_ts": 1748450000123,
    "updated_ts": 1748450001000,
}
MOVED = {"topic": "orders", "group": "billing", "cursor_seq": 18, "moved": True, "head_seq": 18, "lag": 0}

GROUP_OPERATIONS: dict[str, Operation] = {
    "group.put": Operation(
        "groups",
        "Create a consumer group",
        "201 if it is new. One that is there stays as it is, wherever it stands.",
        body=bodies.GroupBody,
        body_required=False,
        examples={"from the start": {}, "from now on": {"from": "latest"}, "from a time on": {"from": {"ts": 0}}},
        answers={200: replies.GroupPut, 201: replies.GroupPut},
        shown={"topic": "orders", "created": True, **GROUP},
        errors=(errors.TOPIC_NOT_FOUND, *STORES),
    ),
    "group.state": Operation(
        "groups",
        "State of a consumer group",
        answers={200: replies.GroupState},
        shown={"topic": "orders", **GROUP},
        errors=NO_GROUP,
    ),
    "group.list": Operation(
        "groups",
        "List the consumer groups of a topic",
        "All of them, in the order of their names.",
        answers={200: replies.GroupList},
        shown={"topic": "orders", "groups": [GROUP]},
        errors=(errors.TOPIC_NOT_FOUND,),
    ),
    "group.remove": Operation(
        "groups",
        "Remove a consumer group",
        "Its cursor is forgotten. Of an absent one, `deleted` is false.",
        answers={200: replies.GroupRemoved},
        shown={"topic": "orders", "group": "billing", "deleted": True},
        errors=(errors.TOPIC_NOT_FOUND, *STORES),
    ),
    "group.fetch": Operation(
        "groups",
        "Read what a consumer group is not done with",
        "A diff from the group's cursor, which does not move. Creates the group if it is not there. 409 `taken_over` "
        "if another consumer has taken the group over, also while this one waits.",
        body=bodies.FetchBody,
        body_required=False,
        examples={
            "a page": {"limit": 500},
            "wait": {"wait_ms": 100, "consumer": "billing-7c9f", "from": "latest"},
            "take it back": {"consumer": "billing-7c9f", "take_over": True},
        },
        answers={200: replies.Fetched},
        shown={
            "topic": "orders",
            "records": [{"$seq": 18, "$ts": 1748450001000, "data": {"order": 18}}],
            "next_from_seq": 18,
            "head_seq": 18,
            "earliest_seq": 1,
            "caught_up": True,
            "tombstone": None,
            "lag": 0,
            "group": "billing",
            "cursor_seq": 17,
        },
        errors=(*NO_GROUP, errors.TAKEN_OVER, *STORES),
    ),
    "group.ack": Operation(
        "groups",
        "Acknowledge up to a seq",
        "Moves the cursor forward, never back, and is answered when that is durable.",
        body=bodies.GroupAckBody,
        examples={"up to 2": {"seq": 2}, "as a consumer": {"seq": 3, "consumer": "billing-7c9f"}},
        answers={200: replies.GroupMoved},
        shown=MOVED,
        errors=(*NO_GROUP, errors.TAKEN_OVER, *STORES),
    ),
    "group.seek": Operation(
        "groups",
        "Move a consumer group",
        "Anywhere, back as well; answered when that is durable.",
        body=bodies.SeekBody,
        examples={
            "all again": {"to": "earliest"},
            "skip": {"to": "latest"},
            "after a seq": {"to": 1},
            "from a time on": {"to": {"ts": 1748450000000}},
        },
        answers={200: replies.GroupMoved},
        shown=MOVED,
        errors=(*NO_GROUP, errors.TAKEN_OVER, *STORES),
    ),
}
