"""A network in training with its likelihood and prior: copies of what the user gave."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import TypedDict

from lingp.inference import Mean
from lingp.inference.choice import Inference, check_inference, predicts
from lingp.likelihoods import Likelihood, as_likelihood
from lingp.linearization import LinearizedNetwork, ParameterSelection
from lingp.linearization.frozen import plain_copy
from lingp.linearization.inputs import call_network
from lingp.linearization.selection import unwrapped
from lingp.models import LinearizedGP
from lingp.models.fitting import Missing
from lingp.operators.batches import Batch
from lingp.priors import Prior, as_prior
from lingp.runtime.memory import memory_for
from lingp.runtime.tensors import set_tensors, tensors_of
from lingp.training.hyperparameter_step import conditioned
from lingp.training.map_loss import Penalty
from lingp.training.plan import TrainingPlan
from lingp.training.snapshots import Snapshot


class ModelOptions(TypedDict, total=False):
    """Options of the model that is trained, in the words of `LinearizedGP`; all may be left out.

    Attributes
    ----------
    likelihood, prior, parameters, inference, memory_budget
        As in `LinearizedGP`. Likelihood and prior are copied. Weights that the prior isn't over are
        trained without penalty.
    mean
        As in `LinearizedGP`, or "auto": predictions have a refitted mean where noise is Gaussian,
        else the network's.
    """

    likelihood: Likelihood | str
    prior: Prior | float | None
    parameters: ParameterSelection
    inference: Inference
    mean: Mean | Literal["auto"]
    memory_budget: int | None


def check_options(options: Mapping[str, object]) -> None:
    """Raise unless all are options of the model; say where one is that isn't."""
    of_plan = {field.name for field in dataclasses.fields(TrainingPlan)}
    for name in options:
        if name in of_plan:
            raise TypeError(f"{name}: is in the plan, give plan=TrainingPlan({name}=...)")
        if name not in ModelOptions.__annotations__:
            known = ", ".join(ModelOptions.__annotations__)
            raise TypeError(f"{name}: there is no such option; those of the model are {known}")


class ModelInTraining:
    """Network, likelihood and prior as they are now, and the data they are trained on.

    Parameters
    ----------
    net
        The network to start from, which is copied.
    X, y, sample_weight, missing
        Training data, as `LinearizedGP.fit` takes them.
    likelihood, prior, parameters, inference, mean, memory_budget
        See `ModelOptions`.

    Attributes
    ----------
    network, likelihood, prior
        As they are now.
    untrained
        The network as it was.
    weights
        The parameters that are trained.
    data
        What `LinearizedGP.fit` is given.
    """

    def __init__(
        self,
        net: nn.Module,
        X: Any,
        y: Any,
        *,
        sample_weight: Any,
        missing: Missing,
        likelihood: Likelihood | str = "gaussian",
        prior: Prior | float | None = None,
        parameters: ParameterSelection = "all",
        inference: Inference = "auto",
        mean: Mean | Literal["auto"] = "auto",
        memory_budget: int | None = None,
    ) -> None:
        if not isinstance(net, nn.Module):
            raise TypeError(f"net: got {type(net).__name__}; expected a torch.nn.Module")
        check_inference(inference)
        if mean not in ("auto", "network", "refit"):
            raise ValueError(f'mean: expected "auto", "network" or "refit", got {mean!r}')
        self.network = plain_copy(unwrapped(net))
        self.weights = [p for p in self.network.parameters() if p.requires_grad]
        if not self.weights:
            raise ValueError("net: none of its parameters requires grad; there is nothing to train")
        self.likelihood = copy.deepcopy(as_likelihood(likelihood))
        self.untrained = LinearizedNetwork(self.network, parameters)
        # the weights move, a mean that was theirs stays
        self.prior = copy.deepcopy(as_prior(prior)).bind_to(self.untrained).hold_mean()
        self.inference, self.memory_budget = inference, memory_budget
        self.data: dict[str, Any] = {
            "X": X,
            "y": y,
            "sample_weight": sample_weight,
            "missing": missing,
        }
        refit = mean == "auto" and self.likelihood.is_quadratic
        self._mean: Mean = "refit" if refit or mean == "refit" else "network"
        # modules that were in evaluation mode in a network that wasn't stay there
        self._training = {m for m in self.network.modules() if m.training or not net.training}
        self._modules = nn.ModuleDict(
            {"network": self.network, "prior": self.prior, "likelihood": self.likelihood}
        )
        self.inputs_seen()

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the network's inputs."""
        return self.weights[0].dtype

    def inputs_seen(self) -> None:
        """Call this when the network was run first: inputs show which layer is its last."""
        self.prior.bind_to(self.untrained)
        self.hyperparameters_moved()

    def loss(self, batch: Batch, num_rows: int) -> Tensor:
        """The loss of maximum a posteriori training per row of the data, 0-d, with a graph.

        Per row: Adam does not mind, and its epsilon means the same for any N.
        """
        for module in self.network.modules():
            module.training = module in self._training
        inputs, targets, weights = batch
        f = call_network(self.network, inputs).reshape(len(targets), -1)
        each = self.likelihood.log_prob(targets, f)
        if weights is not None:
            each = each * weights
        return self._penalty() / num_rows - each.sum() / len(targets)

    def conditioned(self) -> LinearizedGP:
        """The network as it is now, conditioned on the data, to learn hyperparameters from.

        It has the network's mean: a refitted one explains what the network has not learned yet,
        and its evidence would stop regularising too early.
        """
        self.network.eval()
        return conditioned(
            self.network,
            self.data,
            likelihood=self.likelihood,
            prior=self.prior,
            inference=self.inference,
            memory_budget=self.memory_budget,
            parameters=self.untrained.parameter_names,
        )

    def predictor(self, *, progress: bool) -> LinearizedGP:
        """The network as it is now, copied and conditioned on the data, to predict with."""
        gp = LinearizedGP(
            self.network,
            copy.deepcopy(self.likelihood),
            prior=copy.deepcopy(self.prior),
            # blocks of rows have no posterior to predict with
            inference=self.inference if predicts(self.inference) else "auto",
            memory_budget=self.memory_budget,
            parameters=self.untrained.parameter_names,
            mean=self._mean,
            # the prior that kept the weights small while they learned says how sure to be
            mean_scale=1.0,
        )
        return gp.fit(**self.data, progress=progress, prepare=False)

    def snapshot(self, step: int) -> Snapshot:
        """Copies of all values, which are those after this step."""
        return step, tensors_of(self._modules)

    def restore(self, snapshot: Snapshot) -> None:
        """Put all values back."""
        set_tensors(self._modules, snapshot[1])
        self.hyperparameters_moved()

    def hyperparameters_moved(self) -> None:
        """Call this when the prior has changed."""
        self._penalty = Penalty(self.network, self.prior)

    def fix_memory_budget(self) -> None:
        """Hold to the memory that is free now: the method, and so the bits, may depend on it."""
        if self.memory_budget is None:
            self.memory_budget = int(memory_for(None, self.untrained.device))
