"""A verb of the command line: declared without what it does, which is imported when it is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from tensorir.cli.common import did_you_mean
from tensorir.cli.options import NAMES

_SECTIONS = {
    "Target": ("device", "target", "arch", "template", "config", "emulate"),
    "Search": ("trials", "budget", "seed", "tuner", "restrict", "patience", "least_gain", "top", "regret", "fresh",
               "dry_run"),
    "Measuring": ("builders", "timeout", "compile_timeout", "no_wait", "require"),
}  # fmt: skip
"""Of the options of a verb that takes a workload; others are about the computation, or about its results."""


def _section(name: str) -> str:
    if name in NAMES:
        return "Computation"
    return next((section for section, names in _SECTIONS.items() if name in names), "Results")


class Verb(click.Command):
    """A verb; its options by what they are about, and one that is spelt like one of its own is asked about.

    work: takes what the options were given by their names, and returns the exit code
    text: what its help says
    """

    def __init__(self, name: str, work: Callable[..., Any], text: str, *options: click.Parameter) -> None:
        settings: dict[str, Any] = {
            "help_option_names": ["-h", "--help"],
            "auto_envvar_prefix": "TENSORIR",  # every flag is also TENSORIR_FLAG
            "max_content_width": 100,
        }
        super().__init__(name, context_settings=settings, callback=work, params=list(options), help=text)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        if not any(p.name == "shapes" for p in options):
            super().format_options(ctx, formatter)
            return
        for section in ("Computation", *_SECTIONS, "Results"):
            records = [p.get_help_record(ctx) for p in options if _section(str(p.name)) == section]
            if any(records):
                with formatter.section(section):
                    formatter.write_dl([r for r in records if r is not None])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name
            legal = [o for p in self.get_params(ctx) if isinstance(p, click.Option) for o in p.opts if len(o) > 2]
            raise click.UsageError(f"No such option {name[:60]!r}.{did_you_mean(name, legal)}", ctx) from None
