"""Whether ranks could share the work of a cell: one that draws no batches from a loader is computed whole by each of them.

Such a cell comes to the same on any number of ranks, so one computes it, with nothing to exchange. The mistake that must not be made is the
other one, a cell that could be sharded and runs on one rank. So this is a list of what is known to make no loaders: whatever else the cell
reaches (another library, a text that is run as code, a value read from a file) may make some.
"""

from __future__ import annotations

import ast
import dis
import sys
from collections.abc import Collection, Iterable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType

from .code_objects import everything
from .names import all_global_reads

_LIBRARIES = frozenset(
    {
        *sys.stdlib_module_names,
        "IPython",
        "PIL",
        "cloudpickle",
        "einops",
        "ipykernel",
        "jupyter_dtrain",  # what values are rebuilt with
        "matplotlib",
        "matplotlib_inline",
        "mpl_toolkits",
        "numpy",
        "pandas",
        "pyarrow",  # the texts of a DataFrame
        "scipy",
        "seaborn",
        "sklearn",
        "torch",
        "torchvision",
        "tqdm",
    }
)
"""Top-level packages that iterate over no loader but one that they are given."""

_NOT_OF_THESE = ("torch.utils.data.", "torch.distributed.", "torch.hub.", "jupyter_dtrain.api.", "jupyter_dtrain.data.", "runpy.")
_NO_LOADERS = ("torch.utils.data.sampler.", "torch.utils.data.dataset.")  # indices alone, as PPO draws them, are shared out by nobody
_LOG = ("jupyter_dtrain.api", "log")  # which each rank calls alike
_RANKS_IN = "jupyter_dtrain"  # `gather`, `mean` and `sum`, which are about ranks, are asked for by its name
_WORDS = frozenset(
    {
        "DataLoader",
        "random_split",
        "distributed",
        "hub",
        "weights_only",  # a loader may be read from a file
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "get_ipython",
        "import_module",
        "module_from_spec",
        "__import__",
        "exec_module",
    }
)
_RUNS_TEXT = frozenset({"exec", "eval"})  # as names of their own: `model.eval()` is another thing
_READS_OBJECTS = frozenset({"pickle", "cPickle", "_pickle", "shelve", "cloudpickle", "dill", "joblib", "runpy"})
_TRAINS = frozenset({"backward", "autograd", "func"})
_IMPORT = "IMPORT_NAME"


def code_of_cell(source: str) -> CodeType:
    """Return the code of a cell's text."""
    code: CodeType = compile(source, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    return code


def shards_nothing(cell: CodeType, objects: Iterable[object], own_modules: Collection[str] = ()) -> bool:
    """Return whether a cell trains and reaches nothing that could be sharded over ranks.

    Parameters
    ----------
    cell : code
    objects : iterable of object
        All that goes along with it: values, functions, classes and modules, and what is in them.
    own_modules : collection of str
        Modules of the user's own that go along by value, so that their functions are among `objects`.
    """
    own = {"__main__", *own_modules}
    objects = list(objects)
    if not all(_is_known(name, own) for kind in set(map(type, objects)) for name in _modules_of(kind)):
        return False
    codes = [cell]
    for obj in objects:
        if isinstance(obj, ModuleType):
            if not _is_known(obj.__name__, own) or obj.__name__ == _RANKS_IN:
                return False
        elif isinstance(obj, type):
            if not all(_is_known(name, own) for name in _modules_of(obj)):
                return False
        elif isinstance(obj, FunctionType):
            module = str(obj.__globals__.get("__name__"))
            if not _is_known(module, own) and (module, obj.__name__) != _LOG:
                return False
            if module in own:
                codes.append(obj.__code__)
        elif (isinstance(obj, BuiltinFunctionType) or _is_cythons(type(obj).__module__)) and not _is_known(_text(obj.__module__), own):
            return False
    return all(_makes_no_loader(code, own) for code in codes) and any(_TRAINS & _names_and_texts(code) for code in codes)


def _is_known(module: str, own: Collection[str]) -> bool:
    """Return whether nothing in `module` can make a loader, or its code is looked at."""
    if module in own or module == "None" or _is_cythons(module):
        return True
    inside = f"{module}."
    if module.partition(".")[0] not in _LIBRARIES:
        return False
    return inside.startswith(_NO_LOADERS) or not inside.startswith(_NOT_OF_THESE)


def _is_cythons(module: object) -> bool:
    """Return whether `module` is that of the type which compiled functions of many libraries have: NumPy's generators are made by some."""
    return _text(module).startswith("_cython_")


def _modules_of(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        yield _text(base.__module__)


def _text(module: object) -> str:
    """Return the name of a module; some types have a property there."""
    return module if isinstance(module, str) else "None"


def _makes_no_loader(code: CodeType, own: Collection[str]) -> bool:
    words = _names_and_texts(code)
    if words & (_WORDS | _READS_OBJECTS):
        return False
    if words & _RUNS_TEXT and all_global_reads(code) & _RUNS_TEXT:
        return False
    if {"utils", "data"} <= words and _has_utils_data(code):
        return False
    return all(_is_known(name, own) and name != _RANKS_IN for part in everything(code) for name in _imports(part))


def _names_and_texts(code: CodeType) -> set[str]:
    """Return the names in `code` and the texts that are written in it."""
    found: set[str] = set()
    for part in everything(code):
        found.update(part.co_names)
        for constant in part.co_consts:
            texts = constant if isinstance(constant, tuple) else (constant,)
            found.update(text for text in texts if isinstance(text, str))
    for name in [name for name in found if "." in name]:  # of modules that are imported
        found.update(name.split("."))
    return found


def _has_utils_data(code: CodeType) -> bool:
    """Return whether `code` says ``utils.data``, and not ``utils`` here and ``.data`` of a parameter there."""
    for part in everything(code):
        before = None
        for step in dis.get_instructions(part):
            if step.argval == "data" and (before == "utils" or step.opname == "LOAD_CONST"):
                return True
            before = step.argval
    return False


def _imports(code: CodeType) -> Iterator[str]:
    steps = list(dis.get_instructions(code)) if any(code.co_names) else []
    for position, step in enumerate(steps):
        if step.opname == _IMPORT:
            parts = steps[position - 1].argval if position else None
            yield step.argval
            if isinstance(parts, tuple):
                yield from (f"{step.argval}.{part}" for part in parts if isinstance(part, str) and part != "*")
