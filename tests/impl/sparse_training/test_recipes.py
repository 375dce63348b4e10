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


def test_a_cut_file_of_generated_samples_is_made_anew(tmp_path):
    first = load("pathfinder", None, tmp_path, (6, 2, 4))
    (kept,) = tmp_path.iterdir()
    whole = kept.read_bytes()
    for cut in (b"", whole[:500], b"junk"):
        kept.write_bytes(cut)
        again = load("pathfinder", None, tmp_path, (6, 2, 4))
        assert np.array_equal(first.train.tokens, again.train.tokens)
        assert kept.read_bytes() == whole


@pytest.mark.parametrize("task", ["modules", "digits", "module_pairs"])
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


def listops_folder(folder, **splits):
    for name in ("train", "val", "test"):
        lines = "".join(f"[MIN 9 {value} ]\t{value}\n" for value in splits[name])
        (folder / f"basic_{name}.tsv").write_text(f"Source\tTarget\n{lines}")


def test_a_users_splits_are_there_and_differ(tmp_path):
    """T15: a dev set that is the test set, or none, says so before anything is trained; samples that two have in common
    are counted."""
    listops_folder(tmp_path, train=[1, 2, 3], val=[4, 1], test=[5, 2, 4])
    said = load("listops", tmp_path, tmp_path).describe(10)
    assert {name: split["shared"] for name, split in said.items()} == {"train": 0, "dev": 1, "test": 2}
    assert {name: split["samples"] for name, split in said.items()} == {"train": 3, "dev": 2, "test": 3}
    listops_folder(tmp_path, train=[1, 2, 3], val=[4, 5], test=[4, 5])
    with pytest.raises(ValueError, match=f"{tmp_path}: the dev and test splits are the same samples"):
        load("listops", tmp_path, tmp_path)
    for missing, name in (("train", "train"), ("val", "dev"), ("test", "test")):
        listops_folder(tmp_path, **{"train": [1, 2], "val": [4], "test": [5], missing: []})
        with pytest.raises(ValueError, match=f"{tmp_path}: the {name} split has no sample"):
            load("listops", tmp_path, tmp_path)


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
