"""A group of commands that are imported when they are asked for, and the one place where failures end."""

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from topics.cli.failures import INTERRUPTED, Failure, report

JSON_ASKED = "topics.json_asked"


class LazyGroup(click.Group):
    """`modules` maps a command's name to "module:attribute"."""

    def __init__(self, *args: Any, modules: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        where = self._modules.get(cmd_name)
        if where is None:
            return None
        module, _, attribute = where.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # An error in the options of a command may come before its --json is reached, which holds for it all the same.
        ctx.meta[JSON_ASKED] = "--json" in args[: args.index("--")] if "--" in args else "--json" in args
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Failure as failure:
            report(failure, as_json=bool(ctx.meta.get("topics.json")))
            sys.exit(failure.status)
        except click.ClickException as error:
            if not ctx.meta[JSON_ASKED]:
                raise
            report(Failure(error.exit_code, error.format_message()), as_json=True)
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
