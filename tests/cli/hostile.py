"""Logs that somebody made to do harm: lines that are no records, and records that are valid and lie."""

import json

from tensorir import codec, ops
from tensorir.api.candidate import prepare
from tensorir.api.identity import compute_digest
from tensorir.codec import encode as plain
from tensorir.target import Target
from tensorir.tune.record import MAX_LINE, RunIdentity, encode, read, seal, slug

CODE = "__import__('os').system('touch pwned')"
PATHS = (
    "../../../x",
    "/etc/x",
    "..",
    "a\x00b",
    "C:\\x",
    "~/x",
    "$(touch pwned)",
    "x;touch pwned",
    "a/../../b",
    "\x1b[2J\r",
)


def work():
    return ops.matmul(m=8, n=8, k=8)


def good(about, versions):
    """A valid record of ``work()`` for a device, and its identity."""
    w = work()
    target = Target.parse(about["target"])
    template = w.template_for(target)
    config = w.templates[template].space_for(target).default
    known = prepare(w, template, config, target, check=False).known
    me = RunIdentity(w.title, compute_digest(w), about, versions)
    ok = {"status": "ok", "time_s": 1e-3, "samples": [1e-3] * 3, "check": {"ok": True, "max_err": 0.0, "shapes": []}}
    return me.record("trial", template, config, {**ok, **plain(known)})


def lines(record):
    """Lines that are no records, whatever their checksum says."""
    text = encode(record)[:-1]

    def forged(**fields):
        return json.dumps(seal({**codec.encode(record), **fields})).encode()

    return {
        "code": CODE.encode(),
        "code for a number": text.replace(b'"time_s":0.001', b'"time_s":' + CODE.encode()),
        "pickle": b"\x80\x04\x95\x1f\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x8c\x06system\x93\x8c\x05touch\x85R.",
        "yaml": b"!!python/object/apply:os.system ['touch pwned']",
        "lists": b"[" * 20_000 + b"]" * 20_000,
        "objects": b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
        "deep config": forged(config=json.loads("[" * 30 + "]" * 30)),
        "over-long": b'{"v":2,"trace":"' + b"x" * (MAX_LINE + 99) + b'"}',
        "equal keys": text.replace(b"{", b'{"v":2,', 1),
        "equal keys inside": text.replace(b'"config":{', b'"config":{"a":1,"a":2,', 1),
        "NaN": text.replace(b'"time_s":0.001', b'"time_s":NaN'),
        "Infinity": text.replace(b'"time_s":0.001', b'"time_s":-Infinity'),
        "beyond floats": text.replace(b'"time_s":0.001', b'"time_s":1e400'),
        "huge integer": text.replace(b'"time_s":0.001', b'"time_s":' + b"9" * 4000),
        "huger integer": text.replace(b'"v":2', b'"v":' + b"9" * 10_000),
        "huge version": forged(v=-(10**400)),
        "huge error": forged(check={"ok": True, "max_err": 10**400}),
        "huge sample": forged(samples=[10**400]),
        "surrogate": forged(workload="a\ud800"),
        "surrogate as key": forged(config={"\ud800": 1}),
        "not UTF-8": text.replace(b"matmul", b"mat\xff\xfe\x00", 1),
        "null bytes": b"\0" * 1000,
        "path as id": forged(id="../../x"),
        "escape as id": forged(id="\x1b[2J"),
        "target is a number": forged(device={**record.device, "target": 5}),
        "target is a table": forged(device={**record.device, "target": {}}),
        "other types": forged(workload=5, template=[], device="x"),
    }


