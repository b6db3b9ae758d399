"""The supervisor's side of measuring: what is asked of the worker, and what its answers mean."""

from __future__ import annotations

import contextlib
import math
import secrets
import shutil
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorir.api.asker import Anyone, Asker, Asking
from tensorir.api.bench import BESIDE, LONG_S, REFERENCE, WHOLE
from tensorir.api.builders import MOST, Builders
from tensorir.api.candidate import Refused, prepare
from tensorir.api.expected import Output, save_json
from tensorir.api.identity import fingerprint
from tensorir.api.options import Options
from tensorir.api.places import DevicePlaces, Neighbours, alike, device_names, places_of
from tensorir.api.waits import Waits
from tensorir.codec import decode, encode
from tensorir.errors import DeclarationError, DeviceError, Problem, refuse
from tensorir.interp.magnitude import is_continuous
from tensorir.runtime.host import cores
from tensorir.runtime.opencl import POCL
from tensorir.target import Target
from tensorir.tune.child import Json
from tensorir.tune.flight import Flights, Places
from tensorir.tune.inputs import arguments
from tensorir.tune.log import Record, key_of
from tensorir.tune.outcome import reason_of
from tensorir.tune.record import steady_s
from tensorir.tune.sides import FinalRound

if TYPE_CHECKING:
    from tensorir.api.work import Work
    from tensorir.runtime.device import Device

REFERENCE_S = 600.0  # a reference in Python may take its time
SETUP_S = 120.0
WORTH_S = 20.0  # shorter budgets are over when builders, which take a second or two to start, begin to pay
BUILT = ("wrong_result", "illegal_schedule", "compile_error", "cancelled")
"""What builders are believed, for it is the same however busy the machine is; what crashed, took too long or wanted too
much memory beside others is judged alone."""
AT_ONCE = 50  # configurations in one question: where one of them takes the worker along, nothing is known of these
LEAST_S = 2.0  # that runs of all blocks may take once it is known how long others took, and
MOST_RUNS = 100.0  # times the best (some ten launches, of candidates up to five times slower), and
MOST_SLACK = 10.0  # times the longest such phase of a valid trial: the arrays and the machine's load are in it
MADE = ("source", "known", "max_error")
"""Of the reference, where it was made here: every trial names it, so it lies beside the expected outputs."""
MOST_LEVELS = 5  # earlier trials that are made again to see whether their source is still the same
PEER_S = 60.0  # for a look at one library,
PEER_SHARE = 0.25  # of what is left of the budget at most,
PEER_LEAST_S = 10.0  # or half of it where that is less than this: the first look imports the library
RACE_SHARE = 0.25  # of the time that the search took is worth spending on which of its finalists is fastest


@dataclass(frozen=True)
class Shared:
    """The processes of one measurer, for another one to use while it does not."""

    asked: Asker | Flights
    builders: Builders


