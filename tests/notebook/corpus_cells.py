"""The corpus: training cells as people write them, one notebook a file, and how far two runs of one are apart.

A file has parts, each begun by a line ``# %%``: the setup (all cells before), the training cell, and an expression for what
must come out the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

FOLDER = Path(__file__).parent / "corpus"
TOLERANCE = 1e-9
_PART = re.compile(r"^# %% (\w+)\n", re.MULTILINE)
_NUMBER = re.compile(r"[-+]?\d+\.\d+(?:e[-+]?\d+)?|[-+]?\d+e[-+]?\d+")


@dataclass(frozen=True)
class CorpusCell:
    """One file of the corpus.

    Attributes
    ----------
    tolerance : float
        Largest relative difference; for cells that compute in less than float64 the file says ``# tolerance: 1e-2``.
    """

    name: str
    setup: str
    cell: str
    compare: str
    tolerance: float

    def setup_in(self, folder: Path) -> str:
        """Return the setup, which goes into a folder of its own below `folder` first: ranks share theirs."""
        return f"import os as _os, tempfile as _temp; _os.chdir(_temp.mkdtemp(dir={str(folder)!r}))\n{self.setup}"


def load(path: Path) -> CorpusCell:
    head, *parts = _PART.split(path.read_text(encoding="utf-8"))
    found = dict(zip(parts[::2], parts[1::2], strict=True))
    tolerance = re.search(r"^# tolerance: (\S+)", head, re.MULTILINE)
    return CorpusCell(
        name=path.stem,
        setup=found["setup"],
        cell=found["cell"],
        compare=" ".join(found["compare"].split()),
        tolerance=float(tolerance[1]) if tolerance else TOLERANCE,
    )


CELLS = [load(path) for path in sorted(FOLDER.glob("*.py"))]
# fmt: off
AGAIN = {
    "adjoint", "adversarial", "attention_seq2seq", "autoencoder", "bayes_by_backprop", "byol_moco", "callbacks_by_name", "captioning",
    "char_rnn", "class_weights", "compiled", "compiled_in_checkpoints", "contrastive", "crf", "custom_losses", "dcgan", "detection",
    "diffusion", "domain_adversarial", "dqn", "dropout_scheduled_from_0", "early_stopping", "embedding_bag", "energy_model", "flow",
    "forward_hooks_and_penalty", "gan", "gan_combined", "gradient_flow", "gradient_surgery", "graph_batches", "gru_hidden", "hand_sgd",
    "hooked_features", "hyperparameter_search", "infinite_cycle", "kept_input_gradients", "knowledge_distillation", "learner_callbacks",
    "logging_setup", "loss_in_forward", "maml", "masked_lm", "mixup", "mnist_dropout2d", "modern_recipe", "multi_task",
    "namedtuple_batches", "ohem_groups", "old_style", "padded_sequences", "policy_gradient", "ppo", "quickstart_functions",
    "random_augmentation", "ranking_multilabel", "regression_metrics", "resnet", "rnn_steps", "samplers_that_draw", "scripted_functions",
    "seq2seq", "seq2seq_cell_loop", "seq_first_collate", "siamese_triplet", "sklearn_metrics", "stacked_lstm_dropout", "step_functions",
    "stochastic_depth", "train_loss_break", "trainer_class", "transfer_learning", "transformer_dropout", "transformer_lm", "unet_dice",
    "vae_kl_attribute", "vae_reparameterized", "vae_sum_loss", "wgan_gp", "word2vec",
}
"""Other models and losses of what the rest of the corpus does: `pytest -m long` tries them."""
WITH_A_KERNEL = {
    "accumulate", "arrays_over_tensors", "bar_over_loader", "batches_by_generator", "batchnorm", "custom_operators",
    "data_sets_that_remember", "draws_by_name", "dropout_in_a_model", "folders_made_anew", "frames_in_place", "generators_by_name",
    "gradients_with_a_graph", "held_functions", "imported_names", "iterable_dataset", "kept_exceptions", "kept_gradients",
    "label_missing_late", "lazy_and_saved", "lbfgs", "left_out_of_pickles", "library_settings", "loaders_of_their_own",
    "made_on_a_device", "modules_beside", "nested_tensors", "objects_of_the_data_set", "objects_with_slots", "open_log_files",
    "opened_images", "own_containers",
    "patched_libraries", "printing_tensors", "raw_parameters", "reading_losses", "running_statistics", "scripted_in_another_cell",
    "settings_of_libraries", "shared_memory", "shared_variables", "state_from_training_on", "state_in_attributes", "time_budget",
    "torchmetrics_objects",
}
"""What depends on how a cell is sent, what comes home and what it finds of the notebook's: the others are tried on ranks each time."""
NEED_AN_ENGINE = {
    "batches_by_generator", "data_sets_that_remember", "domain_adversarial", "draws_by_name", "folders_made_anew", "held_functions",
    "imported_names", "label_missing_late", "lazy_and_saved", "modules_beside", "patched_libraries", "ranking_multilabel",
    "running_statistics", "shared_memory", "sklearn_metrics",
}
"""What pickles classes of the notebook, begins anew, is imported, or makes folders that all ranks see: ranks alone do not do for these."""
# fmt: on


