"""Training of a network and its prior together, by the evidence."""

from __future__ import annotations

import os
from typing import Any, Literal

import torch
from torch import nn

from lingp.inference import Mean
from lingp.inference.choice import Inference
from lingp.likelihoods import Likelihood
from lingp.invariance import InputLearner
from lingp.linearization import ParameterSelection
from lingp.models.fitting import Missing
from lingp.models.tuning import SearchMethod
from lingp.priors import Prior
from lingp.runtime.progress import track
from lingp.training.optimization import MakeOptimizer
from lingp.training.outcome import EvidenceTraining
from lingp.training.plan import Plan, Rates, Selection
from lingp.training.trainer import EvidenceTrainer

__all__ = ["EvidenceTraining", "train_with_evidence"]


def train_with_evidence(
    net: nn.Module,
    X: Any,
    y: Any = None,
    *,
    likelihood: Likelihood | str = "gaussian",
    prior: Prior | float | None = None,
    parameters: ParameterSelection = "all",
    sample_weight: Any = None,
    missing: Missing = "error",
    steps: int | None = None,
    epochs: int | None = None,
    burn_in: int | None = None,
    updates: int | None = None,
    every: int | None = None,
    batch_size: int | None = None,
    optimizer: MakeOptimizer | None = None,
    learning_rate: Rates | None = None,
    inference: Inference = "auto",
    mean: Mean | Literal["auto"] = "auto",
    method: SearchMethod = "auto",
    memory_budget: int | None = None,
    select: Selection = "last",
    patience: int | None = None,
    hold: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    resume: bool = True,
    generator: torch.Generator | None = None,
    input_learner: InputLearner | None = None,
    progress: bool = True,
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
    likelihood, prior, parameters, inference, memory_budget
        As in `LinearizedGP`. Weights that the prior isn't over are trained without penalty. A prior
        with mean="network" is centred at the weights that training starts from, and stays there
        while they move (L2-SP: Li, Grandvalet and Davoine, 2018): right for a pretrained network,
        not for random first weights.
    mean
        Whose mean predictions have, as in `LinearizedGP`. "auto": refitted where noise is Gaussian,
        else the network's. Hyperparameters are always learned with the network's mean.
    steps, epochs
        How long: steps of the optimizer (by default 2400, or 10,000 where a step has a part of the
        data), or times through the data.
    burn_in
        Steps before the first hyperparameter step; by default as many as between two of them.
    updates, every
        How many hyperparameter steps there are, evenly spaced (by default 24 where they cost
        little, else 8; 0: hyperparameters stay), or how many steps of the optimizer lie between
        them. The last one comes at the end.
    batch_size
        Rows of a step; by default all, or 256 where there are more than 2048.
    optimizer
        A function from parameters to a `torch.optim.Optimizer`; Adam by default. When noise falls,
        the loss that it sees is scaled, so that predictions weigh as much in it as before.
    learning_rate
        Of the first and the last step, with a cosine between them; one number; or a function from
        the optimizer to a `torch.optim.lr_scheduler`. By default from 1e-2 to 1e-5, or what a given
        optimizer has.
    method
        Of hyperparameter steps, as in `LinearizedGP.optimize_hyperparameters`.
    select
        Which state is kept: the "last", or that of the largest "evidence", of those after a
        hyperparameter step.
    patience
        Stop after so many hyperparameter steps in succession without a larger evidence.
    hold
        Whether hyperparameters stay where they are when moving them doesn't reach the largest
        evidence so far: a network that begins to overfit asks for less noise than there is.
    checkpoint
        A file that is written after each hyperparameter step, and every `checkpoint_every` steps.
        Training that was killed and is called again with the same arguments goes on from there, to
        the same bits. `torch.load(weights_only=True)` reads it.
    resume
        Whether a checkpoint that is there is gone on from; else it is overwritten.
    generator
        Draws the batches, and the seed of dropout; a fixed seed by default.
    input_learner
        Moves parameters of the inputs, of an `Augmented` network, while it is trained.
    progress
        Whether a progress bar is shown.

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
    trainer = EvidenceTrainer(
        net,
        X,
        y,
        likelihood=likelihood,
        prior=prior,
        parameters=parameters,
        plan=Plan(steps, epochs, burn_in, updates, every, learning_rate, select, patience, hold),
        sample_weight=sample_weight,
        missing=missing,
        batch_size=batch_size,
        optimizer=optimizer,
        inference=inference,
        mean=mean,
        method=method,
        memory_budget=memory_budget,
        generator=generator,
        every_step=None if input_learner is None else _Inputs(input_learner, X, y, parameters),
    )
    if checkpoint is not None:
        trainer.model.fix_memory_budget()
        if resume and os.path.exists(checkpoint):
            trainer.load(checkpoint)
    left = range(trainer.steps_taken, trainer.num_steps)
    for _ in track(left, "training", total=len(left), show=progress):
        if trainer.finished:
            break
        trainer.step()
        due = checkpoint_every is not None and trainer.steps_taken % checkpoint_every == 0
        if checkpoint is not None and (due or trainer.moves or trainer.finished):
            trainer.save(checkpoint)
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