class Measurer:
    """Asks the worker; what it answers is the measurement's part of a record."""

    def __init__(
        self,
        work: Work,
        device: str | Device | Sequence[str | Device] | None,
        options: Options,
        shared: Shared | None = None,
    ) -> None:
        """shared: ``shareable`` of the measurer of another workload on the same devices, used when that one is not."""
        self.work, self.options = work, options
        names = device_names(device)
        self._device = names[0] if names else None
        self._best_s: float | None = None
        self._longest_s: float | None = None  # of the phases in which valid candidates ran as a whole
        self._default = ""  # the configuration that others are timed beside once it was measured
        self._levels: list[Record] = []  # trials of earlier runs that they can be timed beside instead
        self._reference: Json | None = None  # what workers must know of the one that is
        self.cold_s = 0.0  # until the worker was ready
        self.waits = Waits(options.wait)
        self._target = Target("opencl", "cpu")
        self._about: Json = {}
        self._expect: Json | None = None
        self._unwatched = True
        self._neighbours = Neighbours()
        self._builders = Builders(self._limits()) if shared is None else shared.builders
        self._built: dict[str, Json] = {}
        self._places = None if shared is not None else self._places_for(names)
        given = None if shared is None else shared.asked
        self._flights = given if isinstance(given, Flights) else None
        if self._places is not None:
            self._flights = Flights(self._places, trial_timeout=options.trial_timeout)
        self._shared = shared is not None
        self._asker: Asking = (
            Anyone(self._flights) if self._flights is not None else given if isinstance(given, Asker) else Asker()
        )
        self._folder = tempfile.mkdtemp(prefix="tensorir-")
        self._setup = self._describe()

    @property
    def flights(self) -> Flights | None:
        """Where trials are under way at the same time: those of this workload, from here on."""
        if self._flights is not None:
            self._flights.prepare = self._trial_message
        return self._flights

    @property
    def shareable(self) -> Shared | None:
        """The worker, or the devices' workers, for others to use; those of an executor are shared by themselves."""
        if isinstance(self._asker, Asker):
            return Shared(self._asker, self._builders)
        if self._flights is None or self.options.executor is not None:
            return None
        return Shared(self._flights, self._builders)

    def __enter__(self) -> Measurer:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.ExitStack() as ending:  # whatever interrupts one of these, the others follow
            ending.callback(shutil.rmtree, self._folder, ignore_errors=True)
            if not self._shared:
                ending.callback(self._asker.close)
                ending.callback(self._builders.close)

    def abandon(self) -> None:
        """Leave, and end what is shared: who shared it has left before."""
        with contextlib.ExitStack() as ending:
            ending.callback(self.__exit__)
            ending.callback(self._asker.close)
            ending.callback(self._builders.close)

    def _places_for(self, devices: Sequence[str]) -> Places | None:
        """Where trials are measured at the same time; None for one after the other, here."""
        o = self.options
        if o.executor is None:
            return DevicePlaces(devices, self._limits()) if len(devices) > 1 else None
        if len(devices) > 1:
            message = "with an executor, device is what each of its workers opens: one name or none"
            raise refuse(DeclarationError, "tune.devices", message, hint="an executor with a worker for each device")
        places = places_of(o.executor, o.width, self._limits())
        if self.work.origin is None:
            message = f"{self.work.name} was made here, and the executor's processes cannot make it again"
            hint = "return it from a function of a file, and tune tensorir.api.origin.from_file(FILE, FUNCTION, {})"
            raise refuse(DeclarationError, "tune.origin", message, hint=hint)
        return places

    def _describe(self) -> Json:
        given, exact = arguments(self.work.outputs)
        origin = self.work.origin
        return {
            "key": uuid.uuid4().hex,
            "title": self.work.title,
            "wait": self.options.wait,
            "origin": None if origin is None else encode(origin),
            "device": self._device,
            "arguments": [encode(a) for a in given],
            "exact": exact,
            "continuous": is_continuous(self.work.outputs),
            "outputs": [encode(o) for o in Output.of(self.work.outputs)],
            "folder": self._folder,
        }

    # --- asking

    def open(self) -> Json:
        """The device's description; raises DeviceError when there is none, or when several are not of one kind."""
        began = time.monotonic()
        if isinstance(self._places, DevicePlaces):
            places = self._places
            asked = {name: places.start(name, self._addressed({"do": "hello"}), None) for name in places.live()}
            self._about = alike({name: _described(future.result()) for name, future in asked.items()})
        else:
            self._about = _described(
                self._ask({"do": "hello"}, None if self._flights is None else self._until_the_end())
            )
        self.cold_s = time.monotonic() - began
        self._target = Target.parse(self._about["target"])
        if self._flights is None:
            self._setup["device"] = self._about["id"]
        else:
            self._expect = fingerprint(self._about, self.work if self.work.origin is not None else None)
        if self.work.origin is None:
            self._reference_here()
        return self._about

    def _reference_here(self) -> None:
        """Without an origin the worker cannot evaluate the reference: save the expected outputs for it."""
        from tensorir.api.expected import Data

        given, exact = arguments(self.work.outputs)
        outputs = Output.of(self.work.outputs)
        continuous = is_continuous(self.work.outputs)
        data = Data(given, exact, outputs, self._folder, self.work.reference, continuous=continuous)
        data.fresh()
        left = self._until_the_end()
        if (floats := data.floats(math.inf if left is None else left)) is not None:
            floats.moved()

    def _limits(self) -> dict[str, float]:
        o = self.options
        limits = {"setup": SETUP_S, "reference": REFERENCE_S, "schedule": o.timeout, "emit": o.timeout}
        limits |= {
            "check": max(o.timeout, 30.0),
            "compile": o.compile_timeout,
            BESIDE: o.compile_timeout + o.timeout,
            "run": o.timeout,
            WHOLE: o.timeout,
            "time": 10 * o.timeout,
            "baseline": PEER_S,
        }
        for n in range(self.options.top + 2):
            limits |= {f"{phase} {n}": o.timeout for phase in ("run", "schedule", "emit")}
            limits |= {f"compile {n}": o.compile_timeout}
        return limits

    def _ask(self, message: Json, remaining: float | None, late_s: float | None = None) -> Json:
        if isinstance(self._asker, Asker):
            self._asker.hear(self.waits.hear_phase)
        reply = self._asker.request(self._addressed(message), self._limits(), remaining, late_s)
        self.waits.hear(reply)
        return reply

    def _addressed(self, message: Json) -> Json:
        expect = {} if self._expect is None else {"expect": self._expect}
        return {**message, **expect, "setup": self._setup}

    def _until_the_end(self) -> float | None:
        o = self.options
        return None if o.budget_s is None or o.started is None else o.started + o.budget_s - time.monotonic()

    # --- what the search calls

    def known(self, records: Sequence[Record], default: Mapping[str, Any], levels: Sequence[Record] = ()) -> None:
        """Take over the best time of earlier records, and which configuration others are timed beside.

        levels: usable trials of the log, whether or not they count in this run. Others are timed beside one of them,
                the default or else the earliest, so that all drifts of the log are on the level of that one's trial;
                where there is none, beside the default once it was measured
        """
        self._default = key_of(default)
        for r in records:
            self._better(r)
        short = [r for r in levels if r["status"] == "ok" and steady_s(r) < LONG_S]
        self._levels = sorted(short, key=lambda r: (key_of(r) != self._default, r["started"]))[:MOST_LEVELS]

    def _better(self, result: Mapping[str, Any]) -> None:
        if result["status"] == "ok":
            self._best_s = min(self._best_s or math.inf, steady_s(result))

    def _took(self, result: Mapping[str, Any]) -> None:
        """Learn how long running takes, from a trial that was just made: another day's machine may be slower."""
        spent = dict(result.get("detail") or {}).get("seconds") or {}
        if result["status"] == "ok" and WHOLE in spent:
            self._longest_s = max(self._longest_s or 0.0, spent[WHOLE])

    def _trial_limits(self, best_s: float | None) -> dict[str, float]:
        """Seconds for running what has been seen to run in part and not to be far slower than the best; none before
        another one was seen to get through.
        """
        if best_s is None or self._longest_s is None:
            return {}
        return {WHOLE: min(self.options.timeout, LEAST_S + MOST_RUNS * best_s + MOST_SLACK * self._longest_s)}

    def _standard(self) -> Json | None:
        """What others are timed beside: of earlier trials, one whose source is still the same."""
        while self._reference is None and self._levels:
            record = self._levels.pop(0)
            if record["template"] in self.work.templates and self.digests([record]) == [record["source_sha256"]]:
                self._default = key_of(record)
                self._refer(record)
        return self._reference

    def _refer(self, record: Mapping[str, Any]) -> None:
        """The default becomes what others are timed beside, unless it takes too long to be one."""
        seconds = steady_s(record)
        new = self._reference is None and key_of(record) == self._default
        if new and record["status"] == "ok" and seconds < LONG_S:
            with contextlib.suppress(Refused, OSError):  # an old record may be of what cannot be made any more
                item = self._message(record["template"], record["config"], check=False)
                if made := {key: item.pop(key) for key in MADE if key in item}:
                    save_json(Path(self._folder, REFERENCE), made)
                self._reference = {**item, "seconds": seconds, "sha256": record["source_sha256"]}

    def _fell_beside(self, result: Mapping[str, Any]) -> bool:
        """Whether the worker ended while it made the reference, which is then given up for good."""
        fell = dict(result.get("detail") or {}).get("phase") == BESIDE
        if fell:
            self._reference, self._default, self._levels = None, "", []
        return fell

    @property
    def width(self) -> int:
        """Configurations that are built at once; several only where the runtime keeps on disk what it compiles, and
        where they are made in the processes that build them.
        """
        asked = self.options.builders
        if self.work.origin is None:
            return 1
        if self._flights is not None or POCL not in str(self._about.get("platform", "")).lower():
            return 1
        if asked is None and (self.options.budget_s or math.inf) < WORTH_S:
            return 1
        return min(MOST, cores()) if asked is None else asked

    def build(self, wanted: Sequence[Json], remaining: float | None) -> list[Json | None]:
        """Several configurations at once in processes of their own: what became of those that ended there, and None
        for those that are now to be measured.
        """
        messages = [self._addressed({**self._message(w["template"], w["config"]), "do": "build"}) for w in wanted]
        replies = self._builders.build(messages, remaining)
        self._built = {key_of(w): r["built"] for w, r in zip(wanted, replies, strict=True) if r["status"] == "ok"}
        return [reply if reply["status"] in BUILT else None for reply in replies]

    def measure(self, template: str, config: Mapping[str, Any], kind: str, remaining: float | None) -> Json:
        """One trial."""
        try:
            message = self._message(template, config)
        except Refused as refused:
            return refused.result
        built = self._built.pop(key_of(message), {})
        spent = {"built": built.pop("seconds")} if built else {}
        message |= {"do": "measure", "best_s": self._best_s, **built}
        message |= {"limits": self._trial_limits(self._best_s), "seconds": remaining}
        began = time.monotonic()
        result = self._ask({**message, "reference": self._standard()}, remaining)
        if self._fell_beside(result):  # the candidate is not to blame
            left = None if remaining is None else remaining - (time.monotonic() - began)
            result = self._ask({**message, "reference": None}, left)
        self._better(result)
        self._took(result)
        if kind == "default" and result["status"] == "ok" and self._reference is None:
            self._default = key_of(message)  # it, or what stands in for it
        self._refer({**result, "template": template, "config": dict(config)})
        if kind == "default" and result["status"] == "ok":
            left = None if remaining is None else remaining - (time.monotonic() - began)
            self._first_baseline(left)
        if spent:
            result["detail"] = {**(result.get("detail") or {}), **spent}
        return {**self._lost(message), **result}

    def _trial_message(self, wanted: Json) -> Json:
        """What a place is asked for one of several trials under way; its result, where that is known already."""
        try:
            message = self._message(wanted["template"], wanted["config"])
        except Refused as refused:
            return refused.result
        own = {"do": "measure", "best_s": wanted["best_s"], "reference": self._standard()}
        own |= {"limits": self._trial_limits(wanted["best_s"]), "seconds": self._until_the_end()}
        return self._addressed({**message, **own})

    def watched(self, on_trial: Callable[[Record], object] | None, record: Record) -> None:
        """Show each record of trials at several places; the peer after the default, which has been measured alone."""
        if on_trial is not None:
            on_trial(record)
        self.waits.hear(record)
        self._fell_beside(record)
        self._took(record)
        self._refer(record)
        if self._about["kind"] == "cpu":
            self._neighbours.notice(record)
        first, self._unwatched = self._unwatched, self._unwatched and record["status"] != "ok"
        if first and record["status"] == "ok" and self._flights is not None and not self._flights.under_way:
            self._first_baseline(self._until_the_end())

    def _message(self, template: str, config: Mapping[str, Any], check: bool = True) -> Json:
        """What a worker must know of a configuration; raises Refused where it cannot be made.

        check: False for one whose trial has been
        """
        message: Json = {"template": template, "config": dict(config)}
        if self.work.origin is None:
            made = prepare(self.work, template, config, self._target, check=check)
            message |= {"source": encode(made.source), "known": made.known, "max_error": made.max_error}
        return message

    def digests(self, records: Sequence[Record]) -> list[str | None]:
        """What the templates make now of these configurations: the SHA-256 of the source, None where there is none.

        That of the record where nothing is known, since the budget ended or making one of them took the worker along.
        """
        if self.work.origin is None:
            return [self._digest(r["template"], r["config"]) for r in records]
        found: list[str | None] = []
        for low in range(0, len(records), AT_ONCE):
            some = records[low : low + AT_ONCE]
            wanted = [{"template": r["template"], "config": r["config"]} for r in some]
            reply = self._ask({"do": "digests", "wanted": wanted}, self._until_the_end())
            if reply["status"] not in ("ok", "cancelled"):
                text = f"whether {len(some)} records of the log are stale is not known: {reason_of(reply)}"
                warnings.warn(text, stacklevel=2)
            found += reply["digests"] if reply["status"] == "ok" else [r["source_sha256"] for r in some]
        return found

    def _digest(self, template: str, config: Mapping[str, Any]) -> str | None:
        try:
            return prepare(self.work, template, config, self._target, check=False).source.sha256
        except Refused:
            return None

    @staticmethod
    def _lost(message: Json) -> Json:
        """What the worker knew but could not say when it died."""
        return dict(message.get("known") or {})

    def _first_baseline(self, remaining: float | None) -> None:
        told = (self.options.on_baseline, self.options.on_peer)
        if told == (None, None) or (remaining is not None and remaining < 5.0):
            return
        message = {"do": "baseline", "reference": self._standard()}
        reply = self._ask(message, None if remaining is None else 0.5 * remaining)
        if self._fell_beside(reply):
            return
        if reply["status"] == "ok" and reply.get("name"):
            if self.options.on_baseline is not None:
                self.options.on_baseline(str(reply["name"]), float(reply["time_s"]))
            if self.options.on_peer is not None:
                self.options.on_peer(reply)

    def check(self, template: str, config: Mapping[str, Any]) -> Json:
        """All checks of one configuration: ``{"ok": …, "checks": [{"name", "ok", "detail"}]}``."""
        try:
            message = self._message(template, config)
        except Refused as refused:
            words = str(refused.result.get("detail", {}).get("message", refused.result["status"]))
            return {"ok": False, "checks": [{"name": "schedule", "ok": False, "detail": words}]}
        reply = self._ask({**message, "do": "check"}, None)
        if "checks" in reply:
            return reply
        return {"ok": False, "checks": [{"name": "worker", "ok": False, "detail": reason_of(reply)}]}

    def against(self, template: str, config: Mapping[str, Any]) -> Json:
        """A configuration timed in turn with its peers: ``{"result": fields of a record, "against": […], "load"}``."""
        record = {"template": template, "config": dict(config), "source_sha256": None}
        reply = self._ask(self._final_message([record], 60.0, all_peers=True), None)
        if reply["status"] != "ok":
            return {"result": reply, "against": [], "load": {}}
        name = {"round": secrets.token_hex(8)}
        result, against = reply["results"][0] | name, [a | name for a in reply["against"]]
        return {"result": result, "against": against, "load": reply["load"]}

    def final(
        self, finalists: Sequence[Record], remaining: float | None, searched_s: float | None = None
    ) -> FinalRound:
        """Re-measure in turn; a finalist that kills the worker is out, and the others are tried again.

        searched_s: seconds that the search for them took, of which the race may take a share; since the start when None
        """
        began = time.monotonic()
        results: list[Json | None] = [None] * len(finalists)
        peers = True
        while True:
            open_ = [n for n, r in enumerate(results) if r is None]
            left = None if remaining is None else remaining - (time.monotonic() - began)
            if not open_ or (left is not None and left < 1.0):
                break
            late_s = None if self._flights is None else (len(open_) + 2) * self._flights.late_s
            message = self._final_message([finalists[n] for n in open_], left, searched_s=searched_s)
            message |= {"peers": peers, "limits": {"baseline": _for_a_peer(left)}, "reference": self._standard()}
            reply = self._ask(message, left, late_s)
            if self._fell_beside(reply):
                continue
            if reply["status"] == "ok":
                where = {"device": reply["device"]} if "device" in reply else {}
                for n, result in zip(open_, reply["results"], strict=True):
                    results[n] = result | where
                return FinalRound([r or _cancelled() for r in results], reply["baseline"], reply.get("load"))
            guilty = _guilty(reply, len(open_))
            fell = reply["status"] != "cancelled" and dict(reply.get("detail") or {}).get("phase") == "baseline"
            if guilty is None and fell and peers:
                peers = False  # one of them hangs or takes the worker along: the finalists are not to pay for that
                continue
            if guilty is None:
                break
            results[open_[guilty]] = reply
        return FinalRound([r or _cancelled() for r in results])

    def _final_message(
        self, finalists: Sequence[Record], left: float | None, all_peers: bool = False, searched_s: float | None = None
    ) -> Json:
        items = [
            {**self._message(r["template"], r["config"], check=False), "sha256": r["source_sha256"]} for r in finalists
        ]
        seconds_left = None if left is None else max(0.5, 0.85 * left - 0.5)
        race_s = self.options.final_s
        if race_s is None:
            if searched_s is None:
                searched_s = time.monotonic() - (self.options.started or math.inf)
            race_s = max(1.0, RACE_SHARE * searched_s)
        message = {"do": "final", "finalists": items, "seconds": seconds_left, "race_s": race_s, "all_peers": all_peers}
        return message | {"floats": secrets.randbelow(10_000)}


