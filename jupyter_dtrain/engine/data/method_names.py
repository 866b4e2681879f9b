"""Effects of functions and methods by name, for Python, NumPy, PyTorch and libraries that load images and tables."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


MUTATING = _words(
    "add append appendleft clear difference_update discard extend extendleft fill insert intersection_update itemset move_to_end partition "
    "pop popitem popleft put remove resize reverse rotate send setdefault setfield setflags sort subtract "
    "symmetric_difference_update update"
)
MUTATES_ARGUMENTS = _words(
    "copyto delattr fill_diagonal heapify heappop heappush heappushpop heapreplace insort insort_left insort_right next place put "
    "put_along_axis putmask setattr shuffle"
)
SHOWS = _words("critical debug display error exception info print warn warning write writelines")
FILES = _words(
    "dump imsave imwrite makedirs memmap mkdir open_memmap rename rmtree save save_image savefig savetxt savez savez_compressed to_csv "
    "to_feather to_parquet to_pickle tofile touch unlink write_bytes write_image write_text"
)
ANYTHING = _words("eval exec globals locals vars")
# These return new objects; for user-defined and all other functions nothing is known.
MAKES = _words(
    "abs all any arange array astype basename bool cat ceil clamp clip clone concat concatenate convert cos crop decode "
    "deepcopy dirname empty empty_like encode endswith exists exp eye find float FloatTensor floor format fromarray "
    "frombuffer fromstring full full_like get_state glob hstack imdecode imread int isnan item join len linspace listdir "
    "load loads log logical_and logical_not LongTensor lower max mean median min new_empty new_full new_ones new_zeros "
    "nonzero normal numel one_hot ones ones_like open pad Path perf_counter rand randint randn random randperm range read "
    "read_csv read_image readline readlines repeat replace resize rotate round sin size splitlines sqrt stack "
    "startswith std str strip sum tan tanh Tensor tensor time tolist uniform upper where zeros zeros_like"
)
MAKES_OUTSIDE = _words(
    "Counter OrderedDict copy defaultdict deque dict enumerate filter frozenset list map reversed set sorted split tuple zip"
)
CHOOSES = _words("max min sum")  # Python's functions that return one of their arguments
PLAIN_ATTRIBUTES = _words("device dtype itemsize ndim shape")
