"""Sparse inference as the user asks for it, and with inducing points chosen for the data."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, get_args

import torch

from lingp.inference.origin import Origin
from lingp.inference.prior_values import PriorValues
from lingp.inference.protocol import InferenceMethod, Options, stored_as
from lingp.inference.sparse.basis import Basis
from lingp.inference.sparse.candidates import InducingChoice, Points, choose_inducing
from lingp.inference.sparse.inducing import InducingPoints, points_at
from lingp.inference.sparse.pooling import choose_from_all
from lingp.inference.sparse.projection import Projection, relative_variances
from lingp.inference.sparse.selection import Rule
from lingp.inference.sparse.sparse_posterior import Complement, SparsePosterior
from lingp.inference.training_set import TrainingSet
from lingp.likelihoods import CurvatureRoot
from lingp.linearization.inputs import Inputs, input_tensors
from lingp.priors import Prior
from lingp.runtime.plain import from_plain, storable, to_plain
from lingp.runtime.shards import fingerprint
from lingp.runtime.value_cache import ValueCache

_KEPT_SHARE = 0.25  # of memory, for features of the training data
_IN_FILE = ("points", "keep_bytes", "choice", "complement")


@storable
@dataclass(frozen=True)
class Sparse(Options):
    """Sparse inference: one pass over the data, memory free of N, no training of anything.

    Attributes
    ----------
    num_inducing
        Number of inducing inputs, each with all its outputs, or of (input, output) pairs. By
        default about 1000 / C inputs. With a tolerance: the most there may be.
    select
        "kmeans++": spread in the kernel's metric; "greedy": the largest conditional variance next
        (pivoted Cholesky), which is best for the worst row and goes after outliers; "random". All
        choose among training inputs.
    points
        "inputs" or "pairs": whether an inducing point is an input with all outputs, or one output.
    complement
        The variance of whitened weights outside the span of the inducing points: "fitted" to the
        data, one number for all, by the bound (and for predictions around a refitted mean by the
        residuals that are left, where those ask for more); or as the "prior" has it, which the data
        can't narrow. Far from the data the prior's is the safe one; near them it is far too wide
        unless the inducing points span nearly all that the data determine.
    inducing
        Inputs to take as inducing points instead, as the network takes them.
    tolerance
        Take as few points as leave at most this share of the candidates' prior variance.
    num_candidates
        Number of training inputs to choose from; see `choose_inducing`.
    generator
        Source of randomness; by default one with the same seed each time.

    Examples
    --------
    >>> net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    >>> X = torch.linspace(-1, 1, 200).unsqueeze(1)
    >>> gp = lingp.LinearizedGP(net, inference=lingp.Sparse(num_inducing=10))
    >>> gp.fit(X, X.sin()).evidence().trace_term < 1e-3
    True
    """

    streams: ClassVar[bool] = True

    num_inducing: int | None = None
    select: Rule = "kmeans++"
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
        """The method with inducing points chosen for these data. See `Options.bind`."""
        if self.inducing is not None:
            prints = [fingerprint(t) for t in input_tensors(self.inducing)]
            training.shards.check_agreement({"the inducing inputs (fingerprints)": prints})
            points = points_at(training.linearized, self.inducing)
            return BoundSparse(points, _KEPT_SHARE * memory, complement=self.complement)
        generator = self.generator
        if generator is None:  # results repeat, and torch's global one is left alone
            generator = torch.Generator().manual_seed(0)
        choose = choose_inducing if training.shards.alone else choose_from_all
        points, choice = choose(
            training,
            prior.variances().detach().to(training.outputs),
            num_inducing=self.num_inducing,
            select=self.select,
            points=self.points,
            tolerance=self.tolerance,
            num_candidates=self.num_candidates,
            generator=generator,
            memory=memory,
        )
        return BoundSparse(points, _KEPT_SHARE * memory, choice, self.complement)


@stored_as("sparse")
@dataclass(eq=False, repr=False)
class BoundSparse(InferenceMethod):
    """Sparse inference with inducing points that are chosen.

    Attributes
    ----------
    points
        Z.
    keep_bytes
        Memory that features of the training data may take.
    choice
        The way they were chosen; None if they were given.
    complement
        See `Sparse`.
    """

    title: ClassVar[str] = "sparse"

    points: InducingPoints
    keep_bytes: float
    choice: InducingChoice | None = None
    complement: Complement = "fitted"
    _basis: ValueCache[Basis] = field(default_factory=ValueCache, init=False)

    def __call__(
        self, training: TrainingSet, prior: PriorValues, root: CurvatureRoot
    ) -> SparsePosterior:
        features = self.features(training, prior)
        return SparsePosterior(training, prior, root, features, self.complement)

    def inputs_in_file(self) -> str:
        where = "" if self.choice is None else ", which are training inputs"
        return f", except for the layers' values at {self.points.num_inputs} inducing inputs{where}"

    def to_plain(self) -> dict[str, Any]:
        return {name: to_plain(getattr(self, name)) for name in _IN_FILE}

    @classmethod
    def from_plain(cls, plain: dict[str, Any], training: TrainingSet) -> BoundSparse:
        return cls(**{name: from_plain(plain[name]) for name in _IN_FILE})

    def restored(
        self, state: dict[str, Any], training: TrainingSet, prior: PriorValues, root: CurvatureRoot
    ) -> SparsePosterior:
        features = self.features(training, prior)
        return SparsePosterior.restored(state, training, prior, root, features, self.complement)

    def __str__(self) -> str:
        if self.choice is not None:
            return str(self.choice)
        return f"{self.points.num_points} inducing points as given"

    def features(self, training: TrainingSet, prior: PriorValues) -> Projection:
        """Ψ at the training data; without a graph in the variances, the last one is kept."""
        variances, amplitude = relative_variances(prior, training.outputs)
        if torch.is_grad_enabled() and variances.requires_grad:
            basis = Basis(training, self.points, variances, 0, prior.group)
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
        moved = replace(self)
        basis = self._basis.kept
        if basis is not None:
            moved._basis.get(
                (basis.variances,), lambda: basis.carried_over(training, origin), (training,)
            )
        return moved
