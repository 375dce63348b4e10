"""A run's config: read, checked to the last case before any work, and expanded into cases.

Every error names the file and the path inside it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import Field, NonNegativeInt, ValidationError, field_validator

from harness.case import Case
from harness.contender import Contender, discover
from harness.errors import ConfigError
from harness.ops import OPS
from harness.ops.training_step import MODELS, TrainingStep, TrainingStepParams
from harness.paths import ROOT
from harness.strict import StrictModel, first_mistake
from impl.sparse_training.labels import LABELS
from impl.sparse_training.recipes import RECIPES, refusal, source_of

Architecture = Literal["sm_70", "sm_80", "sm_90a"]
ARCHITECTURES = get_args(Architecture)
Name = Annotated[str, Field(pattern=r"^[a-z0-9_]+$", max_length=64)]
RESERVED = {"paper": "the published numbers", "training": "the runs of `voltabench train`"}
LARGEST_BYTES = 2**50  # a case that needs more is a slip of the pen, and its numbers would not fit the records


class Measure(StrictModel):
    """How a case is timed (docs/measuring.md)."""

    warmup_s: float = Field(0.05, ge=0)
    min_samples: int = Field(10, ge=3)
    min_time_s: float = Field(0.1, ge=0)
    max_time_s: float = Field(2.0, gt=0)
    relative_iqr: float = Field(0.01, gt=0)
    rounds: int = Field(6, ge=2)
    timeout_s: float = Field(180.0, gt=0, description="limit of one step of one contender before it is killed")


class Energy(StrictModel):
    """The separate energy pass, taken on the cells that panels name."""

    window_s: float = Field(1.0, gt=0)
    trials: int = Field(3, ge=1)
    settle_s: float = Field(1.0, ge=0)


class EnergyCells(StrictModel):
    """Cells whose energy is taken: these contenders on the panel's cases that have these parameters."""

    contenders: list[str] = Field(min_length=1)
    where: dict[str, Any] = Field(default_factory=dict)


class Panel(StrictModel):
    """Cases drawn together: every shape combined with every choice of the lists in `each`."""

    name: Name
    title: str
    shapes: list[dict[str, Any]] = Field([{}], min_length=1)
    each: dict[str, Any] = Field(default_factory=dict)
    contenders: list[str] | None = Field(None, min_length=1, description="instead of the experiment's")
    headline: bool = Field(False, description="measured first when there is a time budget")
    energy: list[EnergyCells] = Field(default_factory=list)


class Experiment(StrictModel):
    """Panels that answer one question."""

    op: str
    question: str
    baseline: str = Field(description="contender that speed-ups are taken against")
    contenders: list[str] = Field(min_length=1)
    panels: list[Panel] = Field(min_length=1)


class TrainingCurves(StrictModel):
    """A decoder trained on text with the attention of each contender, once per seed."""

    model: str
    batch: int = Field(gt=0)
    seqlen: int = Field(gt=1)
    steps: int = Field(200, ge=20)
    seeds: list[NonNegativeInt] = Field([0, 1, 2], min_length=2)
    learning_rate: float = Field(gt=0)
    baseline: str = Field(description="contender whose spread over the seeds the others are held against")
    contenders: list[str] = Field(min_length=2)

    def params(self, seed: int) -> TrainingStepParams:
        return TrainingStepParams(model=self.model, batch=self.batch, seqlen=self.seqlen, seed=seed)


class Training(StrictModel):
    """Runs of `voltabench train`: one task, by each method and seed. What is not given is the recipe's or paper's."""

    task: str
    methods: list[str] = Field(min_length=1)
    seeds: list[NonNegativeInt] = Field([0], min_length=1)
    steps: int = Field(ge=6)
    batch: int | None = Field(None, gt=0)
    samples: int = Field(100_000, ge=150)
    monitor_every: int = Field(1, gt=0)
    min_skewness: float | None = Field(None, allow_inf_nan=False)
    max_change: float | None = Field(None, gt=0, allow_inf_nan=False)
    evaluate_every: int = Field(500, gt=0)

    def options(self) -> str:
        """Of the command line, but for method and seed."""
        given = self.model_dump(exclude={"methods", "seeds"}, exclude_none=True)
        return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in given.items())


