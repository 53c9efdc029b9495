"""Maximum a posteriori training of a network, with steps of its hyperparameters in between."""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from typing_extensions import Unpack

from lingp.inference.choice import predicts, randomness
from lingp.inference.factorize import OutOfRangeError, RoundingWarning
from lingp.likelihoods import Likelihood
from lingp.models import LinearizedGP
from lingp.models.fitting import Missing
from lingp.priors import Prior
from lingp.runtime.progress import track
from lingp.runtime.tensors import set_tensors, tensors_of
from lingp.training import faults
from lingp.training.batches import endless_batches
from lingp.training.checkpoint import PathLike, read_checkpoint, write_checkpoint
from lingp.training.fingerprint import describe, describe_module, describe_network
from lingp.training.history import EvidenceStep, History
from lingp.training.hyperparameter_step import look, mean_curvature, move
from lingp.training.model import ModelInTraining, ModelOptions, check_options
from lingp.training.optimization import Optimization
from lingp.training.outcome import EvidenceTraining
from lingp.training.plan import Kept, TrainingPlan
from lingp.training.randomness import PrivateRandomness
from lingp.training.snapshots import KeptSnapshots

EveryStep = Callable[[nn.Module, Likelihood, Prior, int], object]

_LOOK_EVERY = 16  # steps of a GPU between two looks at the loss, each of which waits for it
_STRIKES = 2  # hyperparameter steps at which a network may be behind the untrained one


