"""The first call of a model on the rank's share of the batch, or the first call of a new way (see `ways`).

It shows whether the model can compute on a share, and which rows of its random numbers belong to which samples.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ...system.thread_output import kept_apart
from ..code_inspection import catches, model_uses
from ..comm.failures import FailedElsewhere
from ..rng.global_sampling import GlobalSampling, RngChanged
from ..tensor.agreed import failures_of
from ..tensor.autograd_function import must_be_whole
from ..tensor.model_io import NeedsFullBatch
from ..tensor.redistribute import Exchange
from .cross_sample import SamplesOfCall, scales_tables
from .held_back import Writes, held_back
from .input_sharding import MarkedNow, marked
from .later_paths import LaterPaths
from .sharded_call import ShardedCall
from .state import hold_tensors


class FirstCall(ShardedCall):
    """A call of a model on the rank's share from which the model's behavior is learned."""

    is_first: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._before = self._first = self._as_it_is()
        self._reached = self._first.reached

    def _compute(self) -> tuple[Any, GlobalSampling | None]:
        """Return the model's result and its draws, from a second call if the first drew rows of other samples. A collective.

        Raises
        ------
        NeedsFullBatch
            The model is open, on all ranks, or let inputs require gradients (`MarkedNow`).
        """
        before = self._first
        if before.reached.iterators or scales_tables(self.module):
            self.refused = True
            raise NeedsFullBatch
        result: Any = None
        drawing: GlobalSampling | None = None
        failed: BaseException | None = None
        later, paths = LaterPaths(self.module), self.called.paths
        try:
            with kept_apart(with_errors=False) as said, held_back(), paths.noted(self.module, later.files()):
                result, drawing = self._call_on_own(self.own_call)
        except RngChanged:
            raise
        except (Exception, FailedElsewhere, Writes) as error:
            failed = error  # a module that refuses a share may accept the full batch
        failures_of(failed)  # if this rank failed between exchanges, other ranks wait in them
        shuffles = drawing is not None and drawing.shuffles  # perhaps of samples, which then has to span the ranks
        # What a model prints describes its batch: printing makes the model open.
        changes = before.changes()
        keeps = self.keeps or hold_tensors(changes)
        caught = model_uses(self.module, lambda code, _: catches(code))  # an error of one sample, caught, may change the others
        refuses = failed is not None or caught or keeps or self._handed.kept() is None or before.written() or bool(said.getvalue())
        refuses = refuses or shuffles or later.remain(paths)
        elsewhere = drawing is not None and failed is None and before.has_drawn_elsewhere()
        drawn_here = None if drawing is None else drawing.result
        notes = bool(changes)
        uncounted = self._handed.inputs.has_uncounted()
        of_ranks = Exchange.objects((refuses, elsewhere, notes, uncounted, drawn_here, self.view.functions.met))
        self.refused = any(refuses for refuses, *_ in of_ranks) or must_be_whole([met for *_, met in of_ranks])
        self.called.bends |= any(met.bends for *_, met in of_ranks)
        self.called.writes_uncounted |= any(uncounted for _, _, _, uncounted, *_ in of_ranks)
        self._handed.inputs.uncounted = self.called.writes_uncounted
        self._handed.inputs.count()
        if not self.refused and any(elsewhere for _, elsewhere, *_ in of_ranks):
            self.refused = self._learning().draw_for_samples_elsewhere()
        if not self.refused and any(notes for _, _, notes, *_ in of_ranks):
            self.refused = self._learning().note_by_samples(changes, self.called.accepted)
        if self.refused:
            raise NeedsFullBatch
        if drawing is not None and self.draws is not None:
            drawn = [of_rank for *_, of_rank, _ in of_ranks]
            if not self.draws.learn(self.module, self.placement, of_ranks=drawn, one_more=self._call_with_one_more):
                self.refused = self.draws.is_per_rank(self.module)
                if self.refused:
                    raise NeedsFullBatch
                before.restore()
                self._batch_dims = {}
                result = None  # frees the autograd graph: two at once would double the memory
                result, drawing = self._call_on_own(self.own_call)
        if found := marked(self.given, self.own):
            raise MarkedNow(found)
        self.called.changes.follow(later.places)
        self.called.watch = self.called.drawn_with = None  # the model may have got other layers
        self.called.ways.learn(self.module, self.given, self.settings)
        return result, drawing

    def _mixes_samples(self, result: Any, drawing: GlobalSampling | None) -> bool:
        """Return whether the results of one sample depend on other samples."""
        if self.stream is None:
            return False
        samples = SamplesOfCall(
            module=self.module,
            placement=self.placement,
            view=self.view,
            stream=self.stream,
            sites=None if self.draws is None else self.draws.sites(self.module),
            call=self._learning().call,
            dims_of=lambda kinds: self.called.results.get((self.placement, kinds)),
        )
        return samples.mix(result, drawing)
