"""`topics serve`. Its options and their help are made from `topics.settings.OPTIONS`: they are the reference."""

import os
import sys
from collections.abc import Iterable
from itertools import groupby

import click

from topics.settings import OPTIONS, Option, SettingsError, core_count, load

SUMMARY = "Run the server: a supervisor, its shards and its gateways."
ABOUT = """Every option has a variable of the same name, shown in brackets; an option wins over its variable.

Stop it with SIGTERM or Ctrl-C: open requests are finished and logs are checkpointed. A second signal kills at once.

\b
Examples:
  topics serve --data-dir /var/lib/topics --shards 4
  TOPICS_API_KEYS_FILE=/etc/topics/api-keys topics serve --host 0.0.0.0"""


class ServeCommand(click.Command):
    """Shows the options in the groups of the table."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for group, options in groupby(OPTIONS, key=lambda option: option.group):
            with formatter.section(group):
                formatter.write_dl([(_usage(option), _help(option)) for option in options], col_max=38)
        with formatter.section("Other"):
            formatter.write_dl([("-h, --help", "Show this message and exit.")])


def _usage(option: Option) -> str:
    if option.flag is None:
        return f"({option.env})"
    if option.kind == "bool":
        return f"{option.flag} / --no-{option.flag[2:]}"
    return f"{option.flag} {_metavar(option)}"


def _metavar(option: Option) -> str:
    return "|".join(option.words) if option.words else {"int": "N", "path": "PATH"}.get(option.kind, "TEXT")


def _help(option: Option) -> str:
    allowed = f"; {option.allowed}" if option.kind == "int" else ""
    return f"{option.help} [{option.env}; default {option.default_text}{allowed}]"


def _parameters(options: Iterable[Option]) -> list[click.Parameter]:
    parameters: list[click.Parameter] = []
    for option in options:
        if option.flag is None:
            continue
        if option.kind == "bool":
            declared = f"{option.flag}/--no-{option.flag[2:]}"
            parameters.append(click.Option([option.name, declared], default=None))
        else:
            parameters.append(click.Option([option.name, option.flag], metavar=_metavar(option), type=str))
    return parameters


def _serve(**flags: str | bool | None) -> None:
    try:
        loaded = load(os.environ, flags, tty=sys.stderr.isatty(), cores=core_count())
    except SettingsError as error:
        raise click.UsageError(str(error)) from None
    from topics.supervisor.start import run

    sys.exit(run(loaded))


serve = ServeCommand(
    "serve",
    callback=_serve,
    params=_parameters(OPTIONS),
    help=f"{SUMMARY}\n\n{ABOUT}",
    short_help=SUMMARY,
)
