"""`topics keys`: make entries for TOPICS_API_KEYS. Nothing is stored: what is printed is the only copy."""

import json
import secrets

import click

from topics.keys import ALL, KeysError, parse_entry, scope_names

SECRET_BYTES = 32


@click.group()
def keys() -> None:
    """API keys."""


@keys.command()
@click.option("--scopes", default="", metavar="SCOPES", help="Of read, write, delete, admin, joined by '+'. [all]")
@click.option("--prefixes", default="", metavar="PREFIXES", help="Beginnings of names, joined by '|'. [any name]")
@click.option("--json", "as_json", is_flag=True, help="Print an object with the secret on its own.")
def new(scopes: str, prefixes: str, as_json: bool) -> None:
    """Print an entry with a fresh 256-bit secret.

    Put it into TOPICS_API_KEYS or a line of TOPICS_API_KEYS_FILE. Clients send what stands before the first ':'.

    \b
    Examples:
      topics keys new --scopes read --prefixes tenant42:
      (umask 077; topics keys new >> /etc/topics/api-keys)
    """
    secret = secrets.token_urlsafe(SECRET_BYTES)
    try:
        key = parse_entry(f"{secret}:{scopes}:{prefixes}", "the key")
    except KeysError as error:
        raise click.UsageError(str(error)) from None
    names = scope_names(key.scopes)
    fields = [secret, "" if key.scopes == ALL else "+".join(names), "|".join(key.prefixes)]
    entry = ":".join(fields).rstrip(":") if not key.prefixes else ":".join(fields)
    if as_json:
        click.echo(json.dumps({"entry": entry, "secret": secret, "scopes": names, "prefixes": key.prefixes}))
    else:
        click.echo(entry)