class Config(StrictModel):
    """A run."""

    run: str = Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$", max_length=64)
    device: Literal["cpu", "cuda"]
    gpu: str | None = Field(None, min_length=1, description="model of the GPU that it was written for; null: any")
    architectures: list[Architecture] = Field(list(ARCHITECTURES), min_length=1)
    contender_folders: list[Annotated[Path, Field(strict=False)]] = Field(default_factory=list)
    budget_min: float | None = Field(None, gt=0, description="stop cleanly after this many minutes of measuring")
    measure: Measure = Measure()
    energy: Energy = Energy()
    experiments: dict[Name, Experiment] = Field(min_length=1)
    training_curves: TrainingCurves | None = None
    training: list[Training] = Field(default_factory=list)

    @field_validator("run")
    @classmethod
    def _keep_what_is_there(cls, run: str) -> str:
        if run in RESERVED:
            raise ValueError(f"results/{run} holds {RESERVED[run]}; choose another name")
        return run

    @property
    def results(self) -> Path:
        return Path("results") / self.run

    @property
    def ops(self) -> set[str]:
        """What the run is about: the ops of its panels, and those that its loss curves and trainings belong to."""
        trained = {"training_step": self.training_curves, "sparse_training_step": self.training}
        return {experiment.op for experiment in self.experiments.values()} | {op for op in trained if trained[op]}

    @property
    def trainings(self) -> dict[str, str]:
        """The options of each run of `voltabench train`, by the name of its folder."""
        return {
            name: f"{training.options()} --method {method} --seed {seed}"
            for name, training, method, seed in self._trainings()
        }

    @property
    def training_settings(self) -> dict[str, dict[str, Any]]:
        """Of each run, by the name of its folder, what says what it is; not its thresholds, which may have been others
        when it ran. None is the recipe's."""
        return {
            name: {
                **training.model_dump(exclude={"methods", "seeds", "min_skewness", "max_change"}),
                "method": method,
                "seed": seed,
                "source": source_of(training.task),
            }
            for name, training, method, seed in self._trainings()
        }

    def _trainings(self) -> Iterator[tuple[str, Training, str, int]]:
        for training in self.training:
            for method, seed in itertools.product(training.methods, training.seeds):
                yield f"{training.task}-{method}-seed{seed}", training, method, seed

    def contenders(self, op: str) -> dict[str, Contender]:
        return discover(tuple(self.contender_folders)).get(op, {})

    def cases(self, experiment: str, panel: Panel) -> list[Case]:
        """The panel's cases, in config order. Raises ConfigError for a bad or repeated one."""
        op = OPS[self.experiments[experiment].op]
        place = f"experiments.{experiment}.panels.{panel.name}"
        choices = {key: value if isinstance(value, list) else [value] for key, value in panel.each.items()}
        cases: dict[str, Case] = {}
        for key in choices:
            if not choices[key]:
                raise ConfigError(f"{place}.each.{key}: no choice, so no case; name one or remove the panel")
            if any(key in shape for shape in panel.shapes):
                raise ConfigError(f"{place}.each.{key}: is in shapes too; remove it from one of them")
        for index, shape in enumerate(panel.shapes):
            for combination in itertools.product(*choices.values()):
                fields = {**shape, **dict(zip(choices, combination, strict=True))}
                try:
                    params = op.Params.model_validate(fields)
                except ValidationError as error:
                    raise ConfigError(f"{place}: {first_mistake(error)} in the case {fields}") from None
                if op.peak_bytes_estimate(params) > LARGEST_BYTES:
                    raise ConfigError(f"{place}: more than {LARGEST_BYTES >> 40} TiB of memory in the case {fields}")
                energy = [c for cells in panel.energy if _matches(params, cells.where) for c in cells.contenders]
                case = Case(experiment, panel.name, op, params, tuple(dict.fromkeys(energy)))
                if case.id in cases:
                    raise ConfigError(f"{place}.shapes[{index}]: the case {case.id} is there twice; remove one")
                cases[case.id] = case
        return list(cases.values())

    def panel(self, experiment: str, panel: str) -> Panel:
        """Raises ConfigError when there is no such experiment or panel."""
        panels = self.experiments[experiment].panels if experiment in self.experiments else []
        for candidate in panels:
            if candidate.name == panel:
                return candidate
        raise ConfigError(f"no panel {experiment}/{panel}; there are: {', '.join(sorted(self.panel_names()))}")

    def panel_names(self) -> list[str]:
        """All panels as `experiment/panel`, headline panels first, else in config order."""
        panels = [(not p.headline, f"{e}/{p.name}") for e, x in self.experiments.items() for p in x.panels]
        return [name for _, name in sorted(panels, key=lambda pair: pair[0])]

    def rows(self, panel_name: str) -> list[tuple[Case, str]]:
        """Every (case, contender) of the panel `experiment/panel`: the records it must leave."""
        experiment, _, name = panel_name.partition("/")
        panel = self.panel(experiment, name)
        return list(itertools.product(self.cases(experiment, panel), self.panel_contenders(experiment, panel)))

    def panel_contenders(self, experiment: str, panel: Panel) -> list[str]:
        return panel.contenders or self.experiments[experiment].contenders


