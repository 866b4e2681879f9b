"""Warning filters that are set in a process without the classes of some, and come home from there."""

import re
import warnings
from typing import Any

import pytest

from jupyter_dtrain.capture.settings import make_settings
from jupyter_dtrain.capture.warning_filters import find_classes, set_warning_filters, warning_filters
from jupyter_dtrain.engine.arrival.warnings import filters_kept, warnings_of_callers

NAME = "warnings.filters"


def listed() -> Any:
    return warnings.filters


class OfTheNotebook(UserWarning):
    pass


class Holder:
    class Inner(OfTheNotebook):
        pass


@pytest.fixture(autouse=True)
def no_filters():
    """Begin without filters, and bring them back."""
    with warnings.catch_warnings():
        warnings.resetwarnings()
        yield


@pytest.fixture
def elsewhere(monkeypatch):
    """Return a function that forgets the class of the notebook and the filters, as in another process."""

    def forget():
        found = list(warnings.filters)
        monkeypatch.delitem(globals(), "OfTheNotebook")
        warnings.resetwarnings()
        return found

    return forget


def kinds():
    return [kind for _, _, kind, _, _ in warnings.filters]


def test_a_filter_for_a_class_that_is_not_there_takes_effect_and_comes_home(elsewhere):
    kind = OfTheNotebook
    warnings.simplefilter("ignore")
    warnings.simplefilter("error", kind)
    told = warning_filters()
    at_home = elsewhere()
    make_settings({NAME: told})
    assert warning_filters() == told
    assert kind not in kinds()  # as if it had never been here
    for raised in (kind, Holder.Inner, type("Later", (kind,), {})):
        with pytest.raises(raised):
            warnings.warn("of the notebook", raised, stacklevel=1)
    warnings.warn("of nobody", UserWarning, stacklevel=1)
    warnings.filterwarnings("ignore", "boring")  # the cell's
    back = warning_filters()
    warnings.resetwarnings()
    listed().extend(at_home)
    make_settings({NAME: back})
    assert kinds() == [Warning, kind, Warning]
    assert warnings.filters[1:] == at_home
    warnings.resetwarnings()
    make_settings({NAME: back})  # the class is one that the cell has made
    assert kind not in kinds()
    globals()["OfTheNotebook"] = kind
    find_classes()
    assert kinds() == [Warning, kind, Warning]
    with pytest.raises(kind):
        warnings.warn("of the notebook", kind, stacklevel=1)


def test_filters_of_a_notebook_stay_the_same_objects():
    mine = ("ignore", re.compile("Exactly so"), OfTheNotebook, re.compile("m"), 3)  # without regard to what `filterwarnings` makes of it
    listed().insert(0, mine)
    set_warning_filters([("error", "", ("builtins", "UserWarning"), "", 0), *warning_filters()])
    assert warnings.filters[1] is mine
    assert warnings.filters[0][2] is UserWarning
    set_warning_filters(warning_filters()[1:])
    assert warnings.filters == [mine]


@pytest.mark.parametrize("name", [("nowhere", "Kind"), ("warnings", "Kind"), ("nowhere", "Kind.Inner"), ("warnings", "warn")])
def test_a_filter_for_what_is_found_nowhere_is_kept(name):
    told = [("ignore", "of it", name, "", 0), ("error", "told", ("builtins", "UserWarning"), "", 0)]
    set_warning_filters(told)
    assert warning_filters() == told
    with pytest.raises(UserWarning):
        warnings.warn("told of it", stacklevel=1)


def test_a_class_of_an_earlier_cell_does_not_stand_in_for_this_ones():
    old, new = (type("Gone", (UserWarning,), {"__module__": "gone"}) for _ in range(2))
    with warnings_of_callers():
        warnings.simplefilter("error", old)
        warnings.simplefilter("error", Holder.Inner)
    told = warning_filters()
    assert old not in kinds()
    assert Holder.Inner in kinds()
    make_settings({NAME: told})
    with pytest.raises(new):
        warnings.warn("of this cell", new, stacklevel=1)


def test_a_class_within_a_class_is_found():
    warnings.simplefilter("error", Holder.Inner)
    told = warning_filters()
    warnings.resetwarnings()
    set_warning_filters(told)
    assert kinds() == [Holder.Inner]


def test_a_warning_that_was_shown_is_not_shown_again_for_filters_that_are_set_to_what_they_were():
    warnings.simplefilter("default")
    with warnings.catch_warnings(record=True) as shown:
        for _ in range(2):
            warnings.warn_explicit("one", UserWarning, "f.py", 1, registry=(registry := globals().setdefault("_shown", {})))
            make_settings({NAME: warning_filters()})
    assert len(shown) == 1
    registry.clear()


def test_imports_of_what_arrives_leave_the_filters_in_their_order():
    warnings.simplefilter("ignore")
    before = list(warnings.filters)
    with filters_kept():
        warnings.simplefilter("always", OfTheNotebook)
    assert warnings.filters == before
