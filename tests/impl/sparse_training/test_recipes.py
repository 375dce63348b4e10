"""Where a task's samples come from: three splits without a sample in common, whatever the source."""

from __future__ import annotations

import numpy as np
import pytest

from impl.sparse_training import recipes
from impl.sparse_training.recipes import RECIPES, load


def samples(split):
    return {row.tobytes() for row in split.tokens}


def check(data, recipe):
    """T15."""
    parts = (data.train, data.dev, data.test)
    assert len(set().union(*map(samples, parts))) == sum(len(samples(part)) for part in parts)
    for part in parts:
        assert part.tokens.shape[-1] == part.tokens[0].shape[-1] <= recipe.seqlen
        assert part.tokens.max() < recipe.vocabulary
        assert set(part.labels) <= set(range(recipe.classes))


@pytest.mark.parametrize("task", ["listops", "pathfinder"])
def test_generated_samples_are_kept(tmp_path, monkeypatch, task):
    first = load(task, None, tmp_path, (6, 2, 4))
    assert [len(split) for split in (first.train, first.dev, first.test)] == [6, 2, 4]
    check(first, RECIPES[task])
    monkeypatch.setattr(recipes, "_GENERATED", {task: None})
    again = load(task, None, tmp_path, (6, 2, 4))
    assert np.array_equal(first.train.tokens, again.train.tokens)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("task", ["modules", "digits"])
def test_stand_ins(tmp_path, task):
    data = load(task, None, tmp_path)
    assert data.source == "stand-in"
    check(data, RECIPES[task])
    with pytest.raises(ValueError, match="is a stand-in for a download"):
        load(task, tmp_path, tmp_path)


def test_dev_is_a_tenth_of_the_users_training_samples(tmp_path):
    for split in ("train", "test"):
        for place, label in enumerate(("pos", "neg")):
            folder = tmp_path / split / label
            folder.mkdir(parents=True)
            for number in range(10):
                (folder / f"{number}.txt").write_text(f"{split} {number} {place}")
    data = load("text", tmp_path, tmp_path)
    assert [len(part) for part in (data.train, data.dev, data.test)] == [18, 2, 20]
    assert data.source == "user's files"
    check(data, RECIPES["text"])


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("image", r"needs its download \(--data FOLDER\); the stand-in without one is digits"),
        ("text", r"stand-in without one is modules"),
        ("retrieval", r"stand-in without one is module_pairs"),
    ],
)
def test_a_task_without_its_download_names_the_stand_in(tmp_path, task, message):
    with pytest.raises(ValueError, match=message):
        load(task, None, tmp_path)
