"""``Template``: a scheduling function with its configuration space; lazy collections of templates."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, overload

from tensorir.errors import DeclarationError, ScheduleError, refuse
from tensorir.errors.handles import Value
from tensorir.errors.needs import need_names, shown
from tensorir.errors.shown import Shown
from tensorir.runtime.host import target_here
from tensorir.target import Target

if TYPE_CHECKING:
    from tensorir.tune.space import Space

T = TypeVar("T")
Function = Callable[[Any, dict[str, Any]], Any]
"""Function (schedule, configuration) -> None, after scheduling it, or another schedule to use."""


@dataclass(frozen=True, repr=False)
class Template(Value, Shown):
    """``function(s, config)`` schedules ``s`` (or returns another Schedule) for every configuration of ``space``.

    given: the space, or a function of the target that makes it when it is first asked for (loading a tuned kernel
           never does): how many registers there are and how wide they are decides what is worth trying
    kinds: the kinds of target that it is written for
    needs: what the target must have besides, such as "sm_80"; empty for nothing
    approximate: it computes in another way than declared, with rounding of its own: results may be off by the
                 workload's ``max_error`` also where the inputs are whole numbers
    """

    function: Function
    given: Space | Callable[[Target], Space]
    kinds: tuple[str, ...] = ("cpu", "gpu")
    approximate: bool = False
    needs: str = ""

    def suits(self, target: Target) -> bool:
        """True if the target's kind is among ``kinds`` and it has the feature ``needs``, if any."""
        target = Target.parse(target)
        return target.kind in self.kinds and (not self.needs or target.has(self.needs))

    @property
    def targets(self) -> str:
        """Supported targets in words."""
        return " and ".join(self.kinds) + (f" ({self.needs} or later)" if self.needs else "")

    @property
    def size(self) -> str:
        """Number of configurations as text, "1,234 configurations"; "space made for the target" if no space
        exists yet.
        """
        spaces = self.__dict__.get("spaces", {}).values() if callable(self.given) else [self.given]
        counts = sorted({space.size for space in spaces})
        if not counts:
            return "space made for the target"
        return f"{' or '.join(f'{n:,}' for n in counts)} configuration{'s' * (counts != [1])}"

    def __repr__(self) -> str:
        return f"<Template for {self.targets}: {self.size}{', rounds otherwise' * self.approximate}>"

    @classmethod
    def of(cls, name: str, given: object) -> Template:
        """Return the Template for ``(function, space)`` or ``(function, space, kinds)``; a Template unchanged.

        Raises DeclarationError ``workload.template`` for anything else; ``name`` is for the message.
        """
        made = given
        if isinstance(given, list | tuple) and len(given) in (2, 3):
            made = cls(*given)
        if isinstance(made, Template) and callable(made.function) and (callable(made.given) or _is_space(made.given)):
            need_names("kinds", made.kinds)
            return made
        hint = '{"default": (schedule, tir.Space(tile=[1, 2, 4]))}'
        message = f"template {shown(name)} is not (function, Space)"
        raise refuse(DeclarationError, "workload.template", message, hint=hint)

    @property
    def space(self) -> Space:
        """Space for a target chosen by the template: this machine's processor if it suits CPUs, else the GPU
        architecture that it needs, or an unspecified GPU.
        """
        gpu = f"cuda -arch={self.needs}" if self.needs.startswith("sm_") else "opencl -kind=gpu"
        return self.space_for(target_here("opencl" if self.kinds[0] == "cpu" else gpu))

    def space_for(self, target: Target) -> Space:
        """The space for one target; one that a function makes is kept per target.

        Raises ScheduleError ``template.target`` where the template is for others, DeclarationError
        ``workload.template`` if the function returns no Space.
        """
        if not callable(self.given):
            return self.given
        if not self.suits(target):
            message = f"a template that is written for {self.targets} has no configurations for {target.text}"
            raise refuse(
                ScheduleError, "template.target", message, hint="work.template_for(target) names one that suits"
            )
        spaces: dict[tuple[Target, str], Space] = self.__dict__.setdefault("spaces", {})
        key = (target, target.name)  # targets of other names are equal, and models know devices by name
        if key not in spaces:
            made = self.given(target)
            if not _is_space(made):
                message = f"the function that makes a template's space returned {shown(made)}, not a Space"
                raise refuse(
                    DeclarationError, "workload.template", message, hint="lambda target: tir.Space(tile=[4, 8])"
                )
            spaces[key] = made
        return spaces[key]

    def started(self, target: Target) -> Space | None:
        """Space for a target; None if it has no legal configuration, the template is for other targets, or no rule can
        schedule the computation there.
        """
        try:
            space = self.space_for(target)
            return space if space.default is not None else None
        except (DeclarationError, ScheduleError) as error:
            if error.code not in ("space.empty", "template.target", "automatic.no-rule"):
                raise
            return None


