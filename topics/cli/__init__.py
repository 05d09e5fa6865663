"""The command line, `topics`. A command's module is imported when the command is asked for, and each of them imports
what it works with when it runs, so that `serve` starts and `--help` shows at once.

Exit status of every command is in failures.py; `verify` and `inspect` have their own meaning of 1 (damage).
"""

import click

from topics import __version__
from topics.cli.failures import EXIT_TABLE
from topics.cli.lazy import LazyGroup

COMMANDS = {
    "serve": "topics.cli.serve:serve",
    "status": "topics.cli.status:status",
    "shards": "topics.cli.shards:shards",
    "topic": "topics.cli.topic:topic",
    "tail": "topics.cli.tail:tail",
    "queue": "topics.cli.queue:queue",
    "group": "topics.cli.group:group",
    "router": "topics.cli.router:router",
    "keys": "topics.cli.keys:keys",
    "verify": "topics.cli.verify:verify",
    "inspect": "topics.cli.inspect:inspect",
    "pipeline": "topics.cli.pipeline:pipeline",
    "compact": "topics.cli.compact:compact",
    "backup": "topics.cli.backup:backup",
    "restore": "topics.cli.backup:restore",
    "bench": "topics.cli.bench:bench",
    "completion": "topics.cli.completion:completion",
}

EPILOG = f"""\b
Where the server is: --url, TOPICS_URL, `url` in the config file, else http://127.0.0.1:4000.
The API key: --key-file, TOPICS_KEY_FILE, TOPICS_KEY, `key_file` or `key` in the config file.
The config file is ~/.config/topics/config.toml (TOPICS_CONFIG names another).

\b
Exit status:
{EXIT_TABLE}

\b
Examples:
  topics serve --data-dir /var/lib/topics
  topics topic append orders '{{"id": 1}}'
  topics tail orders --from-seq 0
"""


@click.group(
    cls=LazyGroup,
    modules=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog=EPILOG,
)
@click.version_option(__version__, prog_name="topics", message="%(prog)s %(version)s")
def main() -> None:
    """topics: a persistent event engine with a JSON-first HTTP API, on one machine."""
