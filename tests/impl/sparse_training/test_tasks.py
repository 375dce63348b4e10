"""Tasks: labels recomputed by other means, the same bytes for a seed, and a user's files read or refused."""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

from impl.sparse_training.recipes import load
from impl.sparse_training.tasks import images, listops, pathfinder, texts
from impl.sparse_training.tasks.dataset import Split


@pytest.fixture(scope="module")
def expressions():
    return listops.generate(60, seed=3)


def test_listops_values_are_those_of_the_tokens(expressions):
    """T13."""
    for row, length, label in zip(expressions.tokens, expressions.lengths, expressions.labels, strict=True):
        assert listops.evaluate(row[:length]) == label
        assert not row[length:].any()


def test_listops_lengths_depths_and_arguments(expressions):
    """T13."""
    assert expressions.lengths.min() > 500
    assert expressions.lengths.max() < 2000
    for row, length in zip(expressions.tokens, expressions.lengths, strict=True):
        arguments, deepest = _shape([listops.WORDS[token] for token in row[:length]])
        assert min(arguments) >= 2
        assert max(arguments) <= 10
        assert deepest <= 10


def _shape(words):
    """Arguments of each operator, and the depth of the deepest node, the root being at 1."""
    open_, counts, deepest = [], [], 1
    for word in words:
        if word == "]":
            counts.append(open_.pop())
            continue
        if open_:
            open_[-1] += 1
        deepest = max(deepest, len(open_) + 1)
        if word.startswith("["):
            open_.append(0)
    return counts, deepest


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[MAX 4 3 [MIN 2 3 ] 1 0 ]", 4),
        ("[MED 1 2 ]", 1),
        ("[MED 9 1 4 ]", 4),
        ("[SM 7 8 9 ]", 4),
        ("[MIN [SM 9 9 ] [MED 3 8 ] ]", 5),
    ],
)
def test_listops_rules(text, value):
    tokens = np.array([listops.WORDS.index(word) for word in text.split()], np.uint8)
    assert listops.evaluate(tokens) == value


def test_listops_has_fifteen_words():
    """T13: the closing bracket is one, parentheses are none."""
    assert len(listops.WORDS) == 1 + 15


@pytest.mark.parametrize("text", ["[MAX 1 2", "1 2", "]", "[MAX ]", ""])
def test_listops_refuses_what_is_no_expression(text):
    with pytest.raises(ValueError, match=r"out of place|not one expression"):
        listops.evaluate(np.array([listops.WORDS.index(word) for word in text.split()], np.uint8))


def test_listops_reads_the_published_layout(tmp_path):
    path = tmp_path / "basic_train.tsv"
    path.write_text("Source\tTarget\n( ( ( [MAX 4 ) 3 ) ] )\t4\n[MIN 2 3 ]\t2\n")
    split = listops.load(path)
    assert split.labels.tolist() == [4, 2]
    assert split.lengths.tolist() == [4, 4]
    path.write_text("Source\tTarget\n[MIN 2 3 ]\t3\n")
    with pytest.raises(ValueError, match=r"basic_train.tsv, line 2: the value is 2, the label 3"):
        listops.load(path)
    for line in ("", "[MIN 2 3 ]", "[MIN 2 3 ]\t2\t2", "[MIN 2 3 ]\ttwo"):
        path.write_text(f"Source\tTarget\n[MIN 2 3 ]\t2\n{line}\n")
        with pytest.raises(ValueError, match=r"basic_train.tsv, line 3: expected an expression, a tab and its value"):
            listops.load(path)


@pytest.mark.parametrize("module", ["listops", "pathfinder"])
def test_the_same_bytes_in_another_process(module):
    """T14: also with another hash seed."""
    program = (
        f"import hashlib; from impl.sparse_training.tasks.{module} import generate; s = generate(6, seed=11);"
        "print(hashlib.sha256(s.tokens.tobytes() + s.labels.tobytes()).hexdigest())"
    )
    seeds = ["0", "1"]
    digests = {
        subprocess.check_output([sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed}, text=True)
        for seed in seeds
    }
    assert len(digests) == 1


def test_generators_keep_their_bytes():
    """A change here makes every published accuracy incomparable with the earlier ones."""
    digest = [
        hashlib.sha256(task.generate(4, seed=0).tokens.tobytes()).hexdigest()[:16] for task in (listops, pathfinder)
    ]
    assert digest == ["10afaf740bc5d7bd", "42e7a8a77bc7d88b"]


def test_pathfinder_images():
    split = pathfinder.generate(8, seed=1)
    assert split.labels.tolist() == [1, 0] * 4
    bright = (split.tokens > 250).sum(1)
    assert (bright > 4).all()  # two markers, of 7 pixels each
    assert (split.tokens > 0).mean() < 0.5
    assert len({row.tobytes() for row in split.tokens}) == 8


@pytest.fixture
def pathfinder_folder(tmp_path):
    """Two images, of which one is an empty file; and the table of them."""
    from PIL import Image

    (tmp_path / "imgs/0").mkdir(parents=True)
    (tmp_path / "metadata").mkdir()
    Image.fromarray(PICTURE).save(tmp_path / "imgs/0/sample_0.png")
    (tmp_path / "imgs/0/sample_1.png").touch()
    table = [["imgs/0", f"sample_{i}.png", str(i), label, "1.8", "6"] for i, label in enumerate("10")]
    return tmp_path, table


PICTURE = np.arange(1024, dtype=np.uint8).reshape(32, 32)