def _is_space(given: object) -> bool:
    from tensorir.tune.space import Space

    return isinstance(given, Space)


def table_of(templates: Mapping[str, object]) -> str:
    """Text table of templates: name, targets, size of existing spaces."""
    rows = [(n, t.targets, t.size) if isinstance(t, Template) else (n, "", "") for n, t in templates.items()]
    name, targets = (max((len(r[n]) for r in rows), default=0) for n in (0, 1))
    lines = [f"  {a:<{name}}  {b:<{targets}}  {c}".rstrip() for a, b, c in rows]
    return "\n".join([f"{len(rows) or 'no'} template{'s' * (len(rows) != 1)}", *lines])


class OneByOne(Mapping[str, T], Shown):
    """A lazy mapping: items are generated in order, as far as requested; the first of equal names wins. Copies and
    unions are plain dicts of all items.

    made:  function that starts the generator; called again after an exception
    named: function from a name to its item, None if there is none, without generating those before it
    """

    def __init__(
        self, made: Callable[[], Iterable[tuple[str, T]]], named: Callable[[str], T | None] | None = None
    ) -> None:
        self._made, self._known = made, dict[str, T]()
        self._named, self._asked = named, dict[str, T | None]()
        self._rest: Iterator[tuple[str, T]] | None = None
        self._all = False
        self._turn = threading.RLock()

    def _more(self) -> bool:
        """Generate the next item; False if there is none."""
        try:
            self._rest = iter(self._made()) if self._rest is None else self._rest
            for name, one in self._rest:
                if name not in self._known:
                    self._known[name] = self._asked.get(name) or one
                    return True
        except BaseException:
            self._rest = None
            raise
        self._all = True
        return False

    def __iter__(self) -> Iterator[str]:
        for n in itertools.count():
            with self._turn:
                if n == len(self._known) and (self._all or not self._more()):
                    return
                name = next(itertools.islice(self._known, n, None))
            yield name

    def __getitem__(self, name: str) -> T:
        with self._turn:
            if self._named and name not in self._known and not self._all:
                if name not in self._asked:
                    self._asked[name] = self._named(name)
                if (found := self._asked[name]) is None:
                    raise KeyError(name)
                return found
            while name not in self._known and not self._all:
                self._more()
        return self._known[name]

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return next(iter(self), None) is not None

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, T]:
        return self.copy()

    def copy(self) -> dict[str, T]:
        """All items as an independent dict."""
        return dict(self)

    __copy__ = copy

    def __or__(self, other: Mapping[str, T]) -> dict[str, T]:
        return {**self, **other}

    def __ror__(self, other: Mapping[str, T]) -> dict[str, T]:
        return {**other, **self}

    def __repr__(self) -> str:
        return table_of(self)


