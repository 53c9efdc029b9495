"""BoTorch: Bayesian optimisation with a linearised network as the model."""

try:
    import botorch as _botorch  # noqa: F401
except ImportError as error:
    raise ImportError(
        "lingp.integrations.botorch needs BoTorch, which is not installed: "
        'pip install "lingp[botorch]"'
    ) from error

from lingp.integrations.botorch.model import LinearizedGPModel
from lingp.integrations.botorch.training import fit_linearized_gp

__all__ = ["LinearizedGPModel", "fit_linearized_gp"]
