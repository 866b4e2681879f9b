"""Which linear layers of a class belong together, so that their results need not be put together in between: a file for each library.

A file makes a :class:`.Rule` of each class that it knows and registers it, by the class's dotted name: nothing is imported for it.
"""

from . import huggingface, sequential, transformer_layers  # noqa: F401  # each registers its own
from .multihead_attention import Heads, heads_of
from .rule import Pair, Rule, pairs_of, register, rule_of
from .tp_plan import planned_pairs

__all__ = ["Heads", "Pair", "Rule", "heads_of", "pairs_of", "planned_pairs", "register", "rule_of"]
