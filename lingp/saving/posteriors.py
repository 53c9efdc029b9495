"""Posteriors on disk: their factors, so that nothing is computed again when they are loaded."""

from __future__ import annotations

from typing import Any, cast

import torch

from lingp.inference import FunctionSpace, Posterior, SparsePosterior, TrainingSet, WeightSpace
from lingp.inference.factorize import Factorization
from lingp.inference.iterative import BoundIterative, IterativePosterior
from lingp.inference.posterior import InferenceMethod
from lingp.inference.prior_values import PriorValues
from lingp.inference.sparse import BoundSparse
from lingp.likelihoods import CurvatureRoot, DiagonalRoot
from lingp.priors import Prior
from lingp.runtime.plain import from_plain, own, to_plain


@torch.no_grad()
def posterior_to_plain(posterior: Posterior, *, with_root: bool) -> dict[str, Any]:
    """A posterior without its training data and method.

    Parameters
    ----------
    posterior
        Of one of lingp's own methods, without a graph.
    with_root
        Whether the curvature at every training datum goes along.
    """
    plain: dict[str, Any] = {
        "variances": own(posterior.variances),
        "isotropic": posterior.isotropic,
        "groups": to_plain(posterior.groups),
        "root": to_plain(posterior.root) if with_root else None,
    }
    if isinstance(posterior, IterativePosterior):
        sparse = posterior.preconditioner
        return plain | {
            "sparse": None if sparse is None else posterior_to_plain(sparse, with_root=False)
        }
    assert isinstance(posterior, (WeightSpace, FunctionSpace, SparsePosterior))
    plain |= {
        "factor": own(posterior.factorization.factor),
        "from_qr": posterior.factorization.from_qr,
    }
    if isinstance(posterior, SparsePosterior):
        plain |= {
            "gram": own(posterior._gram),
            "complement_variance": own(posterior.complement_variance),
        }
    return plain


@torch.no_grad()
def posterior_from_plain(
    plain: dict[str, Any],
    training: TrainingSet,
    method: InferenceMethod,
    root: CurvatureRoot | None = None,
) -> Posterior:
    """What `posterior_to_plain` made it from.

    Parameters
    ----------
    plain
        Of the file.
    training, method
        Those of the posterior.
    root
        Its curvature root, where the file has none; of no data by default.
    """
    values = PriorValues(plain["variances"], plain["isotropic"], plain["groups"])
    prior = cast(Prior, values)
    if plain["root"] is not None:
        root = from_plain(plain["root"])
    root = root or DiagonalRoot(training.outputs[:0])
    if isinstance(method, BoundIterative):
        iterative = IterativePosterior(training, prior, root, method)
        if method.sparse is not None:
            made = posterior_from_plain(plain["sparse"], training, method.sparse, root)
            iterative._sparse = cast(SparsePosterior, made)
        return iterative
    cls: Any = SparsePosterior if isinstance(method, BoundSparse) else method
    posterior = cls.__new__(cls)
    Posterior.__init__(posterior, training, prior, root)
    posterior.factorization = Factorization(plain["factor"], None, plain["from_qr"])
    if isinstance(method, BoundSparse):
        posterior.complement = method.complement
        posterior.features = method.features(training, prior)
        posterior._gram = plain["gram"]
        posterior.complement_variance = plain["complement_variance"]
    return cast(Posterior, posterior)