class EvidenceTrainer:
    """Trains a copy of a network, and its prior, by the evidence, a step at a time.

    Parameters
    ----------
    net
        The network to start from; it stays as it is.
    X, y, sample_weight, missing
        Training data, as `LinearizedGP.fit` takes them. A loader is iterated anew every epoch.
    plan
        How long, when hyperparameters move, and how.
    generator
        Draws batches, and the seed of dropout; a fixed seed by default.
    every_step
        Called after each step of the optimizer with the network, likelihood, prior and the step's
        number, from 0. If it has `state_dict` and `load_state_dict`, they go into checkpoints.
    **options
        `likelihood`, `prior`, `parameters`, `inference`, `mean` and `memory_budget`, as in
        `train_with_evidence`.

    Attributes
    ----------
    history
        The hyperparameter steps so far.
    num_steps, steps_taken
        Steps of the optimizer: all there will be, and those so far.
    stopped
        Why training ended before its time; None if it didn't.

    Examples
    --------
    >>> net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    >>> X = torch.linspace(-1, 1, 20).unsqueeze(1)
    >>> trainer = EvidenceTrainer(net, X, X.sin(), plan=TrainingPlan(steps=20, updates=2))
    >>> trainer.run()
    >>> trainer.result().gp.predict(X).mean.shape
    torch.Size([20, 1])
    """

    def __init__(
        self,
        net: nn.Module,
        X: Any,
        y: Any = None,
        *,
        plan: TrainingPlan | None = None,
        sample_weight: Any = None,
        missing: Missing = "error",
        generator: torch.Generator | None = None,
        every_step: EveryStep | None = None,
        **options: Unpack[ModelOptions],
    ) -> None:
        check_options(options)
        self.plan = plan = plan or TrainingPlan()
        self.every_step = every_step
        self.model = model = ModelInTraining(
            net, X, y, sample_weight=sample_weight, missing=missing, **options
        )
        generator = generator or torch.Generator().manual_seed(0)
        seed = torch.randint(2**62, (), generator=generator, device=generator.device)
        self._randomness = PrivateRandomness(int(seed), model.untrained.device)
        with self._randomness.entered():
            self._batches = endless_batches(model, plan.batch_size, generator)
        model.inputs_seen()
        self.num_steps = plan.num_steps(self._batches.batches_per_epoch)
        outputs = self._batches.num_rows * model.untrained.num_outputs
        weights = model.untrained.num_parameters
        flops = float(outputs) * weights * min(outputs, weights)
        self._moves = plan.hyperparameter_steps(self.num_steps, flops)
        self._steady = not any(p.requires_grad for p in model.likelihood.parameters())
        self._optimization = Optimization(model.weights, plan, self.num_steps, self._steady)
        self._described = {
            "network": describe_network(model.network),
            "likelihood": describe_module(model.likelihood),
            "prior": describe_module(model.prior),
            "parameters": describe(model.untrained.parameter_names),
            "plan": describe(replace(plan, optimizer=None, checkpoint_every=None)),
            "optimizer": self._optimization.describe(),
            "inference": describe(model.inference),
            "mean": options.get("mean", "auto"),
        }
        self.history = History()
        self.steps_taken = 0
        self.stopped: str | None = None
        self._loss = torch.zeros(())
        self._kept = KeptSnapshots(keep_best=plan.select == "evidence")
        self._strikes = 0
        # of the loss, against the start. Noise that falls to a hundredth would throw weights away,
        # by gradients that are a hundred times those that Adam has seen; so the loss is scaled
        self._flatness = 1.0
        self._place = 0  # the step that the model's values are of

    @property
    def finished(self) -> bool:
        """Whether there is no step left."""
        return self.stopped is not None or self.steps_taken >= self.num_steps

    @property
    def moves(self) -> bool:
        """Whether the hyperparameters move after the step that was just taken."""
        return self.steps_taken in self._moves

    def run(self, checkpoint: PathLike | None = None, *, progress: bool = False) -> None:
        """Take all steps that are left.

        Parameters
        ----------
        checkpoint
            A file that is written after each hyperparameter step, and when the plan says so.
        progress
            Whether a progress bar is shown.
        """
        left, every = self.num_steps - self.steps_taken, self.plan.checkpoint_every
        for _ in track(range(left), "training", total=left, show=progress):
            if self.finished:
                break
            self.step()
            due = self.moves or self.finished or (every and self.steps_taken % every == 0)
            if checkpoint is not None and due:
                self.save(checkpoint)

    def step(self) -> None:
        """Take one step of the optimizer, and of the hyperparameters where the plan has one.

        Raises
        ------
        TrainingFailedError
            If training goes wrong before there was a good state. Later, it is stopped with a
            `TrainingStoppedWarning`, and goes back to the last good state.
        """
        if self.finished:
            raise RuntimeError("training is finished; call result()")
        try:
            self._step_of_weights()
        except FloatingPointError as error:
            self._stop(str(error))
            return
        if self.moves or self.steps_taken == self.num_steps:
            self.hyperparameter_step(move_them=self.moves)

    def hyperparameter_step(self, *, move_them: bool = True) -> EvidenceStep | None:
        """Move the hyperparameters to the evidence's maximum, for the weights as they are.

        Parameters
        ----------
        move_them
            Whether to; else the network is only looked at.

        Returns
        -------
        EvidenceStep
            None if training has gone wrong.
        """
        try:
            return self._hyperparameter_step(move_them)
        except FloatingPointError as error:
            self._stop(str(error))
        except (OutOfRangeError, torch.linalg.LinAlgError) as error:
            self._stop(f"the evidence can't be computed: {error}")
        return None

    def _step_of_weights(self) -> None:
        """A step of the optimizer; a `FloatingPointError` says what has gone wrong."""
        model, number = self.model, self.steps_taken
        with self._randomness.entered(), torch.inference_mode(False), torch.enable_grad():
            batch = self._batches.next()
            scale = min(1.0, self._flatness)
            loss = self._optimization.step(
                lambda: scale * model.loss(batch, self._batches.num_rows)
            )
        self._loss = loss / scale
        self.steps_taken = self._place = number + 1
        cheap = self._loss.device.type == "cpu" or self.steps_taken % _LOOK_EVERY == 0
        if cheap or self.moves or self.steps_taken == self.num_steps:
            faults.raise_fault(faults.loss_fault(float(self._loss), self._optimization.rate))
        if self.every_step is not None:
            self.every_step(model.network, model.likelihood, model.prior, number)

    def _hyperparameter_step(self, move_them: bool) -> EvidenceStep | None:
        start, model = time.perf_counter(), self.model
        gp = self._conditioned()
        if gp is None:
            return None
        before = model.snapshot(self.steps_taken)
        steepness = None if self._steady else mean_curvature(gp)
        try:
            found = move(gp, method=self.plan.method) if move_them else look(gp)
            # evidences of different blocks of rows don't compare
            hold = move_them and self.plan.hold and predicts(model.inference)
            if hold and found.evidence < self._kept.largest:
                model.restore(before)
                found = look(gp)
            faults.raise_fault(faults.hyperparameter_fault(gp.laplace, found))
        except (FloatingPointError, OutOfRangeError, torch.linalg.LinAlgError):
            # the hyperparameters went wrong, the weights may stay
            self._kept.good = before
            raise
        model.hyperparameters_moved()
        if steepness:  # 0 where all of these rows have weight 0
            self._flatness *= steepness / mean_curvature(gp)
        found = replace(
            found,
            step=self.steps_taken,
            loss=float(self._loss),
            learning_rate=self._optimization.rate,
            seconds=time.perf_counter() - start,
        )
        self.history.append(found)
        self._kept.accept(model.snapshot(self.steps_taken), found.evidence)
        patience = self.plan.patience
        if patience is not None and self._kept.since_largest >= patience and not self.finished:
            self.stopped = f"no larger evidence in {patience} hyperparameter steps"
        return found

    def result(self, *, progress: bool = False, select: Kept | None = None) -> EvidenceTraining:
        """The result of training: the state that the plan selects, conditioned on the data.

        Parameters
        ----------
        progress
            Whether long work shows a progress bar.
        select
            "last" for the last state, though the plan selects by evidence.

        Raises
        ------
        ValueError
            For "evidence" where the plan selects the last state: no other was kept.
        """
        if select == "evidence" and self.plan.select != "evidence":
            raise ValueError(
                'select: "evidence", but the plan keeps only the last state; give '
                'TrainingPlan(select="evidence")'
            )
        now, chosen = self.model.snapshot(self._place), self._kept.best
        if select == "last":
            chosen = None
        if chosen is not None:
            self.model.restore(chosen)
        try:
            with self._randomness.entered():
                gp = self.model.predictor(progress=progress)
            network = copy.deepcopy(self.model.network).eval()
        finally:
            self.model.restore(now)
        return EvidenceTraining(
            network, gp.prior, gp.likelihood, gp, self.history, self.stopped, (chosen or now)[0]
        )

    def save(self, path: PathLike) -> None:
        """Write all that the rest of training depends on, in one piece."""
        write_checkpoint(path, self.state_dict(), self._fingerprint())

    def load(self, path: PathLike) -> None:
        """Go on from what `save` wrote: training ends with the same bits.

        Raises
        ------
        CheckpointError
            If the file is of another network, other data or other options.
        """
        self.load_state_dict(read_checkpoint(path, self._fingerprint()))

    def state_dict(self) -> dict[str, Any]:
        """Everything that the rest of training depends on, for `torch.save`."""
        model, generator = self.model, randomness(self.model.inference)
        return {
            "now": model.snapshot(self._place),
            "steps_taken": self.steps_taken,
            "untrained": tensors_of(model.untrained.network),
            "parts": {name: part.state_dict() for name, part in self._parts().items()},
            "randomness": self._randomness.state_dict(),
            "history": self.history.to_dicts(),
            "strikes": self._strikes,
            "flatness": self._flatness,
            "stopped": self.stopped,
            "memory_budget": model.memory_budget,
            "inference": None if generator is None else generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        model, generator = self.model, randomness(self.model.inference)
        model.restore(state["now"])
        self.steps_taken, self._place = state["steps_taken"], state["now"][0]
        set_tensors(model.untrained.network, state["untrained"])
        with self._randomness.entered():
            for name, part in self._parts().items():
                part.load_state_dict(state["parts"][name])
        self._randomness.load_state_dict(state["randomness"])
        self.history = History.from_dicts(state["history"])
        self._strikes, self._flatness = state["strikes"], state["flatness"]
        self.stopped = state["stopped"]
        model.memory_budget = state["memory_budget"]
        if generator is not None:
            generator.set_state(state["inference"])

    def _parts(self) -> dict[str, Any]:
        """The parts that have a state of their own."""
        parts = {"kept": self._kept, "optimization": self._optimization, "batches": self._batches}
        if hasattr(self.every_step, "state_dict") and hasattr(self.every_step, "load_state_dict"):
            parts["every_step"] = self.every_step
        return parts

    def _fingerprint(self) -> dict[str, str]:
        return {**self._described, "data": self._batches.fingerprint()}

    def _conditioned(self) -> LinearizedGP | None:
        """The network with the data, if it is any good; else the strike is counted."""
        faults.raise_fault(faults.weights_fault(self.model.network))
        with self._randomness.entered(), warnings.catch_warnings():
            gp = self.model.conditioned()
            warnings.simplefilter("ignore", RoundingWarning)
            evidence = gp.evidence().value
        if not math.isfinite(evidence):
            faults.raise_fault(f"the evidence is {evidence}")
        self._batches.interrupted()
        fault = faults.behind_untrained(gp.laplace, self.model.untrained)
        if fault is None:
            self._strikes = 0
            return gp
        self._strikes += 1
        if self._strikes >= _STRIKES or self.steps_taken == self.num_steps:
            faults.raise_fault(fault)
        return None

    def _stop(self, fault: str) -> None:
        """Training has gone wrong: back to the last good state, if there was one."""
        where = f"training stopped at step {self.steps_taken} of {self.num_steps}: {fault}"
        self.stopped = where
        good = self._kept.good
        if good is None:
            raise faults.TrainingFailedError(f"{where}. There was no good state before")
        self.model.restore(good)
        self._place = good[0]
        message = f"{where}. Kept is the state after step {good[0]}"
        warnings.warn(message, faults.TrainingStoppedWarning, stacklevel=3)
