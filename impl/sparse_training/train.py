"""The training loop: dense phase, transition, sparse phase. A checkpoint holds all that the next step depends on."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from impl.sparse_training.methods import METHODS, Method
from impl.sparse_training.methods.block_sparse import BlockSparse
from impl.sparse_training.model import Encoder
from impl.sparse_training.pattern import (
    LearnedPattern,
    Reading,
    TransitionMonitor,
    largest_blocks,
    pattern_loss,
    spion_pattern,
)
from impl.sparse_training.recipes import Data, Recipe
from impl.sparse_training.step_graph import StepGraphs
from impl.sparse_training.tasks.dataset import Split

CLIP = 1.0  # of each gradient value
BETAS, EPSILON = (0.9, 0.999), 1e-6
SPION_CHANGE = 0.15
Phase = Literal["dense", "sparse"]


@dataclass(frozen=True)
class StepLog:
    """What one step leaves, on the device: nothing waits until it is read."""

    step: int
    phase: Phase
    loss: Tensor  # cross-entropy over the global batch
    accuracy: Tensor
    reading: Reading | None  # of the monitor, on the steps it saw


@contextlib.contextmanager
def deterministic(device: torch.device) -> Iterator[None]:
    """Equal trainers give equal losses within, bit for bit: fused attention's backward does not by itself on a GPU."""
    if device.type == "cpu":
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # or cuBLAS is refused
    torch.use_deterministic_algorithms(True)
    memory = torch.utils.deterministic
    fills, memory.fill_uninitialized_memory = memory.fill_uninitialized_memory, False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        memory.fill_uninitialized_memory = fills


def leave_processes() -> None:
    """Part from the other processes, when no trainer is left: DistributedDataParallel that outlives its group ends the
    group's threads with the interpreter's lock held, which one of them may be waiting for."""
    if distributed.is_initialized():
        gc.collect()
        distributed.destroy_process_group()


