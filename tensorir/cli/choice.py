"""Selects the schedule that a command applies to: the best recorded one, else the default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorir.api.frozen import log_for
from tensorir.api.identity import compute_digest, folder_of, identity_of, suits, target_of
from tensorir.api.load import choices, regenerate
from tensorir.api.workload import Workload
from tensorir.cli.common import say
from tensorir.runtime.host import target_here
from tensorir.target import Target
from tensorir.tune.log import LogReader, best
from tensorir.tune.record import Record
from tensorir.tune.template import template_on


@dataclass(frozen=True)
class Chosen:
    """The kernel that a command applies to: template, configuration, target, and its record (None for the default
    configuration or one that the user gave).
    """

    template: str
    config: dict[str, Any]
    target: Target
    record: Record | None = None

    @property
    def tuned(self) -> bool:
        return self.record is not None

    def json(self) -> dict[str, Any]:
        """Fields "template", "config", "tuned" (True with a record) and "record" (its id or None) for JSON output."""
        return {"template": self.template, "config": self.config, "tuned": self.tuned,
                "record": self.record.id if self.record else None}  # fmt: skip


def offline(
    work: Workload, target: Target | str | None, log: str, template: str | None, config: Mapping[str, object] | None
) -> Chosen:
    """Choose without opening a device: the given ``template`` or ``config`` (knobs that it lacks are the default's);
    without them the latest best record for the target that this version reproduces, else the default configuration,
    which is said on stderr.

    target: None: any target for a record, "opencl" for the default
    """
    parsed = target_here(target) if target is not None else None
    if template is None and config is None:
        found = recorded(work, parsed, log)
        if found is not None:
            return found
    return _asked(work, parsed or target_here("opencl"), template, config)


def recorded(work: Workload, target: Target | str | None, log: str) -> Chosen | None:
    """The latest best record whose source this version reproduces, as Chosen; None if there is none. Stale records and
    skipped lines of the log are named on stderr.

    target: a Target, or a language such as "c", that the record was made for; None: any
    """
    reader = LogReader(folder_of(work, log_for(work, log)))
    choices = best(reader, workload=work.title, compute=compute_digest(work))
    if reader.summary():
        say(f"log: {reader.summary()}")
    for choice in choices:
        record = choice.record
        made_for = target_of(record)
        if not suits(record, target):
            continue
        if regenerate(work, record, made_for) is None:
            say(f"record {record.id} is stale: this version makes another source for it")
            continue
        return Chosen(
            record.template,
            template_on(work.templates, record.template, made_for).space_for(made_for).canonical(record.config),
            made_for,
            record,
        )
    return None


def on_device(work: Workload, about: Mapping[str, Any], log: str) -> Chosen:
    """The fastest record for a device whose source this version reproduces; else the default configuration for the
    device. Stale records and a default are named on stderr.

    about: description of the device
    """
    target = Target.parse(about["target"])
    for choice in choices(work, identity_of(work, about), log_for(work, log, about)):
        record = choice.record
        if regenerate(work, record, target) is not None:
            return Chosen(
                record.template,
                template_on(work.templates, record.template, target).space_for(target).canonical(record.config),
                target,
                record,
            )
        say(f"record {record.id} is stale: this version makes another source for it")
    return _asked(work, target, None, None)


def _asked(work: Workload, target: Target, template: str | None, config: Mapping[str, Any] | None) -> Chosen:
    name = work.template_for(target, template)
    space = template_on(work.templates, name, target).space_for(target)
    values = space.default if config is None else space.canonical({**space.default, **config})
    if config is None:
        say(f"{work.title} is not tuned here: this is the default schedule of template {name}")
    return Chosen(name, values, target)
