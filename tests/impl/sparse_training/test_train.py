"""Training runs of a tiny model: a resumed run is the same run at any point; phases, optimizer and data are as said."""

from __future__ import annotations

import dataclasses
import errno
import gc
import json
import multiprocessing
import re
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import distributed

from harness import training
from impl.sparse_training.labels import LABELS
from impl.sparse_training.methods import METHODS
from impl.sparse_training.recipes import MODULES, Data
from impl.sparse_training.tasks.dataset import Split
from impl.sparse_training.train import Trainer, deterministic, leave_processes

TINY = dataclasses.replace(
    MODULES, seqlen=70, vocabulary=16, classes=3, layers=2, block=32, density=0.5, batch=8, steps=40, warmup_steps=4
)

LOGS = ("steps", "evaluations")


@pytest.fixture(scope="module")
def data():
    random = np.random.default_rng(0)

    def split(count):
        labels = random.integers(0, 3, count)
        of_label = random.random((count, TINY.seqlen)) < 0.5  # the label shows in half of the tokens
        tokens = random.integers(1, 16, (count, TINY.seqlen))
        tokens = np.where(of_label, 1 + 5 * labels[:, None] + tokens % 5, tokens).astype(np.uint8)
        lengths = random.integers(20, TINY.seqlen + 1, count).astype(np.int32)
        tokens[np.arange(TINY.seqlen) >= lengths[:, None]] = 0
        return Split(tokens, lengths, labels)

    return Data(split(64), split(16), split(16), "random")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Work this small takes longer by several, many times so where cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    with deterministic(torch.device(request.param)):
        yield request.param


def trainer(data, name, seed=0, device="cpu", monitor_every=1, **changes):
    made = Trainer(dataclasses.replace(TINY, **changes), name, data, torch.device(device), seed, monitor_every)
    if METHODS[name].transition == "sat":  # settles within some steps at this size
        made.monitor.min_skewness, made.monitor.max_change = -10.0, 0.3
    if name == "spion":
        made.monitor.max_change = 10.0
    return made


def losses(made, steps):
    values = []
    for _ in range(steps):
        values.append(made.step().loss.item())
        if made.step_number % 2 == 0:
            made.evaluate(made.data.dev)
    return values


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.transition])
def test_a_resumed_run_is_the_same_run(data, tmp_path, name, device):
    """T10, at steps before, at and after the transition."""
    whole, steps = trainer(data, name, device=device), 9
    expected, phases, kept = [], [], []
    for step in range(steps):
        whole.save(tmp_path / f"{step}.pt")
        phases.append(whole.phase)
        expected += losses(whole, 1)
    moved = phases.index("sparse")
    assert 1 < moved < steps - 2
    for step in (1, moved - 1, moved, moved + 1):
        resumed = trainer(data, name, device=device)
        resumed.load(tmp_path / f"{step}.pt")
        assert resumed.phase == phases[step]
        kept.append(losses(resumed, steps - step) == expected[step:])
    assert all(kept)


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not method.transition])
def test_a_resumed_run_without_a_transition(data, tmp_path, name, device):
    """T10."""
    whole = trainer(data, name, device=device)
    losses(whole, 2)
    whole.save(tmp_path / "2.pt", anything=[1.5])
    expected = losses(whole, 3)
    resumed = trainer(data, name, device=device)
    assert resumed.load(tmp_path / "2.pt") == {"anything": [1.5]}
    assert losses(resumed, 3) == expected
    assert len(set(expected)) == 3


def test_a_sparse_checkpoint_is_evaluated_sparse_and_a_dense_one_dense(data, tmp_path):
    """T9."""
    made = trainer(data, "sat")
    made.save(tmp_path / "dense.pt")
    losses(made, 8)
    assert made.phase == "sparse"
    made.save(tmp_path / "sparse.pt")
    again = trainer(data, "sat")
    again.load(tmp_path / "sparse.pt")
    assert [a.pattern.sum().item() for a in again.attentions] == [int(3 * 3 * 0.5)] * 2
    assert again.evaluate(data.test) == made.evaluate(data.test)
    again = trainer(data, "sat")
    again.load(tmp_path / "dense.pt")
    assert again.phase == "dense"


