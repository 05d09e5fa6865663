"""Bytes whose checksum holds and that still are no encoding of ours: what reading them may raise.

Every decoder of stored bytes names one error of its own, and turns these into it in one place. So whoever calls one
has one thing to expect, whatever stands on the disk.
"""

import struct

MALFORMED = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError, struct.error)
