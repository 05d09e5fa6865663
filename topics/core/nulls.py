"""Null in an optional field of a request's body is the same as no such field.

The types of bodies do not say so: it would be one more question about each field of each request. Where the decoder has
refused a null the body is decoded once more, without those that may be absent. All else in it stays the bytes it was.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import inspect

from topics import limits

_split = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_join = msgspec.json.Encoder().encode
_REFUSED = "got `null`"


def decode_without_nulls(decoder: msgspec.json.Decoder[Any], body: bytes, refusal: msgspec.ValidationError) -> Any:
    """What a body holds that was refused. Raises `refusal` if that was for something else than a null, or if it is so
    long that to look at it once more would hold others up."""
    if _REFUSED not in str(refusal) or len(body) > limits.NULLS_BYTES_MAX:
        raise refusal
    return decoder.decode(_prune(body, _type_info(decoder.type)))


_type_info: Callable[[Any], inspect.Type] = lru_cache(maxsize=64)(inspect.type_info)


def _prune(text: bytes, kind: inspect.Type) -> bytes:
    if isinstance(kind, inspect.UnionType):
        kind = next((one for one in kind.types if isinstance(one, (inspect.StructType, inspect.DictType))), kind)
    if not isinstance(kind, (inspect.StructType, inspect.DictType)) or text.lstrip()[:1] != b"{":
        return text
    members = {name: bytes(value) for name, value in _split(text).items()}
    if isinstance(kind, inspect.DictType):
        members = {name: _prune(value, kind.value_type) for name, value in members.items()}
    else:
        for field in kind.fields:
            name = field.encode_name
            if name in members and members[name] != b"null":
                members[name] = _prune(members[name], field.type)
            elif not field.required:
                members.pop(name, None)
    return _join({name: msgspec.Raw(value) for name, value in members.items()})