class Trainer:
    """One model, one method. `seed` decides weights, order and dropout: equal trainers are equal, if `deterministic`.

    monitor_every: dense steps from one look at the averaged map to the next; for SPION, which looks when it is
    evaluated, it only names the run. Under torchrun each process takes its share of the global batch, `recipe.batch`,
    in either phase. A process alone on a GPU replays graphs of forward and backward, which keep torch's modes
    (deterministic, say) of the phase's first steps, if the method can be captured.
    """

    def __init__(
        self, recipe: Recipe, method: str, data: Data, device: torch.device, seed: int, monitor_every: int = 1
    ):
        self.recipe, self.method, self.data, self.device = recipe, METHODS[method], data, device
        self.method_name = method
        self.seed, self.monitor_every = seed, monitor_every
        self.rank, self.processes = _rank()
        if recipe.batch % self.processes:
            raise ValueError(f"a batch of {recipe.batch} cannot be shared by {self.processes} processes")
        if recipe.batch > len(data.train):
            raise ValueError(f"a batch of {recipe.batch} is more than the {len(data.train)} training samples")
        torch.manual_seed(seed)
        self.attentions = [self.method.attention(recipe) for _ in range(recipe.layers)]
        self.model = Encoder(recipe.vocabulary, recipe.seqlen, recipe.classes, self.attentions, recipe.pairs).to(device)
        self.patterns = nn.ModuleList(LearnedPattern(recipe.blocks) for _ in self.attentions).to(device)
        self.monitor = _monitor(self.method, recipe).to("cpu" if self.method.monitor_on_cpu else device)
        self.parallel = DistributedDataParallel(self.model) if self.processes > 1 else self.model
        self.parameters = [*self.model.parameters(), *self.patterns.parameters()]
        self.step_number, self.phase = 0, "dense"
        self.graphs = StepGraphs(self.parameters, device) if self._can_capture() else None
        self.scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda")
        self.optimizer = self._new_optimizer(recipe.learning_rate)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer,
            recipe.learning_rate,
            total_steps=recipe.steps,
            pct_start=recipe.warmup_steps / recipe.steps,
            anneal_strategy="linear",
        )
        self._resident: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        self._order = (-1, torch.zeros(0))
        if self.method.fixed:
            self._set_patterns([self.method.fixed(recipe.blocks).to(device)] * recipe.layers)
        torch.manual_seed(seed + self.rank)  # dropout differs between processes

    def step(self) -> StepLog:
        """One optimizer step, and the transition after it where it is due."""
        watched = self.phase == "dense" and self._looks()
        for attention in self.attentions:
            attention.watched = watched
        self.model.train()
        places = self._places()
        if self.graphs:
            loss, right, maps = self.graphs(self._backward, places, watched)
        else:
            loss, right, maps = self._backward(places, watched)
        self._optimize()
        log = StepLog(self.step_number, self.phase, *self._mean(loss, right), self._read(maps))
        self.step_number += 1
        if self.method.transition == "sat" and log.reading is not None and log.reading.settled:
            kept = {"density": self.recipe.density, "keep_diagonal": self.recipe.keep_diagonal}
            self._go_sparse([largest_blocks(pattern().detach(), **kept) for pattern in self.patterns])
        return log

    @torch.no_grad()
    def evaluate(self, split: Split) -> float:
        """Accuracy over the whole split, the same in all processes. It leaves the training's random numbers alone.

        SPION looks at the maps here, and goes sparse when they have settled.
        """
        self.model.eval()
        looks = self.method.transition == "spion" and self.phase == "dense" and split is self.data.dev
        for attention in self.attentions:
            attention.watched = looks
        right, maps = torch.zeros((), dtype=torch.int64, device=self.device), torch.zeros(0)
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(self.seed)  # of Reformer's hashes
            for places in torch.arange(len(split), device=self.device).split(self.recipe.batch):
                tokens, lengths, labels = self._batch(split, places)
                with torch.autocast(self.device.type, torch.float16, enabled=self.device.type == "cuda"):
                    right += (self.model(tokens, lengths).argmax(-1) == labels).sum()
                if looks:
                    maps = self._maps() * len(places) / len(split) + (maps if len(maps) else 0)
        if looks and self.monitor(maps).settled:
            recipe = self.recipe
            options = {"density": recipe.density, "alpha": recipe.flood_alpha}
            self._go_sparse([spion_pattern(layer, recipe.block, "CF", **options) for layer in maps])
        if self.processes > 1:
            distributed.all_reduce(right)  # what follows from it must be decided alike, and not all sums are equal
        return right.item() / (self.processes * len(split))

    def save(self, path: Path, **notes: Any) -> None:
        """Write the checkpoint beside `path`, then rename it: a kill leaves the last whole. `load` returns notes.

        All processes call it, since each has generators of its own; the first one writes.
        """
        state = self._state() | {"notes": notes}
        if self.rank == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_suffix(".partial")
            try:
                with temporary.open("wb") as file:  # of a path, torch would make another error of a full disk's
                    torch.save(state, file)
                os.replace(temporary, path)
            except OSError as error:
                temporary.unlink(missing_ok=True)
                raise OSError(error.errno, os.strerror(error.errno), str(path)) from None

    def load(self, path: Path) -> dict[str, Any]:
        """Go on where `save` was called, and return its notes.

        Raises ValueError for a file that is no checkpoint, and for one of another recipe, method, seed or data.
        """
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            of = str(state["of"])
        except Exception as error:  # bytes that are none can make the unpickler raise any
            raise ValueError(f"{path} is no checkpoint: {(str(error) or repr(error)).splitlines()[0]}") from None
        if of != (own := self._identity()):
            pairs = itertools.zip_longest(of.split(", "), own.split(", "), fillvalue="nothing of it")
            differences = "; ".join(f"{there}, not {here}" for there, here in pairs if there != here)
            raise ValueError(f"{path} is a checkpoint of another run: {differences}")
        if state["phase"] == "sparse":
            self._go_sparse([pattern.to(self.device) for pattern in state["kept"]])
        for name, part in self._parts().items():
            part.load_state_dict(state[name])
        self.step_number = state["step"]
        generator, *of_device = state["generators"][self.rank]
        torch.set_rng_state(generator)
        if of_device:
            torch.cuda.set_rng_state(of_device[0], self.device)
        return state["notes"]

    @property
    def repeatable(self) -> bool:
        """Whether an equal trainer gives the same losses bit for bit, if `deterministic`."""
        return self.device.type == "cpu" or all(attention.capturable for attention in self.attentions)

    def anywhere(self, holds: bool) -> bool:
        """Whether it holds in any of the processes, which all ask."""
        return bool(self._average(torch.tensor(float(holds), device=self.device)) > 0)

    def _state(self) -> dict[str, Any]:
        sparse = [a.pattern.cpu() for a in self.attentions if isinstance(a, BlockSparse)]
        state = {name: part.state_dict() for name, part in self._parts().items()}
        state |= {"of": self._identity(), "phase": self.phase, "kept": sparse, "step": self.step_number}
        own = [torch.get_rng_state()]
        if self.device.type == "cuda":
            own.append(torch.cuda.get_rng_state(self.device))
        state["generators"] = [own] * self.processes
        if self.processes > 1:
            distributed.all_gather_object(state["generators"], own)
        return state

    def _identity(self) -> str:
        recipe = [f"{name} {value}" for name, value in dataclasses.asdict(self.recipe).items()]
        data = f"{len(self.data.train)} samples ({self.data.source})"
        limits = f"skewness {self.monitor.min_skewness:g}, change {self.monitor.max_change:g}"
        monitored = f"monitored every {self.monitor_every} steps, {limits}"
        own = f"{data}, seed {self.seed}, {monitored}, {self.processes} processes"
        return ", ".join([f"method {self.method_name}", *recipe, own])

    def _parts(self) -> dict[str, Any]:
        parts = {"model": self.model, "patterns": self.patterns, "monitor": self.monitor}
        return parts | {"optimizer": self.optimizer, "schedule": self.schedule, "scaler": self.scaler}

    def _new_optimizer(self, learning_rate: float) -> torch.optim.AdamW:
        return torch.optim.AdamW(self.parameters, learning_rate, BETAS, EPSILON, weight_decay=0.0, fused=True)

    def _can_capture(self) -> bool:
        return self.device.type == "cuda" and self.processes == 1 and all(a.capturable for a in self.attentions)

    def _looks(self) -> bool:
        return self.method.map_every_step or (
            self.method.transition == "sat" and self.step_number % self.monitor_every == 0
        )

    def _places(self) -> Tensor:
        """This process's samples of this step: a fresh order each epoch, a function of seed and step alone."""
        share, batch, samples = self.recipe.batch // self.processes, self.recipe.batch, len(self.data.train)
        epoch, place = divmod(self.step_number, samples // batch)
        if self._order[0] != epoch:
            order = np.random.Generator(np.random.PCG64([self.seed, epoch])).permutation(samples)
            self._order = epoch, torch.from_numpy(order).to(self.device)
        first = place * batch + self.rank * share
        return self._order[1][first : first + share]

    def _batch(self, split: Split, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, lengths and labels. The split moves to the device whole, once: its tokens are bytes."""
        if id(split) not in self._resident:
            parts = (split.tokens, split.lengths, split.labels)
            self._resident[id(split)] = tuple(torch.from_numpy(part).to(self.device) for part in parts)
        tokens, lengths, labels = (part[places] for part in self._resident[id(split)])
        return tokens.long(), lengths, labels

    def _backward(self, places: Tensor, watched: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        """Gradients of the scaled loss. Returns the loss, which samples are right, and the maps of a watched step."""
        self.optimizer.zero_grad(set_to_none=True)
        tokens, lengths, labels = self._batch(self.data.train, places)
        with torch.autocast(self.device.type, torch.float16, enabled=self.device.type == "cuda"):
            logits = self.parallel(tokens, lengths)
        loss = functional.cross_entropy(logits.float(), labels)
        maps = self._maps() if watched else None
        self.scaler.scale(loss + self._pattern_loss(maps)).backward()
        return loss.detach(), logits.argmax(-1) == labels, maps

    def _maps(self) -> Tensor:
        """The averaged map of each layer, over all processes."""
        return self._average(torch.stack([attention.map for attention in self.attentions]))

    def _pattern_loss(self, maps: Tensor | None) -> Tensor | float:
        if maps is None or self.method.transition != "sat":
            return 0.0
        return pattern_loss(self.patterns, maps, self.recipe.block)

    def _read(self, maps: Tensor | None) -> Reading | None:
        monitors = self.method.transition == "sat" or self.method.monitor_on_cpu
        return self.monitor(maps.to(self.monitor.maps.device)) if monitors and maps is not None else None

    def _optimize(self) -> None:
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_value_(self.parameters, CLIP)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.phase == "dense" or not self.method.transition:
            self.schedule.step()

    def _mean(self, loss: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
        loss, accuracy = self._average(torch.stack([loss.detach(), correct.float().mean()]))
        return loss, accuracy

    def _average(self, values: Tensor) -> Tensor:
        """Of all processes, whose shares of the batch are equal."""
        if self.processes > 1:
            distributed.all_reduce(values)  # a sum: gloo has no average
            values /= self.processes
        return values

    def _go_sparse(self, patterns: list[Tensor]) -> None:
        """The published transition: a new optimizer at half the maximum rate, which stays constant from there."""
        self._set_patterns(patterns)
        if self.method.transition:
            self.optimizer = self._new_optimizer(self.recipe.learning_rate / 2)

    def _set_patterns(self, patterns: list[Tensor]) -> None:
        for attention, pattern in zip(self.attentions, patterns, strict=True):
            attention.set_pattern(pattern)
        if self.graphs:
            self.graphs.clear()
        self.phase = "sparse"


def _monitor(method: Method, recipe: Recipe) -> TransitionMonitor:
    """Without maps for a method that never looks at one."""
    size = recipe.seqlen if method.transition or method.monitor_on_cpu else 0
    if method.transition == "spion":
        return TransitionMonitor(recipe.layers, size, min_skewness=-math.inf, max_change=SPION_CHANGE)
    return TransitionMonitor(recipe.layers, size)


def _rank() -> tuple[int, int]:
    """This process and how many there are."""
    return (distributed.get_rank(), distributed.get_world_size()) if distributed.is_initialized() else (0, 1)
