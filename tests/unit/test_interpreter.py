"""What is set for the whole of Python is as before, whoever sets it meanwhile."""

import sys
import threading

from jupyter_dtrain.system.interpreter import deep_recursion, num_references


def test_a_thread_that_ends_later_leaves_the_recursion_limit_as_it_was():
    before, inside, ended = sys.getrecursionlimit(), threading.Event(), threading.Event()

    def pickle_meanwhile():
        with deep_recursion():
            inside.set()
            ended.wait(30)

    thread = threading.Thread(target=pickle_meanwhile)
    with deep_recursion():
        assert sys.getrecursionlimit() > before
        thread.start()
        assert inside.wait(30)
    ended.set()
    thread.join(30)
    assert sys.getrecursionlimit() == before


def test_references_to_an_object_are_counted():
    one = [object()]
    held = {"by": one}
    assert num_references(one) == 2, "one here, one in the dict"
    del held
    assert num_references(one) == 1
