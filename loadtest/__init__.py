"""The benchmark (`make bench`, `python -m loadtest`): the server beside what users could pick instead."""
