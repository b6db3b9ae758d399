"""Pages made from the package itself: the API, the schedule primitives, the error index and the table of habits."""

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import tensorir as tir
from tensorir.errors.catalogue import of_phase, phases, prelude
from tensorir.errors.habits import remedies
from tensorir.schedule.registry import PRIMITIVES, SECTIONS

EXAMPLES = Path(__file__).parents[1] / "tests" / "schedule"
"""Where test_primitive_trees.py has an example of each primitive, whose trees tests keep."""

NOTE = "<!-- made by docs/generate.py -->\n\n"

GROUPS = {
    "Declarations": ("placeholder", "constant", "scalar", "dim", "reduce_axis", "compute", "scan", "scatter", "Tensor"),
    "Reductions": ("sum", "prod", "min", "max", "any", "all", "argmin", "argmax", "combiner"),
    "Functions of values": (
        "where",
        "cast",
        "all_",
        "any_",
        "equal",
        "not_equal",
        "minimum",
        "maximum",
        "bitcast",
        "mulhi",
    ),
    "Schedules": ("Schedule", "replay", "auto", "auto_schedule", "fusions", "algorithm", "Target"),
    "Running and tuning": (
        "Executable",
        "sequence",
        "empty",
        "Workload",
        "Space",
        "tune_shapes",
        "nearest",
        "export_shapes",
    ),
    "Values of knobs": ("divisors", "permutations", "powers_of_two"),
}
MATH = (
    "exp",
    "exp2",
    "log",
    "log2",
    "sqrt",
    "rsqrt",
    "tanh",
    "erf",
    "sin",
    "cos",
    "floor",
    "ceil",
    "round",
    "abs",
    "pow",
)
MODULES = {"nn": "Definitions", "ops": "Operators"}


def write(folder: Path) -> None:
    """Write the pages; files that did not change are left alone."""
    folder.mkdir(exist_ok=True)
    for name, page in (("api", api()), ("primitives", primitives()), ("errors", errors()), ("habits", habits())):
        path = folder / f"{name}.md"
        text = NOTE + page
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def block(text: str, language: str = "text") -> str:
    """A fenced code block."""
    return f"```{language}\n{text.rstrip()}\n```\n"


def doc_of(thing: object) -> str:
    """A docstring as it stands, its layout kept."""
    text = inspect.getdoc(thing) or ""
    return block(text) if text else ""


def signature(thing: object) -> str:
    """``(a, b=1)`` of a function or class, without the types."""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return "(…)"
    plain = [p.replace(annotation=p.empty) for p in found.parameters.values() if p.name != "self"]
    return str(found.replace(parameters=plain, return_annotation=found.empty))


def members(kind: type) -> list[str]:
    """Public methods and properties of a class and its bases in this package, in order of definition."""
    found: dict[str, None] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("tensorir"):
            found.update(dict.fromkeys(n for n in vars(base) if not n.startswith("_")))
    return list(found)


def entry(name: str, thing: object, level: int) -> list[str]:
    """A heading, the docstring, and for a class its members."""
    call = signature(thing) if callable(thing) else ""
    out = [f"{'#' * level} `{name}{call}`\n", doc_of(thing)]
    if inspect.isclass(thing):
        for member in members(thing):
            value = inspect.getattr_static(thing, member)
            if isinstance(value, property) or inspect.isfunction(value) or isinstance(value, classmethod):
                inner = value.fget if isinstance(value, property) else getattr(thing, member)
                head = member if isinstance(value, property) else f"{member}{signature(inner)}"
                if inner.__doc__:
                    out += [f"`.{head}`\n", block(inspect.getdoc(inner) or "")]
    return out


def api() -> str:
    """Every public name."""
    out = ["# Python API\n", "Everything is imported as `import tensorir as tir` and loaded when it is first used.\n"]
    for title, names in GROUPS.items():
        out.append(f"## {title}\n")
        for name in names:
            out += entry(f"tir.{name}", getattr(tir, name), 3)
    out += ["## Mathematics\n", "Elementwise: " + ", ".join(f"`tir.{n}`" for n in MATH) + ".\n"]
    for module, title in MODULES.items():
        out += [f"## {title}\n"]
        home = importlib.import_module(f"tensorir.{module}")
        for name in sorted(getattr(home, "OPERATORS", ())) or public_functions(home):
            out += entry(f"tir.{module}.{name}", getattr(home, name), 3)
    out += [
        "## Errors\n",
        "Every error has `.code`, `.problems` and the user's own line; [the index](errors.md) explains the codes.\n",
    ]
    for name in sorted(n for n in dir(tir) if n.endswith("Error") or n == "NotTuned"):
        kind = getattr(tir, name)
        out.append(f"* `tir.{name}`: {inspect.getdoc(kind).splitlines()[0]}")
    return "\n".join(out) + "\n"


def public_functions(module: object) -> list[str]:
    """Functions that a module or its parts define, in order."""
    own = [(n, f) for n, f in vars(module).items() if inspect.isfunction(f) and n[0] != "_"]
    return [n for n, f in own if f.__module__.startswith(module.__name__)]


