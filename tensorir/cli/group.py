"""Command groups (``tensorir log ls``) with spelling suggestions."""

from __future__ import annotations

from typing import Any

import click

from tensorir.cli.common import did_you_mean


class VerbGroup(click.Group):
    """A click group that suggests similar names for unknown commands."""

    def __init__(self, name: str, text: str, *verbs: click.Command, **given: Any) -> None:
        settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
        super().__init__(name, {str(v.name): v for v in verbs}, context_settings=settings, help=text, **given)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            asked = did_you_mean(args[0], self.list_commands(ctx))
            raise click.UsageError(f"No such command {args[0][:60]!r}.{asked}", ctx)
        return super().resolve_command(ctx, args)
