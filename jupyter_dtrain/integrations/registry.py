"""Find the integrations of libraries: this project's own, and those of other packages through entry points.

An entry point of the group `ENTRY_POINTS` is named like the library's module, and refers to an `Integration`. It is imported only once its
library is imported or a cell mentions it, so others cost a lookup in ``sys.modules``. Installed packages are searched in the notebook's
process; engines get the result.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.metadata import EntryPoint
from typing import Any

from ..system.entry_points import installed, load
from .base import Integration, Position, RunScope, Setting

ENTRY_POINTS = "jupyter_dtrain.integrations"
KNOWN = "jupyter_dtrain.integrations"
"""Setting with the integrations of other packages. It is sent with all settings, not with changes only."""

_OWN = {
    library: f"{__package__}.{file}:INTEGRATION"
    for library, file in {
        "ipywidgets": "ipywidgets",
        "pandas": "pandas",
        "matplotlib": "matplotlib",
        "distributed": "dask",
        "torch.utils.tensorboard": "tensorboard",
        "wandb": "wandb",
        "mlflow": "mlflow",
        "pyro": "pyro",
        "transformers": "transformers",
        "datasets": "datasets",
        "litdata": "litdata",
    }.items()
}
_known = dict(_OWN)
_loaded: dict[str, Integration] = {}
_is_told = False


def look() -> None:
    """Search installed packages, unless this process was told; raise a `UsageError` for integrations that cannot be used."""
    if not _is_told:
        _know({point.name: point.value for point in installed(ENTRY_POINTS).values()})
    active()


def of_others() -> dict[str, str]:
    """Return the integrations of other packages, by library."""
    return {library: value for library, value in _known.items() if _OWN.get(library) != value}


def be_told(others: Mapping[str, str]) -> None:
    """Set the integrations of other packages."""
    global _is_told
    _is_told = True
    _know(others)


def _know(others: Mapping[str, str]) -> None:
    wanted = {**_OWN, **others}
    if wanted == _known:
        return
    for library in [library for library in _loaded if wanted.get(library) != _known[library]]:
        del _loaded[library]
    _known.clear()
    _known.update(wanted)


def integration(library: str) -> Integration:
    """Return the integration of a library; raise a `UsageError` if it cannot be used."""
    found = _loaded.get(library)
    if found is None:
        point = EntryPoint(name=library, value=_known[library], group=ENTRY_POINTS)
        found = _loaded[library] = load(point, Integration, what=f"The integration of {library}")
    return found


def active(source: str = "") -> dict[str, Integration]:
    """Return the integrations of libraries that are imported, or that a cell's `source` may import."""
    return {
        library: integration(library)
        for library in list(_known)
        if library in sys.modules or (source and library.rpartition(".")[2] in source)
    }


# -- what pickling asks, of each object ------------------------------------------------------------------------------


def reduced_by_library(obj: Any) -> Any:
    """Return a reduction of `obj` by a library's integration; ``NotImplemented`` if there is none."""
    for library in _known:
        if library in sys.modules and (found := integration(library).reduce(obj)) is not NotImplemented:
            return found
    return NotImplemented


def keeps_its_objects(package: str) -> bool:
    """Return whether of a library's own objects only those are sent that its integration names."""
    return any(
        not integration(library).objects_go_along
        for library in list(_known)
        if library.partition(".")[0] == package and library in sys.modules
    )


def process_attributes(obj: object) -> frozenset[str]:
    """Return the attributes of a library's object that are specific to a process."""
    for library in _known:
        if library in sys.modules and (found := integration(library).process_attributes(obj)):
            return found
    return frozenset()


def is_found_by_id(obj: object) -> bool:
    """Return whether nothing of `obj` is returned with the results, as the notebook's own object gets each change."""
    return any(library in sys.modules and integration(library).is_found_by_id(obj) for library in _known)


def states_of_libraries() -> list[object]:
    """Return the objects of imported libraries that are sent with every cell."""
    return [state for one in active().values() for state in one.states()]


# -- settings --------------------------------------------------------------------------------------------------------


def settings_of_libraries() -> dict[str, Setting]:
    """Return the settings of imported libraries, by ``library.name``."""
    return {f"{library}.{name}": setting for library, one in active().items() for name, setting in one.settings.items()}


def setting_named(name: str) -> Setting | None:
    """Return a library's setting, imported or not; ``None`` if there is none with this name."""
    library = _library_of(name)
    return None if library is None else integration(library).settings.get(name.removeprefix(f"{library}."))


def environment_of_host(environment: dict[str, str], settings: Mapping[str, Any], source: str) -> dict[str, str]:
    """Return the environment of a detached run's engines: see `Integration.environment_of_host`. `settings` are the notebook's."""
    libraries = dict.fromkeys([*active(source), *(library for name in settings if (library := _library_of(name)) is not None)])
    for library in libraries:
        own = {name.removeprefix(f"{library}."): value for name, value in settings.items() if _library_of(name) == library}
        environment = integration(library).environment_of_host(environment, own, source)
    return environment


def _library_of(name: str) -> str | None:
    return next((library for library in _known if name.startswith(f"{library}.")), None)


# -- while a cell runs -----------------------------------------------------------------------------------------------


def displays() -> dict[str, Callable[[Any], object]]:
    """Return the notebook's handlers of displays that carry data, by type."""
    return {kind: handle for one in active().values() for kind, handle in one.displays.items()}


def position_in(dataset: object) -> Position | None:
    """Return the position of an iteration over a library's data set that begins now; ``None`` if no library knows it exactly."""
    return next((found for one in active().values() if (found := one.position(dataset)) is not None), None)


@contextmanager
def run_scopes(run: RunScope) -> Iterator[None]:
    """Follow a cell's use of imported and mentioned libraries, until the end of the ``with`` block."""
    with ExitStack() as stack:
        for one in active(run.source).values():
            stack.enter_context(one.run_scope(run))
        yield
