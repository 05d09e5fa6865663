"""`python -m topics.cli`, the same as `topics`."""

from topics.cli import main

main(prog_name="topics")
