"""Dense Jacobians by plain autograd, one example and one output at a time: the reference."""

import torch

from lingp.linearization.inputs import call_network, map_inputs, num_rows


def dense_jacobian(net, x, parameters=None):
    """∂f/∂θ in float64, (N, C, P), of the named parameters (all). Converts `net` in place."""
    net = net.double().eval()
    x = map_inputs(lambda t: t.detach().double() if t.is_floating_point() else t, x)
    named = dict(net.named_parameters())
    chosen = [named[name] for name in (parameters or named)]
    for p in chosen:
        p.requires_grad_(True)
    examples = []
    for n in range(num_rows(x)):
        with torch.enable_grad():
            out = call_network(net, map_inputs(lambda t, n=n: t[n : n + 1], x)).reshape(-1)
        rows = []
        if not out.requires_grad:
            examples.append(
                torch.zeros(len(out), sum(p.numel() for p in chosen), dtype=torch.float64)
            )
            continue
        for f in out:
            grads = torch.autograd.grad(f, chosen, retain_graph=True, allow_unused=True)
            filled = [
                torch.zeros_like(p) if g is None else g.to_dense()
                for p, g in zip(chosen, grads, strict=True)
            ]
            rows.append(torch.cat([g.reshape(-1) for g in filled]))
        examples.append(torch.stack(rows))
    return torch.stack(examples)


def relative_error(got, expected):
    """‖got − expected‖ / ‖expected‖, in float64."""
    got, expected = got.detach().double(), expected.detach().double()
    assert got.shape == expected.shape, (got.shape, expected.shape)
    return float((got - expected).norm() / expected.norm().clamp(min=1e-300))
