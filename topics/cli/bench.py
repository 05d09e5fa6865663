"""`topics bench`: the measurements of `make bench`, where their code is installed."""

import sys
from importlib.util import find_spec

import click

from topics.cli.failures import REFUSED, Failure


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []}, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def bench(ctx: click.Context, arguments: tuple[str, ...]) -> None:
    """Measure speed beside Redis and NATS. `topics bench --help` shows the choices.

    \b
    Examples:
      topics bench --quick
    """
    import subprocess

    if find_spec("loadtest") is None:
        raise Failure(REFUSED, "the benchmarks are part of the source tree: run make bench there", "not_installed")
    sys.exit(subprocess.call([sys.executable, "-m", "loadtest", *arguments]))