def _described(reply: Json) -> Json:
    """The device in the answer to a hello; DeviceError where there is none."""
    if reply["status"] == "device":
        raise DeviceError([decode(Problem, p) for p in reply["problems"]])
    if reply["status"] != "ok":
        detail = reply.get("detail", {})
        words = detail.get("message") or detail.get("output") or reply["status"]
        raise refuse(DeviceError, "device.broken", f"the device cannot be used in a worker process: {words}"[:1000])
    about: Json = reply["device"]
    return about


def _for_a_peer(left: float | None) -> float:
    """Seconds that a look at one library may take, of those that are left."""
    return PEER_S if left is None else min(PEER_S, max(PEER_SHARE * left, min(PEER_LEAST_S, left / 2)))


def _cancelled() -> Json:
    return {"status": "cancelled"}


def _guilty(reply: Json, count: int) -> int | None:
    """The finalist that was being handled when the worker died; None when time ran out or nobody can be blamed."""
    phase = str(reply.get("detail", {}).get("phase", "")).split()
    if reply["status"] == "cancelled" or len(phase) != 2 or not phase[1].isdigit() or int(phase[1]) >= count:
        return None
    if reply["status"] == "run_timeout" and phase[0] == "compile":
        reply["status"] = "compile_timeout"
    return int(phase[1])