@pytest.mark.parametrize("name", ["sat", "sat_csr"])
def test_the_diagonal_is_kept_where_it_is_asked_for(data, name):
    """Three blocks of nine fit at this density: all of them are the diagonal's, and none is on it by chance alone."""
    made = trainer(data, name, density=0.34, keep_diagonal=True)
    losses(made, 12)
    assert made.phase == "sparse"
    for attention in made.attentions:
        assert torch.equal(attention.pattern.cpu(), torch.eye(3, dtype=torch.bool))


def test_the_transition_takes_a_new_optimizer_at_half_the_rate(data):
    made = trainer(data, "sat")
    before = made.optimizer
    losses(made, 8)
    assert made.optimizer is not before
    assert made.optimizer.param_groups[0]["lr"] == TINY.learning_rate / 2


def test_two_trainers_are_equal_and_another_seed_is_not(data):
    """T17: on a GPU in deterministic mode, which the resumed runs are in."""
    first, second, other = (losses(trainer(data, "dense", seed), 4) for seed in (3, 3, 4))
    assert first == second
    assert first != other


def test_an_epoch_has_every_sample_once(data):
    made = trainer(data, "dense")
    places = []
    for step in range(8):
        made.step_number = step
        places.append(made._places())
    assert sorted(torch.cat(places).tolist()) == list(range(64))
    made.step_number = 8
    assert not torch.equal(made._places(), places[0])


@pytest.mark.parametrize("name", ["dense_flash", "window"])
def test_it_learns(data, name, device):
    made = trainer(data, name, device=device)
    values = losses(made, 40)
    assert np.mean(values[-5:]) < np.mean(values[:5]) - 0.1


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "monitor_every"), [*((name, 1) for name in METHODS), ("sat", 2)])
def test_a_replayed_step_is_the_eager_one(data, name, monitor_every):
    """Bit for bit, dropout too, across the transition; whichever steps are watched."""
    found = []
    with deterministic(torch.device("cuda")):
        for replays in (True, False):
            made = trainer(data, name, device="cuda", monitor_every=monitor_every)
            made.monitor.max_change = 10.0  # settles at the third look
            assert (made.graphs is None) == (name == "sat_csr")
            if not replays:
                made.graphs = None
            values, phases = [], []
            for _ in range(8):
                phases.append(made.phase)
                values += losses(made, 1)
            weights = [parameter.detach().clone() for parameter in made.parameters]
            found.append((values, phases, weights, torch.cuda.get_rng_state()))
    (values, phases, weights, generator), (eager_values, eager_phases, eager_weights, eager_generator) = found
    assert values == eager_values
    assert len(set(values)) == 8
    assert phases == eager_phases
    assert (len(set(phases)) == 2) == bool(METHODS[name].transition)
    assert all(map(torch.equal, weights, eager_weights))
    assert torch.equal(generator, eager_generator)


@pytest.mark.gpu
def test_the_dense_phase_leaves_no_memory_behind(data):
    """Of graphs, maps and gradients."""
    made = trainer(data, "sat", device="cuda")
    while made.phase == "dense":
        made.step()
    gc.collect()  # what earlier tests left
    allocated = torch.cuda.memory_allocated()
    made.graphs.clear()
    assert torch.cuda.memory_allocated() == allocated
    assert all(attention.map is None and attention.dense.map is None for attention in made.attentions)


@pytest.mark.gpu
def test_a_step_waits_for_nothing(data):
    """But for the monitor's verdict: an overflow, the schedule and the data are the device's affair."""
    for name in ("dense_flash", "window"):
        made = trainer(data, name, device="cuda")
        made.step()
        torch.cuda.set_sync_debug_mode("error")
        try:
            made.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_the_learned_pattern_reaches_the_attention_by_no_gradient(data):
    ends = []
    for name in ("sat", "dense_flash"):
        made = trainer(data, name)
        made.step()
        ends.append([parameter.detach().clone() for parameter in made.model.parameters()])
    assert all(map(torch.equal, *ends))


@pytest.mark.parametrize(
    ("change", "message"),
    [({"batch": 65}, r"a batch of 65 is more than the 64 training samples")],
)
def test_sizes_that_cannot_be(data, change, message):
    with pytest.raises(ValueError, match=message):
        Trainer(dataclasses.replace(TINY, **change), "dense", data, torch.device("cpu"), 0)