def lies(record):
    """Valid records with fields that a reader might trust too much."""

    def lie(**fields):
        number = len(made)
        made.append(read({**codec.encode(record), "id": f"{number:x}" + "0" * 12, **fields}))

    made = []
    device = record.device
    for value in ([1], {"a": [1]}, 10**400, -(10**18), True, None, "", CODE, "x" * 5000, 1e308, "\x00"):
        lie(config={**record.config, next(iter(record.config)): value})
    for config in ({}, {CODE: 1}, {"\x00": 1}, {"": None}, {"a\x1b[2J": "\r\n"}, {f"k{n}": n for n in range(500)}):
        lie(config=config)
    for template in ("gone", "../x", CODE, "__class__", "\x1b[2J", "\x00"):
        lie(template=template)
    for trace in (None, CODE, {}, {"a": CODE}, [1, 2], ["ab"], [["x"]], [["split", 1, 2]], [[{}, [], {}]],
                  [["tensorize", [], {}]], [["tensorize", ["C.i", CODE], {}]], [["__class__", [], {}]],
                  [["split", [CODE], {"tail": CODE}]], [[CODE, ["\x1b"], {"a": {}}]]):  # fmt: skip
        lie(trace=trace)
    lie(source_sha256=None)
    lie(time_s=5e-324, samples=[5e-324])
    lie(time_s=5e-324, samples=[5e-324], drift=100)
    lie(time_s=86399.0, samples=[86399])
    lie(samples=[1e-3] * 3000)
    lie(samples=[5e-324, 86399])
    lie(kind="final", of="../x".replace("/", ":"))
    lie(flags=[CODE, "\x1b[2J"], resources={"registers": CODE, CODE: [CODE]}, detail={"message": [CODE], "code": 5})
    lie(check={"ok": True, "max_err": "nan", "shapes": CODE})
    for bound in (10**400, -1, "1", [1], 1e308, True):
        lie(status="skipped_slow", time_s=None, detail={"at_least_s": bound})
    for detail in (CODE, {}, {"message": None, "code": {}}, {"phase": [1], "signal": 3, "message": 5}):
        lie(status="crashed", time_s=None, detail=detail)
    for target in ("cuda -arch=sm_999", "opencl -registers=99999999999999999999", "opencl " * 1000, CODE, "", "\x00",
                   "opencl -max_block=1,2,3", "cuda", "hip"):  # fmt: skip
        lie(device={**device, "target": target})
        lie(device={"name": "other\x1b[2J", "driver": CODE, "target": target, "platform": [CODE], "id": {}})
    lie(versions={})
    lie(versions={CODE: CODE})
    for started in ("0000-00-00T00:00:00Z", "9999-99-99T99:99:99.999999999+00:00"):
        lie(started=started)
    titles = [*PATHS, CODE, " ", "matmul", "matmul m=8", "matmul m=8 n=8 k=8 dtype=" + CODE.replace(" ", "")]
    titles += [
        "matmul m=8 n=8 k=8 batch=-1",
        "matmul m=0 n=0 k=0",
        "matmul m=8 n=8 k=8 m=9",
        "matmul m= n= k=",
        "matmul =",
    ]
    titles += ["conv2d n=1 c=1 h=1 w=1 k=1 r=9 s=9", "conv2d max_error=abc", "matmul m=8 n=8 k=8 __class__=1"]
    titles += [
        "conv2d n=1 c=4 h=8 w=8 k=4 r=3 s=3 max_error=abc",
        "matmul m=٣ n=8 k=8",
        "matmul m=² n=8 k=8",
        "matmul m=" + "9" * 9000,
        "matmul " + "a=1 " * 900,
    ]
    titles += ["matmul m=999999999999 n=999999999999 k=999999999999", "conv2d n=1 c=4 h=8 w=8 k=4 r=3 s=3 stride=None"]
    titles += ["grouped_matmul m=8 n=8 k=8 groups=999999999999", "matmul m=8 n=8 k=8 act=" + "x" * 2000, "x" * 9000]
    titles += ["conv2d n=1 c=4 h=8 w=8 k=4 r=3 s=3 layout=../x", "matmul m=8 n=8 k=8 max_error=nan", "FILE.py:f m=1"]
    for title in titles:
        lie(workload=title)
        lie(workload=title, compute=CODE)
    return made


def write(root, about, versions):
    """The log, with one good record among them; that record."""
    record = good(about, versions)
    bad = b"\n".join(lines(record).values()) + b"\n"
    folder = root / slug(record.workload)
    folder.mkdir(parents=True)
    (folder / "evil.jsonl").write_bytes(b"".join(encode(r) for r in lies(record)) + bad + encode(record))
    return record
