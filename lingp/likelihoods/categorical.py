"""Class labels through a softmax over K logits."""

from __future__ import annotations

import torch
from torch import Tensor

from lingp.likelihoods.base import Likelihood
from lingp.likelihoods.named import named
from lingp.likelihoods.predictives import softmax
from lingp.likelihoods.predictives.labels import LabelPredictive
from lingp.likelihoods.roots import BlockRoot, CurvatureRoot, DenseRoot
from lingp.likelihoods.targets import check_labels, split_missing, with_rows
from lingp.likelihoods.two_classes import integrate_two
from lingp.runtime.described import described, same


@described(num_classes=same("num_classes"))
@named("categorical")
class Categorical(Likelihood):
    """log p(y | f) = f_y - log Σ_k exp f_k,   p = softmax(f).

        r = e_y - p,     Λ = diag(p) - p pᵀ = R Rᵀ,     R = diag(u) Q,     u = √p

    Q (K x (K-1)) is any orthonormal basis of what is orthogonal to the unit vector u, so that
    Q Qᵀ = I - u uᵀ: diag(√p) - p √pᵀ without its redundant column. Here Q is the Householder
    reflection that takes u to an axis (Golub & Van Loan, section 5.1), less that axis.

    An output of shape (K,) takes one label 0..K-1 per datum. An output of shape (*L, K), classes
    last, takes labels of shape (*L): p(y | f) is their product and R is block-diagonal. Moments are
    those of the one-hot indicators, in the shape of the output. Missing labels are NaN.

    Parameters
    ----------
    num_classes
        K. None: the last axis of the network's output, learnt when targets are checked.
    """

    methods = ("quadrature", "probit", "laplace_bridge", "monte_carlo")
    allows_missing = True
    saturates = True
    has_order = False

    def __init__(self, num_classes: int | None = None) -> None:
        super().__init__()
        if num_classes is not None and num_classes < 2:
            raise ValueError(
                f"num_classes: expected at least 2, got {num_classes}; "
                "use Bernoulli for one logit per label"
            )
        self.num_classes = num_classes

    def check_targets(self, y: Tensor, output_shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        self._check_output(output_shape)
        num_classes = output_shape[-1]
        labels = check_labels(y, output_shape[:-1], num_classes, dtype)
        if len(output_shape) > 1:
            self.num_classes = num_classes
        return labels

    def _check_output(self, output_shape: tuple[int, ...]) -> None:
        if not output_shape or output_shape[-1] < 2:
            raise ValueError(
                f"likelihood: Categorical needs a network with one output per class on the last "
                f"axis, got outputs of shape {with_rows(output_shape)}; use Bernoulli for one "
                "logit per label"
            )
        if self.num_classes not in (None, output_shape[-1]):
            raise ValueError(
                f"num_classes: this Categorical has {self.num_classes} classes, but the network's "
                f"outputs have shape {with_rows(output_shape)}; make another Categorical for it"
            )

    def target_shape(self, output_shape: tuple[int, ...]) -> tuple[int, ...]:
        return output_shape[:-1]

    def moment_shape(self, output_shape: tuple[int, ...]) -> tuple[int, ...]:
        return output_shape

    def num_labels(self, output_shape: tuple[int, ...]) -> int | None:
        return output_shape[0] if len(output_shape) == 1 else None

    def label_probs(self, moments: Tensor) -> Tensor:
        return moments.unflatten(-1, (-1, self.num_classes or moments.shape[-1]))

    def _log_probs(self, f: Tensor) -> Tensor:
        """log p for each label, (... x N x L x K)."""
        return f.unflatten(-1, (-1, self.num_classes or f.shape[-1])).log_softmax(-1)

    def log_prob(self, y: Tensor, f: Tensor) -> Tensor:
        log_p, (labels, observed) = self._log_probs(f), split_missing(y)
        index = labels.long().unsqueeze(-1).expand(*log_p.shape[:-1], 1)
        return (observed * log_p.gather(-1, index).squeeze(-1)).sum(-1)

    def residual(self, y: Tensor, f: Tensor) -> Tensor:
        p, (labels, observed) = self._log_probs(f).exp(), split_missing(y)
        classes = torch.arange(p.shape[-1], device=p.device, dtype=labels.dtype)
        is_label = labels.unsqueeze(-1) == classes  # (N, L, K)
        # 1 - p_y as the sum of the others, which keeps its digits when p_y is nearly one
        others = torch.where(is_label, 0.0, p).sum(-1, keepdim=True)
        return (observed.unsqueeze(-1) * torch.where(is_label, others, -p)).flatten(-2)

    def curvature_root(self, y: Tensor, f: Tensor) -> CurvatureRoot:
        log_p = self._log_probs(f)  # (N, L, K)
        u, p = (0.5 * log_p).exp(), log_p.exp()
        eye = torch.eye(p.shape[-1], dtype=p.dtype, device=p.device)
        first, rest = u[..., :1], u[..., 1:]
        # Q = the columns j > 0 of I - v vᵀ / (1 + u_0), v = u + e_0: no difference cancels, as
        # its diagonal is 1 - p_j / (1 + u_0) = (u_0 + Σ_{k ≠ j} p_k) / (1 + u_0)
        diagonal = rest * (first + (p @ (1 - eye))[..., 1:]) / (1 + first)
        lower = -p[..., 1:, None] * (rest / (1 + first)).unsqueeze(-2)  # (N, L, K-1, K-1)
        lower = torch.where(eye[1:, 1:].bool(), torch.diag_embed(diagonal), lower)
        root = torch.cat([-(first * rest).unsqueeze(-2), lower], -2)  # (N, L, K, K-1)
        root = (~y.isnan())[..., None, None] * root
        return DenseRoot(root.squeeze(1)) if root.shape[1] == 1 else BlockRoot(root)

    def average_curvature(self, y: Tensor, f: Tensor) -> Tensor:
        if y.shape[-1] > 1:
            return super().average_curvature(y, f)
        p = f.movedim(0, -1).softmax(-2)  # (N, K, S)
        others = p @ p.mT / len(f)  # E p_j p_k
        others.diagonal(dim1=-2, dim2=-1).zero_()
        # a diagonal E p_j (1 - p_j) as the sum of its row keeps its digits when p_j is nearly one
        curvature = torch.diag_embed(others.sum(-1)) - others
        return (~y.isnan())[..., None] * curvature

    def conditional_mean(self, f: Tensor) -> Tensor:
        return self._log_probs(f).exp().flatten(-2)

    def conditional_variance(self, f: Tensor) -> Tensor:
        p = self._log_probs(f).exp()
        return (p * (1 - p)).flatten(-2)

    def sample(self, f: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        p = self._log_probs(f).exp()
        labels = torch.multinomial(p.flatten(0, -2), 1, replacement=True, generator=generator)
        return labels.reshape(p.shape[:-1]).to(f.dtype)

    def integrated(self, mean: Tensor, covariance: Tensor, method: str) -> LabelPredictive:
        num_classes = self.num_classes or mean.shape[-1]
        moments = {
            "quadrature": integrate_two if num_classes == 2 else softmax.integrate,
            "probit": softmax.probit,
            "laplace_bridge": softmax.laplace_bridge,
        }
        return LabelPredictive(self, mean, covariance, num_classes, moments[method])

    def extra_repr(self) -> str:
        return "" if self.num_classes is None else f"num_classes={self.num_classes}"
