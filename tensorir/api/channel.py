"""Lifecycle of the processes that measure one workload: start, requests, sharing with other workloads, end."""

from __future__ import annotations

import contextlib
import math
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tensorir.api.asker import Anyone, Asker, Asking
from tensorir.api.builders import Builders
from tensorir.api.identity import fingerprint
from tensorir.api.limits import limits_of
from tensorir.api.outputs import Data
from tensorir.api.places import DevicePlaces, alike, device_names, places_of
from tensorir.api.questions import DeviceDescription, Hello, Output, Question, Request, Setup, Unusable
from tensorir.api.waits import Waits
from tensorir.codec import Json, decode, encode
from tensorir.errors import DeclarationError, DeviceError, refuse
from tensorir.interp.magnitude import is_continuous
from tensorir.runtime.scratch import Scratch, tidy
from tensorir.target import Target
from tensorir.tune.flight import Flights, TrialPlaces
from tensorir.tune.inputs import arguments
from tensorir.tune.spec import RunSpec
from tensorir.tune.trial import Reply

if TYPE_CHECKING:
    from tensorir.api.work import Work
    from tensorir.runtime.device import Device


@dataclass(frozen=True)
class Shared:
    """Measuring processes handed from one channel to another while idle."""

    asked: Asker | Flights
    builders: Builders


