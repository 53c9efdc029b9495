"""One Gaussian process from several processes, each with a shard of the data.

Every process holds some rows, trains the same network on them in parallel (DistributedDataParallel)
and conditions the same Gaussian process on them. What they send each other has the size of the
weights or of a matrix over them, never of the data. Takes a few seconds.

    torchrun --nproc-per-node 2 examples/distributed.py     # two processes
    python examples/distributed.py                          # one, for comparison
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import lingp


def shard(rank: int, size: int, num_rows: int) -> tuple[Tensor, Tensor]:
    """The rows of one rank: every size-th of some that all could make. In real life: of a file."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(num_rows, 1, generator=generator, dtype=torch.float64) * 6 - 3
    y = X.sin() + 0.1 * torch.randn(num_rows, 1, generator=generator, dtype=torch.float64)
    return X[rank::size], y[rank::size]


def train(X: Tensor, y: Tensor, steps: int, device: torch.device) -> nn.Module:
    """Train a network on the rows of all ranks; every rank ends with the same weights."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 1)).to(device, torch.float64)
    model = DistributedDataParallel(net) if dist.is_initialized() else net
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(X), y).backward()
        optimizer.step()
    return net.eval()


def run(num_rows: int, steps: int) -> dict[str, float]:
    """Train, condition, tune, predict: the same calls on every rank."""
    group = dist.group.WORLD if dist.is_initialized() else None
    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    cuda = dist.is_initialized() and dist.get_backend() == "nccl"
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    X, y = (t.to(device) for t in shard(rank, size, num_rows))
    net = train(X, y, steps, device)

    gp = lingp.LinearizedGP(net, inference="weight_space", process_group=group)
    gp.fit(X, y)  # own rows
    gp.optimize_hyperparameters()
    # every rank now has the whole posterior, and predicts without the others
    prediction = gp.predict(torch.tensor([[0.0], [6.0]], dtype=torch.float64, device=device))
    inside, outside = prediction.epistemic_variance.sqrt().flatten().tolist()
    return {
        "log marginal likelihood": gp.log_marginal_likelihood().item(),
        "noise": gp.likelihood.noise.item() ** 0.5,
        "error bar at 0": inside,
        "error bar at 6, far from the data": outside,
    }


def main() -> None:
    """Join the other processes, if torchrun started any, and print what rank 0 found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-rows", type=int, default=500)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    launched = "RANK" in os.environ  # torchrun says which process this is
    if launched:
        local = int(os.environ["LOCAL_RANK"])
        cuda = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
        if cuda:
            torch.cuda.set_device(local)
        dist.init_process_group("nccl" if cuda else "gloo")
    found = run(options.num_rows, options.steps)
    if not launched or dist.get_rank() == 0:
        print(f"{dist.get_world_size() if launched else 1} processes")
        for name, value in found.items():
            print(f"{name:<36}{value:10.4f}")
    if launched:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
