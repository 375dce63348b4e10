"""The training loop: dense phase, transition, sparse phase; a checkpoint holds all that the next step depends on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from impl.sparse_training.methods import Method
from impl.sparse_training.model import Encoder
from impl.sparse_training.pattern import Reading, TransitionMonitor
from impl.sparse_training.recipes import Data, Recipe
from impl.sparse_training.tasks.dataset import Split

PATTERN_LOSS = 0.01  # times layers, before the sum of the layers' losses
CLIP = 1.0
Phase = Literal["dense", "sparse"]


@dataclass(frozen=True)
class StepLog:
    """What one step leaves. Floats of the device are read when asked for, so that a step need not wait."""

    step: int
    phase: Phase
    loss: Tensor
    correct: Tensor  # share of the batch
    reading: Reading | None  # of the monitor, on dense steps of a method that has one


class Trainer:
    """Trains one model by one method. `seed` decides weights, order and dropout; equal trainers give equal losses."""

    def __init__(self, recipe: Recipe, method: Method, data: Data, device: torch.device, seed: int):
        torch.manual_seed(seed)
        self.recipe, self.method, self.data, self.device, self.seed = recipe, method, data, device, seed
        attentions = [method.attention(recipe) for _ in range(recipe.layers)]
        self.model = Encoder(recipe.vocabulary, recipe.seqlen, recipe.classes, attentions, recipe.pairs).to(device)
        self.patterns = nn.ModuleList(method.pattern(recipe) for _ in attentions) if method.learns else nn.ModuleList()
        self.patterns.to(device)
        self.monitor = TransitionMonitor(recipe.layers, recipe.seqlen).to(device) if method.learns else None
        self.step_number = 0
        self.phase: Phase = "dense" if method.transitions else method.phase
        self.scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda")
        self.optimizer = self._new_optimizer(recipe.learning_rate)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer,
            recipe.learning_rate,
            total_steps=recipe.steps,
            pct_start=recipe.warmup_steps / recipe.steps,
            anneal_strategy="linear",
        )