@pytest.mark.parametrize("as_text", [True, False])
def test_pathfinder_reads_the_published_layout(pathfinder_folder, as_text):
    """Whose listings are text for all their suffix; arrays, as numpy would write them, are read too."""
    folder, table = pathfinder_folder
    listing = folder / "metadata/0.npy"
    if as_text:
        listing.write_text("".join(" ".join(row) + "\n" for row in table))
    else:
        np.save(listing, np.array(table))
    split = pathfinder.load(folder)
    assert split.skipped == 1
    assert split.labels.tolist() == [1]
    assert np.array_equal(split.tokens[0], PICTURE.reshape(-1))
    (folder / "metadata/notes.npy").touch()
    assert len(pathfinder.load(folder)) == 1
    with pytest.raises(ValueError, match=r"holds no <number>.npy"):
        pathfinder.load(folder / "imgs")


@pytest.mark.parametrize("line", ["imgs/0 sample_0.png 0", "imgs/0 sample_0.png 0 2 1.8", "\x80\x04K."])
def test_pathfinder_refuses_what_is_no_listing(pathfinder_folder, line):
    folder, table = pathfinder_folder
    (folder / "metadata/0.npy").write_text(" ".join(table[0]) + "\n" + line + "\n")
    with pytest.raises(ValueError, match=r"0\.npy, line 2: expected folder, file, number, label with label 0 or 1"):
        pathfinder.load(folder)


def _cifar_folder(folder):
    colours = np.random.default_rng(0).integers(0, 256, (6, 3072), dtype=np.uint8)
    for name in [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]:
        (folder / name).write_bytes(pickle.dumps({b"data": colours, b"labels": [0, 1, 2, 3, 4, 9]}))
    return colours


def test_cifar_is_read_in_grey(tmp_path):
    colours = _cifar_folder(tmp_path).astype(float)
    train, test = images.load_cifar10(tmp_path)
    assert len(train) == 30
    grey = colours[:, :1024] * 0.2989 + colours[:, 1024:2048] * 0.5870 + colours[:, 2048:] * 0.1140
    assert np.abs(test.tokens - grey).max() <= 0.5
    assert test.labels.tolist() == [0, 1, 2, 3, 4, 9]


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "made"),)

    _cifar_folder(tmp_path)
    (tmp_path / "data_batch_3").write_bytes(pickle.dumps({b"data": Evil(), b"labels": []}))
    with pytest.raises(ValueError, match=r"data_batch_3 is no CIFAR-10 batch: it asks for .*mkdir"):
        images.load_cifar10(tmp_path)
    assert not (tmp_path / "made").exists()


def test_imdb_and_aan(tmp_path):
    for name in ("pos", "neg"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0_1.txt").write_text(f"a {name} text")
    (tmp_path / "pos" / "1_1.txt").touch()
    split = texts.load_imdb(tmp_path)
    assert split.labels.tolist() == [0, 1]
    assert split.skipped == 1
    assert bytes(split.tokens[1, : split.lengths[1]]) == b"a pos text"

    path = tmp_path / "new_aan_pairs.train.tsv"
    path.write_text("1.0\ta\tb\tone\ttwo\n0.0\tc\td\tthree\tfour\n")
    pairs = texts.load_aan(path)
    assert pairs.tokens.shape == (2, 2, 4096)
    assert pairs.labels.tolist() == [1, 0]
    path.write_text("2\ta\tb\tone\ttwo\n")
    with pytest.raises(ValueError, match=r"line 1: expected label, id1, id2, text1, text2"):
        texts.load_aan(path)


@pytest.mark.parametrize("task", ["pathfinder", "modules"])
def test_splits_have_no_sample_in_common(tmp_path, task):
    """T15: dev is not test, and both have their size."""
    data = load(task, None, tmp_path, (40, 12, 10))
    parts = [data.train, data.dev, data.test]
    samples = [row.tobytes() for part in parts for row in part.tokens]
    assert len(set(samples)) == len(samples) == sum(map(len, parts))
    if task == "pathfinder":
        assert [len(part) for part in parts] == [40, 12, 10]
        again = load(task, None, tmp_path, (40, 12, 10)).dev  # from the cache
        assert np.array_equal(again.tokens, data.dev.tokens)


def test_stand_ins_of_text():
    split = texts.which_module()
    assert split.describe(texts.MODULES)["duplicates"] == 0
    assert split.tokens.min() > 0
    pairs = texts.same_module()
    assert pairs.labels.mean() == 0.5
    chunks = {row.tobytes(): label for row, label in zip(split.tokens, split.labels, strict=True)}
    modules = [[chunks[text.tobytes()] for text in pair] for pair in pairs.tokens]
    assert [int(first == second) for first, second in modules] == pairs.labels.tolist()
    assert len({text.tobytes() for text in pairs.tokens.reshape(-1, texts.CHUNK)}) == 2 * len(pairs), "each in one pair"
    assert len(pairs) > 400


def test_a_split_describes_itself():
    tokens = np.array([[1, 2, 0], [1, 2, 0], [3, 0, 0]], np.uint8)
    split = Split(tokens, np.array([2, 2, 1], np.int32), np.array([0, 0, 1]), skipped=4)
    assert split.describe(2) == {
        "samples": 3,
        "rarest_label": 1 / 3,
        "commonest_label": 2 / 3,
        "shortest": 1,
        "longest": 2,
        "duplicates": 1,
        "skipped": 4,
    }
