"""Bad configs are refused whole, before any work, with one line that names the place and what would be right."""

from __future__ import annotations

import copy
import subprocess
import sys

import pandas as pd
import pytest
import yaml

from harness.config import load_config, parse_config
from harness.errors import ConfigError
from harness.paths import ROOT

GOOD = {
    "run": "mine",
    "device": "cpu",
    "experiments": {
        "attention": {
            "op": "attention",
            "question": "?",
            "baseline": "unfused_fp16",
            "contenders": ["unfused_fp16", "copy"],
            "panels": [
                {
                    "name": "forward",
                    "title": "Forward",
                    "each": {"batch": 1, "num_heads": 2, "seqlen": [16, 33], "head_dim": 8},
                    "energy": [{"contenders": ["copy"], "where": {"seqlen_q": 33}}],
                }
            ],
        },
        "spmm": {
            "op": "spmm",
            "question": "?",
            "baseline": "cublas",
            "contenders": ["cublas"],
            "panels": [{"name": "small", "title": "Small", "shapes": [{"m": 8, "k": 8, "n": 1, "sparsity": 0.5}]}],
        },
    },
}
FORWARD = "experiments.attention.panels.0"

MISTAKES = [
    # where to change the good config, to what, and what the message must hold
    ("devise", "cpu", ["unknown key 'devise'", "device"]),
    ("device", "tpu", ["device:", "'cpu' or 'cuda'", "'tpu'"]),
    ("run", "../x", ["run:"]),
    ("run", "paper", ["run:", "published numbers"]),
    ("run", "training", ["run:", "runs of `voltabench train`"]),
    ("run", "a" * 300, ["run:", "64 characters"]),
    ("gpu", "", ["gpu:", "at least 1 character"]),
    ("gpu", "H200", ["gpu: 'H200' with device: cpu"]),
    ("budget_min", True, ["budget_min:", "number", "True"]),
    ("measure", {"rounds": "6"}, ["measure.rounds:", "integer", "'6'"]),
    ("budget_min", float("inf"), ["budget_min:", "finite"]),
    ("budget_min", -1, ["budget_min:", "greater than 0"]),
    ("measure", {"rounds": 1}, ["measure.rounds:", "2"]),
    ("measure", {"round": 6}, ["measure:", "unknown key 'round'", "rounds"]),
    ("architectures", ["sm_75"], ["architectures[0]:", "sm_70"]),
    ("contender_folders", ["nowhere"], ["contender_folders", "no folder nowhere"]),
    ("experiments", {}, ["experiments:"]),
    ("training", [{"task": "x", "methods": ["sat"], "steps": 9}], ["training[0].task: unknown task 'x'", "listops"]),
    (
        "training",
        [{"task": "listops", "methods": ["x"], "steps": 9}],
        ["training[0].methods: unknown method 'x'", "sat"],
    ),
    ("training", [{"task": "listops", "methods": ["sat"], "steps": 5}], ["training[0].steps:", "6"]),
    ("training", [{"task": "listops", "methods": ["sat"], "steps": 9, "seeds": [-1]}], ["training[0].seeds[0]:", "0"]),
    ("training", 2 * [{"task": "listops", "methods": ["sat"], "steps": 9}], ["training:", "twice"]),
    (
        "training",
        [{"task": "text", "methods": ["sat"], "steps": 9}],
        ["training[0]: text: needs", "modules"],
    ),
    (
        "training",
        [{"task": "listops", "methods": ["sat"], "steps": 9, "samples": 150, "batch": 145}],
        ["training[0]: listops: a batch of 145 is more than the 144 training samples"],
    ),
    (
        "training",
        [{"task": "listops", "methods": ["sat"], "steps": 9, "samples": 133}],
        ["training[0].samples:", "150"],
    ),
    ("experiments.attention.op", "atention", ["experiments.attention.op", "unknown op 'atention'", "attention, "]),
    ("experiments.attention.baseline", "cublas", ["unknown contender", "'cublas'", "unfused_fp16"]),
    ("experiments.attention.baseline", "nope", ["experiments.attention.baseline", "'nope'"]),
    ("experiments.attention.contenders", ["copy", "copy"], ["attention.contenders", "'copy' is there 2 times"]),
    ("experiments.attention.contenders", ["flash"], ["unknown contender", "'flash'", "sdpa_flash"]),
    (f"{FORWARD}.contenders", ["nope"], ["panels.forward.contenders", "'nope'", "sdpa_flash"]),
    (f"{FORWARD}.contenders", ["copy", "copy"], ["panels.forward.contenders", "'copy' is there 2 times"]),
    (f"{FORWARD}.contenders", [], ["panels[0].contenders", "at least 1"]),
    (f"{FORWARD}.titel", "x", ["experiments.attention.panels[0]", "unknown key 'titel'", "title"]),
    (f"{FORWARD}.name", "a/b", ["experiments.attention.panels[0].name"]),
    (f"{FORWARD}.each.batch", -1, ["panels.forward", "batch", "greater than 0", "-1"]),
    (f"{FORWARD}.each.batch", 10**12, ["panels.forward", "more than 1024 TiB", "'batch': 1000000000000"]),
    (f"{FORWARD}.each.batch", 1.5, ["panels.forward", "batch", "integer", "1.5"]),
    (f"{FORWARD}.each.batch", "2", ["panels.forward", "batch", "integer", "'2'"]),
    (f"{FORWARD}.each.seqlen", [16, 0], ["panels.forward", "seqlen_q", "greater than 0"]),
    (f"{FORWARD}.each.seqlen", [16, 16], ["panels.forward", "there twice"]),
    (f"{FORWARD}.each.seqlen", [], ["panels.forward.each.seqlen", "no choice"]),
    (f"{FORWARD}.each.seqlen_q", 16, ["panels.forward", "seqlen and seqlen_q are both given"]),
    (f"{FORWARD}.each.tokens", 64, ["panels.forward", "tokens and batch are both given"]),
    (f"{FORWARD}.each.hidden", 64, ["panels.forward", "hidden and num_heads are both given"]),
    (f"{FORWARD}.each.seed", 2**70, ["panels.forward", "seed:", "less than"]),
    (f"{FORWARD}.shapes", [{"batch": 2}], ["panels.forward.each.batch", "shapes too"]),
    (f"{FORWARD}.each.heads", 2, ["panels.forward", "unknown key 'heads'", "num_heads"]),
    (f"{FORWARD}.each.num_heads_kv", 3, ["panels.forward", "num_heads=2", "num_heads_kv=3"]),
    (f"{FORWARD}.each.dtype", "float8", ["panels.forward", "dtype", "float16"]),
    (f"{FORWARD}.energy.0.contenders", ["cublas"], ["forward.energy", "'cublas'", "copy"]),
    (f"{FORWARD}.energy.0.contenders", [], ["energy[0].contenders", "at least 1"]),
    (f"{FORWARD}.energy.0.where", {"seqlen": 33}, ["energy.where", "'seqlen'", "seqlen_q"]),
    (f"{FORWARD}.energy.0.where", {"seqlen_q": 34}, ["energy.where", "34", "none of the panel's 2 cases"]),
    ("experiments.spmm.panels.0.shapes.0.sparsity", 1.01, ["panels.small", "sparsity", "less than or equal to 1"]),
    ("experiments.spmm.panels.0.shapes.0.sparsity", -0.1, ["panels.small", "sparsity", "greater than or equal to 0"]),
    ("experiments.spmm.panels.0.shapes.0.sparsity", float("nan"), ["panels.small", "sparsity", "finite"]),
    ("experiments.spmm.panels.0.shapes.0.n", 0, ["panels.small", "n:", "greater than 0"]),
    ("experiments.spmm.panels.0.shapes", [], ["experiments.spmm.panels[0].shapes"]),
    ("experiments.spmm.panels.0.shapes.0.m", 10**40, ["panels.small", "more than 1024 TiB"]),
]


