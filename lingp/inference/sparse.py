"""Sparse inference: all of the posterior in the span of inducing points, one number for the rest.

With features Ψ(x) = K(x, Z) L⁻ᵀ of inducing points Z (see `lingp.inference.basis`), one pass over
the data gives

    A = I + Ψᵀ Λ Ψ  (m x m),     t = tr Λ (K - Ψ Ψᵀ)
    Cov f* = s [K** - Ψ* Ψ*ᵀ] + Ψ* A⁻¹ Ψ*ᵀ                         both terms PSD
    log q  = Σ_n log p(y_n | f_n) - ½ |u|² - ½ log det A - ½ l

The first two make a normal q of the whitened weights with free mean and covariance in the span of
Q, and variance s in the r = P - m directions outside of it. The bound on the evidence is largest at

    s = 1 / (1 + t/r),     l = r log(1 + t/r)           (complement="fitted")
    s = 1,                 l = t                        (complement="prior")

since -½ log det(I + Φᵀ Φ) >= -½ log det A - ½ r log(1 + t/r), by Fischer's inequality for the two
blocks and that of the means for the eigenvalues of the second. For Gaussian noise and a refitted
mean, s = 1 is Titsias (2009, "Variational learning of inducing variables in sparse Gaussian
processes", equations 6 and 9). At Z = all data t is zero and everything is exact. Memory is that
of a few m x m matrices and one batch of rows, whatever N is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import torch
from torch import Tensor

from lingp.inference.accumulation import Origin
from lingp.inference.basis import Basis
from lingp.inference.cache import ValueCache
from lingp.inference.candidates import InducingChoice, Points, Rule, choose_inducing
from lingp.inference.factorize import factorize
from lingp.inference.inducing import InducingPoints, points_at
from lingp.inference.pooling import choose_from_all
from lingp.inference.posterior import Posterior
from lingp.inference.projection import Projection, relative_variances
from lingp.inference.shards import fingerprint
from lingp.inference.training_set import TrainingSet
from lingp.likelihoods import CurvatureRoot
from lingp.linearization import Factors
from lingp.linearization.inputs import Inputs, input_tensors
from lingp.operators import diagonal_blocks, gram
from lingp.priors import Prior

Complement = Literal["fitted", "prior"]

_KEPT_SHARE = 0.25  # of memory, for features of the training data


@dataclass(frozen=True)
class Sparse:
    """Sparse inference: one pass over the data, memory free of N, no training of anything.

    Attributes
    ----------
    num_inducing
        Number of inducing inputs, each with all its outputs, or of (input, output) pairs. By
        default about 1000 / C inputs. With a tolerance: the most there may be.
    select
        "greedy": the largest conditional variance next (pivoted Cholesky); "kmeans++": spread in
        the kernel's metric; "random". All choose among training inputs.
    points
        "inputs" or "pairs": whether an inducing point is an input with all outputs, or one output.
    complement
        The variance of whitened weights outside the span of the inducing points: "fitted" to the
        data, one number for all, by the bound; or as the "prior" has it, which the data can't
        narrow. Far from the data the prior's is the safe one; near them it is far too wide unless
        the inducing points span nearly all that the data determine.
    inducing
        Inputs to take as inducing points instead, as the network takes them.
    tolerance
        Take as few points as leave at most this share of the candidates' prior variance.
    num_candidates
        Number of training inputs to choose from; see `choose_inducing`.
    generator
        Source of randomness; torch's global one by default.

    Examples
    --------
    >>> net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    >>> X = torch.linspace(-1, 1, 200).unsqueeze(1)
    >>> gp = lingp.LinearizedGP(net, inference=lingp.Sparse(num_inducing=10))
    >>> gp.fit(X, X.sin()).evidence().trace_term < 1e-3
    True
    """

    num_inducing: int | None = None
    select: Rule = "greedy"
    points: Points = "inputs"
    complement: Complement = "fitted"
    inducing: Inputs | None = None
    tolerance: float | None = None
    num_candidates: int | None = None
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        if self.complement not in get_args(Complement):
            raise ValueError(f'complement: expected "fitted" or "prior", got {self.complement!r}')
        if self.inducing is None:
            return
        given = [n for n in ("num_inducing", "tolerance", "num_candidates") if getattr(self, n)]
        if given or self.points != "inputs":
            raise ValueError(
                f"{(given or ['points'])[0]}: has no meaning where the inducing inputs are given; "
                "leave out one of the two"
            )

    def bind(self, training: TrainingSet, prior: Prior, memory: float) -> BoundSparse:
        """The method with inducing points chosen for these data.

        Parameters
        ----------
        training
            The training data.
        prior
            A bound prior; its current variances are those of the kernel that rules use.
        memory
            Bytes that may be used.
        """
        if self.inducing is not None:
            prints = [fingerprint(t) for t in input_tensors(self.inducing)]
            training.shards.check_agreement({"the inducing inputs (fingerprints)": prints})
            points = points_at(training.linearized, self.inducing)
            return BoundSparse(points, _KEPT_SHARE * memory, complement=self.complement)
        choose = choose_inducing if training.shards.alone else choose_from_all
        with torch.no_grad():
            points, choice = choose(
                training,
                prior.variances().to(training.outputs),
                num_inducing=self.num_inducing,
                select=self.select,
                points=self.points,
                tolerance=self.tolerance,
                num_candidates=self.num_candidates,
                generator=self.generator,
                memory=memory,
            )
        return BoundSparse(points, _KEPT_SHARE * memory, choice, self.complement)


class SparsePosterior(Posterior):
    """Cov e = s (I - Q Qᵀ) + Q A⁻¹ Qᵀ, with L Lᵀ = A = I + Ψᵀ Λ Ψ.

        log det     2 Σ_i log L_ii
        Cov f*      s [K** - Ψ* Ψ*ᵀ] + Vᵀ V,  V = L⁻¹ Ψ*ᵀ
        sample      √s (e - Q Qᵀ e) + Q L⁻ᵀ e',  e ~ N(0, I_P), e' ~ N(0, I_m)

    Parameters
    ----------
    training, prior, root
        As every posterior has them.
    features
        Ψ at the training data.
    complement
        What s is.
    """

    features: Projection

    def __init__(
        self,
        training: TrainingSet,
        prior: Prior,
        root: CurvatureRoot,
        features: Projection,
        complement: Complement = "fitted",
    ) -> None:
        super().__init__(training, prior, root)
        self.complement = complement
        self.features = features
        basis, amplitude = features.basis, features.amplitude
        self._gram = amplitude.square() * basis.gram(root)
        squared = self._gram + torch.eye(
            len(self._gram), dtype=self._gram.dtype, device=self._gram.device
        )
        self.factorization = factorize(
            squared,
            self._whitened_rows,
            *map(training.shards.enter, (amplitude, basis.variances, basis.factor)),
            *root.tensors(),
            shards=training.shards,
        )

    def _whitened_rows(
        self, amplitude: Tensor, variances: Tensor, factor: Tensor, *root: Tensor
    ) -> Iterator[Tensor]:
        """Blocks of rows of Rᵀ Ψ."""
        tensors = self.root.with_tensors(*root)
        for block in self.features.basis.weighted_rows(tensors, variances, factor):
            yield amplitude * block

    def log_determinant(self) -> Tensor:
        return self.factorization.log_determinant()

    def trace_term(self) -> Tensor:
        features = self.features
        total = features.amplitude.square() * features.basis.trace(self.root)
        return total - self._gram.diagonal().sum()

    def left_out(self) -> Tensor:
        trace = self.trace_term()
        if self.complement == "prior":
            return trace
        return self._freedom * torch.log1p(trace / self._freedom)

    @cached_property
    def complement_variance(self) -> Tensor:
        """s, 0-d, without a graph."""
        with torch.no_grad():
            if self.complement == "prior":
                return self.variances.new_ones(())
            return 1 / (1 + self.trace_term().clamp(min=0) / self._freedom)

    @property
    def _freedom(self) -> int:
        """r, the number of directions outside the span."""
        return max(1, self.training.num_parameters - self.features.basis.rank)

    def solve(self, z: Tensor) -> Tensor:
        right = self.whitened_t_product(z.unsqueeze(-1))
        return self.factorization.solve(right).squeeze(-1)

    def precision_solve(self, b: Tensor) -> Tensor:
        return self.factorization.solve(b)

    @torch.no_grad()
    def covariance(self, factors: Factors) -> Tensor:
        rows = self.features.at(factors).flatten(0, 1)
        half = self._half(rows)
        outside = gram(factors, variances=self.variances) - rows @ rows.mT
        return self.complement_variance * outside + half.mT @ half

    @torch.no_grad()
    def marginal_covariance(self, factors: Factors) -> Tensor:
        rows = self.features.at(factors)
        outside = diagonal_blocks(factors, self.variances) - rows @ rows.mT
        return self.complement_variance * outside + self._informed(rows)

    @torch.no_grad()
    def training_covariance(self) -> Tensor:
        features, s = self.features, self.complement_variance
        covariance = s * features.amplitude.square() * features.basis.diagonal()
        for rows, block in features.basis.pieces():
            block = features.amplitude * block
            covariance[rows] += self._informed(block) - s * (block @ block.mT)
        return covariance

    @torch.no_grad()
    def informed_covariance(self) -> Tensor:
        pieces = self.features.basis.pieces()
        return torch.cat([self._informed(self.features.amplitude * block) for _, block in pieces])

    @torch.no_grad()
    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        training, factor = self.training, self.factorization.factor
        e = self._standard_normal(training.num_parameters, num_samples, generator=generator)
        inner = self._standard_normal(len(factor), num_samples, generator=generator)
        inner = torch.linalg.solve_triangular(factor.mT, inner, upper=True)
        e = self.complement_variance.sqrt() * e
        return e + self.features.whitened(inner - self.features.t_whitened(e))

    def bytes_per_row(self) -> int:
        return 4 * self.training.num_outputs * len(self._gram) * self.scale.element_size()

    def _half(self, rows: Tensor) -> Tensor:
        """L⁻¹ Ψ*ᵀ, (m x rows)."""
        return torch.linalg.solve_triangular(self.factorization.factor, rows.mT, upper=False)

    def _informed(self, rows: Tensor) -> Tensor:
        """Ψ_n A⁻¹ Ψ_nᵀ, (n x C x C), for rows (n x C x m)."""
        half = self._half(rows.flatten(0, 1)).mT.unflatten(0, rows.shape[:2])
        return half @ half.mT


class BoundSparse:
    """Sparse inference with inducing points that are chosen.

    Parameters
    ----------
    points
        Z.
    keep_bytes
        Memory that features of the training data may take.
    choice
        How they were chosen; None if they were given.
    complement
        See `Sparse`.
    """

    def __init__(
        self,
        points: InducingPoints,
        keep_bytes: float,
        choice: InducingChoice | None = None,
        complement: Complement = "fitted",
    ) -> None:
        self.complement = complement
        self.points = points
        self.keep_bytes = keep_bytes
        self.choice = choice
        self._basis: ValueCache[Basis] = ValueCache()

    def __call__(self, training: TrainingSet, prior: Prior, root: CurvatureRoot) -> SparsePosterior:
        features = self.features(training, prior)
        return SparsePosterior(training, prior, root, features, self.complement)

    def __str__(self) -> str:
        if self.choice is not None:
            return str(self.choice)
        return f"{self.points.num_points} inducing points as given"

    def features(self, training: TrainingSet, prior: Prior) -> Projection:
        """Ψ at the training data; without a graph in the variances, the last one is kept."""
        variances, amplitude = relative_variances(prior, training.outputs)
        if torch.is_grad_enabled() and variances.requires_grad:
            basis = Basis(training, self.points, variances, 0)
        else:
            with torch.no_grad():
                basis = self._basis.get(
                    (variances,),
                    lambda: Basis(training, self.points, variances.detach(), self.keep_bytes),
                    (training,),
                )
        return Projection(basis, amplitude)

    def carried_over(self, training: TrainingSet, origin: Origin) -> BoundSparse:
        """The same inducing points for a changed training set; sums over kept rows go along."""
        moved = BoundSparse(self.points, self.keep_bytes, self.choice, self.complement)
        basis = self._basis.kept
        if basis is not None:
            moved._basis.get(
                (basis.variances,), lambda: basis.carried_over(training, origin), (training,)
            )
        return moved