def _matches(params: Any, where: dict[str, Any]) -> bool:
    return all(getattr(params, key, None) == value for key, value in where.items())


def _known(place: str, what: str, name: str, names: Any) -> None:
    if name not in names:
        raise ConfigError(f"{place}: unknown {what} {name!r}; known: {', '.join(sorted(names))}")


def _check_contenders(place: str, op: str, named: list[str], known: Any) -> None:
    for contender, count in Counter(named).items():
        _known(place, f"contender for {op}", contender, known)
        if count > 1:
            raise ConfigError(f"{place}: {contender!r} is there {count} times; remove all but one")


def _check(config: Config) -> None:
    if config.gpu and config.device == "cpu":
        raise ConfigError(f"gpu: {config.gpu!r} with device: cpu; remove it, or set device: cuda")
    for name, experiment in config.experiments.items():
        place = f"experiments.{name}"
        _known(f"{place}.op", "op", experiment.op, OPS)
        known = config.contenders(experiment.op)
        _known(f"{place}.baseline", f"contender for {experiment.op}", experiment.baseline, known)
        _check_contenders(f"{place}.contenders", experiment.op, experiment.contenders, known)
        for panel_name, count in Counter(panel.name for panel in experiment.panels).items():
            if count > 1:
                raise ConfigError(f"{place}.panels: {count} panels are named {panel_name!r}; rename all but one")
        for panel in experiment.panels:
            _check_panel(config, name, panel)
    if config.training_curves:
        _check_curves(config, config.training_curves)
    for index, training in enumerate(config.training):
        _known(f"training[{index}].task", "task", training.task, RECIPES)
        for method in training.methods:
            _known(f"training[{index}].methods", "method", method, LABELS)
        if reason := refusal(training.task, training.batch, training.samples):
            raise ConfigError(f"training[{index}]: {training.task}: {reason}")
    runs = sum(len(training.methods) * len(training.seeds) for training in config.training)
    if runs != len(config.trainings):
        raise ConfigError("training: a task, method and seed are there twice; remove one")


def _check_curves(config: Config, curves: TrainingCurves) -> None:
    op = TrainingStep.name
    _check_contenders("training_curves.contenders", op, curves.contenders, config.contenders(op))
    _known("training_curves.baseline", "contender of it", curves.baseline, curves.contenders)
    if len(set(curves.seeds)) < len(curves.seeds):
        raise ConfigError(f"training_curves.seeds: {curves.seeds} has one twice, which has no spread; remove it")
    decoders = [name for name, shape in MODELS.items() if shape.causal]
    _known("training_curves.model", "decoder", curves.model, decoders)


def _check_panel(config: Config, experiment: str, panel: Panel) -> None:
    place = f"experiments.{experiment}.panels.{panel.name}"
    op = config.experiments[experiment].op
    used = config.panel_contenders(experiment, panel)
    _check_contenders(f"{place}.contenders", op, used, config.contenders(op))
    cases = config.cases(experiment, panel)
    for cells in panel.energy:
        for contender in cells.contenders:
            _known(f"{place}.energy", "contender of this panel", contender, used)
        for key in cells.where:
            _known(f"{place}.energy.where", "parameter", key, OPS[op].Params.model_fields)
        if not any(_matches(case.params, cells.where) for case in cases):
            raise ConfigError(f"{place}.energy.where: {cells.where} matches none of the panel's {len(cases)} cases")


def parse_config(raw: Any, source: str) -> Config:
    """Check `raw` (a mapping) whole; `source` names it in errors. Raises ConfigError."""
    if not isinstance(raw, dict):
        what = "nothing" if raw is None else repr(raw)[:40]
        raise ConfigError(f"{source}: a config is keys with values, run: and device: first; this is {what}")
    try:
        config = Config.model_validate(raw)
        _check(config)
    except ValidationError as error:
        raise ConfigError(f"{source}: {first_mistake(error)}") from None
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    return config


class _UniqueKeys(yaml.SafeLoader):
    """Refuses a key that is there twice: YAML would keep the last one and drop the other in silence."""

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key.value!r} is there twice", problem_mark=key.start_mark)
            seen.add(str(key.value))
        return node


def read_config(path: str | Path) -> Any:
    """What a YAML file holds, unchecked. Raises ConfigError for one that is missing, broken or has a key twice."""
    try:
        return yaml.load(Path(path).read_text(), _UniqueKeys)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name one of {', '.join(known_configs())}") from None
    except (UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from None


def load_config(path: str | Path) -> Config:
    """Read and check a YAML config. Raises ConfigError."""
    return parse_config(read_config(path), str(path))


def known_configs() -> list[str]:
    return [str(p.relative_to(ROOT)) for p in sorted((ROOT / "config").glob("*.yaml"))]
