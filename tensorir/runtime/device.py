"""Lists devices of all languages and opens one by name."""

from __future__ import annotations

import threading

from tensorir._package import Lazy
from tensorir.errors import DeviceError, refuse
from tensorir.errors.spelling import nearest
from tensorir.runtime.base import PRECISE_SUFFIX
from tensorir.runtime.base import Device as Device
from tensorir.runtime.base import DeviceInfo as DeviceInfo
from tensorir.target import Target

_LISTERS = {
    "opencl": Lazy("tensorir.runtime.opencl", "list_devices"),
    "c": Lazy("tensorir.runtime.c_device", "list_devices"),
    "cuda": Lazy("tensorir.runtime.cuda_device", "list_devices"),
}
"""Each language's function that lists its devices, in order of search."""
_OPENED_BY = {
    "opencl": Lazy("tensorir.runtime.opencl", "open_listed"),
    "c": Lazy("tensorir.runtime.c_device", "open_listed"),
    "cuda": Lazy("tensorir.runtime.cuda_device", "open_listed"),
}
"""Each language's function that opens a listed device."""
_opened: dict[str, Device] = {}
_lock = threading.Lock()


def devices() -> list[DeviceInfo]:
    """Every OpenCL, C and CUDA device found, usable ones and the others with their reason; never raises.

    OpenCL platforms are numbered as the loader lists them, simulators (Oclgrind) after the others.
    """
    return [d for language in _LISTERS for d in _list(language)]


def _list(language: str) -> list[DeviceInfo]:
    if language == "hip":
        return []  # text alone
    found: list[DeviceInfo] = _LISTERS[language]()
    return found


def open_device(name: str | Target | Device | None = None) -> Device:
    """Open a device by name (``"opencl:0:0"``, ``"opencl:pocl"``, ``"c:0"``, ``"cuda:0"``), by target text, or the
    first usable.

    Without a name: an OpenCL CPU device, PoCL before others, then an OpenCL GPU, then C, then CUDA; a simulator only by
    name.
    The same name gives the same object. ``-precise_math=1`` after a name is part of it: kernels are made, tuned, logged
    and loaded for a target that asks for the library's functions. Other options of a target's text (limits, -arch=) do
    not change the device; an open Device is returned as it is.

    Raises DeviceError ``device.not-found``, ``device.forked`` or an unusable one's reason (``device.no-opencl`` …);
    DeclarationError ``target.unknown``.
    """
    if isinstance(name, Device):
        name.check_process()
        return name
    target = None if name is None else Target.parse(name)
    listed: list[DeviceInfo] = []
    chosen = None
    for language in _LISTERS if target is None else (target.language,):
        listed += _list(language)  # CUDA only when wanted or needed: it costs the import of cupy
        chosen = _choose(listed, target)
        if chosen is not None and chosen.usable:
            break
    if chosen is None:
        raise _not_found(listed, target)
    if not chosen.usable:
        raise refuse(DeviceError, _reason_code(chosen), f"{chosen.name}: {chosen.reason}", hint=chosen.fix)
    with _lock:
        if chosen.name not in _opened:
            _opened[chosen.name] = _OPENED_BY[chosen.language](chosen)
        device = _opened[chosen.name]
        if target is not None and target.precise_math:
            device = _opened.setdefault(chosen.name + PRECISE_SUFFIX, device.precise())
    device.check_process()
    return device


Device._opened = staticmethod(open_device)


def _choose(listed: list[DeviceInfo], target: Target | None) -> DeviceInfo | None:
    if target is not None and target.device:
        return next((d for d in listed if _is_named(d, target.device)), None) or next(
            (d for d in listed if not d.usable and d.name == target.language), None
        )
    usable = [d for d in listed if d.usable and not d.simulator]
    if target is not None:
        usable = [d for d in usable if d.language == target.language and d.kind == target.kind]
    if usable:
        return min(usable, key=_rank)
    broken = [d for d in listed if not d.usable and (target is None or d.language == target.language)]
    return broken[0] if broken else None


def _rank(info: DeviceInfo) -> tuple[bool, bool, bool]:
    return (info.language != "opencl", info.kind != "cpu", "portable computing" not in info.platform.lower())


def _is_named(info: DeviceInfo, wanted: str) -> bool:
    """True if ``wanted`` names this device: ``opencl:<platform number or name>[:<device number or name>]``, ``c:<number
    or compiler>`` or ``cuda:<number>``.
    """
    language, *parts = wanted.split(":")
    numbers = info.name.split(":")[1:]
    if language != info.language or len(numbers) < len(parts):
        return False
    texts = {"opencl": (info.platform, info.label), "c": (info.driver,)}.get(language, (info.label,))
    for given, number, text in zip(parts, numbers, texts, strict=False):
        words = text.lower() + (" pocl" if "portable computing" in text.lower() else "")
        if given != number and (given.isdigit() or given.lower() not in words):
            return False
    return True


def _not_found(listed: list[DeviceInfo], target: Target | None) -> Exception:
    wanted = "device" if target is None else (target.device or f"{target.language} {target.kind} device")
    names = [f"{d.name} ({d.label})" for d in listed if d.usable]
    have = "; usable here: " + ", ".join(names) if names else "; no device is usable here"
    near = nearest(wanted, _callings(listed)) if target is not None and target.device else []
    hint = "".join(f"{name}; " for name in near)
    return refuse(DeviceError, "device.not-found", f"no {wanted}{have}", hint=f"{hint}tensorir devices")


def _callings(listed: list[DeviceInfo]) -> list[str]:
    """Names of usable devices, by number and by name, for messages."""
    found = [d for d in listed if d.usable]
    return [d.name for d in found] + ["opencl:pocl" for d in found if _is_named(d, "opencl:pocl")][:1]


def _reason_code(info: DeviceInfo) -> str:
    return str(info.details.get("code", "device.not-found"))
