"""Functions of the notebook with ``functools.lru_cache``: pickled with their cache, and updated in place when results come home.

Python offers no access to the cache. But ``gc.get_referents`` lists what the function refers to, here keys and results in order of use,
and a call fills the cache. So a cache is rebuilt by calls of the function with temporary code that returns the results to remember. This
also sets the numbers of hits and misses.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache, lru_cache
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import cloudpickle

CachedFunction = type(lru_cache(lambda: None))
_MOST = 1_000_000  # limit of hits, and of misses, that are replayed
_NO_RESULT = object()
_met: WeakSet[Any] = WeakSet()  # functions that were written with their cache
_left: WeakKeyDictionary[Any, tuple[tuple[Any, ...], str]] = WeakKeyDictionary()
"""Functions whose cache cannot be sent: their marks at that time, and what cannot be sent."""


def is_notebooks(cached: object) -> bool:
    """Return whether this is a cached function that is pickled by value."""
    if not isinstance(cached, CachedFunction):
        return False
    found = cloudpickle.cloudpickle._lookup_module_and_qualname(cached)
    return found is None or cloudpickle.cloudpickle._is_registered_pickle_by_value(found[0])


def reduced_cached(cached: Any) -> Any:
    """Return the reduce value of a cached function that is pickled by value, without its cache if that cannot be pickled."""
    made = _made, (cached.__wrapped__, cached.cache_parameters())
    contents = contents_of(cached)
    if contents is None or _left_of(cached):
        return made
    _met.add(cached)
    return (*made, contents, None, None, refill_cache)


def leave_caches(cannot_be_written: Callable[[Any], bool]) -> bool:
    """Leave out the caches that cannot be written, until they change; return whether there is one that was not known before."""
    found = False
    for cached in list(_met):
        contents = None if _left_of(cached) else contents_of(cached)
        if contents is None or not cannot_be_written(contents):
            continue
        parts = [part for (args, kwargs), result in zip(*contents[2:], strict=True) for part in (result, *args, *kwargs.values())]
        kind = next((type(part).__name__ for part in parts if cannot_be_written(part)), "value")
        _left[cached] = mark_of(cached), f"a {kind} in it cannot be sent"
        found = True
    return found


def release_caches() -> None:
    """Forget which functions were written with their cache, once everything is written."""
    _met.clear()


def caches_left(objects: Iterable[object]) -> dict[str, str]:
    """Return the names of the cached functions among `objects` whose caches were left out → the reason."""
    return {obj.__qualname__: reason for obj in objects if isinstance(obj, CachedFunction) and (reason := _left_of(obj))}


def lines_about_caches(objects: Iterable[object]) -> list[str]:
    """Return the messages about caches that the engines do not get."""
    return [f"The cache of `{name}` is empty on the engines, because {reason}." for name, reason in caches_left(objects).items()]


def _left_of(cached: Any) -> str:
    mark, reason = _left.get(cached, ((), ""))
    return reason if mark == mark_of(cached) else ""


def mark_of(cached: Any) -> tuple[Any, ...]:
    """Return a value that changes with each call."""
    return tuple(cached.cache_info())


def contents_of(cached: Any) -> list[Any] | None:
    """Return hits, misses, cached calls and their results, the least recently used first.

    ``None`` if they cannot be determined.
    """
    info, parameters, referents = cached.cache_info(), cached.cache_parameters(), gc.get_referents(cached)
    tables = [part for part in referents if type(part) is dict and part is not vars(cached) and len(part) == info.currsize]
    if info.maxsize is None:
        entries = list(tables[0].items()) if tables else []
    else:  # the function's type, then for each result its key, the result, and the type of the link that holds both
        found = referents[1 : 1 + 3 * info.currsize]
        entries = _known_entries(list(zip(found[::3], found[1::3], strict=False)), tables)
    if len(entries) != info.currsize:
        return None
    calls = [_call_of(key, typed=parameters["typed"]) for key, _ in entries]
    return [info.hits, info.misses, calls, [result for _, result in entries]]


def _known_entries(entries: list[tuple[Any, Any]], tables: list[dict[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return the entries if their keys are those of the cache; none if this Python version lays them out differently."""
    try:
        return entries if any(all(key in table for key, _ in entries) for table in tables) else []
    except TypeError:  # not hashable, so not a key
        return []


def _call_of(key: Any, *, typed: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call from the key that `functools` made of them."""
    if type(key) is not tuple:
        return (key,), {}
    mark = next((index for index, part in enumerate(key) if type(part) is object), None)
    if mark is None:
        return (key[: len(key) // 2] if typed else key), {}
    num_given = len(key) - mark - 1
    num_keywords = (num_given - mark) // 3 if typed else num_given // 2
    named = key[mark + 1 : mark + 1 + 2 * num_keywords]
    return key[:mark], dict(zip(named[::2], named[1::2], strict=True))


def refill_cache(cached: Any, contents: list[Any]) -> None:
    """Replace the cache's contents by these calls and results."""
    hits, misses, calls, results = contents
    function: Any = cached.__wrapped__
    if not isinstance(function, FunctionType):
        return
    cached.cache_clear()
    code = function.__code__
    function.__code__ = _replaying(len(code.co_freevars))
    try:
        _next[:] = [_NO_RESULT]
        for _ in range(min(misses - len(calls), _MOST)):
            with suppress(LookupError):
                cached(_NO_RESULT)
        for (args, kwargs), result in zip(calls, results, strict=True):
            _next[:] = [result]
            cached(*args, **kwargs)
        if calls:
            args, kwargs = calls[-1]
            for _ in range(min(hits, _MOST)):
                cached(*args, **kwargs)
    finally:
        function.__code__ = code
        _next.clear()


_next: list[Any] = []  # the result of the next call


def next_result() -> Any:
    """Return the result to cache, or raise to count a miss; called by the temporary code of a function."""
    if _next[0] is _NO_RESULT:
        raise LookupError("a call that is not remembered")
    return _next[0]


@cache
def _replaying(num_free: int) -> CodeType:
    """Return code that calls :func:`next_result`, with as many free variables as the code that it replaces."""
    names = [f"v{index}" for index in range(num_free)]
    text = (
        f"def around({', '.join(names)}):\n"
        "    def replayed(*args, **kwargs):\n"
        f"        {'; '.join(names) or 'pass'}\n"
        f"        from {__name__} import next_result\n"
        "        return next_result()\n"
        "    return replayed\n"
    )
    namespace: dict[str, Any] = {}
    exec(text, namespace)
    code: CodeType = namespace["around"](*names).__code__
    return code


def _made(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return lru_cache(**parameters)(function)
