"""One letter wrong in any word that people type: the answer begins with the word that was meant."""

import functools
import re

import click
import pytest

from tensorir import ops
from tensorir.api.tuning import refuse_options
from tensorir.automatic.plan import FULL_TARGETS
from tensorir.cli import main, options, verbs
from tensorir.cli.common import Stop
from tensorir.errors import TensorIRError
from tensorir.errors.catalogue import entries
from tensorir.errors.needs import need_choice
from tensorir.errors.spelling import nearest, one_slip
from tensorir.export.destinations import DESTINATIONS
from tensorir.export.options import destinations
from tensorir.intrin import intrin
from tensorir.ir.dtypes import DTYPES, SHORT_NAMES, dtype_of
from tensorir.ops.operators import FLAGS, OPERATORS
from tensorir.ops.shapes import SETS
from tensorir.target import _OPT_IN, _SETTABLE, Target
from tensorir.tune.restrict import parse as condition
from tensorir.tune.spec import RunSpec
from tensorir.tune.strategy import STRATEGIES, make

CONV = ("conv2d", "1x2x5x5", "3x2x3x3")


def typos(word):
    """Each letter dropped, doubled, replaced, and swapped with the next."""
    for k, letter in enumerate(word):
        if letter.isalnum():
            yield word[:k] + word[k + 1 :]
            yield word[: k + 1] + letter + word[k + 1 :]
            yield word[:k] + ("x" if letter != "x" else "q") + word[k + 1 :]
            if word[k + 1 : k + 2] not in ("", letter, ":"):
                yield word[:k] + word[k + 1] + letter + word[k + 2 :]


def command(*args):
    """What a command line that is refused says."""
    try:
        main.cli.main(list(args), prog_name="tensorir", standalone_mode=False)
    except click.ClickException as error:
        return error.format_message()
    except Stop as stop:
        return stop.message
    except TensorIRError as error:
        return str(error.problems[0])
    return ""


def refusal(function, *args):
    """What a function that refuses says; nothing where it understands."""
    try:
        function(*args)
    except TensorIRError as error:
        return str(error.problems[0])
    return ""


@functools.cache
def product():
    return ops.matmul(m=8, n=8, k=8)


SEARCHED = ("conv2d", "conv2d_backward_data", "grouped_matmul", "softmax", "cumsum", "layer_norm", "group_norm",
            "max_pool2d", "avg_pool2d", "linear", "attention")  # fmt: skip
"""Operators that have all kinds of knobs."""


def spaces():
    """Every template's space, by operator and name."""
    found = {}
    for name in SEARCHED:
        for n, t in getattr(ops, name)().templates.items():
            found[f"{name} {n}"] = t.space_for(FULL_TARGETS[t.kinds[0]])  # for which rules have made it already
    return found


def long_options(verb):
    found = main.cli.get_command(click.Context(main.cli), verb)
    return sorted(o for p in found.params if isinstance(p, click.Option) for o in p.opts if o.startswith("--"))


WORDS = {
    "verb": (main.VERBS, command),
    "log": (verbs.VERBS["log"].commands, lambda w: command("log", w)),
    "cache": (("export", "import"), lambda w: command("cache", w)),
    "operator": (OPERATORS, lambda w: command("tune", w, "8x8x8", "--dry-run")),
    "list": (ops.OPERATORS, lambda w: command("list", w)),
    "layout": (("NCHW", "NHWC"), lambda w: command("show", *CONV, "--layout", w)),
    "act": (FLAGS["act"].choices, lambda w: command("show", *CONV, "--act", w)),
    "precision": (FLAGS["precision"].choices, lambda w: command("show", *CONV, "--precision", w)),
    "tuner": (verbs.TUNERS, lambda w: command("tune", *CONV, "--tuner", w)),
    "progress": (("auto", "live", "plain", "none"), lambda w: command("tune", *CONV, "--progress", w)),
    "dtype": ([*(n for n in DTYPES if n != "index"), *SHORT_NAMES], lambda w: refusal(dtype_of, w)),
    "option": (long_options("tune"), lambda w: command("tune", w)),
    "show": (long_options("show"), lambda w: command("show", w)),
    "export": (long_options("export"), lambda w: command("export", w)),
    "shapes": ([k for k, v in SETS.items() if v[0] == "conv2d"], lambda w: command("tune", "conv2d", "--shapes", w)),
    "template": (product().templates, lambda w: refusal(product().template_for, "cuda", w)),
    "searched": (product().templates, lambda w: refusal(refuse_options, product(), RunSpec(templates=(w,)))),
    "language": (("opencl", "cuda", "hip"), lambda w: refusal(Target.parse, w)),
    "device": (("opencl:0:0", "cuda:0"), lambda w: refusal(Target.parse, w)),
    "limit": (_SETTABLE, lambda w: refusal(Target.parse, f"cuda -{w}=1")),
    "arch": ([f"sm_{n}" for n in _OPT_IN], lambda w: refusal(Target.parse, f"cuda -arch={w}")),
    "destination": (DESTINATIONS, lambda w: refusal(destinations, w)),
    "strategy": (STRATEGIES, lambda w: refusal(make, w, product().templates["cpu_tile_strip"].space)),
    "choice": (("nchw", "NHWC"), lambda w: refusal(need_choice, "layout", w, ("nchw", "NHWC"))),
    "instruction": (intrin.known(), lambda w: refusal(intrin.intrinsic, w)),
}  # fmt: skip


