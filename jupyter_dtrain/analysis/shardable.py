"""Decide whether ranks could share the work of a cell. A cell that draws no batches from a loader is computed in full by each of them.

Such a cell gives the same result on any number of ranks, so one rank computes it, without communication. The mistake to avoid is to run a
cell on one rank that could be sharded. So this module lists what is known to create no loaders: anything else that the cell reaches
(another library, a string executed as code, a value read from a file) may create some.
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
        "jupyter_dtrain",  # unpickling functions of this package
        "matplotlib",
        "matplotlib_inline",
        "mpl_toolkits",
        "numpy",
        "pandas",
        "pyarrow",  # strings of a DataFrame
        "scipy",
        "seaborn",
        "sklearn",
        "torch",
        "torchvision",
        "tqdm",
    }
)
"""Top-level packages that iterate over no loader except those that they are given."""

_NOT_OF_THESE = ("torch.utils.data.", "torch.distributed.", "torch.hub.", "jupyter_dtrain.api.", "jupyter_dtrain.data.", "runpy.")
_NO_LOADERS = ("torch.utils.data.sampler.", "torch.utils.data.dataset.")  # plain indices, as PPO draws them, are not sharded
_LOG = ("jupyter_dtrain.api", "log")  # has the same effect on each rank
_RANKS_IN = "jupyter_dtrain"  # its `gather`, `mean` and `sum` depend on ranks, and are used through this name
_WORDS = frozenset(
    {
        "DataLoader",
        "random_split",
        "distributed",
        "hub",
        "weights_only",  # a loader may be unpickled from a file
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
_RUNS_TEXT = frozenset({"exec", "eval"})  # only as global names, as `model.eval()` is something else
_READS_OBJECTS = frozenset({"pickle", "cPickle", "_pickle", "shelve", "cloudpickle", "dill", "joblib", "runpy"})
_TRAINS = frozenset({"backward", "autograd", "func"})
_IMPORT = "IMPORT_NAME"


def code_of_cell(source: str) -> CodeType:
    """Compile a cell's text."""
    code: CodeType = compile(source, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    return code


def shards_nothing(cell: CodeType, objects: Iterable[object], own_modules: Collection[str] = ()) -> bool:
    """Return whether a cell trains and reaches nothing that could be sharded over ranks.

    Parameters
    ----------
    cell : code
    objects : iterable of object
        Everything that is sent with it: values, functions, classes and modules, and their contents.
    own_modules : collection of str
        The user's modules that are sent by value, so that their functions are among `objects`.
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
    """Return whether nothing in `module` can create a loader, or its code is inspected anyway."""
    if module in own or module == "None" or _is_cythons(module):
        return True
    inside = f"{module}."
    if module.partition(".")[0] not in _LIBRARIES:
        return False
    return inside.startswith(_NO_LOADERS) or not inside.startswith(_NOT_OF_THESE)


def _is_cythons(module: object) -> bool:
    """Return whether `module` is that of Cython's function type, which many libraries have; some make NumPy's generators."""
    return _text(module).startswith("_cython_")


def _modules_of(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        yield _text(base.__module__)


def _text(module: object) -> str:
    """Return the name of a module; some types have a property there instead of a string."""
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
    """Return the names and the string constants in `code`."""
    found: set[str] = set()
    for part in everything(code):
        found.update(part.co_names)
        for constant in part.co_consts:
            texts = constant if isinstance(constant, tuple) else (constant,)
            found.update(text for text in texts if isinstance(text, str))
    for name in [name for name in found if "." in name]:  # dotted names of imported modules
        found.update(name.split("."))
    return found


def _has_utils_data(code: CodeType) -> bool:
    """Return whether `code` contains ``utils.data``, rather than ``utils`` in one place and a parameter's ``.data`` in another."""
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
