"""Loss curves: what is trained on, what is kept, and what a failure leaves."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import yaml

from harness.collect import schema
from harness.config import TrainingCurves, parse_config
from harness.curves import batches, corpus, train_curves
from harness.errors import ConfigError
from harness.records import CurvePoint

CURVES = {
    "model": "tiny_decoder", "batch": 2, "seqlen": 16, "steps": 30, "seeds": [3, 8], "learning_rate": 3e-3,
    "baseline": "unfused_fp16", "contenders": ["unfused_fp16", "sdpa_flash", "sdpa_cudnn"],
}  # fmt: skip
PANEL = {"name": "p", "title": "P", "each": {"m": 8, "k": 8, "n": 1, "sparsity": 0.5}}
RUN = {
    "run": "tiny",
    "device": "cpu",
    "experiments": {
        "e": {"op": "spmm", "question": "?", "baseline": "cublas", "contenders": ["cublas"], "panels": [PANEL]}
    },
}


def settings(**changes):
    return TrainingCurves(**CURVES | changes)


def test_the_text_is_the_standard_library():
    text = corpus()
    assert len(text) > 2**20
    assert b"class ABCMeta" in text.tobytes()
    assert text.min() > 0


def test_batches_are_stretches_of_the_text_and_follow_from_the_seed():
    text = np.arange(1, 200, dtype=np.uint8)
    drawn = batches(settings(), 3, text)
    assert drawn.shape == (30, 2, 17)
    assert (np.diff(drawn.astype(int), axis=-1) == 1).all()
    assert (drawn == batches(settings(), 3, text)).all()
    assert not (drawn == batches(settings(), 8, text)).all()


def test_curves_are_trained_once_and_anew_when_the_code_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({**RUN, "training_curves": CURVES}))
    train_curves("c.yaml")
    table = tmp_path / "results/tiny/curves.parquet"
    curves = pd.read_parquet(table)
    assert list(curves.columns) == list(CurvePoint.model_fields)
    assert pd.io.parquet.read_parquet(table, dtype_backend="pyarrow").dtypes["step"] == "int64[pyarrow]"
    assert schema(CurvePoint).names == list(curves.columns)

    losses = curves[curves["status"] == "ok"].pivot(index="step", columns=["contender", "seed"], values="loss")
    assert losses.shape == (30, 4)
    assert (losses.iloc[-5:].mean() < losses.iloc[:2].mean() - 0.5).all()
    apart = (losses["unfused_fp16"] - losses["sdpa_flash"]).abs().max().max()
    assert 0 < apart < 0.05, "the same weights and text, another attention"
    assert (losses["unfused_fp16", 3] - losses["unfused_fp16", 8]).abs().max() > 0.05, "another seed"

    lost = curves[curves["contender"] == "sdpa_cudnn"]
    assert lost["loss"].isna().all()
    assert lost["status"].to_list() == ["unavailable"] * 2
    assert lost["reason"].str.contains("NVIDIA GPUs only").all()

    kept, stale = (tmp_path / f"results/tiny/curves/unfused_fp16.seed{seed}.json" for seed in (3, 8))
    old = json.loads(stale.read_text())
    stale.write_text(json.dumps({**old, "code_hash": "of other code", "losses": [1.0]}))
    before = kept.stat().st_mtime_ns
    train_curves("c.yaml")
    assert kept.stat().st_mtime_ns == before
    assert len(json.loads(stale.read_text())["losses"]) == 30
    pd.testing.assert_frame_equal(pd.read_parquet(table), curves, rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "tiny_encoder"}, "training_curves.model: unknown decoder 'tiny_encoder'; known: gpt2"),
        ({"baseline": "sdpa_math"}, "training_curves.baseline: unknown contender of it 'sdpa_math'"),
        ({"contenders": ["unfused_fp16", "cublas"]}, "training_curves.contenders: unknown contender for training_step"),
        ({"seeds": [1, 1]}, r"training_curves.seeds: \[1, 1\] has one twice"),
        ({"seeds": [0, -1]}, r"training_curves.seeds\[1\]: Input should be greater than or equal to 0"),
        ({"steps": 5}, "training_curves.steps: Input should be greater than or equal to 20"),
    ],
)
def test_bad_settings_are_refused_before_anything_runs(changes, message):
    with pytest.raises(ConfigError, match=message):
        parse_config({**RUN, "training_curves": CURVES | changes}, "my.yaml")


def test_a_config_without_trainings_says_so(tmp_path):
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(RUN))
    with pytest.raises(ConfigError, match=r"c\.yaml: training_curves: missing"):
        train_curves(tmp_path / "c.yaml")