def primitives() -> str:
    """A table of the schedule primitives, and what each needs and refuses."""
    out = [
        "# Schedule primitives\n",
        (
            "Each is a method of `tir.Schedule`, takes axes by name or handle, and is also there on a stage: "
            '`s[C].split("i", …)` is `s.split("C.i", …)`. Calls that make axes return them, the others return what '
            "they were called on. A refused call leaves the schedule as it was.\n\n"
            "Steps below are followed by the tree that they make: lines with `-` went, lines with `+` came. The trees "
            "were printed when this page was built.\n"
        ),
    ]
    registered = [PRIMITIVES[n] for n in members(tir.Schedule) if n in PRIMITIVES]
    for title in SECTIONS:
        here = [p for p in registered if p.section == title]
        out += [f"## {title}\n", "| call | what it does |", "|---|---|"]
        for p in here:
            first = (inspect.getdoc(p.method) or "").split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
            out.append(f"| `{p.name}{signature(p.method)}` | {first} |")
        out.append("")
        for p in here:
            out.append(f"### `{p.name}`\n")
            out.append(doc_of(p.method))
            for make, act in examples().get(p.name, []):
                out += example(make, act)
    out += ["## What each refuses\n"]
    for p in sorted(registered, key=lambda p: SECTIONS.index(p.section)):
        if links := ", ".join(f"[{c}](errors.md#{anchor(c)})" for c in p.refusals()):
            out.append(f"* `{p.name}`: {links}")
    return "\n".join(out) + "\n"


@cache
def examples() -> dict[str, list[tuple[Callable[[], tir.Schedule], Callable[[tir.Schedule], object]]]]:
    """The tests' examples of each primitive: a function that makes a schedule, and one that takes the steps."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        pairs = importlib.import_module("test_primitive_trees").EXAMPLES
    finally:
        sys.path.remove(str(EXAMPLES))
    found: dict[str, list[tuple[Callable[[], tir.Schedule], Callable[[tir.Schedule], object]]]] = {}
    for title, pair in pairs.items():
        found.setdefault(title.split(" ")[0], []).append(pair)
    return found


def example(make: Callable[[], tir.Schedule], act: Callable[[tir.Schedule], object]) -> list[str]:
    """The steps, and the whole tree with the lines that they take away and add."""
    s = make()
    before = str(s)
    act(s)
    return [block(str(s.trace), "python"), block(change(before, str(s)), "diff")]


def change(before: str, after: str) -> str:
    """The tree after steps, with lines that went and came; indentation alone is no change."""
    old, new = before.splitlines(), after.splitlines()
    match = difflib.SequenceMatcher(None, [x.strip() for x in old], [x.strip() for x in new], autojunk=False)
    out = []
    for kind, i, to_i, j, to_j in match.get_opcodes():
        if kind == "equal":
            out += [f"  {line}" for line in new[j:to_j]]
        else:
            out += [f"- {line}" for line in old[i:to_i]] + [f"+ {line}" for line in new[j:to_j]]
    return "\n".join(out)


def anchor(code: str) -> str:
    """The anchor that MyST gives a heading."""
    return code.replace(".", "")


def errors() -> str:
    """Every error code with an example and its remedy."""
    out = [
        "# Error index\n",
        (
            "Every error carries a stable code: `error.code`, and the first word in brackets of its message. "
            "`tensorir explain CODE` prints what stands here. The tests run the examples; those in Python start from:\n"
        ),
        block(prelude(), "python"),
    ]
    for phase in phases():
        out.append(f"## {phase}\n")
        for code, item in of_phase(phase).items():
            out += [f"### {code}\n", item.meaning + "\n", "Refused:\n", block(item.wrong.text, item.wrong.language)]
            out += ["Instead:\n", block(item.right.text, item.right.language)]
    return "\n".join(out) + "\n"


PLACES = {
    "tir": "`tir.…`",
    "folder": "Modules that are called",
    "math": "`math.…` in a lambda",
    "function": "NumPy's and torch's functions",
    "nn": "`tir.nn.…`",
    "schedule": "Schedules",
    "op": "Operations (`tensor.op`)",
    "tensor": "Tensors",
    "element": "Elements (`A[i]`)",
    "executable": "What `s.build()` returns",
    "workload": "`tir.Workload`",
    "axis": "Axes that loops are bound to",
    "dtype": "Types",
    "target": "Targets",
    "scope": "Memory",
}


def habits() -> str:
    """What the package answers to names of other tools, by the place where they are typed."""
    out = [
        "# Habits of other tools\n",
        (
            "Names of NumPy, torch, TVM, Halide, Triton, Numba and loopy, and what the package answers to each. "
            "[From TVM te](../from-te.md) has the primitives in order.\n"
        ),
    ]
    alike: dict[str, list[str]] = {}  # the answers of a place -> all places that have them
    for place, answers in remedies().items():
        alike.setdefault(str(answers), []).append(place)
    for places in alike.values():
        answers = remedies()[places[0]]
        title = PLACES.get(places[0]) or "Arguments of " + ", ".join(f"`{place}`" for place in places)
        out += [f"## {title}\n", "| typed | here |", "|---|---|"]
        out += [f"| {cell(name)} | {cell(remedy)} |" for name, remedy in answers.items()]
        out.append("")
    return "\n".join(out) + "\n"


def cell(text: str) -> str:
    """Code in a cell of a table."""
    return f"`{text}`".replace("|", "\\|")
