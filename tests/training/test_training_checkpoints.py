"""Training that is killed and started again ends with the same bits."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_sets import mlp, waves
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lingp.likelihoods import Gaussian
from lingp.priors import Layerwise
from lingp.training import (
    Augmented,
    Blocks,
    CheckpointError,
    EvidenceTrainer,
    InputLearner,
    InputScale,
    TrainingPlan,
    train_with_evidence,
)


class Killed(BaseException):
    pass


class KillingAdam(torch.optim.Adam):
    """Adam, until a step in which the process ends."""

    kill_at = -1
    taken = 0

    def step(self, closure):
        found = super().step(closure)
        KillingAdam.taken += 1
        if KillingAdam.taken == KillingAdam.kill_at:
            self.end()
        return found

    @staticmethod
    def end():
        raise Killed


def killing(at, end=None):
    KillingAdam.taken, KillingAdam.kill_at = 0, at
    if end is not None:
        KillingAdam.end = staticmethod(end)
    return lambda parameters: KillingAdam(parameters)


def network():
    return nn.Sequential(
        mlp(1, 6, dtype=torch.float32), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.2), mlp(6, 1)
    ).float()


def data(kind):
    X, Y = waves(26, dtype=torch.float32)
    if kind == "arrays":
        return X, Y, {"batch_size": 9}
    if kind == "own generator":
        generator = torch.Generator().manual_seed(3)
        return DataLoader(TensorDataset(X, Y), 9, shuffle=True, generator=generator), None, {}
    return DataLoader(TensorDataset(X, Y), 9, shuffle=True), None, {}


def train(kind, path, optimizer):
    X, y, batches = data(kind)
    plan = TrainingPlan(
        steps=20,
        every=6,
        checkpoint_every=4,
        optimizer=optimizer,
        learning_rate=(1e-2, 1e-4),
        select="evidence",
    )
    return train_with_evidence(
        network(),
        X,
        y,
        prior=Layerwise(1.0),
        plan=plan,
        checkpoint=path,
        progress=False,
        **batches,
    )


def bits(found):
    modules = (found.net, found.prior, found.likelihood)
    tensors = [t for m in modules for t in m.state_dict().values()]
    history = [(s.step, s.evidence, s.loss, s.effective_parameters) for s in found.history]
    return [t.tolist() for t in tensors], history, found.step


@pytest.mark.parametrize("kind", ["arrays", "loader", "own generator"])
def test_started_again_after_any_step(kind, tmp_path):
    whole = bits(train(kind, tmp_path / "whole.pt", killing(-1)))
    generator = torch.Generator().manual_seed(len(kind))
    for at in torch.randint(1, 21, (2,), generator=generator).tolist():
        path = tmp_path / f"{at}.pt"
        torch.manual_seed(at)
        with pytest.raises(Killed):
            train(kind, path, killing(at))
        assert path.exists() == (at > 4)
        torch.manual_seed(at + 1)
        assert bits(train(kind, path, killing(-1))) == whole
    # and once more, when there is nothing left to do
    assert bits(train(kind, path, killing(-1))) == whole


SCRIPT = """
import os, signal, sys
sys.path[:0] = [{tests!r}, {root!r}]
import torch
torch.manual_seed(1)
from test_training_checkpoints import killing, train
train("arrays", {path!r}, killing(15, end=lambda: os.kill(os.getpid(), signal.SIGKILL)))
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs signals of POSIX")
def test_a_process_that_is_killed(tmp_path):
    here = Path(__file__).resolve()
    path = str(tmp_path / "training.pt")
    script = SCRIPT.format(tests=str(here.parent), root=str(here.parents[2]), path=path)
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    done = subprocess.run([sys.executable, "-c", script], check=False, env=environment)
    assert done.returncode == -signal.SIGKILL
    state = torch.load(path, weights_only=True)
    assert state["state"]["steps_taken"] == 12
    again = bits(train("arrays", path, killing(-1)))
    assert again == bits(train("arrays", tmp_path / "whole.pt", killing(-1)))


