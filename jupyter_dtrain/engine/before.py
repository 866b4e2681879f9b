"""A model as it was before a call that is made again, or only to learn from."""

from __future__ import annotations

import random
from collections import OrderedDict

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from .placements import GlobalTensor
from .randomness import ModelStream, TorchState


class Before:
    """A model before its first call, to make that call again."""

    def __init__(self, module: nn.Module, stream: ModelStream | None) -> None:
        self._attributes = [
            (child, dict(child.__dict__), dict(child._buffers))
            for child in module.modules()
            if not isinstance(child, torch.jit.ScriptModule)  # it keeps no attributes that Python could change
        ]
        self._buffers = [
            (buffer, buffer._version, buffer.clone(), not isinstance(child, _NormBase))
            for child in module.modules()
            for buffer in child.buffers(recurse=False)
            if not isinstance(buffer, GlobalTensor)
        ]
        self._stream = stream
        self._random = None if stream is None else stream.other
        self._cell_random = TorchState.now()
        self._python_random = random.getstate()
        self._numpy_random = np.random.get_state()

    def drop_hooks(self) -> None:
        """Let nobody see the results of a call that is made only to learn from it, until :meth:`restore`."""
        for child, _, _ in self._attributes:
            child.__dict__["_forward_hooks"] = OrderedDict()

    def buffers_changed(self) -> bool:
        """Return whether the call has written to a buffer; those of normalization layers are theirs."""
        return any(buffer._version != version for buffer, version, _, counts in self._buffers if counts)

    def restore(self) -> None:
        """Undo what the call has done to the model and to random streams."""
        for child, attributes, buffers in self._attributes:
            child.__dict__.clear()
            child.__dict__.update(attributes)
            child._buffers.clear()
            child._buffers.update(buffers)
        with torch.no_grad():
            for buffer, version, value, counts in self._buffers:
                if counts and buffer._version != version:
                    buffer.copy_(value)
                elif not torch.equal(buffer, value):
                    buffer.data.copy_(value)  # normalization writes without counting, in scripted modules too, and so does this
        if self._stream is not None and self._random is not None:
            self._stream.other = self._random
        self._cell_random.set()
        random.setstate(self._python_random)
        np.random.set_state(self._numpy_random)
