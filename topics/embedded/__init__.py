"""The engine inside a program, without a server: `topics.open(path)`.

    opening.py    settings, the data directory's lock, what a fork leaves
    loop.py       trio in a thread, and calls to it from other threads
    instance.py   the shards of the directory and the API in front of them
    database.py   the calls, as methods that wait

The same shards write the same files with the same promises, and the same routes answer the same requests as in
`topics serve`; what is left out are processes, sockets with names, keys and caps over the instance.
"""

from topics.embedded.database import Database
from topics.embedded.opening import open_database

__all__ = ["Database", "open_database"]
