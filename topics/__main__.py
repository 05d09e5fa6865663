"""`python -m topics`, the same as `topics`."""

from topics.cli import main

main(prog_name="topics")
