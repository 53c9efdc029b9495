"""Network: what makes each error of the page appear."""

from torch import nn

import lingp
from error_cases.shared import fit, mlp, rows, says


class Around(nn.Module):
    """A network around another, with a forward of its own."""

    def __init__(self, forward, **modules):
        super().__init__()
        self.run = forward
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, x):
        return self.run(self, x)


@says("net: the output of a row depends on which other rows are in the batch")
def _():
    fit(Around(lambda s, x: s.inner(x - x.mean(0)), inner=mlp()))


@says("net: its output is tuple; expected one tensor")
def _():
    fit(Around(lambda s, x: (s.inner(x), None), inner=mlp()))


@says("net: its output has shape (1, 20) for 20 rows; expected the examples first")
def _():
    fit(Around(lambda s, x: s.inner(x).T, inner=mlp()))


@says("net: the shapes of ['0.weight', '0.bias'] are not known yet; run the network once")
def _():
    fit(nn.Sequential(nn.LazyLinear(1)))


@says("net: it ran other operations on these inputs than on the first ones it saw")
def _():
    def forward(self, x):
        return self.one(x) if bool((x < 5).all()) else self.two(self.one(x).expand(-1, 3))

    X, _ = rows()
    fit(Around(forward, one=mlp(), two=mlp())).predict(X + 100)


@says("parameters='heads.*' selects none of the network's 4 parameters (0.weight, 0.bias")
def _():
    fit(parameters="heads.*")


@says("parameters: '4.weight' is not in the network; names are")
def _():
    fit(parameters=["4.weight"])


@says("parameters: the network's outputs don't depend on other.0.weight, other.0.bias, … at all")
def _():
    unused = Around(lambda s, x: s.inner(x), inner=mlp(), other=mlp())
    fit(unused, parameters="other.*")


@says('parameters: "last_layer" was taken for other.0.weight, ..., which this Layerwise prior has')
def _():
    other = nn.Sequential(nn.Linear(3, 1).double())
    unused = Around(lambda s, x: s.inner(x), inner=mlp(), other=other)
    prior = lingp.priors.Layerwise({"other.0.weight": 1.0, "other.0.bias": 2.0})
    fit(unused, parameters="last_layer", prior=prior)


@says("the layer factors of ['inner.weight'] disagree with autograd; their Jacobians are computed")
def _():
    class Layer(nn.Linear):
        pass

    lingp.register_rule(Layer)(lambda module, x, g: {"weight": 2 * g.unsqueeze(-1) * x[:, None]})
    try:
        fit(Around(lambda s, x: s.inner(x), inner=Layer(3, 1).double()))
    finally:
        lingp.linearization.unregister_rule(Layer)


@says("the network uses 4 parameter tensors that are not registered in it")
def _():
    hidden = [mlp()]
    fit(Around(lambda s, x: s.inner(x) + hidden[0](x), inner=mlp()))


@says("the Jacobian at one row of X, of 1 outputs, keeps … of activations and gradients alive")
def _():
    fit(mlp(hidden=5000), memory_budget=1000)
