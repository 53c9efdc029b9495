"""The noise of targets, as covariances."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lingp.models import LinearizedGP


@torch.no_grad()
def noise_covariance(gp: LinearizedGP) -> Tensor:
    """Covariance of a target's noise, (C x C); where it was known, of the average training target.

    Raises
    ------
    ValueError
        If noise isn't Gaussian.
    """
    likelihood, training = gp.likelihood.untempered, gp.laplace.training
    if not likelihood.is_quadratic:
        raise ValueError(
            f"observation_noise: the likelihood is {type(likelihood).__name__}, so targets aren't "
            "the latent outputs with Gaussian noise; leave it out, for the latent posterior"
        )
    targets, num_outputs = training.targets, training.num_outputs
    known = targets[..., 1].nanmean(0, keepdim=True) if targets.dim() == 3 else None
    location = training.outputs.new_zeros(1, num_outputs)
    exactly = location.new_zeros(1, num_outputs, num_outputs)
    predictive = likelihood.at(known).predictive(location, exactly)
    covariance: Tensor = predictive.noise  # type: ignore[attr-defined]
    return covariance.expand_as(exactly)[0]


def noise_blocks(
    gp: LinearizedGP, given: bool | Tensor, outputs: Sequence[int], rows: int
) -> Tensor:
    """Covariance of the noise of some outputs at each row, (*batch, rows, m, m).

    Parameters
    ----------
    gp
        With a likelihood.
    given
        True for the likelihood's noise; else variances (... x 1 or rows x 1 or m).
    outputs
        Which of the C, (m,).
    rows
        How many rows there are.

    Raises
    ------
    ValueError
        If variances are negative or of another shape.
    """
    count = len(outputs)
    if not isinstance(given, Tensor):
        index = torch.tensor(outputs, device=gp.linearized.device)
        return noise_covariance(gp)[index][:, index].expand(rows, count, count)
    fits = given.dim() >= 2 and given.shape[-2] in (1, rows) and given.shape[-1] in (1, count)
    if not fits:
        raise ValueError(
            f"noise: expected variances (... x 1 or {rows} x {count}), one for each point and "
            f"output, got shape {tuple(given.shape)}"
        )
    if not bool((given >= 0).all()):
        raise ValueError("noise: expected variances >= 0, some are negative or NaN")
    variances = given.to(device=gp.linearized.device, dtype=gp.dtype)
    return torch.diag_embed(variances.expand(*given.shape[:-2], rows, count))


def between_rows(blocks: Tensor) -> Tensor:
    """The covariance of all rows' noise, (*batch, q·m, q·m), from that of each row."""
    rows, side = blocks.shape[-3], blocks.shape[-3] * blocks.shape[-1]
    eye = torch.eye(rows, dtype=blocks.dtype, device=blocks.device)
    whole = torch.einsum("...nij,nm->...nimj", blocks, eye)
    return whole.reshape(*blocks.shape[:-3], side, side)