def test_another_runs_checkpoint_is_refused(data, tmp_path):
    """By what it differs in, and nothing else."""
    path = tmp_path / "dense.pt"
    trainer(data, "dense").save(path)
    fewer = dataclasses.replace(data, train=data.train.take(np.arange(32)))
    shorter = Trainer(dataclasses.replace(TINY, steps=30, batch=4), "dense", data, torch.device("cpu"), 0)
    changed = trainer(data, "dense")
    changed.monitor.max_change = 0.5
    for made, said in [
        (trainer(data, "linformer"), "method dense, not method linformer"),
        (shorter, "batch 8, not batch 4; steps 40, not steps 30"),
        (trainer(fewer, "dense", seed=2), "64 samples (random), not 32 samples (random); seed 0, not seed 2"),
        (changed, "change 0.013, not change 0.5"),
        (trainer(data, "dense", monitor_every=2), "monitored every 1 steps, not monitored every 2 steps"),
    ]:
        with pytest.raises(ValueError, match=re.escape(f"{path} is a checkpoint of another run: {said}") + "$"):
            made.load(path)


@pytest.mark.parametrize("before", [b"", b"junk\n"])
@pytest.mark.parametrize("length", [0, 7, 1000])
def test_what_is_no_checkpoint_is_refused(data, tmp_path, length, before):
    path = tmp_path / "checkpoint.pt"
    trainer(data, "dense").save(path)
    path.write_bytes(before + path.read_bytes()[:length])
    with pytest.raises(ValueError, match=r"checkpoint\.pt is no checkpoint: ") as caught:
        trainer(data, "dense").load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [{"model": {}}, [1, 2]])
def test_another_file_of_torch_is_no_checkpoint(data, tmp_path, content):
    torch.save(content, tmp_path / "checkpoint.pt")
    with pytest.raises(ValueError, match=r"checkpoint\.pt is no checkpoint: ") as caught:
        trainer(data, "dense").load(tmp_path / "checkpoint.pt")
    assert "\n" not in str(caught.value)


def test_a_full_disk_leaves_the_last_checkpoint_whole(data, tmp_path):
    made, path = trainer(data, "dense"), tmp_path / "checkpoint.pt"
    made.save(path, step=0)
    made.step()
    path.with_suffix(".partial").symlink_to("/dev/full")
    with pytest.raises(OSError, match=re.escape(str(path))) as caught:
        made.save(path, step=1)
    assert caught.value.errno == errno.ENOSPC
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint.pt"]
    assert trainer(data, "dense").load(path) == {"step": 0}


def test_an_evaluation_is_of_the_whole_split(data):
    """T15: the last batch too, which is not full."""
    dev, made = data.dev.take(np.arange(15)), trainer(data, "dense")
    made.model.eval()
    logits = made.model(torch.from_numpy(dev.tokens).long(), torch.from_numpy(dev.lengths))
    expected = (logits.argmax(-1).numpy() == dev.labels).mean()
    assert 0 < expected < 1
    assert made.evaluate(dev) == pytest.approx(expected, abs=1e-12)


def test_an_evaluation_changes_no_step(data):
    """Reformer draws hashes in both: a training does not depend on how often it is looked at."""
    found = []
    for evaluations in (0, 2):
        made, values = trainer(data, "reformer"), []
        for _ in range(3):
            values.append(made.step().loss.item())
            accuracies = {made.evaluate(data.train) for _ in range(evaluations)}
            assert len(accuracies) <= 1
        found.append(values)
    assert found[0] == found[1]


@pytest.mark.parametrize("phase", ["dense", "sparse"])
def test_the_best_of_a_phase_is_kept_as_it_was(data, tmp_path, phase):
    """T9: by the accuracy on the dev split, in its own file, with its own phase; the other phase's is left alone."""
    made = trainer(data, "sat")
    loop = training._Loop(training.TrainingRun("random", "sat", evaluate_every=2), made, tmp_path)
    accuracies = {}
    evaluate = made.evaluate

    def noted(split):
        accuracy = evaluate(split)
        if split is data.dev:
            accuracies.setdefault(made.phase, {})[made.step_number] = accuracy
        return accuracy

    made.evaluate = noted
    loop.go()
    assert accuracies.keys() == {"dense", "sparse"}
    of_phase = accuracies[phase]
    best = max(of_phase, key=of_phase.get)  # of equal ones the first
    again = trainer(data, "sat")
    training._Loop(loop.run, again, tmp_path, **again.load(tmp_path / "checkpoint.pt"))  # which drops no best
    again = trainer(data, "sat")
    assert again.load(tmp_path / f"best_{phase}.pt")["best"][phase] == of_phase[best]
    assert (again.phase, again.step_number) == (phase, best)
    assert again.evaluate(data.dev) == of_phase[best]


