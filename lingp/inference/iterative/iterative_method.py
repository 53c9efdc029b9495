"""Iterative inference: the exact posterior, with a sparse one as preconditioner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch

from lingp.inference.iterative.iterative_posterior import IterativePosterior, Solver
from lingp.inference.iterative.kernel_product import KernelProduct
from lingp.inference.origin import Origin
from lingp.inference.prior_values import PriorValues
from lingp.inference.protocol import (
    InferenceMethod,
    Options,
    method_to_plain,
    posterior_from_plain,
    stored_as,
)
from lingp.inference.sparse import BoundSparse, Sparse
from lingp.inference.sparse.selection import Rule
from lingp.inference.training_set import TrainingSet
from lingp.likelihoods import CurvatureRoot
from lingp.priors import Prior
from lingp.runtime.plain import from_plain, storable, to_plain

_DENSE_SHARE = 0.5  # of memory, for a kernel that is written down
_FEATURES_SHARE = 0.25  # of memory, for the preconditioner's features


@storable
@dataclass(frozen=True)
class Iterative(Options):
    """Exact inference by conjugate gradients: memory and products linear in N, errors stated.

    Variances stopped early are too large, never too small; each comes with a bound on its error,
    the evidence with a standard error (see `IterativePosterior`).

    Attributes
    ----------
    num_inducing
        Inducing inputs of the sparse posterior that preconditions; by default about 1000 / C, 0 for
        none. More of them take fewer iterations, N·C·m memory and N·C·m² work each time curvature
        changes.
    select
        The rule by which they are chosen, see `Sparse`.
    tolerance
        The bound on relative residuals, and on the mean's distance from the exact one in posterior
        standard deviations.
    variance_tolerance
        The bound on certified errors of variances, as shares of them; by default `tolerance`. Where
        data leave little of the prior's variance, a small share is the costliest thing asked for.
    max_iterations
        The most products per right-hand side; past it a `ConvergenceWarning` tells what is missing.
    num_probes
        The number of probes of the evidence, whose standard error falls with its square root.
    generator
        Source of randomness of inducing points and probes; by default one with the same seed each
        time. Probes are drawn once, so that the evidence is a smooth function of hyperparameters.

    Examples
    --------
    >>> net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    >>> X = torch.linspace(-1, 1, 200).unsqueeze(1)
    >>> gp = lingp.LinearizedGP(net, inference=lingp.Iterative(num_inducing=10))
    >>> gp.fit(X, X.sin()).predict(X).variance.shape
    torch.Size([200, 1])

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    num_inducing: int | None = None
    select: Rule = "greedy"
    tolerance: float = 1e-4
    max_iterations: int = 1000
    num_probes: int = 16
    generator: torch.Generator | None = None
    variance_tolerance: float | None = None

    def __post_init__(self) -> None:
        if self.num_inducing is not None and self.num_inducing < 0:
            raise ValueError(
                f"num_inducing: got {self.num_inducing}; expected a number of inputs, 0 for no "
                "preconditioner, or None"
            )
        if not 0 < self.tolerance < 1:
            raise ValueError(f"tolerance: got {self.tolerance}; expected a number between 0 and 1")
        if self.variance_tolerance is not None and not self.variance_tolerance > 0:
            raise ValueError(
                f"variance_tolerance: got {self.variance_tolerance}; expected a share of a "
                "variance, above 0, or None for that of residuals"
            )
        if self.max_iterations < 1:
            raise ValueError(f"max_iterations: got {self.max_iterations}; expected 1 or more")
        if self.num_probes < 2:
            raise ValueError(f"num_probes: got {self.num_probes}; a standard error takes 2 or more")

    def bind(self, training: TrainingSet, prior: Prior, memory: float) -> BoundIterative:
        """The method with a preconditioner chosen for these data. See `Options.bind`."""
        generator = self.generator
        if generator is None:  # results repeat, and torch's global one is left alone
            generator = torch.Generator().manual_seed(0)
        sparse = None
        if self.num_inducing != 0:
            options = Sparse(self.num_inducing, self.select, generator=generator)
            sparse = options.bind(training, prior, memory)
            sparse.keep_bytes = _FEATURES_SHARE * memory
        draw = torch.randint(2**62, (), generator=generator, device=generator.device)
        seed = training.shards.first(int(draw))
        product = KernelProduct(training, _DENSE_SHARE * memory, prior.columnwise)
        return BoundIterative(self, sparse, product, seed)


@stored_as("iterative")
@dataclass(eq=False, repr=False)
class BoundIterative(InferenceMethod):
    """Iterative inference with its preconditioner, products and probes.

    Attributes
    ----------
    options
        The options that the user gave.
    sparse
        Makes the sparse posterior that preconditions; None for none.
    product
        Products with the kernel at the training data.
    seed
        The seed of the probes.
    """

    title: ClassVar[str] = "iterative"
    predicts_with_data = True

    options: Iterative
    sparse: BoundSparse | None
    product: KernelProduct
    seed: int

    @property
    def solver(self) -> Solver:
        """What posteriors need of it."""
        options = self.options
        asked = options.variance_tolerance
        return Solver(
            self.product,
            self.sparse,
            tolerance=options.tolerance,
            variance_tolerance=options.tolerance if asked is None else asked,
            max_iterations=options.max_iterations,
            num_probes=options.num_probes,
            seed=self.seed,
        )

    def __call__(
        self, training: TrainingSet, prior: PriorValues, root: CurvatureRoot
    ) -> IterativePosterior:
        return IterativePosterior(training, prior, root, self.solver)

    def __str__(self) -> str:
        preconditioner = "no preconditioner" if self.sparse is None else str(self.sparse)
        return f"tolerance {self.options.tolerance:.1e}; {preconditioner}; {self.product.reason}"

    def carried_over(self, training: TrainingSet, origin: Origin) -> BoundIterative:
        """The same for a changed training set, with the same inducing points and seed."""
        sparse = None if self.sparse is None else self.sparse.carried_over(training, origin)
        product = KernelProduct(training, self.product.memory, self.product.columnwise)
        return BoundIterative(self.options, sparse, product, self.seed)

    def to_plain(self) -> dict[str, Any]:
        return {
            "options": to_plain(self.options),
            "sparse": None if self.sparse is None else method_to_plain(self.sparse),
            "seed": self.seed,
            **self.product.state(),
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any], training: TrainingSet) -> BoundIterative:
        sparse = plain["sparse"]
        return cls(
            from_plain(plain["options"]),
            None if sparse is None else BoundSparse.from_plain(sparse, training),
            KernelProduct.restored(plain, training),
            plain["seed"],
        )

    def restored(
        self, state: dict[str, Any], training: TrainingSet, prior: PriorValues, root: CurvatureRoot
    ) -> IterativePosterior:
        sparse = None
        if self.sparse is not None:
            sparse = posterior_from_plain(state["sparse"], training, self.sparse, root)
        return IterativePosterior(training, prior, root, self.solver, cast(Any, sparse))
