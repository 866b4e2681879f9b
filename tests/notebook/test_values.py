"""Values that are more than their contents go to engines and come home as they are in one process: identity, order, names, causes."""

from __future__ import annotations

import numpy as np

CELL = "%%distribute --engines 2\n"


def test_a_librarys_constants_are_the_same_objects(notebook):
    notebook.run("""
import dataclasses
from torch.distributions import constraints
positive = constraints.positive
@dataclasses.dataclass
class Base:
    a: int
    b: list = dataclasses.field(default_factory=list)
    c: int = 3
""")
    shown = notebook.run(
        f"{CELL}@dataclasses.dataclass\nclass Sub(Base):\n    z: float = 0.0\nkept = positive\nkept is constraints.positive, Sub(1)"
    )
    assert shown.result == "(True, Sub(a=1, b=[], c=3, z=0.0))"
    assert notebook.value("(str(Sub(2)), str(Base(2)))") == ("Sub(a=2, b=[], c=3, z=0.0)", "Base(a=2, b=[], c=3)")
    assert notebook.value("(kept is constraints.positive, dataclasses.fields(Sub)[0].default is dataclasses.MISSING)") == (True, True)


def test_classes_list_their_attributes_in_order(notebook):
    notebook.run("class CFG:\n    seed = 3\n    lr = 0.1\n    apex = True\n    batch = 3")
    listed = "{name: value for name, value in vars({}).items() if name[0] != '_'}"
    shown = notebook.run(f"{CELL}class Debug(CFG):\n    lr = 1.0\n    batch = 3\n{listed.replace('{}', 'CFG')}")
    assert shown.result == "{'seed': 3, 'lr': 0.1, 'apex': True, 'batch': 3}"
    assert notebook.value(f"list({listed.replace('{}', 'CFG')})") == ["seed", "lr", "apex", "batch"]
    assert notebook.value(f"list({listed.replace('{}', 'Debug')})") == ["lr", "batch"]


def test_nested_classes_have_qualified_names(notebook):
    notebook.run("class Outer:\n    class Cfg:\n        lr = 0.1\ncfg = Outer.Cfg()")
    shown = notebook.run(f"{CELL}class Other:\n    class Part: pass\npart, kinds = Other.Part(), (Outer.Cfg, type(cfg), Other.Part)\nkinds")
    assert shown.result == "(__main__.Outer.Cfg, __main__.Outer.Cfg, __main__.Other.Part)"
    assert notebook.run("kinds").result == shown.result
    assert notebook.value("(type(part) is Other.Part, type(cfg) is Outer.Cfg)") == (True, True)


def test_sentinels_and_exceptions_are_the_same_objects(notebook):
    notebook.run("""
MISSING = object()
def get(key, default=MISSING): return default is MISSING
errors = [ValueError("a")]
held = {"error": errors[0]}
""")
    shown = notebook.run(
        f"{CELL}def again(key, default=MISSING): return default is MISSING\nmark = MISSING\n"
        "errors[0].add_note('seen'); errors[0].args = ('b',)\n(get(1), again(1), errors[0] is held['error'])"
    )
    assert shown.result == "(True, True, True)"
    assert notebook.value("(get(1), again(1), mark is MISSING, errors[0] is held['error'])") == (True,) * 4
    assert notebook.value("(held['error'].__notes__, held['error'].args)") == (["seen"], ("b",))


def test_seed_sequences_go_on(notebook):
    notebook.run("import numpy as np\nrng, seeds = np.random.default_rng(1), np.random.SeedSequence(5)")
    notebook.run(f"{CELL}child = rng.spawn(1)[0]; more = seeds.spawn(2)")
    assert notebook.value("(rng.bit_generator.seed_seq.n_children_spawned, seeds.n_children_spawned)") == (1, 2)
    expected = np.random.default_rng(1).spawn(2)
    assert notebook.value("(child.random(), rng.spawn(1)[0].random())") == (expected[0].random(), expected[1].random())


def test_a_parser_suppresses_what_it_did(notebook):
    notebook.run("import argparse\nparser = argparse.ArgumentParser(prog='x')\nparser.add_argument('--lr', type=float, default=0.1)")
    assert notebook.run(f"{CELL}args = parser.parse_args([])\nkept = argparse.SUPPRESS\nargs").result == "Namespace(lr=0.1)"
    assert notebook.value("(str(parser.parse_args([])), str(args), kept is argparse.SUPPRESS)") == ("Namespace(lr=0.1)",) * 2 + (True,)


def test_exceptions_have_their_causes(notebook):
    notebook.run("kept = []")
    notebook.run(f"""{CELL}
for end in (None, KeyError("c")):
    try:
        try:
            {{}}["a"]
        except KeyError as error:
            raise RuntimeError("w") from end or error
    except RuntimeError as error:
        kept.append(error)
""")
    told = "[(repr(one.__cause__), repr(one.__context__), one.__suppress_context__) for one in kept]"
    assert notebook.value(told) == [("KeyError('a')", "KeyError('a')", True), ("KeyError('c')", "KeyError('a')", True)]
    assert notebook.run(f"{CELL}{told} == {notebook.value(told)!r}").result == "True"