def with_mistake(place: str, value: object) -> dict:
    config = copy.deepcopy(GOOD)
    *path, last = (int(part) if part.isdigit() else part for part in place.split("."))
    node = config
    for part in path:
        node = node[part]
    node[last] = value
    return config


@pytest.mark.parametrize(("place", "value", "parts"), MISTAKES, ids=lambda v: str(v)[:40])
def test_a_mistake_is_one_line_that_names_place_and_cure(place, value, parts):
    with pytest.raises(ConfigError) as caught:
        parse_config(with_mistake(place, value), "my.yaml")
    message = str(caught.value)
    assert message.startswith("my.yaml: ")
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_repeated_panel_name_is_refused():
    config = copy.deepcopy(GOOD)
    config["experiments"]["attention"]["panels"] *= 2
    with pytest.raises(ConfigError, match="2 panels are named 'forward'"):
        parse_config(config, "my.yaml")


@pytest.mark.parametrize("text", [b"- 1", b"7", b"run: [", b"", b"\xff\xfe\x00run: x", b"[" * 9999])
def test_what_is_no_mapping_is_refused(tmp_path, text):
    path = tmp_path / "bad.yaml"
    path.write_bytes(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
    assert "Config" not in str(caught.value), "a user knows of no class"


def test_a_key_that_is_there_twice_is_refused(tmp_path):
    path = tmp_path / "twice.yaml"
    path.write_text(f"{yaml.safe_dump(GOOD)}run: other\n")
    with pytest.raises(ConfigError, match="the key 'run' is there twice"):
        load_config(path)


@pytest.mark.parametrize("text", ["raise RuntimeError('no driver')", "import sys; sys.exit(0)", "def ("])
def test_a_contender_file_that_does_not_load_is_named(tmp_path, text):
    (tmp_path / "mine.py").write_text(text)
    kinds = "RuntimeError|SystemExit|SyntaxError"
    with pytest.raises(ConfigError, match=rf"my\.yaml: contender_folders: .*mine\.py: ({kinds}): "):
        parse_config({**GOOD, "contender_folders": [str(tmp_path)]}, "my.yaml")


CONTENDER = """
from harness.contender import Contender, Prepared

class Mine(Contender):
    name, op, role, label, summary, source = "mine", "spmm", "baseline", "a", "b", "c"

    def prepare(self, params, inputs, target):
        return Prepared(lambda: {"y": inputs["w"] @ inputs["x"]}, backend="library")
"""


@pytest.mark.parametrize(
    ("whole", "part", "message"),
    [
        ("def prepare", "def prepares", "Mine lacks prepare; see Contender"),
        ("name, op, role, label", "name, _, role, _", "Mine lacks op, label; see Contender"),
        ("spmm", "spmv", "Mine.op is 'spmv'; known: attention, .*spmm"),
        ("baseline", "rival", "Mine.role is 'rival'; known: ours, baseline, control"),
    ],
)
def test_a_contender_that_is_not_whole_is_named_with_what_it_lacks(tmp_path, whole, part, message):
    for place, text in (("good", CONTENDER), ("bad", CONTENDER.replace(whole, part))):
        (tmp_path / place).mkdir()
        (tmp_path / place / "mine.py").write_text(text)
    good = parse_config({**GOOD, "contender_folders": [str(tmp_path / "good")]}, "my.yaml")
    assert "mine" in good.contenders("spmm")
    with pytest.raises(ConfigError, match=rf"my\.yaml: .*mine\.py: {message}"):
        parse_config({**GOOD, "contender_folders": [str(tmp_path / "bad")]}, "my.yaml")


def test_a_missing_file_names_the_ones_there_are():
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: No such file.*config/smoke\.yaml"):
        load_config("nowhere.yaml")


def test_cases_rows_and_energy_of_a_good_config():
    config = parse_config(GOOD, "my.yaml")
    rows = config.rows("attention/forward")
    assert [(case.params.seqlen_q, contender) for case, contender in rows] == [
        (16, "unfused_fp16"),
        (16, "copy"),
        (33, "unfused_fp16"),
        (33, "copy"),
    ]
    assert {case.params.seqlen_q: case.energy for case, _ in rows} == {16: (), 33: ("copy",)}
    assert config.panel_names() == ["attention/forward", "spmm/small"]


def test_the_command_line_of_each_training():
    training = {"task": "listops", "methods": ["sat", "dense"], "seeds": [0, 4], "steps": 9, "max_change": 0.5}
    runs = parse_config({**GOOD, "training": [training]}, "mine.yaml").trainings
    assert list(runs) == [f"listops-{method}-seed{seed}" for method in ("sat", "dense") for seed in (0, 4)]
    said = "--task listops --steps 9 --samples 100000 --monitor-every 1 --max-change 0.5 --evaluate-every 500"
    assert runs["listops-dense-seed4"] == f"{said} --method dense --seed 4"


def test_the_settings_of_each_training():
    trainings = [{"task": task, "methods": ["sat"], "seeds": [0, 4], "steps": 9} for task in ("listops", "digits")]
    settings = parse_config({**GOOD, "training": trainings}, "mine.yaml").training_settings
    assert list(settings) == [f"{task}-sat-seed{seed}" for task in ("listops", "digits") for seed in (0, 4)]
    expected = {"task": "digits", "method": "sat", "seed": 4, "steps": 9, "source": "stand-in"}
    assert expected.items() <= settings["digits-sat-seed4"].items()
    assert not {"min_skewness", "max_change"} & settings["digits-sat-seed4"].keys(), "a run may have had others"
    assert settings["listops-sat-seed0"]["source"] == "generated"


def test_headline_panels_come_first():
    config = copy.deepcopy(GOOD)
    config["experiments"]["spmm"]["panels"][0]["headline"] = True
    assert parse_config(config, "my.yaml").panel_names() == ["spmm/small", "attention/forward"]


@pytest.mark.parametrize("path", sorted((ROOT / "config").glob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_configs_are_good_and_name_their_run(path):
    config = load_config(path)
    assert config.run == path.stem
    assert any(config.panel(*name.split("/")).headline for name in config.panel_names())


@pytest.mark.parametrize("name", ["v100", "h200"])
def test_the_headline_panels_of_spmm_are_the_whole_grid_of_the_paper(name):
    config = load_config(ROOT / "config" / f"{name}.yaml")
    layers = pd.read_csv(ROOT / "results/paper/opt_layers.csv")[["m", "k"]].itertuples(index=False, name=None)
    grid = {(m, k, n, s) for m, k in layers for n in (8, 16, 32) for s in (0.5, 0.6, 0.7, 0.8, 0.9)}
    assert len(grid) == 180
    panels = [panel for panel in config.panel_names() if config.panel(*panel.split("/")).headline]
    rows = [row for panel in panels if panel.startswith("spmm/") for row in config.rows(panel)]
    newer = ["flash_llm_two_of_four"] if name == "h200" else []  # than Volta
    for contender in ("cublas", "flash_llm_tiled_csl", "flash_llm_bitmap", *newer):
        cases = [c.params for c, who in rows if who == contender and c.params.pattern == "random"]
        assert {(p.m, p.k, p.n, p.sparsity) for p in cases} >= grid


@pytest.mark.parametrize("name", ["v100", "h200"])
def test_energy_is_taken_on_twelve_cells_and_on_few_steps_of_each_kind(name):
    config = load_config(ROOT / "config" / f"{name}.yaml")
    cells = [row for panel in config.panel_names() for row in config.rows(panel) if row[1] in row[0].energy]
    kinds = ("training_step", "sparse_training_step", "decode_step")
    steps = {op: [(c.id, who) for c, who in cells if c.op.name == op] for op in kinds}
    assert len(cells) - sum(map(len, steps.values())) == 12
    assert [len({case for case, _ in own}) for own in steps.values()] == [1, 1, 1]
    assert {"unfused_fp16", "spark_attention"} <= {who for _, who in steps["training_step"]}
    assert {who for _, who in steps["sparse_training_step"]} == {"dense", "dense_flash", "sat"}
    assert {"pytorch_fp16"} < {who for _, who in steps["decode_step"]}


def test_the_command_prints_one_line_and_exits_2(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(with_mistake("experiments.attention.contenders", ["flash"])))
    command = [sys.executable, "-m", "harness", "plan", str(path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.count("\n") == 1
    assert ended.stderr.startswith(f"voltabench: {path}: experiments.attention.contenders: ")
