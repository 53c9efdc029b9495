"""The exact posterior by conjugate gradients, preconditioned by a sparse posterior.

    B = I + Φ Φᵀ     P = I + W Wᵀ,  W = Rᵀ Ψ     P⁻¹ = I - W A⁻¹ Wᵀ,  A = I + Wᵀ W

K - Ψ Ψᵀ is PSD, so B ⪰ P ⪰ I. For any x, with r = k - B x,

    kᵀ B⁻¹ k - (kᵀ x + xᵀ r) = rᵀ B⁻¹ r <= rᵀ P⁻¹ r

so a variance K** - (kᵀ x + xᵀ r) is never below the exact one, and P⁻¹ certifies how far above.
log det B = log det A + tr log(P^{-1/2} B P^{-1/2}), the second with a standard error. Its gradient
tr B⁻¹ dB is that of log det A and what the same probes find of the rest (Wenger et al., 2022,
"Preconditioning for scalable Gaussian process hyperparameter optimization", section 3).
"""

from __future__ import annotations

import warnings
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from lingp.inference.convergence import ConvergenceWarning
from lingp.inference.implicit import Attach
from lingp.inference.iterative.kernel_product import KernelProduct
from lingp.inference.iterative.krylov import Solve, Variances, solve
from lingp.inference.iterative.lanczos import LogDeterminantEstimate, stochastic_log_determinant
from lingp.inference.posterior import Posterior, differentiable_in_factors
from lingp.inference.prior_values import PriorValues
from lingp.inference.protocol import posterior_to_plain
from lingp.inference.sparse import BoundSparse, SparsePosterior
from lingp.inference.training_set import TrainingSet
from lingp.likelihoods import CurvatureRoot
from lingp.linearization import Factors
from lingp.operators import diagonal_blocks, gram
from lingp.priors import Prior

_LIKELY_ITERATIONS = 30  # to count the columns of products beforehand
_FINEST = 1e3  # eps: the smallest relative residual that is asked for


@dataclass(frozen=True)
class Certificate:
    """How good the solutions so far are; the worst of all right-hand sides.

    Attributes
    ----------
    iterations
        Products per right-hand side.
    residual
        |r| / |k|.
    bound
        rᵀ P⁻¹ r of variances: none is more than this too large, and none is too small.
    share
        The same as a share of the variance that was found.
    """

    iterations: int = 0
    residual: float = 0.0
    bound: float = 0.0
    share: float = 0.0

    def worse(self, other: Certificate) -> Certificate:
        """The worse of the two in every respect."""
        return Certificate(*map(max, astuple(self), astuple(other)))


@dataclass(frozen=True)
class Solver:
    """How systems with B are solved.

    Attributes
    ----------
    product
        Products with the kernel at the training data.
    sparse
        Makes the sparse posterior that preconditions; None for none.
    tolerance, variance_tolerance, max_iterations, num_probes
        The options of `Iterative`.
    seed
        The seed of the probes.
    """

    product: KernelProduct
    sparse: BoundSparse | None
    tolerance: float
    variance_tolerance: float
    max_iterations: int
    num_probes: int
    seed: int