def apart(left: Any, right: Any, tolerance: float = TOLERANCE, path: str = "") -> str | None:
    """Return the first place where two values differ by more than `tolerance` of the larger one, ``None`` where they do not."""
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        left, right = torch.from_numpy(left), torch.from_numpy(right)
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        if (left.shape, left.dtype, left.requires_grad) != (right.shape, right.dtype, right.requires_grad):
            kinds = [f"{t.dtype} {tuple(t.shape)} {t.requires_grad}" for t in (left, right)]
            return f"{path}: {' and '.join(kinds)}"
        wide = torch.complex128 if left.is_complex() else torch.float64
        a, b = left.detach().to(wide), right.detach().to(wide)
        if left.dtype == torch.float32:  # of `.float()` in a cell of float64
            tolerance = max(tolerance, 1e-6)
        largest = float(a.abs().nan_to_num().max()) if a.numel() else 0.0
        close = torch.isclose(a, b, rtol=tolerance, atol=tolerance * largest + 1e-14, equal_nan=True)
        return None if bool(close.all()) else f"{path}: {(a - b).abs().max().item()} apart"
    if type(left) is not type(right):
        return f"{path}: {left!r} and {right!r}"
    if isinstance(left, Mapping):
        if list(left) != list(right):
            return f"{path}: keys {list(left)} and {list(right)}"
        return next((found for key in left if (found := apart(left[key], right[key], tolerance, f"{path}[{key!r}]"))), None)
    if isinstance(left, Sequence) and not isinstance(left, str | bytes):
        if len(left) != len(right):
            return f"{path}: lengths {len(left)} and {len(right)}"
        pairs = enumerate(zip(left, right, strict=True))
        return next((found for index, (a, b) in pairs if (found := apart(a, b, tolerance, f"{path}[{index}]"))), None)
    if isinstance(left, float):
        same = abs(left - right) <= max(tolerance * max(abs(left), abs(right)), 1e-13) or (left != left and right != right) or left == right
        return None if same else f"{path}: {left} and {right}"
    if hasattr(left, "to_dict"):  # a DataFrame
        return apart(left.to_dict(), right.to_dict(), tolerance, path)
    return None if left == right else f"{path}: {left!r} and {right!r}"


def text_apart(left: str, right: str, tolerance: float = TOLERANCE) -> str | None:
    """Return how two printed texts differ: in words, or in a number by more than its last digit."""
    if left == right:
        return None
    if _NUMBER.sub("#", left) != _NUMBER.sub("#", right):
        return f"{left!r} and {right!r}"
    for a, b in zip(_NUMBER.findall(left), _NUMBER.findall(right), strict=True):
        decimals = len(a.partition(".")[2].partition("e")[0])
        last_digit = 10.0**-decimals if "e" not in a else abs(float(a)) * 10.0**-decimals
        if abs(float(a) - float(b)) > max(tolerance * abs(float(a)), 1.5 * last_digit if decimals > 6 or tolerance > TOLERANCE else 0.0):
            return f"printed {a} and {b}"
    return None