def test_the_map_alone_is_not_monitored(data):
    readings = {name: trainer(data, name).step().reading for name in ("dense", "dense_map", "dense_monitor", "sat")}
    assert [name for name, reading in readings.items() if reading is not None] == ["dense_monitor", "sat"]


@pytest.mark.parametrize("method", ["sat", "spion"])
def test_peaks_are_counted_to_the_phase_they_were_in(data, tmp_path, monkeypatch, method):
    """T18: what was allocated until the transition is no memory of the sparse phase."""
    made, noted = trainer(data, method), []
    monkeypatch.setattr(training._Loop, "_note_peak", lambda loop, phase: noted.append((phase, made.phase)))
    training._Loop(training.TrainingRun("random", method, evaluate_every=4), made, tmp_path).go()
    moved = noted.index(("dense", "sparse"))
    assert set(noted[:moved]) <= {("dense", "dense")}
    assert set(noted[moved + 1 :]) == {("sparse", "sparse")}


def test_logs_without_a_checkpoint_are_of_no_run(data, tmp_path):
    """A folder of results alone, as they are published, and a fresh one: the same run."""
    logs = []
    for old in (False, True):
        folder = tmp_path / str(old)
        if old:
            folder.mkdir()
            lines = "".join(json.dumps({"step": step, "phase": "sparse", "loss": 9.0}) + "\n" for step in range(1, 12))
            for name in ("steps.jsonl", "evaluations.jsonl", "run.json", "best_dense.pt", "best_sparse.pt"):
                (folder / name).write_text(lines)
        made = trainer(data, "sat")
        loop = training._Loop(training.TrainingRun("random", "sat", evaluate_every=20), made, folder)
        assert not [*folder.glob("run.json"), *folder.glob("best_*.pt")]
        loop.go()
        logs.append([re.sub(r'"seconds": [^,}]*', "", (folder / f"{name}.jsonl").read_text()) for name in LOGS])
        assert json.loads((folder / "run.json").read_text())["method"] == "sat"
    assert logs[0] == logs[1]
    assert [len(log.splitlines()) for log in logs[1]] == [TINY.steps, 2]


def test_every_method_has_a_label():
    assert METHODS.keys() == LABELS.keys()


def of_process(rank, processes, store, data):
    """What `of_trainers` gives for one of the processes."""
    torch.set_num_threads(1)
    if processes > 1:
        options = {"rank": rank, "world_size": processes, "timeout": timedelta(seconds=60)}
        distributed.init_process_group("gloo", init_method=f"file://{store}", **options)
    found = of_trainers(rank, processes, store, data)
    leave_processes()
    return found


def of_trainers(rank, processes, store, data):
    """Losses, accuracies and last maps of a run through the transition, without dropout, which differs by process."""
    made = trainer(data, "sat")
    for module in made.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    logs = [made.step() for _ in range(8)]
    logged = torch.tensor([[log.loss.item(), log.accuracy.item()] for log in logs])
    assert not made.anywhere(False)
    assert made.anywhere(rank == processes - 1)
    assert_resumes(made, trainer(data, "sat"), Path(f"{store}-checkpoint.pt"))
    accuracies = accuracies_of_hashing(data) if processes > 1 else None
    return logged, [log.phase for log in logs], made.monitor.maps, accuracies


def accuracies_of_hashing(data):
    made = trainer(data, "reformer")  # whose steps draw other hashes in each process
    losses(made, 10)
    return [made.evaluate(data.train) for _ in range(6)]


def assert_resumes(made, resumed, path):
    """T10 of several processes: each goes on with its own dropout."""
    for module in made.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.1
    made.save(path)
    expected = [made.step().loss.item() for _ in range(2)]
    resumed.load(path)
    assert [resumed.step().loss.item() for _ in range(2)] == expected


def test_two_processes_train_as_one(data, tmp_path):
    """T11: the same global batch, so the same losses, maps and transition, but for the order of sums in float32."""
    alone, phases, maps, _ = of_process(0, 1, tmp_path / "alone", data)
    assert {"dense", "sparse"} == set(phases)
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        found = pool.map(of_process, (0, 1), (2, 2), [tmp_path / "store"] * 2, [data] * 2, timeout=120)
        (together, phases_together, maps_together, accuracies), (*_, of_the_other) = found
    assert accuracies == of_the_other, "what is saved as the best must be so in all"
    assert phases_together == phases
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(maps_together, maps, rtol=1e-4, atol=1e-6)