def test_a_write_that_is_cut_short_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "training.pt"
    X, Y = waves(10)
    trainer = EvidenceTrainer(mlp(1, 2, 1), X, Y, plan=TrainingPlan(4, updates=1))
    trainer.step()
    trainer.save(path)
    before = path.read_bytes()
    trainer.step()

    def half(value, file):
        file.write(b"half")
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", half)
        with pytest.raises(Killed):
            trainer.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_scheduler_and_momentum_go_on(tmp_path):
    X, Y = waves(20)

    def make():
        return EvidenceTrainer(
            mlp(1, 3, 1),
            X,
            Y,
            plan=TrainingPlan(
                12,
                every=5,
                learning_rate=lambda o: torch.optim.lr_scheduler.StepLR(o, 3, 0.5),
                optimizer=lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
            ),
        )

    whole, first, second = make(), make(), make()
    for _ in range(7):
        first.step()
    first.save(tmp_path / "a.pt")
    second.load(tmp_path / "a.pt")
    for trainer in (whole, second):
        while not trainer.finished:
            trainer.step()
    assert bits(whole.result()) == bits(second.result())
    assert whole.history[-1].learning_rate == pytest.approx(0.05 * 0.5**3)  # of the last step


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"net": mlp(1, 4, 1)}, "network"),
        ({"X": waves(20, seed=1)[0]}, "data"),
        ({"likelihood": Gaussian(0.5)}, "likelihood"),
        ({"prior": 2.0}, "prior"),
        ({"prior": Layerwise(1.0)}, "prior"),
        ({"plan": TrainingPlan(9, updates=2)}, "plan"),
        ({"plan": TrainingPlan(8, updates=2, optimizer=torch.optim.AdamW)}, "optimizer"),
        ({"plan": TrainingPlan(8, updates=2, batch_size=5)}, "plan"),
        ({"mean": "refit"}, "mean"),
        ({"parameters": "last_layer"}, "parameters"),
    ],
)
def test_another_training_is_refused(change, what, tmp_path):
    X, Y = waves(20)
    options = {"net": mlp(1, 3, 1), "X": X, "y": Y, "plan": TrainingPlan(8, updates=2)}
    path = tmp_path / "a.pt"
    EvidenceTrainer(**options).save(path)
    same = EvidenceTrainer(**{**options, "net": mlp(1, 3, 1, seed=1)})  # starts don't matter
    same.load(path)
    with pytest.raises(CheckpointError, match=f"its {what} is .*resume=False"):
        EvidenceTrainer(**{**options, **change}).load(path)


def test_what_is_no_checkpoint_is_refused(tmp_path):
    X, Y = waves(10)
    trainer = EvidenceTrainer(mlp(1, 2, 1), X, Y, plan=TrainingPlan(2, updates=1))
    (tmp_path / "a.pt").write_bytes(b"something else")
    with pytest.raises(CheckpointError, match="can't be read"):
        trainer.load(tmp_path / "a.pt")
    torch.save({"weights": torch.ones(2)}, tmp_path / "b.pt")
    with pytest.raises(CheckpointError, match="isn't a checkpoint"):
        trainer.load(tmp_path / "b.pt")


def test_resume_false_starts_anew(tmp_path):
    X, Y = waves(10)
    options = {"steps": 4, "updates": 1, "checkpoint": tmp_path / "a.pt", "progress": False}
    train_with_evidence(mlp(1, 2, 1), X, Y, **options)
    net = mlp(1, 2, 1, seed=5)
    anew = train_with_evidence(net, X, Y, resume=False, **options)
    plain = train_with_evidence(net, X, Y, steps=4, updates=1, progress=False)
    torch.testing.assert_close(anew.net[0].weight, plain.net[0].weight, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["inputs", "blocks"])
def test_what_moves_besides_the_weights_goes_on(kind, tmp_path):
    X, Y = waves(24)

    def end(optimizer, path):
        own = {"input_learner": InputLearner(every=3, block_size=8)}
        if kind == "blocks":
            own = {"inference": Blocks(8, num_blocks=2)}
        found = train_with_evidence(
            Augmented(mlp(1, 4, 1), InputScale(1)).double(),
            X,
            Y,
            parameters="net.*",
            plan=TrainingPlan(steps=12, every=5, optimizer=optimizer, checkpoint_every=4),
            checkpoint=path,
            progress=False,
            **own,
        )
        steps = own["input_learner"].history if kind == "inputs" else []
        return bits(found), [(s.evidence, s.values) for s in steps]

    whole = end(killing(-1), tmp_path / "whole.pt")
    with pytest.raises(Killed):
        end(killing(11), tmp_path / "a.pt")
    assert end(killing(-1), tmp_path / "a.pt") == whole
    if kind == "inputs":
        assert len(whole[1]) == 4