def told(text):
    """The first word that an answer suggests."""
    _, _, rest = text.rpartition("Did you mean ") if "Did you mean " in text else text.rpartition("try: ")
    return re.sub(r"^(?:one of:? )?[\"'-]*", "", rest)


def wrong(words, ask):
    """Typos of ``words`` with another answer than the word that was meant."""
    legal = {w.lower(): SHORT_NAMES[w] if SHORT_NAMES.get(w) in words else w for w in words}
    for word in words:
        if len(word) == 1:
            continue  # no letter is left, or another word
        for typo in dict.fromkeys(typos(word)):
            others = [w for w in legal if one_slip(typo.lower(), w) and legal[w] != legal[word.lower()]]
            if typo.lower() in legal or (typo.startswith("-") and not typo.startswith("--")) or others:
                continue  # another word, or as like another
            if (answer := ask(typo)) and not told(answer).startswith(legal[word.lower()].lstrip("-")):
                yield word, typo, answer


@pytest.mark.parametrize("kind", WORDS)
def test_one_letter_wrong(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words, ask = WORDS[kind]
    assert not list(wrong(list(words), ask))
    assert any(ask(typo) for word in words for typo in typos(word))


def test_one_letter_wrong_in_an_error_code():
    """A tenth of the letters of each code: there are some ten thousand."""
    codes = list(entries())
    for number, code in enumerate(codes):
        for typo in list(typos(code))[number % 10 :: 10]:
            near = [c for c in codes if one_slip(typo, c)]
            if typo not in codes and near == [code]:
                assert told(command("explain", typo)).startswith(code), (code, typo)


def test_one_letter_wrong_in_a_knob():
    """In ``--config`` and in ``--restrict``; words that are no names there are another mistake."""
    for names in {tuple(s.names): s for s in spaces().values()}.items():
        knobs, space = names

        def configured(word, space=space):
            return refusal(space.canonical, {**space.default, word: 1})

        def restricted(word, knobs=knobs):
            return refusal(condition, f"{word} == 1", knobs) if re.fullmatch(r"[a-z]\w*", word) else ""

        assert not list(wrong(knobs, configured)) and not list(wrong(knobs, restricted)), knobs


def test_what_is_like_nothing_gets_no_suggestion():
    assert nearest("frobnicate", main.VERBS) == [] and one_slip("ab", "ba") and not one_slip("abc", "cba")
    assert nearest("NHCW", ["nchw", "nhwc"], 2) == ["nchw", "nhwc"] and nearest("tq", ["ta", "align"]) == ["ta"]
    assert "Did you mean" not in command("frobnicate")


@pytest.mark.parametrize("word", ["f32", "fp32", "half", "float", "FP16", "F32", "Float32", "BF16"])
def test_other_names_of_dtypes_are_understood(word):
    dtype = dtype_of(word).name
    assert command("list", "matmul", "--json") == "" and options.ElementType().convert(word, None, None) == dtype


@pytest.mark.parametrize("word", ["nhwc", "Nhwc", "NHWC"])
def test_layouts_in_any_letters(word, capsys):
    assert command("show", *CONV, "--layout", word, "--json") == ""
    assert '"workload": "conv2d n=1 c=2 h=5 w=5 k=3 r=3 s=3' in capsys.readouterr().out
