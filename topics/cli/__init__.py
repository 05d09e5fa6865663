"""The command line, `topics`. Each command imports what it needs when it runs, so that `--help` is quick.

Exit status: 0 clean, 1 failure (of `verify` and `inspect`: damage), 2 usage (also a bad TOPICS_* value).
"""

import click

from topics import __version__
from topics.cli.inspect import inspect
from topics.cli.keys import keys
from topics.cli.serve import serve
from topics.cli.verify import verify


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="topics", message="%(prog)s %(version)s")
def main() -> None:
    """topics: a persistent event engine with a JSON-first HTTP API, on one machine."""


main.add_command(inspect)
main.add_command(keys)
main.add_command(serve)
main.add_command(verify)