class Templates(MutableMapping[str, Template], Shown):
    """Templates by name; automatic ones are created lazily, per kind of target, when one of them or all are requested.

    later: {kind of target: function from a Target to its templates, from None to those of any such target}, None if
           there are none
    alone: {name: template} of lazy templates that are quick to create individually
    lead:  {kind of target: function from a Target to the name of its first template}
    other: function from a name to a template that is listed for some targets only, None if there is none
    """

    def __init__(
        self,
        first: Mapping[str, Template],
        later: Mapping[str, Callable[[Target | None], Mapping[str, Template]]] | None,
        alone: Callable[[], Mapping[str, Template]] | None = None,
        lead: Mapping[str, Callable[[Target], str]] | None = None,
        other: Callable[[str], Template | None] | None = None,
    ) -> None:
        self._begun: tuple[Any, ...] | None = (first, later, alone, lead, other)  # until one is replaced
        self._lead, self._other = lead or {}, other
        self._met = dict[str, Template]()  # made for some target: names that not every target has
        self._made, self._alone = dict(first), _once(alone)  # copies make none again
        self._later = later and {kind: _by_target(made) for kind, made in later.items()}
        self._turn = threading.Lock()

    def of(self, target: Target) -> Iterator[tuple[str, Template]]:
        """Yield (name, template) of the templates for the target's kind; those of other kinds are not created."""
        first = self._lead[target.kind](target) if target.kind in self._lead else None
        begun = next(self._of(target), None)
        lead = self.named(first, target) if first is not None and begun is not None and first != begun[0] else None
        if lead and first is not None:
            yield first, lead
        yield from ((n, t) for n, t in self._of(target) if not (lead and n == first))

    def _of(self, target: Target) -> Iterator[tuple[str, Template]]:
        later, made = self._later, self._made
        yield from ((n, t) for n, t in made.items() if target.kind in t.kinds)
        if later is not None and target.kind in later:
            for n, t in later[target.kind](target).items():
                if n not in made:
                    self._met[n] = t
                    yield n, t

    def named(self, name: str, target: Target) -> Template | None:
        """Template ``name`` as made for ``target``; None if it has no template of that name."""
        later, made = self._later, self._made
        if name in made or later is None:
            return made.get(name)
        alone = self._alone() if self._alone else {}
        if name in alone:
            return alone[name]
        found = later.get(target.kind, _none)(target).get(name)
        if found:
            self._met[name] = found
        return found

    def _own(self) -> dict[str, Template]:
        """Dict of all templates, created now and open to changes; no more are created later."""
        made = {name: self[name] for name in self}
        with self._turn:
            if self._later is not None:  # else another thread was first, and may have changed some
                self._made, self._later, self._begun = made, None, None
        return self._made

    def __getitem__(self, name: str) -> Template:
        later, made = self._later, self._made  # in this order: ``_own`` sets the other one first
        if name in made or later is None:
            return made[name]
        kinds = [kind for kind in later if str(name).startswith(f"{kind}_")] or [*later]  # as rules call theirs
        if self._alone and name in (alone := self._alone()):
            return alone[name]
        for kind in kinds:
            if name in (found := later[kind](None)):
                return found[name]
        if one := self._met.get(name) or (self._other and self._other(name)):
            return one
        raise KeyError(name)

    def __setitem__(self, name: str, template: Template) -> None:
        self._own()[name] = template

    def __delitem__(self, name: str) -> None:
        del self._own()[name]

    def __iter__(self) -> Iterator[str]:
        later, made = self._later, self._made
        yield from made
        for known in later.values() if later is not None else ():
            yield from (name for name in known(None) if name not in made)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return table_of(self)

    def copy(self) -> Templates:
        """Independent copy; its lazy templates stay lazy."""
        later, made = self._later, self._made  # in this order, as above
        other = Templates(made, None, self._alone, self._lead, self._other)
        other._later, other._begun = later, self._begun
        return other

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> Templates:
        return self.copy()

    def __reduce__(self) -> tuple[Any, ...]:
        return Templates, self._begun or (self._made, None)


def suiting(templates: Mapping[str, Template], target: Target) -> Iterator[tuple[str, Template]]:
    """Yield (name, template) for templates that support ``target``."""
    found = templates.of(target) if isinstance(templates, Templates) else templates.items()
    return ((name, t) for name, t in found if t.suits(target))


def found_on(templates: Mapping[str, Template], name: str, target: Target) -> Template | None:
    """Template ``name`` as made for ``target``, else as made for any target of the same kind; None if neither
    exists.
    """
    found = templates.named(name, target) if isinstance(templates, Templates) else None
    return found or templates.get(name)


def template_on(templates: Mapping[str, Template], name: str, target: Target) -> Template:
    """Template ``name`` as made for ``target`` or any target of the same kind; raises KeyError if neither exists."""
    if found := found_on(templates, name, target):
        return found
    raise KeyError(name)


def need_rule(found: Mapping[str, T], name: str, what: str, target: Target) -> T:
    """Entry ``name`` of ``found``, the templates that rules make for ``what`` on ``target``; raises ScheduleError
    ``template.target`` if missing.
    """
    if (one := found.get(name)) is None:
        message = f"no rule schedules {what} by {name} on {target.text}"
        raise refuse(ScheduleError, "template.target", message, hint=f"one of {', '.join(found)}")
    return one


def _none(_: Target | None) -> Mapping[str, Template]:
    return {}


def _by_target(made: Callable[[Target | None], Mapping[str, Template]]
               ) -> Callable[[Target | None], Mapping[str, Template]]:  # fmt: skip
    kept = functools.cache(lambda target, _: made(target))  # targets of other names are equal
    return lambda target: kept(target, target.name if target else "")


@overload
def _once(made: Callable[[], T]) -> Callable[[], T]: ...
@overload
def _once(made: None) -> None: ...
def _once(made: Callable[[], T] | None) -> Callable[[], T] | None:
    return made and functools.cache(made)
