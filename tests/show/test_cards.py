"""Every public object has a short repr and HTML that is whole, escaped and alone."""

import re
from html.parser import HTMLParser

import pytest
from public import public
from specimens import specimen

import tensorir as tir
from tensorir.errors.shown import Shown, Text, few_lines
from tensorir.tune.outcome import TuneOutcome

VOID = {"br", "meta", "link", "img", "input"}
CLASSES = sorted(public(), key=lambda c: (c.__module__, c.__name__))


class Balanced(HTMLParser):
    """Raises where a tag is not closed in order; collects names of tags and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"


def read(html: str) -> Balanced:
    parser = Balanced()
    parser.feed(html)
    parser.close()
    assert not parser.open, f"not closed: {parser.open}"
    return parser


def test_the_public_classes_are_found():
    names = {c.__name__ for c in public()}
    wanted = "Schedule Executable BoundLaunch Verdict Timing Trace TuneOutcome Workload Space Tensor Text Source Device"
    assert set(wanted.split()) <= names
    assert set(tir.__all__) & {c.__name__ for c in public()} >= {"Target", "Problem", "NotTuned"}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: f"{c.__module__.rpartition('.')[2]}.{c.__name__}")
def test_has_a_short_repr_and_html(cls):
    x = specimen(cls)
    assert isinstance(x, cls), f"{cls} is public ({public()[cls]}): tests/show/specimens.py has none of it"
    assert isinstance(x, Shown)
    lines = repr(x).splitlines()
    assert 1 <= len(lines) <= 3 and all(len(line) <= 120 for line in lines), repr(x)
    assert " object at 0x" not in repr(x) and "<locals>" not in repr(x)
    html = x._repr_html_()
    found = read(html)
    assert found.tags[0] == "div" and found.tags.count("div") >= 2
    assert "script" not in found.tags and not [a for a in found.attributes if a.startswith("on")]
    assert not {"src", "href"} & found.attributes
    assert "//" not in re.sub(r"<pre>.*?</pre>", "", html, flags=re.S).replace("http://www.w3.org/2000/svg", "")
    assert " object at 0x" not in html


def test_the_trial_that_was_chosen_has_the_ring():
    x = specimen(TuneOutcome)
    circles = re.findall(
        r'class="tir-(dot|ring)"[^>]*? cx="([\d.]+)" cy="([\d.]+)" r="\d"><title>(trial \d+):', x._repr_html_()
    )
    chosen = next(n for n, r in enumerate(x.records, 1) if r.id == x.best.trial)
    (ring,) = [at for kind, *at in circles if kind == "ring"]
    assert ring == next(at for kind, *at in circles if kind == "dot" and at[-1] == f"trial {chosen}")


HOSTILE = "<script>alert('&')</script><b onclick=x>"


def test_names_are_escaped():
    A = tir.placeholder((4, 4), name=HOSTILE)
    C = tir.compute((4, 4), lambda i, j: A[i, j] * 2, name=f"C{HOSTILE}")
    s = tir.Schedule(C)
    s.split(s[C].axes[0], [None, 2])
    w = tir.Workload(f"w{HOSTILE}", C, {HOSTILE: (lambda s, c: None, tir.Space(mode=[HOSTILE, "plain"]))})
    error = tir.DeclarationError(tir.Problem("a.b", HOSTILE))
    made = s.emitted()
    objects = [A, C, C.op, s, s[C], s.trace, s.trace[0], s.tree(), s.diff(s.at(0)), s.check(), s.program, made,
               made.diff(s.at(0).emitted()), w, w.templates[HOSTILE].given, error, error.problems[0]]  # fmt: skip
    for x in objects:
        found = read(x._repr_html_())
        assert "script" not in found.tags and "onclick" not in found.attributes, type(x)


def test_templates_are_listed_without_making_spaces():
    def space(target):
        raise AssertionError(f"a space is made for {target}")

    given = {"by_hand": (lambda s, c: None, tir.Space(tile=[1, 2, 4])), HOSTILE: (lambda s, c: None, space, ("gpu",))}
    C = tir.compute((8,), lambda i: i + 1, name="C")
    templates = tir.Workload("w", C, given).templates
    assert repr(templates["by_hand"]) == "<Template for cpu and gpu: 3 configurations>"
    assert repr(templates[HOSTILE]) == "<Template for gpu: space made for the target>"
    by_rules = tir.auto(C, target="opencl")
    for made in (by_rules, tir.Workload("w", C).templates):
        first, *rows = repr(made).splitlines()
        assert first.startswith(f"{len(made)} template") and [r.split()[0] for r in rows] == list(made)
        assert all(r.endswith("space made for the target") for r in rows)
        assert all(name in made._repr_html_() for name in made) and read(made._repr_html_()).tags.count("td") > 2
    name, template = next(iter(by_rules.items()))
    size = template.space.size
    assert f"  {name}  cpu  {size:,} configurations" in repr(by_rules)


def test_a_combiner_says_what_it_does():
    plus = tir.combiner(lambda a, b: a + b, 0, name="plus")
    assert repr(plus) == "<combiner plus: a0 and b0 give a0 + b0; identity 0>"
    pairs = tir.combiner(lambda a, b: (a[0] * b[0], a[0] * b[1] + a[1]), (1, 0), commutative=False)
    assert "(a0, a1) and (b0, b1) give a0 * b0, a0 * b1 + a1; identity (1, 0), in order" in repr(pairs)
    assert "<lambda>" in repr(tir.combiner(lambda a, b: a ^ b, 0))  # of integers alone


def test_text_is_a_string():
    import pickle

    text = Text("a\nb", "diff")
    assert text == "a\nb" and isinstance(text, str) and text + "c" == "a\nbc"
    again = pickle.loads(pickle.dumps(text))
    assert again == text and again.kind == "diff"
    assert "diff of 2 lines" in repr(text) and str(text) == f"{text}" == "a\nb"


def test_a_shared_expression_has_a_repr_at_once():
    A = tir.placeholder((4,), name="A")
    x = A[0]
    for _ in range(60):
        x = x + x  # 2 ** 60 parts when printed
    assert "more than" in repr(x) and len(repr(x)) < 120


def test_few_lines_never_gives_more():
    assert few_lines("a") == "a"
    long = few_lines("word " * 500)
    assert len(long.splitlines()) == 3 and long.endswith("…") and max(map(len, long.splitlines())) <= 120


def footprints_of(s):
    from tensorir.show.cards import footprints

    return footprints(s.program)


def test_footprints_are_those_of_the_tiles():
    A, B = tir.placeholder((64, 96), name="A"), tir.placeholder((96, 128), name="B")
    k = tir.reduce_axis(96, name="k")
    C = tir.compute((64, 128), lambda i, j: tir.sum(A[i, k] * B[k, j], axis=k), name="C")
    s = tir.Schedule(C)
    io, ii = s.split("C.i", [None, 8])
    ko, ki = s.split("C.k", [None, 32])
    s[C].reorder(io, ko, ii, "j", ki)
    s.stage_in(B, at=ko, scope="register")
    found = footprints_of(s)
    assert found["C.i.0"].startswith("55 KiB:")  # (8 * 96 + 96 * 128 + 8 * 128) * 4
    assert all(box in found["C.i.0"] for box in ("A[8, 96]", "B[96, 128]", "C[8, 128]"))
    assert "B_register[" not in found["C.i.0"] and "B_register[32, 128]" in found["C.k.0"]
    assert found["C.k.1"].startswith("12 B: ")


def test_a_tile_that_overhangs_touches_no_more_than_there_is():
    A = tir.placeholder((10,), name="A")
    C = tir.compute((10,), lambda i: A[i] + 1, name="C")
    s = tir.Schedule(C)
    s.split("C.i", [None, 16])
    assert footprints_of(s)["C.i.0"].startswith("80 B: ") and "A[10]" in footprints_of(s)["C.i.0"]


def test_the_last_step_is_marked():
    C = tir.compute((8,), lambda i: i + 1, name="C")
    s = tir.Schedule(C)
    assert 'class="tir-last"' not in s._repr_html_()
    s.split("C.i", [None, 4])
    s.unroll("C.i.1")
    marked = re.findall(r'<summary><span class="tir-last">(.*?)</summary>', s._repr_html_())
    assert len(marked) == 1 and "C.i.1" in marked[0]


def test_what_compilers_are_given_is_a_plain_string():
    C = tir.compute((8,), lambda i: i + 1, name="C")
    s = tir.Schedule(C)
    assert type(s.source()) is str and type(s.source("cuda")) is str and type(s.with_source("int x;").source()) is str


def test_a_division_is_no_comment():
    from tensorir.show.pieces import source, words

    assert "tir-c" not in words("W[k // 16, k % 16] = 1") and "tir-c" in source("x = 1; // 16")
    assert "tir-block" in words("for i in 8:  # block.x") and "tir-p" in source("#ifdef A")


def test_hovering_over_a_loop_says_where_it_comes_from():
    A = tir.placeholder((64, 64), name="A")
    k = tir.reduce_axis(64, name="k")
    C = tir.compute((64, 64), lambda i, j: tir.sum(A[i, k] * A[k, j], axis=k), name="C")
    s = tir.Schedule(C)
    outer, _ = s.split("C.i", [None, 8])
    s.split(outer, [None, 2])
    s.fuse("C.i.0.0", "C.i.0.1")
    s.stage_in(A, at="C.k", scope="register")
    titles = dict(re.findall(r'title="([^:"]*): (.*?)"', s._repr_html_().replace("&#10;", "\n"), re.S))
    assert titles["C.j"] == "axis j of C"
    split = "C.i.0.0: s.split(&#x27;C.i.0&#x27;, [None, 2]) at test_cards.py"
    (fused,) = (text for name, text in titles.items() if "&amp;" in name)
    assert fused.startswith("s.fuse(") and split in fused and fused.endswith("C.i: axis i of C")
    staged = next(text for name, text in titles.items() if name.startswith("A_"))
    assert "which s.stage_in(" in staged