class Channel:
    """Connection to the processes that measure one workload.

    about:  description of the device, once open; target: its limits
    waits:  other processes timing on the devices
    cold_s: seconds that starting the processes took
    setup:  description of the workload for them
    """

    def __init__(
        self,
        work: Work,
        device: str | Device | Sequence[str | Device] | None,
        spec: RunSpec,
        shared: Shared | None = None,
    ) -> None:
        """Connect to measuring processes.

        shared: processes of another workload on the same devices (its ``shareable``), to be used while it is idle
        """
        self.work, self.spec, self.waits = work, spec, Waits(spec.wait)
        self.about: Json = {}
        self.target, self.cold_s = Target("opencl", "cpu"), 0.0
        self._expect: Mapping[str, object] | None = None
        self.limits = limits_of(spec)
        self.builders = Builders(self.limits) if shared is None else shared.builders
        names = device_names(device)
        self._places = None if shared is not None else self._places_for(names)
        given = None if shared is None else shared.asked
        self.flights = given if isinstance(given, Flights) else None
        if self._places is not None:
            self.flights = Flights(self._places, trial_timeout=spec.trial_timeout)
        self._shared = shared is not None
        self.asker: Asking = (
            Anyone(self.flights) if self.flights is not None else given if isinstance(given, Asker) else Asker()
        )
        self._scratch = Scratch()
        self.folder = str(self._scratch.path)
        self.setup = self.described(names[0] if names else None)

    @property
    def shareable(self) -> Shared | None:
        """The local worker processes, to be used by another channel on the same devices; None before there are any, or
        with an executor, which shares its own.
        """
        if isinstance(self.asker, Asker):
            return Shared(self.asker, self.builders)
        if self.flights is None or self.spec.executor is not None:
            return None
        return Shared(self.flights, self.builders)

    def close(self) -> None:
        """End this channel's processes, except those given to another channel or taken from one."""
        with contextlib.ExitStack() as ending:  # whatever interrupts one of these, the others follow
            ending.callback(tidy)  # what killed workers have left
            ending.callback(self._scratch.close)
            if not self._shared:
                ending.callback(self.asker.close)
                ending.callback(self.builders.close)

    def abandon(self) -> None:
        """Close, and end shared processes too, once no other channel uses them."""
        with contextlib.ExitStack() as ending:
            ending.callback(self.close)
            ending.callback(self.asker.close)
            ending.callback(self.builders.close)

    def _places_for(self, devices: Sequence[str]) -> TrialPlaces | None:
        """Workers for concurrent trials; None for sequential trials in one local worker."""
        o = self.spec
        if o.executor is None:
            return DevicePlaces(devices, self.limits) if len(devices) > 1 else None
        if len(devices) > 1:
            message = "with an executor, device is what each of its workers opens: one name or none"
            raise refuse(DeclarationError, "tune.devices", message, hint="an executor with a worker for each device")
        places = places_of(o.executor, o.width, self.limits)
        if self.work.origin is None:
            message = f"{self.work.name} was made here, and the executor's processes cannot make it again"
            hint = "return it from a function of a file, and tune tensorir.api.origin.from_file(FILE, FUNCTION, {})"
            raise refuse(DeclarationError, "tune.origin", message, hint=hint)
        return places

    def described(self, device: str | None) -> Setup:
        """The workload's Setup, as sent to a worker. device: name of the device to use, None for the default"""
        outputs = self.work.outputs
        given, exact = arguments(outputs)
        return Setup(
            uuid.uuid4().hex,
            device,
            given,
            tuple(Output.of(outputs)),
            self.work.origin,
            self.work.title,
            exact,
            is_continuous(outputs),
            self.folder,
            self.spec.wait,
        )

    def open(self) -> Json:
        """Description of the device, of the first of several; starts the processes and sets ``about``, ``target``,
        ``cold_s``. For a workload without an origin the expected outputs are computed here.

        Raises DeviceError if there is none, DeclarationError ``tune.devices`` if several differ in kind.
        """
        began, hello = time.monotonic(), Hello()
        if isinstance(self._places, DevicePlaces):
            message, places = encode(self.request(hello)), self._places
            asked = {name: places.start(name, message, None) for name in places.live()}
            self.about = alike({name: _device(Reply.of(future.result())) for name, future in asked.items()})
        else:
            self.about = _device(self.ask(hello, None if self.flights is None else self.until_the_end()))
        self.cold_s = time.monotonic() - began
        self.target = Target.parse(str(self.about["target"]))
        if self.flights is None:
            self.setup = replace(self.setup, device=str(self.about["id"]))
        else:
            self._expect = fingerprint(self.about, self.work if self.work.origin is not None else None)
        if self.work.origin is None:
            self.reference_here()
        return self.about

    def reference_here(self) -> None:
        """Save expected outputs for workers that cannot evaluate the reference (workloads without an origin)."""
        s = self.setup
        data = Data(s.arguments, s.exact, s.outputs, s.folder, self.work.reference, continuous=s.continuous)
        data.fresh()
        left = self.until_the_end()
        if (floats := data.floats(math.inf if left is None else left)) is not None:
            floats.moved()

    def request(self, question: Question, limits: Mapping[str, float] | None = None) -> Request:
        """Return the Request for a question about this workload; limits: seconds per phase, if not the defaults"""
        return Request.of(question, self.setup, expect=self._expect, limits=limits)

    def ask(
        self,
        question: Question,
        remaining_s: float | None,
        limits: Mapping[str, float] | None = None,
        late_s: float | None = None,
    ) -> Reply:
        """Return the reply to a question.

        remaining_s: seconds until it is cancelled, None for no limit;  limits: seconds per phase, if not the defaults
        late_s:      seconds until another worker, if there are several, is asked as well
        """
        if isinstance(self.asker, Asker):
            self.asker.hear(self.waits.hear_phase)
        reply = self.asker.request(self.request(question, limits), self.limits, remaining_s, late_s)
        self.waits.hear(reply)
        return reply

    def until_the_end(self) -> float | None:
        """Seconds left of the budget; None without one."""
        o = self.spec
        return None if o.budget_s is None or o.started is None else o.started + o.budget_s - time.monotonic()


def _device(reply: Reply) -> Json:
    """Device description from a hello reply; raises DeviceError if there is none."""
    if reply.status == "device":
        raise DeviceError(decode(Unusable, reply.answer).problems)
    if not reply.ok:
        words = reply.told.get("message") or reply.told.get("output") or reply.status
        raise refuse(DeviceError, "device.broken", f"the device cannot be used in a worker process: {words}"[:1000])
    return dict(decode(DeviceDescription, reply.answer).device)
