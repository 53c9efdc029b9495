"""How much code a first user passes through: functions and files in a traced `fit` and `predict`.

Counted are functions of the package that is looked at, each once however often it is called, and
the files they stand in; comprehensions and lambdas count to the function around them. Beside lingp,
an exact GP of GPyTorch and one of scikit-learn on the same 60 rows.

    python benchmarks/traced.py
    python benchmarks/traced.py --functions   # and their names
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import gpytorch
import sklearn
import torch
from harness import command_line
from harness.table import markdown_table
from sklearn.gaussian_process import GaussianProcessRegressor
from torch import Tensor, nn

import lingp

Function = tuple[str, str]  # file, name


def traced(package: Path, call: Callable[[], object]) -> set[Function]:
    """Functions of a package that a call passes."""
    passed: set[Function] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        file, inner = code.co_filename, code.co_name.endswith(">")  # a comprehension or a lambda
        if event == "call" and file.startswith(str(package)) and not inner:
            name = f"{code.co_name}, line {code.co_firstlineno}"
            passed.add((file.removeprefix(f"{package}/"), name))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return passed


class ExactGP(gpytorch.models.ExactGP):
    """GPyTorch's first example."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
        self.mean = gpytorch.means.ConstantMean()
        self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))


def calls() -> dict[str, tuple[Path, Callable[[], object]]]:
    """What is traced, by name; in order, as a prediction takes what was fitted."""
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 60, dtype=torch.float64).unsqueeze(1)
    y = (3 * x).sin()
    net = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))
    gp = lingp.LinearizedGP(net)
    exact = ExactGP(x, y.squeeze(1)).eval()
    exact.likelihood.eval()
    regressor = GaussianProcessRegressor(optimizer=None)
    here, theirs = (Path(module.__file__ or "").parent for module in (lingp, gpytorch))
    sk = Path(sklearn.__file__).parent / "gaussian_process"

    def predicted() -> object:
        prediction = gp.predict(x[:5], progress=False)
        return prediction.mean, prediction.variance

    return {
        "lingp: fit": (here, lambda: gp.fit(x, y, progress=False)),
        "lingp: first predict": (here, predicted),
        "lingp: next predict": (here, predicted),
        "GPyTorch: first predict": (theirs, lambda: exact.likelihood(exact(x[:5])).variance),
        "scikit-learn: fit": (sk, lambda: regressor.fit(x.numpy(), y.numpy())),
        "scikit-learn: predict": (sk, lambda: regressor.predict(x[:5].numpy(), return_std=True)),
    }


def main() -> None:
    parser = command_line.parser(__doc__)
    parser.add_argument("--functions", action="store_true", help="name them")
    arguments = parser.parse_args()
    lines, names = [], []
    warnings.simplefilter("ignore")
    for name, (package, call) in calls().items():
        passed = traced(package, call)
        lines.append([name, str(len(passed)), str(len({file for file, _ in passed}))])
        names += [f"{name}: {file} {function}" for file, function in sorted(passed)]
    report = markdown_table(["call", "functions", "files"], lines)
    if arguments.functions:
        report = "\n".join([report, "", *names])
    command_line.publish(report, arguments.output)


if __name__ == "__main__":
    main()
