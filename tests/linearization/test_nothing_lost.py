"""The user's network, and torch's own state, are as they were."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from cases import CASES, Net, mlp
from torch import nn

from lingp.linearization import LinearizedNetwork

WATCHED = [
    "mlp",
    "pre-activation ResNet",
    "in-place gain and shift",
    "old weight norm",
    "spectral norm",
    "old spectral norm",
    "pruned",
    "embedding of bounded norm",
    "encoder",
    "LSTM",
    "checkpointed",
    "BatchNorm2d",
]


def snapshot(net):
    return {
        "parameters": {
            n: (p, p.detach().clone(), p.requires_grad) for n, p in net.named_parameters()
        },
        "gradients": {
            n: None if p.grad is None else p.grad.clone() for n, p in net.named_parameters()
        },
        "buffers": {n: b.clone() for n, b in net.named_buffers()},
        "modes": [m.training for m in net.modules()],
        "hooks": [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in net.modules()],
        "forwards": [m.forward.__func__ for m in net.modules()],
    }


def assert_same(before, after):
    assert before["modes"] == after["modes"]
    assert before["hooks"] == after["hooks"]
    assert before["forwards"] == after["forwards"]
    for name, (p, value, requires_grad) in before["parameters"].items():
        assert after["parameters"][name][0] is p
        assert torch.equal(after["parameters"][name][1], value)
        assert after["parameters"][name][2] == requires_grad
    for key in ("gradients", "buffers"):
        for name, value in before[key].items():
            assert value is after[key][name] or torch.equal(value, after[key][name])


@pytest.mark.filterwarnings("ignore:the network's operations could not be recorded")
@pytest.mark.parametrize("name", WATCHED)
def test_the_network_is_untouched(name):
    case = CASES[name]
    net, x = case.network().train(), case.inputs(5)
    if len(list(net.parameters())) > 1:
        next(iter(net.parameters())).requires_grad_(False)
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    before, kept = snapshot(net), x.clone()
    lin = LinearizedNetwork(net)
    lin(x)
    _, factors = lin.factors(x)
    assert_same(before, snapshot(net))
    assert torch.equal(x, kept)
    assert not factors.jacobian().requires_grad
    assert not any(p.requires_grad for p in lin.network.parameters())
    assert lin.network.training is False


def test_changes_to_the_network_are_not_seen():
    net = mlp(3, 4, 2).double()
    lin = LinearizedNetwork(net)
    x = CASES["mlp"].inputs(4)
    outputs, factors = lin.factors(x)
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
    assert torch.equal(lin(x), outputs)
    assert torch.equal(lin.factors(x)[1].jacobian(), factors.jacobian())


def test_random_state_modes_and_defaults_are_kept():
    lin = LinearizedNetwork(CASES["encoder"].network())
    x = CASES["encoder"].inputs(4)
    state = torch.get_rng_state()
    fused = torch.backends.mha.get_fastpath_enabled()
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            lin.factors(x)
            lin(x)
            assert torch.is_grad_enabled() == grad
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_default_dtype() == torch.float32
    assert torch.backends.mha.get_fastpath_enabled() == fused
    assert not torch.overrides._get_current_function_mode_stack()


def test_state_is_kept_when_the_network_raises():
    def forward(s, x):
        h = s.a(x)
        if len(x) > 4:
            raise KeyError("on purpose")
        return h

    lin = LinearizedNetwork(Net(forward, a=nn.Linear(3, 2)).double())
    x = CASES["mlp"].inputs(6)
    lin.factors(x[:3])
    fused = torch.backends.mha.get_fastpath_enabled()
    with pytest.raises(KeyError, match="on purpose"):
        lin.factors(x)
    assert not any(p.requires_grad for p in lin.network.parameters())
    assert not torch.overrides._get_current_function_mode_stack()
    assert torch.backends.mha.get_fastpath_enabled() == fused
    assert lin.factors(x[:4])[1].num_data == 4


@pytest.mark.parametrize(
    "context",
    [
        torch.no_grad,
        torch.enable_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", torch.bfloat16),
    ],
)
@pytest.mark.parametrize("name", ["mlp", "encoder", "LSTM", "embedding", "pre-activation ResNet"])
def test_called_in_any_mode(name, context):
    case = CASES[name]
    expected = LinearizedNetwork(case.network(torch.float32)).factors(case.inputs(4, torch.float32))
    lin = LinearizedNetwork(case.network(torch.float32))
    with context():
        x = case.inputs(4, torch.float32)
        outputs, factors = lin.factors(x)
        again = lin(x)
    torch.testing.assert_close(outputs.clone(), expected[0])
    torch.testing.assert_close(again.clone(), expected[0])
    torch.testing.assert_close(factors.jacobian(), expected[1].jacobian())


def test_masked_attention_has_one_answer():
    """torch's fused inference path zeroes masked positions; we follow training's path."""
    case = CASES["masked encoder"]
    lin, x = LinearizedNetwork(case.network()), case.inputs(5)
    torch.testing.assert_close(lin(x), lin.factors(x)[0])


def test_copies_and_pickles_work_after_use():
    for name in ("mlp", "old weight norm", "embedding"):
        case = CASES[name]
        lin, x = LinearizedNetwork(case.network()), case.inputs(4)
        expected = lin.factors(x)[1].jacobian()
        twin = copy.deepcopy(lin)
        assert torch.equal(twin.factors(x)[1].jacobian(), expected)
        assert twin.network is not lin.network
    lin = LinearizedNetwork(mlp(3, 4, 2))
    x = CASES["mlp"].inputs(4)
    expected = lin.factors(x)[1].jacobian()
    assert torch.equal(pickle.loads(pickle.dumps(lin)).factors(x)[1].jacobian(), expected)


def test_nothing_keeps_the_network_or_its_activations_alive():
    net = mlp(3, 4, 2).double()
    lin = LinearizedNetwork(net)
    x = CASES["mlp"].inputs(4)
    _, factors = lin.factors(x)
    of_net, of_lin, of_factors = weakref.ref(net), weakref.ref(lin), weakref.ref(factors)
    del net, lin, factors
    gc.collect()
    assert of_net() is of_lin() is of_factors() is None


def test_results_do_not_change_with_what_is_asked_first():
    case = CASES["encoder"]
    first, second = LinearizedNetwork(case.network()), LinearizedNetwork(case.network())
    x = case.inputs(5)
    first(x)
    first.factors(x[:2])
    assert torch.equal(first.factors(x)[1].jacobian(), second.factors(x)[1].jacobian())
