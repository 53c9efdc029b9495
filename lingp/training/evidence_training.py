"""Training of a network and its prior together, by the evidence."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from typing_extensions import Unpack

from lingp.invariance import InputLearner
from lingp.likelihoods import Likelihood
from lingp.linearization import ParameterSelection
from lingp.models.fitting import Missing
from lingp.priors import Prior
from lingp.training.model import ModelOptions
from lingp.training.outcome import EvidenceTraining
from lingp.training.plan import LearningRate, TrainingPlan
from lingp.training.trainer import EvidenceTrainer

__all__ = ["EvidenceTraining", "train_with_evidence"]


def train_with_evidence(
    net: nn.Module,
    X: Any,
    y: Any = None,
    *,
    plan: TrainingPlan | None = None,
    steps: int | None = None,
    updates: int | None = None,
    batch_size: int | None = None,
    learning_rate: LearningRate | None = None,
    sample_weight: Any = None,
    missing: Missing = "error",
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = True,
    generator: torch.Generator | None = None,
    input_learner: InputLearner | None = None,
    progress: bool = True,
    **options: Unpack[ModelOptions],
) -> EvidenceTraining:
    """Train a copy of the network by maximum a posteriori and its prior by the evidence.

    Nothing that is given is changed: network, likelihood and prior are copied, torch's global
    random numbers are not used.

    Parameters
    ----------
    net
        The network to start from.
    X, y, sample_weight, missing
        Training data, as `LinearizedGP.fit` takes them: arrays, a Dataset, a DataLoader or any
        iterable of batches. A loader is iterated anew every epoch.
    plan
        How long, when hyperparameters move, with which optimizer, which state is kept: see
        `TrainingPlan`.
    steps, updates, batch_size, learning_rate
        Short for options of the plan, which they replace.
    checkpoint
        A file that is written after each hyperparameter step, and when the plan says so. Training
        that was killed and is called again with the same arguments goes on from there, to the same
        bits. `torch.load(weights_only=True)` reads it.
    resume
        Whether a checkpoint that is there is gone on from; else it is overwritten.
    generator
        Draws the batches, and the seed of dropout; a fixed seed by default.
    input_learner
        Moves parameters of the inputs, of an `Augmented` network, while it is trained.
    progress
        Whether a progress bar is shown.
    **options
        Options of the model, in the words of `LinearizedGP`: `likelihood`, `prior`, `parameters`,
        `inference`, `memory_budget`, and `mean`, which may also be "auto" (the default): refitted
        where noise is Gaussian, else the network's. Hyperparameters are always learned with the
        network's mean. Weights that the prior isn't over are trained without penalty. A prior with
        mean="network" is centred at the weights that training starts from, and stays there while
        they move (L2-SP: Li, Grandvalet and Davoine, 2018): right for a pretrained network, not
        for random first weights.

    Returns
    -------
    EvidenceTraining
        Network, prior, likelihood, the `LinearizedGP` of them, and the history.

    Raises
    ------
    TrainingFailedError
        If training went wrong before there was a good state. When it goes wrong later, a
        `TrainingStoppedWarning` says why, and the last good state is returned.
    CheckpointError
        If the checkpoint is of another training.

    References
    ----------
    Immer, Bauer, Fortuin, Rätsch and Khan, 2021, "Scalable marginal likelihood estimation for model
    selection in deep learning", algorithm 1.
    """
    if input_learner is not None and sample_weight is not None:
        raise ValueError(
            "sample_weight: steps of parameters of the inputs don't take weights; repeat rows, or "
            "leave input_learner out"
        )
    given = {
        "steps": steps,
        "updates": updates,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
    }
    short: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    plan = replace(plan or TrainingPlan(), **short)
    hook = None
    if input_learner is not None:
        hook = _Inputs(input_learner, X, y, options.get("parameters", "all"))
    trainer = EvidenceTrainer(
        net,
        X,
        y,
        plan=plan,
        sample_weight=sample_weight,
        missing=missing,
        generator=generator,
        every_step=hook,
        **options,
    )
    if checkpoint is not None:
        trainer.model.fix_memory_budget()
        if resume and os.path.exists(checkpoint):
            trainer.load(checkpoint)
    trainer.run(checkpoint, progress=progress)
    return trainer.result(progress=progress)


class _Inputs:
    """Steps of an input learner in the middle of training, where they are due."""

    def __init__(
        self, learner: InputLearner, X: Any, y: Any, parameters: ParameterSelection
    ) -> None:
        self.learner, self.data, self.parameters = learner, (X, y), parameters

    def __call__(self, net: nn.Module, likelihood: Likelihood, prior: Prior, step: int) -> None:
        if self.learner.due(step):
            self.learner.step(
                net, *self.data, likelihood=likelihood, prior=prior, parameters=self.parameters
            )

    def state_dict(self) -> dict[str, Any]:
        return self.learner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learner.load_state_dict(state)
