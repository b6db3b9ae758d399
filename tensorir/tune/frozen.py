"""Frozen choices: a small JSON file of records that pins the kernels to load, whatever is added to the log later.

One JSON object with one record per line, so that version control shows changed choices and a reader needs memory for
one record only::

    {"frozen": 1, "sha256": "…", "choices": [
    {"v":2,"kind":"trial",…},
    {"v":2,"kind":"trial",…}
    ]}

``sha256`` is the digest of the lines between the first and the last; each record has its own checksum. Equal choices
give equal bytes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import BinaryIO

from tensorir.tune.record import MAX_LINE, BadRecord, OtherVersion, Record, decode, encode

FROZEN = 1  # version of the file, not of its records
MAX_CHOICES = 10_000
_HEAD = '{{"frozen": {}, "sha256": "{}", "choices": [\n'


def frozen_text(records: Sequence[Record]) -> bytes:
    """Bytes of the file that pins ``records``, each the choice for its workload and device, in any order; raises
    BadRecord for more than ``MAX_CHOICES``.
    """
    if len(records) > MAX_CHOICES:
        raise BadRecord(f"more than {MAX_CHOICES} choices")
    ordered = sorted(records, key=lambda r: (r.workload, r.id))
    body = b"".join(encode(r)[:-1] + (b",\n" if r is not ordered[-1] else b"\n") for r in ordered)
    return _HEAD.format(FROZEN, hashlib.sha256(body).hexdigest()).encode() + body + b"]}\n"


def looks_frozen(file: BinaryIO) -> bool:
    """True if a file starts like one of frozen choices, even after editing; the file position is restored."""
    head = file.readline(200)
    found = re.match(rb'\s*\{\s*"frozen"', head + (b"" if head.strip() != b"{" else file.readline(200)))
    file.seek(0)
    return found is not None


def frozen_records(file: BinaryIO) -> list[Record] | None:
    """Records of a frozen file; None for a file of another kind, its position restored.

    Raises BadRecord for a damaged or hand-edited file or invalid records (line length, depth, duplicate keys);
    OtherVersion for a file of another version.
    """
    if not looks_frozen(file):
        return None
    head = file.readline(200)
    said = re.fullmatch(_HEAD.replace("[", r"\[").format(r"(\d{1,9})", "([0-9a-f]{64})"), head.decode("latin-1"))
    if said is None:
        raise BadRecord("its first line is not as it was written")
    if int(said[1]) != FROZEN:
        raise OtherVersion(f"version {said[1]} of frozen files")
    records, digest = list[Record](), hashlib.sha256()
    while (line := file.readline(MAX_LINE + 2)) != b"]}\n":
        if not line.endswith(b"\n"):
            raise BadRecord("it ends too early, or has an over-long line")
        digest.update(line)
        records.append(decode(line.rstrip(b",\n")))
        if len(records) > MAX_CHOICES:
            raise BadRecord(f"more than {MAX_CHOICES} choices")
    if digest.hexdigest() != said[2] or file.read(1):
        raise BadRecord("wrong sha256")
    return records