class IterativePosterior(Posterior):
    """Conjugate gradients on B = I + Φ Φᵀ; nothing is computed before it is asked for.

        log det     log det A + tr log(P^{-1/2} B P^{-1/2})
        Cov f*      K** - kᵀ x - xᵀ r,  x ≈ B⁻¹ k,  k = Rᵀ K(X, X*),  r = k - B x
        sample      e - Φᵀ B⁻¹ (Φ e + e'),  e ~ N(0, I_P), e' ~ N(0, I_NK)     (Matheron)

    A variance is solved for until |r| <= tolerance |k| and rᵀ P⁻¹ r <= variance_tolerance times it;
    a mean until |r| <= tolerance, so that no output is further from its own than that many
    posterior standard deviations (Cauchy and Schwarz: |Φ* Φᵀ B⁻¹ r|² <= Var f* · |r|²).

    Where data are spread over processes, vectors (N·K x S) are of all data and the same on every
    process; a product takes each process's rows. Covariances and samples then take all processes.

    Parameters
    ----------
    training, prior, root
        The model, as for every posterior.
    solver
        Tolerance, preconditioner and products.
    sparse
        The preconditioning posterior, where it is there already.

    Attributes
    ----------
    certificate
        The certificate of all solutions so far.
    """

    takes_all_ranks = True

    def __init__(
        self,
        training: TrainingSet,
        prior: PriorValues,
        root: CurvatureRoot,
        solver: Solver,
        sparse: SparsePosterior | None = None,
    ) -> None:
        super().__init__(training, prior, root)
        self.certificate = Certificate()
        self._solver = solver
        self._detached_root, self._detached_variances = root.detach(), self.variances.detach()
        self._sparse = sparse

    @property
    def preconditioner(self) -> SparsePosterior | None:
        """The sparse posterior of the same curvature, without a graph; None if there is none."""
        if self._sparse is None:
            with torch.no_grad():
                self._sparse = self._make_sparse(self._detached_variances, self._detached_root)
        return self._sparse

    def log_determinant(self) -> Tensor:
        estimate = self._estimate
        if torch.is_grad_enabled() and self._has_graph():
            known, rest = self._differentiable_log_determinant(estimate)
            return known + estimate.mean + (rest - rest.detach())
        return self._known_log_determinant(self.preconditioner) + estimate.mean

    def log_determinant_error(self) -> float:
        """Standard error over probes, and what Lanczos may have left unresolved."""
        estimate = self._estimate
        return estimate.standard_error + estimate.truncation

    def solve(self, z: Tensor) -> Tensor:
        right = self._flat(z.unsqueeze(-1))
        norm = float(torch.linalg.vector_norm(right.detach()))
        tolerance = self._solver.tolerance / max(1.0, norm)
        x = self._inverse(right, max(tolerance, _FINEST * torch.finfo(z.dtype).eps))
        return self.whitened_t_product(self._rows(x)).squeeze(-1)

    def precision_solve(self, b: Tensor) -> Tensor:
        tolerance = self._solver.tolerance
        # e = b - Φᵀ B⁻¹ Φ b as "variances" bᵀ e: their relative errors are squares of those of e
        variances = Variances(b.detach().square().sum(0), tolerance**2)
        x = self._inverse(self._flat(self.whitened_product(b)), tolerance, variances)
        return b - self.whitened_t_product(self._rows(x))

    @differentiable_in_factors
    def covariance(self, factors: Factors) -> Tensor:
        prior = diagonal_blocks(factors, self.variances)
        k, x, r = self._solve_covariances(factors, prior)
        explained = k.mT @ x + x.mT @ r
        explained = 0.5 * (explained + explained.mT)
        return gram(factors, variances=self.variances) - explained

    @differentiable_in_factors
    def marginal_covariance(self, factors: Factors) -> Tensor:
        prior = diagonal_blocks(factors, self.variances)
        solved = self._solve_covariances(factors, prior)
        shape = (factors.num_data, factors.num_outputs)
        k, x, r = (t.mT.unflatten(0, shape) for t in solved)  # (n, C, N·K)
        explained = k @ x.mT + x @ r.mT
        return prior - 0.5 * (explained + explained.mT)

    @torch.no_grad()
    def training_covariance(self) -> Tensor:
        """The covariance of the sparse preconditioner: the exact one would take N·C solves."""
        sparse = self.preconditioner
        if sparse is not None:
            return sparse.training_covariance()
        if not self.training.shards.alone:
            raise ValueError(
                "num_inducing: expected 1 or more; where data are spread over processes, their "
                "covariances are those of the preconditioner"
            )
        return super().training_covariance()

    @torch.no_grad()
    def training_parts(self) -> tuple[Tensor, Tensor | None]:
        sparse = self.preconditioner
        return super().training_parts() if sparse is None else sparse.training_parts()

    @torch.no_grad()
    def sample(self, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        training, shards = self.training, self.training.shards
        e = self._standard_normal(training.num_parameters, num_samples, generator=generator)
        size = shards.num_rows * self.root.rank
        noise = self._standard_normal(size, num_samples, generator=generator)
        e, noise = shards.first_tensor(e), shards.first_tensor(noise)
        right = self._flat(self.whitened_product(e)) + noise
        # to a share of the data's own noise, whatever the prior adds to it
        share = noise.square().sum(0).sqrt() / right.square().sum(0).sqrt()
        x = self._inverse(right, self._solver.tolerance * share)
        return e - self.whitened_t_product(self._rows(x))

    @torch.no_grad()
    def effective_parameters(self) -> Tensor:
        with torch.enable_grad():
            variances = self._detached_variances.clone().requires_grad_()
            values = cast(Prior, PriorValues(variances, self.isotropic, self.groups))
            again = IterativePosterior(self.training, values, self._detached_root, self._solver)
            (slopes,) = torch.autograd.grad(again.log_determinant(), variances)
        return slopes @ self._detached_variances

    def state(self) -> dict[str, Any]:
        sparse = self.preconditioner
        return {"sparse": None if sparse is None else posterior_to_plain(sparse, with_root=False)}

    def bytes_per_row(self) -> int:
        training = self.training
        columns = 10 * training.shards.num_rows * self.root.rank + 2 * training.outputs.numel()
        # two rows: of batches of one, the memory hardly matters
        if not self._solver.product.pays(2 * _LIKELY_ITERATIONS * training.num_outputs):
            columns += 3 * training.num_parameters  # of products through the factors
        return training.num_outputs * columns * self.scale.element_size()

    def _has_graph(self) -> bool:
        return any(t.requires_grad for t in (self.variances, *self.root.tensors()))

    def _rows(self, w: Tensor) -> Tensor:
        """(N·K x S) of all data to (N x K x S) of the data this process has."""
        shards = self.training.shards
        return shards.own_rows(w.unflatten(0, (shards.num_rows, self.root.rank)))

    def _flat(self, w: Tensor) -> Tensor:
        """(N x K x S) of the data this process has to (N·K x S) of all data."""
        return self.training.shards.gather_rows(w).flatten(0, 1)

    def _product(self, w: Tensor) -> Tensor:
        """B w, (N·K x S), without a graph."""
        kernel, rows = self._solver.product, self._rows(w)
        moved = kernel(
            rows.flatten(0, 1), self._detached_root, self._detached_variances, self.isotropic
        )
        return w + self._flat(moved.view_as(rows))

    @torch.no_grad()
    def _precondition(self, w: Tensor) -> Tensor:
        """P⁻¹ w, (N·K x S)."""
        sparse = self.preconditioner
        if sparse is None:
            return w
        inner = sparse.precision_solve(sparse.whitened_t_product(self._rows(w)))
        return w - self._flat(sparse.whitened_product(inner))

    @torch.no_grad()
    def _run(
        self, right: Tensor, tolerance: float | Tensor, variances: Variances | None = None
    ) -> Solve:
        """B⁻¹ Y, (N·K x S), without a graph."""
        self._expect(right.shape[1])
        return solve(
            self._product,
            right,
            self._precondition,
            tolerance=tolerance,
            max_iterations=self._solver.max_iterations,
            variances=variances,
        )

    def _inverse(
        self, right: Tensor, tolerance: float | Tensor, variances: Variances | None = None
    ) -> Tensor:
        """B⁻¹ Y, (N·K x S), differentiable in Y and in the hyperparameters."""

        def solved(right: Tensor, variances: Variances | None = None) -> Tensor:
            found = self._run(right, tolerance, variances)
            self._report(found)
            return found.x

        x = solved(right.detach(), variances)
        if not (torch.is_grad_enabled() and (right.requires_grad or self._has_graph())):
            return x
        moved = self.whitened_product(self.whitened_t_product(self._rows(x)))
        rest = right - x - self._flat(moved)  # its differential is dY - dB X
        attached: Tensor = Attach.apply(rest, x, solved)
        return attached

    def _solve_covariances(self, factors: Factors, prior: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """k = Rᵀ K(X, X*), x ≈ B⁻¹ k and r = k - B x, (N·K x n·C); `prior` are the blocks K**.

        The first and last carry the graph of the factors: kᵀ x + xᵀ r then has the derivative of
        kᵀ B⁻¹ k, as dB is 0 and x is a solution.
        """
        root, parts = self._detached_root, []
        for rows, here in self.training.chunks():
            cross = gram(here, factors, self._detached_variances)
            parts.append(root.rows(rows).t_apply(cross.unflatten(0, (-1, root.num_outputs))))
        own = prior.detach().diagonal(dim1=1, dim2=2).flatten()
        self.training.shards.check_same("the inputs that iterative inference predicts at", own)
        k = self._flat(torch.cat(parts))
        solver = self._solver
        variances = Variances(own, solver.variance_tolerance)
        found = self._run(k.detach(), solver.tolerance, variances)
        variance = own - (k.detach() * found.x).sum(0) - (found.x * found.residual).sum(0)
        least = torch.finfo(own.dtype).eps * own.clamp(min=torch.finfo(own.dtype).tiny)
        bound = float(found.bound.max())
        share = float((found.bound / torch.maximum(variance, least)).max())
        self.certificate = self.certificate.worse(Certificate(bound=bound, share=share))
        self._report(
            found,
            f", and variances may be up to {bound:.1e} too large, {share:.1e} of themselves (never "
            "too small)",
        )
        return k, found.x, found.residual + (k - k.detach())

    @cached_property
    def _estimate(self) -> LogDeterminantEstimate:
        with torch.no_grad():
            probes, solver = self._probes(), self._solver
            self._expect(probes.shape[1])
            estimate = stochastic_log_determinant(
                self._product,
                self._precondition,
                probes,
                tolerance=solver.tolerance,
                max_iterations=solver.max_iterations,
            )
        self._report(
            estimate.solution,
            f", and log det(I + Φ Φᵀ) is off by up to {estimate.truncation:.1e} besides its "
            f"standard error {estimate.standard_error:.1e}",
        )
        return estimate

    def _probes(self) -> Tensor:
        """Draws from N(0, P), (N·K x S): the same normal variates each time."""
        outputs, solver = self.training.outputs, self._solver
        generator = torch.Generator(outputs.device).manual_seed(solver.seed)
        size = self.training.shards.num_rows * self.root.rank
        probes = self._standard_normal(size, solver.num_probes, generator=generator)
        sparse = self.preconditioner
        if sparse is None:
            return probes
        inner = self._standard_normal(
            sparse.features.num_coordinates, solver.num_probes, generator=generator
        )
        return probes + self._flat(sparse.whitened_product(inner))

    def _differentiable_log_determinant(
        self, estimate: LogDeterminantEstimate
    ) -> tuple[Tensor, Tensor]:
        """log det A, and a 0-d tensor with the gradient of the rest.

        tr(B⁻¹ dB) - tr(P⁻¹ dP) = E w [(B⁻¹ b)ᵀ dB (P⁻¹ b) - (P⁻¹ b)ᵀ dP (P⁻¹ b)]
        """
        x, y = self._rows(estimate.solution.x), self._rows(estimate.preconditioned)
        terms = (self.whitened_t_product(x) * self.whitened_t_product(y)).sum(0)  # (S,)
        sparse = self._make_sparse(self.variances, self.root)
        if sparse is not None:
            terms = terms - sparse.whitened_t_product(y).square().sum(0)
        return self._known_log_determinant(sparse), (estimate.weights * terms).mean()

    def _known_log_determinant(self, sparse: SparsePosterior | None) -> Tensor:
        """log det A."""
        return self.variances.new_zeros(()) if sparse is None else sparse.log_determinant()

    def _make_sparse(self, variances: Tensor, root: CurvatureRoot) -> SparsePosterior | None:
        if self._solver.sparse is None:
            return None
        values = cast(Prior, PriorValues(variances, self.isotropic, self.groups))
        return self._solver.sparse(self.training, values, root)

    def _expect(self, num_columns: int) -> None:
        self._solver.product.expect(
            _LIKELY_ITERATIONS * num_columns, self._detached_variances, self.isotropic
        )

    def _report(self, found: Solve, consequence: str = "") -> None:
        """Note how good the solutions are; say with the numbers what missed the tolerance."""
        certificate = Certificate(found.iterations, float(found.relative.max()))
        self.certificate = self.certificate.worse(certificate)
        converged, relative, iterations = found.converged, found.relative, found.iterations
        if bool(converged.all()):
            return
        solver = self._solver
        missed, largest = int((~converged).sum()), float(relative[~converged].max())
        remedy = f"raise max_iterations (now {solver.max_iterations}) or num_inducing"
        if iterations < solver.max_iterations:
            remedy = "rounding allows no more: use dtype=torch.float64 or a larger tolerance"
        warnings.warn(
            f"iterative inference: {missed} of {len(converged)} right-hand sides missed the "
            f"tolerance {solver.tolerance:.1e}; after {iterations} iterations their largest "
            f"relative residual is {largest:.1e}{consequence}. {remedy[0].upper()}{remedy[1:]}",
            ConvergenceWarning,
            stacklevel=3,
        )
