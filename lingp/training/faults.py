"""What goes wrong in training, found and said in words.

A training that has gone astray gives numbers like any other: a network that a large learning rate
has thrown away still has an evidence. So each state is held against what it can be: finite, better
than the untrained network, noise above rounding, precisions within their range.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lingp.inference import LinearizedLaplace
from lingp.likelihoods import StudentT
from lingp.linearization import LinearizedNetwork
from lingp.training.history import EvidenceStep
from lingp.training.hyperparameter_step import PRECISIONS
from lingp.training.map_loss import log_joint

FITTED = 1e-12  # noise variance, as a share of the targets', at which data are fitted to rounding
CONSTANT = 1e-3  # the same, of the mean square of targets that are all alike
MARGIN = 0.1, 1e-2  # nats per observed value, and share of all, by which training may be behind


class TrainingStoppedWarning(UserWarning):
    """Training went wrong and was stopped; what it gives is the last good state."""


class TrainingFailedError(RuntimeError):
    """Training went wrong before there was a good state."""


def raise_fault(fault: str | None) -> None:
    """Raise a `FloatingPointError` that says what has gone wrong, if anything has."""
    if fault is not None:
        raise FloatingPointError(fault)


def loss_fault(loss: float, rate: float) -> str | None:
    """The fault of a loss that is no number."""
    if math.isfinite(loss):
        return None
    return (
        f"the loss became {loss} at a learning rate of {rate:.3g}; lower the learning rate, clip "
        "gradients in an optimizer of your own, or standardise inputs and targets"
    )


def weights_fault(network: nn.Module) -> str | None:
    """The fault of weights or running statistics that are no numbers."""
    named = [*network.named_parameters(), *network.named_buffers()]
    bad = [n for n, t in named if t.is_floating_point() and not bool(t.isfinite().all())]
    if not bad:
        return None
    return (
        f"{bad[0]} has NaN or infinite values{f' (and {len(bad) - 1} others)' * (len(bad) > 1)}; "
        "lower the learning rate, or standardise inputs and targets"
    )


@torch.no_grad()
def behind_untrained(laplace: LinearizedLaplace, untrained: LinearizedNetwork) -> str | None:
    """The fault of a log p(y | f) + log p(θ) that is less than before training."""
    outputs = torch.cat([untrained(x) for x in laplace.training.inputs]).to(
        laplace.training.outputs
    )
    start = log_joint(laplace, outputs, untrained.weights().to(outputs))
    here = log_joint(laplace, laplace.training.outputs, laplace.training.linearized.weights())
    margin = MARGIN[0] * laplace.data_term.num_observed + MARGIN[1] * abs(start)
    if math.isfinite(here) and (here >= start - margin or not math.isfinite(start)):
        return None
    return (
        f"log likelihood and log prior are {here:.4g} together, those of the untrained network "
        f"{start:.4g}; lower the learning rate, or standardise inputs and targets"
    )


@torch.no_grad()
def hyperparameter_fault(laplace: LinearizedLaplace, found: EvidenceStep) -> str | None:
    """The fault of an evidence that is no number, of vanishing noise, or of precisions run off."""
    numbers = {"evidence": found.evidence, "log likelihood": found.log_likelihood}
    bad = [name for name, value in numbers.items() if not math.isfinite(value)]
    if bad:
        return f"the {bad[0]} is {numbers[bad[0]]}; standardise inputs and targets"
    return _noise_fault(laplace) or _precision_fault(laplace, found)


def _noise_fault(laplace: LinearizedLaplace) -> str | None:
    """The fault of noise that, in the direction where it is least, is lost in rounding."""
    likelihood, targets = laplace.likelihood, laplace.training.targets
    plain = likelihood.untempered
    if not (plain.is_quadratic or isinstance(plain, StudentT)) or targets.dim() != 2:
        return None
    row = targets.isfinite().sum(1).argmax().unsqueeze(0)
    root = plain.curvature_root(targets[row], laplace.training.outputs[row]).dense()[0]
    least, constant = _least_noise(targets, laplace.training.outputs)
    # of noise relative to the least there may be, in the worst direction
    values, vectors = torch.linalg.eigh(least.sqrt().unsqueeze(1) * (root @ root.mT) * least.sqrt())
    if float(values[-1]) < 1:
        return None
    output = int(vectors[:, -1].abs().argmax())
    of = f" of output {output}" if targets.shape[1] > 1 else ""
    size = f"{float(least[output] / values[-1]):.2g}"
    if bool(constant[output]):
        return (
            f"all targets{of} are the same, so that there is no noise to find (its variance ran to "
            f"{size}); leave this target out, or fix the noise (raw_noise.requires_grad_(False))"
        )
    return (
        f"the noise variance{of} ran to {size}, where the data are fitted to rounding; fix the "
        "noise (raw_noise.requires_grad_(False)), or give it a GPyTorch prior"
    )


def _least_noise(targets: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """The least noise variance of each output above rounding, and which outputs are constant."""
    square = targets.square().nanmean(0).nan_to_num()  # 0 where nothing was observed
    variance = (targets - targets.nanmean(0)).square().nanmean(0).nan_to_num()
    constant = variance <= FITTED * square
    scale = torch.where(square > 0, square, outputs.square().mean(0) + 1)
    return torch.where(constant, CONSTANT * scale, FITTED * variance), constant


def _precision_fault(laplace: LinearizedLaplace, found: EvidenceStep) -> str | None:
    raw = getattr(laplace.prior, "raw_precision", None)
    if raw is None or found.at_bounds < raw.numel():
        return None  # some of many may: weights that the data say nothing about
    low = float(laplace.prior.precision.detach().min()) <= PRECISIONS[0] * (1 + 1e-9)
    many = f"all {raw.numel()} prior precisions" if raw.numel() > 1 else "the prior precision"
    gamma = f"the data determine {found.effective_parameters:.2g} parameters"
    if low:
        return (
            f"{many} ran to 0 ({gamma}): the likelihood has no curvature left, as where a network "
            "is sure of all labels; give the precision a GPyTorch prior, fix it "
            "(raw_precision.requires_grad_(False)), or start from a larger one"
        )
    return (
        f"{many} ran to infinity ({gamma}): weights of hardly any size, because the evidence "
        "sees nothing in the inputs that explains the targets, or because inputs are so large; "
        "standardise inputs and targets, train longer before the first hyperparameter step "
        "(burn_in), or fix the precision (raw_precision.requires_grad_(False))"
    )
