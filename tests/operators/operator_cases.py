"""Small factors with known dense Jacobians, for the operator tests."""

import torch
from torch import nn
from torch.func import functional_call, jacrev, vmap

from lingp.linearization import LinearizedNetwork


def make_network(inputs=4, outputs=2, seed=0, dtype=torch.float32):
    """A two-layer network whose NTK on a few points is well conditioned (P well above N·C)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))
    return net.to(dtype)


def make_inputs(rows, inputs=4, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(100 + seed)
    return torch.randn(rows, inputs, generator=generator, dtype=torch.float64).to(dtype)


def make_factors(rows, outputs, seed=0, dtype=torch.float32):
    """Factors of `make_network` at `make_inputs`: P well above N·C."""
    net = LinearizedNetwork(make_network(outputs=outputs, dtype=dtype))
    return net.factors(make_inputs(rows, seed=seed, dtype=dtype))[1]


def make_tall_factors(rows, outputs, dtype=torch.float32):
    """Factors of a single linear layer with P = 5 C, well below N·C: the GGN has an inverse."""
    net = nn.Linear(4, outputs).to(dtype)
    return LinearizedNetwork(net).factors(make_inputs(rows, dtype=dtype))[1]


def make_root(rows, outputs, columns, seed=0, dtype=torch.float32):
    """Curvature roots R_n (N, C, K)."""
    generator = torch.Generator().manual_seed(200 + seed)
    root = torch.randn(rows, outputs, columns, generator=generator, dtype=torch.float64)
    return (root / rows**0.5).to(dtype)


class TokenNetwork(nn.Module):
    """Token ids (N, S) to three outputs."""

    def __init__(self):
        super().__init__()
        self.table, self.norm, self.head = nn.Embedding(7, 4), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, ids):
        return self.head(torch.tanh(self.norm(self.table(ids))).mean(1))


def _seeded(make):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make().double()


def _vectors(rows, seed):
    return make_inputs(rows, 4, seed, torch.float64)


def _images(rows, seed):
    return make_inputs(rows, 36, seed, torch.float64).view(rows, 1, 6, 6)


def _tokens(rows, seed):
    return torch.randint(0, 7, (rows, 5), generator=torch.Generator().manual_seed(seed))


def _mlp(outputs):
    return nn.Sequential(
        nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 6), nn.GELU(), nn.Linear(6, outputs)
    )


def _convolutional():
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(3, 4, 3, stride=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(16, 2),
    )


# name -> () -> (float64 network, (rows, seed) -> inputs)
NETWORKS = {
    "mlp, 1 output": lambda: (_seeded(lambda: _mlp(1)), _vectors),
    "mlp, 3 outputs": lambda: (_seeded(lambda: _mlp(3)), _vectors),
    "convolutions, 2 outputs": lambda: (_seeded(_convolutional), _images),
    "tokens, 3 outputs": lambda: (_seeded(TokenNetwork), _tokens),
}


def dense_jacobian(net, x):
    """J (N·C x P) by torch.func, row by row, in the order of `net.parameters()`."""
    weights = {name: p.detach() for name, p in net.named_parameters()}

    def of_row(values, row):
        return functional_call(net, values, (row.unsqueeze(0),)).reshape(-1)

    parts = vmap(jacrev(of_row), (None, 0))(weights, x)  # name -> (N, C, *shape)
    return torch.cat([j.flatten(2) for j in parts.values()], dim=2).flatten(0, 1)
