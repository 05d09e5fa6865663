"""`topics completion`: the script that teaches a shell to complete commands, options and names of topics."""

import click

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    \b
    Examples:
      source <(topics completion bash)
      topics completion zsh > "${fpath[1]}/_topics"
      topics completion fish > ~/.config/fish/completions/topics.fish
    """
    from click.shell_completion import get_completion_class

    from topics.cli import main

    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(main, {}, "topics", "_TOPICS_COMPLETE").source())
