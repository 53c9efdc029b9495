"""The peers and what their environments hold."""

from __future__ import annotations

from harness.environments import Environment, same_torch

NEURAL_TANGENTS = Environment(
    "neural-tangents",
    # a JAX it was made for, and the NumPy and SciPy that this JAX was made for
    (
        "neural-tangents==0.6.5",
        "jax==0.4.23",
        "jaxlib==0.4.23",
        "numpy<2",
        "scipy<1.13",
    ),
    pythons=((3, 11), (3, 12), (3, 10)),
)

_CURVATURE = (
    "backpack-for-pytorch==1.7.1",
    "curvlinops-for-pytorch==3.0.1",
    "einconv==0.1.0",
    "einops==0.8.2",
    "linear_operator==0.6.1",
    "unfoldNd==0.2.3",
)

CURVLINOPS = Environment(
    "curvlinops",
    (same_torch(), "numpy", "opt_einsum", "packaging", "scipy", "tqdm"),
    alone=_CURVATURE,  # backpack asks for torchvision, which would bring another torch
)

LAPLACE = Environment(
    "laplace-torch",
    (same_torch(), "numpy", "opt_einsum", "packaging", "scipy", "tqdm"),
    alone=(
        *_CURVATURE,
        "laplace-torch==0.3",  # asks for torchvision too
        "asdfghjkl==0.1a4",
        "lightning-utilities",
        "torchmetrics==1.9.0",
    ),
)
