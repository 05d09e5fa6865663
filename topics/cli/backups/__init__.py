"""Backups: take one from a running server, check it, put it back.

    BACKUP       what the backup is made of, as JSON; written last, whole or not at all
    INCOMPLETE   there while one is being made, and after one that was not finished
    files/…      copies, named `<path>.<XXH3-64 of the content>`

A file here is never changed, so a backup can share those of the one before it: what has not changed is not copied
again. Until the new BACKUP has taken the place of the old one, both have all their files; what only the old
one had goes last.
"""
