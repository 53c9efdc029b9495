"""The shared table: networks and inputs that every part of the library is held to.

One case per kind of layer and per way of writing a network. Import `CASES`, or `names()` to
parametrise a test, and `case.network(dtype)`, `case.inputs(rows, dtype)` to make what it names:

    @pytest.mark.parametrize("name", names())
    def test_something(name):
        case = CASES[name]
        net, x = case.network(torch.float64), case.inputs(4, torch.float64)

All weights and running statistics are random (a LayerNorm's weight is not 1), all seeds are fixed.
"""

import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune


@dataclass(frozen=True)
class Case:
    """A network, its inputs, and what is expected of its linearisation.

    Attributes
    ----------
    make : builds the network.
    shape : of one input row; a list of shapes makes a tuple of inputs, a dict a dict.
    vocabulary : if given, inputs are integers below it (one number for each input, 0 for floats).
    fallback : names of parameters (shell patterns) that go through the general fallback.
    smooth : whether factors may be differentiated in x (finite differences agree).
    groups : tags to select cases by.
    """

    make: Callable[[], nn.Module]
    shape: tuple | list | dict
    vocabulary: object = 0
    fallback: tuple[str, ...] = ()
    smooth: bool = True
    groups: frozenset = field(default_factory=frozenset)

    def network(self, dtype=torch.float64, seed=0):
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(seed)
            return randomise(self.make()).to(dtype).eval()

    def inputs(self, rows, dtype=torch.float64, seed=0):
        generator = torch.Generator().manual_seed(1000 + seed)

        def draw(shape, vocabulary):
            if vocabulary:
                return torch.randint(vocabulary, (rows, *shape), generator=generator)
            return torch.randn(rows, *shape, generator=generator, dtype=torch.float64).to(dtype)

        if isinstance(self.shape, dict):
            sizes = self.vocabulary or dict.fromkeys(self.shape, 0)
            return {key: draw(shape, sizes[key]) for key, shape in self.shape.items()}
        if isinstance(self.shape, list):
            sizes = self.vocabulary or [0] * len(self.shape)
            return tuple(draw(*pair) for pair in zip(self.shape, sizes, strict=True))
        return draw(self.shape, self.vocabulary)


def randomise(net):
    """Move every parameter and running statistic away from its special initial value."""
    with torch.no_grad():
        for p in net.parameters():
            p += 0.2 * torch.randn_like(p)
        for name, b in net.named_buffers():
            if name.endswith("running_mean"):
                b += 0.3 * torch.randn_like(b)
            elif name.endswith("running_var"):
                b *= 0.5 + torch.rand_like(b)
    return net


CASES: dict[str, Case] = {}


def case(name, shape, *, groups=(), **options):
    """Decorator: add what a function builds to the table."""

    def add(make):
        CASES[name] = Case(make, shape, groups=frozenset(groups), **options)
        return make

    return add


def add(name, make, shape, **options):
    case(name, shape, **options)(make)


def names(*groups):
    """Names of all cases, or of those in one of `groups`."""
    return [name for name, c in CASES.items() if not groups or c.groups & set(groups)]


# Parts -------------------------------------------------------------------------------------------


class Mean(nn.Module):
    """Mean over the last `axes` axes."""

    def __init__(self, axes=1):
        super().__init__()
        self.axes = axes

    def forward(self, x):
        return x.flatten(-self.axes).mean(-1)


class MeanSteps(nn.Module):
    """Mean over axis 1, of (N, T, d)."""

    def forward(self, x):
        return x.mean(1)


class Net(nn.Module):
    """A module from a forward function `f(self, *inputs)` and named parts."""

    def __init__(self, f, **parts):
        super().__init__()
        self.f = f
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args, **kwargs):
        return self.f(self, *args, **kwargs)


def parameter(*shape):
    return nn.Parameter(torch.randn(shape))


# Dense layers ------------------------------------------------------------------------------------


def mlp(*widths, activation=nn.Tanh):
    layers = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), activation()]
    return nn.Sequential(*layers[:-1])


add("linear", lambda: nn.Linear(3, 2), (3,))
add("mlp", lambda: mlp(3, 5, 4, 2), (3,), groups=("basic",))
add("mlp one output", lambda: mlp(3, 5, 1), (3,), groups=("basic",))
add("mlp flat output", lambda: nn.Sequential(mlp(3, 5, 1), nn.Flatten(0)), (3,))
add("mlp without bias", lambda: nn.Sequential(nn.Linear(3, 5, bias=False), nn.GELU()), (3,))
add("linear on sequences", lambda: mlp(3, 4, 2), (5, 3), groups=("basic",))
add("linear on 4-d", lambda: nn.Sequential(mlp(3, 4, 2), nn.Flatten(), nn.ELU()), (2, 3, 3))
add("bilinear", lambda: nn.Bilinear(3, 2, 2), [(3,), (2,)])
add("bilinear on sequences", lambda: nn.Bilinear(3, 2, 2, bias=False), [(4, 3), (4, 2)])


# Convolutions ------------------------------------------------------------------------------------


def conv(kind, shape, axes, *args, fallback=(), label="", **options):
    text = label or ", ".join(f"{k} {v}" for k, v in options.items()) or "plain"
    add(
        f"{kind.__name__} {text}",
        lambda: nn.Sequential(kind(*args, **options), nn.Tanh(), Mean(axes)),
        shape,
        fallback=fallback,
        groups=("convolution",),
    )


conv(nn.Conv1d, (2, 7), 1, 2, 3, 3)
conv(nn.Conv1d, (2, 7), 1, 2, 3, 3, stride=2, padding=1)
conv(nn.Conv1d, (4, 7), 1, 4, 6, 2, dilation=2, groups=2, padding="same")
conv(nn.Conv1d, (2, 7), 1, 2, 3, 3, padding=2, padding_mode="reflect")
conv(nn.Conv1d, (2, 7), 1, 2, 3, 4, padding="same", padding_mode="circular")
conv(nn.Conv2d, (2, 5, 6), 2, 2, 3, 3, bias=False)
conv(nn.Conv2d, (2, 5, 6), 2, 2, 3, (2, 3), stride=(2, 1), padding=(1, 2), dilation=(1, 2))
conv(nn.Conv2d, (2, 5, 6), 2, 2, 3, (2, 3), padding="same")
conv(nn.Conv2d, (2, 5, 6), 2, 2, 3, 4, padding="same", dilation=2)
conv(nn.Conv2d, (2, 5, 6), 2, 2, 3, 3, padding="valid")
conv(nn.Conv2d, (2, 5, 6), 2, 2, 3, 3, padding=1, padding_mode="replicate", stride=2)
conv(nn.Conv2d, (2, 5, 6), 2, 2, 3, 2, padding="same", padding_mode="reflect")
conv(nn.Conv2d, (2, 5, 6), 2, 2, 3, (3, 2), padding=(2, 1), padding_mode="circular")
conv(nn.Conv2d, (4, 5, 6), 2, 4, 6, 3, groups=2, stride=2)
conv(nn.Conv2d, (4, 5, 6), 2, 4, 8, 3, groups=4, label="depthwise")
conv(nn.Conv2d, (4, 3, 3), 2, 4, 3, 1, label="pointwise")
conv(nn.Conv3d, (2, 3, 4, 3), 3, 2, 2, 2)
conv(nn.Conv3d, (2, 3, 4, 3), 3, 2, 2, (2, 3, 1), stride=(1, 2, 1), padding=(1, 0, 1), groups=2)
conv(nn.Conv3d, (1, 3, 4, 3), 3, 1, 2, 2, padding="same", dilation=(1, 2, 1))
conv(nn.ConvTranspose1d, (2, 5), 1, 2, 3, 3)
conv(nn.ConvTranspose1d, (4, 5), 1, 4, 2, 3, stride=3, padding=1, output_padding=2, groups=2)
conv(nn.ConvTranspose1d, (2, 5), 1, 2, 3, 2, dilation=2, bias=False)
conv(nn.ConvTranspose2d, (2, 3, 4), 2, 2, 3, (2, 3))
conv(
    nn.ConvTranspose2d,
    (2, 3, 4),
    2,
    *(2, 4, 3),
    stride=(2, 3),
    padding=(1, 2),
    output_padding=(1, 0),
    dilation=(2, 1),
    groups=2,
)
conv(nn.ConvTranspose3d, (2, 2, 3, 2), 3, 2, 2, 2)
conv(nn.ConvTranspose3d, (2, 2, 3, 2), 3, 2, 2, 2, stride=2, output_padding=(1, 0, 1), groups=2)


@case("convolutional network", (1, 8, 8), groups=("basic",))
def lenet():
    return nn.Sequential(
        *(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(3, 4, 2), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 2)),
    )


@case("unbatched convolution of rows", (6,))
def convolution_of_rows():
    return Net(lambda s, x: s.c(x.unsqueeze(1)).tanh().mean(2), c=nn.Conv1d(1, 2, 3))


# Embeddings --------------------------------------------------------------------------------------


def on_tokens(embedding):
    return nn.Sequential(embedding, nn.Linear(4, 4), nn.Tanh(), MeanSteps(), nn.Linear(4, 2))


add("embedding", lambda: on_tokens(nn.Embedding(7, 4)), (5,), vocabulary=7, groups=("basic",))
add(
    "embedding with padding",
    lambda: on_tokens(nn.Embedding(7, 4, padding_idx=-7)),
    (5,),
    vocabulary=7,
)
add(
    "embedding of bounded norm",
    lambda: nn.Sequential(nn.Embedding(7, 2, max_norm=1.0, sparse=True), MeanSteps()),
    (3,),
    vocabulary=7,
)
add(
    "embedding of one index",
    lambda: nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 2)),
    (),
    vocabulary=7,
)


def on_bags(**options):
    return nn.Sequential(nn.EmbeddingBag(7, 4, **options), nn.Tanh(), nn.Linear(4, 2))


for mode in ("sum", "mean"):
    add(f"bag {mode}", lambda mode=mode: on_bags(mode=mode), (5,), vocabulary=7)
    add(
        f"bag {mode} with padding",
        lambda mode=mode: on_bags(mode=mode, padding_idx=2),
        (5,),
        vocabulary=7,
    )
add("bag max", lambda: on_bags(mode="max"), (5,), vocabulary=7, fallback=("0.weight",))
add(
    "bag with sample weights",
    lambda: Net(
        lambda s, i, w: s.o(s.e(i, per_sample_weights=w)).tanh(),
        e=nn.EmbeddingBag(7, 4, mode="sum"),
        o=nn.Linear(4, 2),
    ),
    [(5,), (5,)],
    vocabulary=[7, 0],
)
add(
    "bag with offsets",
    lambda: Net(
        lambda s, i: s.o(
            s.e(i.flatten(), torch.arange(0, i.numel(), i.shape[1], device=i.device))
        ).tanh(),
        e=nn.EmbeddingBag(7, 4, mode="sum"),
        o=nn.Linear(4, 2),
    ),
    (5,),
    vocabulary=7,
    fallback=("e.weight",),
)
add(
    "embedding per column",
    lambda: Net(
        lambda s, x: s.o(torch.cat([e(x[:, i]) for i, e in enumerate(s.e)], 1).tanh()),
        e=nn.ModuleList([nn.Embedding(9, 3), nn.Embedding(2, 2)]),
        o=nn.Linear(5, 2),
    ),
    [(2,)],
    vocabulary=[2],
)


# Normalisation -----------------------------------------------------------------------------------


def normed(layer, shape, **options):
    def make():
        norm = layer()
        return nn.Sequential(norm, nn.Tanh(), nn.Flatten(), nn.Linear(torch.Size(shape).numel(), 2))

    return make, shape, options


for label, layer, shape in [
    ("LayerNorm", lambda: nn.LayerNorm(4), (4,)),
    ("LayerNorm on sequences", lambda: nn.LayerNorm(4), (3, 4)),
    ("LayerNorm of two axes", lambda: nn.LayerNorm((3, 4), eps=1e-2), (2, 3, 4)),
    ("LayerNorm without bias", lambda: nn.LayerNorm(4, bias=False), (4,)),
    ("RMSNorm", lambda: nn.RMSNorm(4), (4,)),
    ("RMSNorm with eps", lambda: nn.RMSNorm((2, 3), eps=1e-2), (3, 2, 3)),
    ("GroupNorm", lambda: nn.GroupNorm(2, 4), (4,)),
    ("GroupNorm on images", lambda: nn.GroupNorm(2, 4), (4, 2, 3)),
    ("InstanceNorm1d", lambda: nn.InstanceNorm1d(3, affine=True), (3, 5)),
    ("InstanceNorm2d", lambda: nn.InstanceNorm2d(3, affine=True), (3, 2, 3)),
    (
        "InstanceNorm2d with statistics",
        lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True),
        (3, 2, 2),
    ),
    ("InstanceNorm3d", lambda: nn.InstanceNorm3d(2, affine=True), (2, 2, 2, 2)),
    ("BatchNorm1d", lambda: nn.BatchNorm1d(4), (4,)),
    ("BatchNorm1d on sequences", lambda: nn.BatchNorm1d(3), (3, 4)),
    ("BatchNorm2d", lambda: nn.BatchNorm2d(3), (3, 2, 3)),
    ("BatchNorm3d", lambda: nn.BatchNorm3d(2), (2, 2, 1, 2)),
    ("BatchNorm2d without gain", lambda: nn.BatchNorm2d(3, affine=False), (3, 2, 3)),
    ("PReLU", lambda: nn.PReLU(), (4,)),
    ("PReLU per channel", lambda: nn.PReLU(3), (3, 2, 2)),
]:
    make, shape, options = normed(layer, shape)
    add(label, make, shape, groups=("normalisation",))


# Attention ---------------------------------------------------------------------------------------


def attention(batch_first=True, cross=False, mask=None, **options):
    """Attention over (N, T, d); the keys' and values' widths follow from the options."""

    def forward(s, *xs):
        q, k, v = xs if len(xs) == 3 else (xs[0], xs[0].flip(1) if cross else xs[0], xs[0])
        if not batch_first:
            q, k, v = (t.transpose(0, 1) for t in (q, k, v))
        masks = {}
        if mask == "causal":
            steps = q.shape[1 if batch_first else 0]
            masks = {
                "attn_mask": torch.ones(steps, steps, dtype=torch.bool).triu(1),
                "is_causal": True,
            }
        if mask == "padding":
            masks = {"key_padding_mask": k[..., 0] > 1 if batch_first else (k[..., 0] > 1).T}
        h = s.m(q, k, v, need_weights=options.get("need_weights", False), **masks)[0]
        return h.mean(1 if batch_first else 0)[:, :2]

    kwargs = {k: v for k, v in options.items() if k != "need_weights"}
    return Net(forward, m=nn.MultiheadAttention(4, 2, batch_first=batch_first, **kwargs))


for label, options, shape, fallback in [
    ("self", {}, (3, 4), ()),
    ("time first", {"batch_first": False}, (3, 4), ()),
    ("with weights", {"need_weights": True}, (3, 4), ()),
    ("without bias", {"bias": False}, (3, 4), ()),
    ("cross", {"cross": True}, (3, 4), ()),
    ("cross, time first", {"batch_first": False, "cross": True}, (3, 4), ()),
    ("other widths", {"kdim": 3, "vdim": 2}, [(3, 4), (5, 3), (5, 2)], ()),
    ("bias on keys and values", {"add_bias_kv": True}, (3, 4), ("m.bias_k", "m.bias_v")),
    ("zero attention", {"add_zero_attn": True}, (3, 4), ()),
    ("causal", {"mask": "causal"}, (3, 4), ()),
    ("padding mask", {"mask": "padding"}, (3, 4), ()),
]:
    add(
        f"attention {label}",
        lambda options=options: attention(**options),
        shape,
        fallback=fallback,
        smooth="mask" not in label,
        groups=("attention",),
    )


def encoder(norm_first=False, batch_first=True, layers=1, **options):
    layer = nn.TransformerEncoderLayer(
        4, 2, 6, batch_first=batch_first, norm_first=norm_first, **options
    )
    stack = nn.TransformerEncoder(
        layer, layers, enable_nested_tensor=not norm_first and batch_first
    )

    def forward(s, x):
        x = s.enc(x) if batch_first else s.enc(x.transpose(0, 1)).transpose(0, 1)
        return s.o(x.mean(1))

    return Net(forward, enc=stack, o=nn.Linear(4, 2))


add("encoder", lambda: encoder(layers=2), (3, 4), groups=("attention", "basic"))
add(
    "encoder norm first",
    lambda: encoder(norm_first=True, activation="gelu"),
    (3, 4),
    groups=("attention",),
)
add("encoder time first", lambda: encoder(batch_first=False), (3, 4), groups=("attention",))
add(
    "encoder and decoder",
    lambda: Net(
        lambda s, x, y: s.t(x, y).mean(1),
        t=nn.Transformer(4, 2, 1, 1, 6, batch_first=True),
    ),
    [(3, 4), (2, 4)],
    groups=("attention",),
)
add(
    "masked encoder",
    lambda: Net(
        lambda s, x: s.o(s.enc(x, src_key_padding_mask=x[..., 0] > 1.0)[:, 0]),
        enc=nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 6, batch_first=True), 2),
        o=nn.Linear(4, 2),
    ),
    (3, 4),
    smooth=False,
    groups=("attention",),
)


# Recurrent ---------------------------------------------------------------------------------------


def recurrent(kind, **options):
    def forward(s, x):
        return s.o(
            s.r(x)[0][:, -1] if options.get("batch_first") else s.r(x.transpose(0, 1))[0][-1]
        )

    width = 3 * (2 if options.get("bidirectional") else 1)
    return lambda: Net(forward, r=kind(2, 3, **options), o=nn.Linear(width, 2))


add("LSTM", recurrent(nn.LSTM, batch_first=True), (3, 2), fallback=("r.*",), groups=("recurrent",))
add("GRU", recurrent(nn.GRU, num_layers=2), (3, 2), fallback=("r.*",), groups=("recurrent",))
add(
    "RNN both ways",
    recurrent(nn.RNN, batch_first=True, bidirectional=True),
    (3, 2),
    fallback=("r.*",),
    groups=("recurrent",),
)


@case("recurrent cell", (3, 2), fallback=("r.*",), groups=("recurrent",))
def recurrent_cell():
    def forward(s, x):
        h = x.new_zeros(len(x), 3)
        for t in range(x.shape[1]):
            h = s.r(x[:, t], h)
        return s.o(h)

    return Net(forward, r=nn.GRUCell(2, 3), o=nn.Linear(3, 2))


@case("recurrence by hand", (3, 2), groups=("recurrent",))
def recurrence_by_hand():
    def forward(s, x):
        h = x.new_zeros(len(x), 3)
        for step in x.unbind(1):
            h = torch.tanh(s.inp(step) + s.rec(h))
        return s.o(h)

    return Net(forward, inp=nn.Linear(2, 3), rec=nn.Linear(3, 3), o=nn.Linear(3, 2))


# Shared weights ----------------------------------------------------------------------------------


@case("layer used twice", (3,), groups=("shared",))
def layer_used_twice():
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(3, 2))


@case("convolution used on two sizes", (2, 8), groups=("shared",))
def convolution_used_twice():
    def forward(s, x):
        h = s.c(x).tanh()
        return s.c(h[..., ::2]).tanh().mean(2)

    return Net(forward, c=nn.Conv1d(2, 2, 3, padding=1))


@case("tied embedding and output", (4,), vocabulary=5, groups=("shared",))
def tied_embedding():
    net = Net(
        lambda s, x: s.o(torch.tanh(s.e(x).mean(1))),
        e=nn.Embedding(5, 3),
        o=nn.Linear(3, 5, bias=False),
    )
    net.o.weight = net.e.weight
    return net


@case("tied autoencoder", (3,), groups=("shared",))
def tied_autoencoder():
    return Net(
        lambda s, x: F.linear(torch.tanh(F.linear(x, s.w, s.b)), s.w.t(), s.c),
        w=parameter(2, 3),
        b=parameter(2),
        c=parameter(3),
    )


@case("tied by matmul", (3,), groups=("shared",))
def tied_by_matmul():
    return Net(lambda s, x: torch.tanh(F.linear(x, s.w)) @ s.w, w=parameter(2, 3))


@case("one bias for two layers", (3,), groups=("shared",))
def one_bias_for_two_layers():
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    net[2].bias = net[0].bias
    return net


@case("one weight with two biases", (3,), groups=("shared",))
def one_weight_with_two_biases():
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    net[2].weight = net[0].weight
    return net


@case("bias used bare too", (3,), groups=("shared",))
def bias_used_bare():
    return Net(lambda s, x: s.l(x).tanh() + s.l.bias, l=nn.Linear(3, 2))


@case("siamese", [(3,), (3,)], groups=("shared",))
def siamese():
    return Net(lambda s, a, b: s.o(s.net(a) * s.net(b)), net=mlp(3, 4, 3), o=nn.Linear(3, 2))


@case("linear and pointwise convolution", (3, 4), groups=("shared",))
def linear_and_convolution():
    def forward(s, x):
        h = F.linear(x.mT, s.w[:, :, 0], s.b).tanh().mT
        return F.conv1d(h, s.w, s.b).mean(2)

    return Net(forward, w=parameter(3, 3, 1), b=parameter(3))


@case("parts of one matrix", (3,), groups=("shared",))
def parts_of_one_matrix():
    def forward(s, x):
        gate, value = F.linear(x, s.w[:4]), F.linear(x, s.w[4:], s.b)
        return s.o(torch.sigmoid(gate) * value)

    return Net(forward, w=parameter(8, 3), b=parameter(4), o=nn.Linear(4, 2))


@case("overlapping parts", (3,), groups=("shared",))
def overlapping_parts():
    return Net(lambda s, x: F.linear(x, s.w[:2]).tanh() * F.linear(x, s.w[1:]), w=parameter(3, 3))


# Ways of writing ---------------------------------------------------------------------------------


@case("in-place activations", (3,), groups=("written",))
def in_place_activations():
    def forward(s, x):
        h = F.relu_(s.a(x))
        h = s.b(h)
        h += x
        h.mul_(2.0).tanh_()
        return s.c(h)

    return Net(forward, a=nn.Linear(3, 3), b=nn.Linear(3, 3), c=nn.Linear(3, 2))


@case("in-place gain and shift", (4, 3), groups=("written",))
def in_place_gain():
    def forward(s, x):
        h = s.a(x)
        kept = h[:, 0]
        h *= s.gain
        h += s.shift
        h.sub_(s.offset).div_(s.scale)
        return s.b(torch.tanh(h.mean(1) + kept))

    parts = {name: parameter(3) for name in ("gain", "shift", "offset", "scale")}
    return Net(forward, a=nn.Linear(3, 3), b=nn.Linear(3, 2), **parts)


class PreActivation(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.n1, self.n2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.c1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.c2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        h = self.c1(self.act(self.n1(x)))
        h = self.c2(self.act(self.n2(h)))
        h += x
        return h


@case("pre-activation ResNet", (2, 4, 4), groups=("written", "basic"))
def resnet():
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1),
        PreActivation(3),
        PreActivation(3),
        nn.BatchNorm2d(3),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(3, 2),
    )


@case("weight norm", (3,), groups=("written",), fallback=("*.original*",))
def weight_norm():
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 2))


@case("old weight norm", (3,), groups=("written",), fallback=("*_g", "*_v"))
def old_weight_norm():
    return nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 2))


@case("spectral norm", (3,), groups=("written",), fallback=("*.original*",))
def spectral_norm():
    return nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 2)
    )


@case("old spectral norm", (3,), groups=("written",), fallback=("0.weight_orig",))
def old_spectral_norm():
    return nn.Sequential(nn.utils.spectral_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 2))


@case("pruned", (3,), groups=("written",), fallback=("0.weight_orig",))
def pruned():
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    prune.l1_unstructured(net[0], "weight", amount=0.5)
    return net


@case("masked weight", (3,), groups=("written",), fallback=("w",))
def masked_weight():
    net = Net(
        lambda s, x: s.o(F.linear(x, s.w * s.mask).tanh()), w=parameter(3, 3), o=nn.Linear(3, 2)
    )
    net.register_buffer("mask", torch.ones(3, 3).tril())
    return net


@case("low-rank correction", (3,), groups=("written",), fallback=("down", "up", "w"))
def low_rank_correction():
    def forward(s, x):
        return s.o(F.linear(x, s.w + s.up @ s.down).tanh())

    return Net(
        forward, w=parameter(4, 3), up=parameter(4, 1), down=parameter(1, 3), o=nn.Linear(4, 2)
    )


@case("containers", (3,), groups=("written",), fallback=("scale.a", "shifts.0"))
def containers():
    def forward(s, x):
        for layer in s.layers:
            x = layer(x).tanh()
        return s.heads["mean"](x) + s.scale["a"] * s.shifts[0]

    return Net(
        forward,
        layers=nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)]),
        heads=nn.ModuleDict({"mean": nn.Linear(3, 2), "unused": nn.Linear(3, 5)}),
        scale=nn.ParameterDict({"a": parameter(1)}),
        shifts=nn.ParameterList([parameter(2)]),
    )


@case("functional", (2, 4, 4), groups=("written",))
def functional():
    def forward(s, x):
        h = F.conv2d(x, s.w, s.b, padding=1).relu()
        h = F.group_norm(h, 1, s.gain)
        return F.linear(h.mean((2, 3)), weight=s.v)

    return Net(
        forward, w=parameter(3, 2, 3, 3), b=parameter(3), gain=parameter(3), v=parameter(2, 3)
    )


@case("matrix products", (4, 3), groups=("written",))
def matrix_products():
    def forward(s, x):
        h = torch.matmul(x, s.a).tanh()
        h = (h @ s.b).tanh()
        h = h.matmul(s.c.T).tanh().mean(1)
        h = torch.addmm(s.bias, h, s.d).tanh()
        return h.mm(s.e) + s.shift

    return Net(
        forward,
        a=parameter(3, 3),
        b=parameter(3, 3),
        c=parameter(2, 3),
        bias=parameter(3),
        d=parameter(2, 3),
        e=parameter(3, 2),
        shift=parameter(2),
    )


@case("einsum", (4, 3), groups=("written",), fallback=("a",))
def einsum():
    return Net(
        lambda s, x: s.o(torch.einsum("nti,io->nto", x, s.a).tanh().mean(1)),
        a=parameter(3, 3),
        o=nn.Linear(3, 2),
    )


@case("bare parameters", (4, 3), groups=("written", "basic"), fallback=("constant",))
def bare_parameters():
    def forward(s, x):
        h = torch.tanh(s.gain * x + s.positions[:, : x.shape[1]])
        h = h - s.shift
        h = h.mul(s.scalar).add(s.bias) / s.temperature + s.constant.exp()
        return s.o(h.mean(1))

    return Net(
        forward,
        gain=parameter(3),
        positions=parameter(1, 6, 3),
        shift=parameter(3),
        scalar=parameter(),
        bias=parameter(1, 1, 3),
        temperature=parameter(1),
        constant=parameter(1),
        o=nn.Linear(3, 2),
    )


@case("class token", (3, 4), groups=("written",))
def class_token():
    def forward(s, x):
        x = torch.cat([s.token.expand(len(x), -1, -1), x], 1) + s.positions
        return s.o(s.enc(x)[:, 0])

    return Net(
        forward,
        token=parameter(1, 1, 4),
        positions=parameter(1, 4, 4),
        enc=nn.TransformerEncoderLayer(4, 2, 6, batch_first=True),
        o=nn.Linear(4, 2),
    )


@case(
    "positions by arange",
    (4,),
    vocabulary=5,
    groups=("written",),
    fallback=("positions.weight",),
)
def positions_by_arange():
    def forward(s, x):
        h = s.tokens(x) + s.positions(torch.arange(x.shape[1], device=x.device))
        return s.o(h.tanh().mean(1))

    return Net(forward, tokens=nn.Embedding(5, 3), positions=nn.Embedding(6, 3), o=nn.Linear(3, 2))


@case("queries", (3, 4), groups=("written",))
def queries():
    def forward(s, x):
        q = s.queries.expand(len(x), -1, -1)
        return s.o(s.m(q, x, x, need_weights=False)[0].flatten(1))

    return Net(
        forward,
        queries=parameter(2, 4),
        m=nn.MultiheadAttention(4, 2, batch_first=True),
        o=nn.Linear(8, 2),
    )


@case("time folded in rows", (4, 3), groups=("written", "folded"))
def time_folded_in_rows():
    def forward(s, x):
        n, t, _ = x.shape
        h = s.norm(s.a(x.reshape(n * t, -1)).tanh())
        return s.o(h.view(n, t, -1).mean(1))

    return Net(forward, a=nn.Linear(3, 3), norm=nn.LayerNorm(3), o=nn.Linear(3, 2))


@case("rows folded in time", (4, 3), groups=("written", "folded"))
def rows_folded_in_time():
    def forward(s, x):
        n, t, _ = x.shape
        h = s.a(x.transpose(0, 1).reshape(t * n, -1)).tanh()
        return s.o(h.view(t, n, -1).mean(0))

    return Net(forward, a=nn.Linear(3, 3), o=nn.Linear(3, 2))


@case("frames folded in rows", (2, 1, 4, 4), groups=("written", "folded"))
def frames_folded():
    def forward(s, x):
        h = s.n(s.c(x.flatten(0, 1))).relu().mean((2, 3))
        return s.o(h.view(len(x), -1))

    return Net(forward, c=nn.Conv2d(1, 3, 3), n=nn.BatchNorm2d(3), o=nn.Linear(6, 2))


@case("time first", (4, 3), groups=("written", "folded"))
def time_first():
    return Net(
        lambda s, x: s.o(s.n(s.a(x.transpose(0, 1)).tanh())).mean(0),
        a=nn.Linear(3, 3),
        n=nn.LayerNorm(3),
        o=nn.Linear(3, 2),
    )


@case("bare parameters, time first", (4, 3), groups=("written", "folded"))
def bare_parameters_time_first():
    def forward(s, x):
        h = x.transpose(0, 1) * s.gain + s.positions
        return s.o((h - s.shift).tanh()).mean(0)

    return Net(
        forward,
        gain=parameter(3),
        positions=parameter(4, 1, 3),
        shift=parameter(1),
        o=nn.Linear(3, 2),
    )


@case("functional call", (3,), groups=("written",))
def subnet_called_functionally():
    def forward(s, x):
        own = dict(s.sub.named_parameters())
        return torch.func.functional_call(s.sub, own, (x,)).tanh()

    return Net(forward, sub=mlp(3, 4, 2))


@case("ensemble by vmap", (3,), groups=("written",), fallback=("w", "b"))
def ensemble_by_vmap():
    def forward(s, x):
        members = torch.func.vmap(F.linear, in_dims=(None, 0, 0))(x, s.w, s.b)
        return members.tanh().mean(0)

    return Net(forward, w=parameter(3, 2, 3), b=parameter(3, 2))


@case("hypernetwork", (3,), groups=("written",))
def hypernetwork():
    def forward(s, x):
        w = s.hyper(x).view(len(x), 2, 3)
        return torch.bmm(w, x.unsqueeze(2)).squeeze(2)

    return Net(forward, hyper=mlp(3, 4, 6))


@case("checkpointed", (3,), groups=("written", "warns"), fallback=("*",), smooth=False)
def checkpointed():
    from torch.utils.checkpoint import checkpoint

    def forward(s, x):
        return s.o(checkpoint(s.body, x, use_reentrant=False))

    return Net(forward, body=mlp(3, 4, 3), o=nn.Linear(3, 2))


class Doubling(torch.autograd.Function):
    """A custom function that uses a weight, invisible to torch's function interception."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return 2 * x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return 2 * g * w, (2 * g * x).sum(0)


@case("custom function", (3,), groups=("written",), fallback=("w",), smooth=False)
def custom_function():
    return Net(lambda s, x: s.o(Doubling.apply(x, s.w).tanh()), w=parameter(3), o=nn.Linear(3, 2))


@case("stop gradient", (3,), groups=("written",))
def stop_gradient():
    return Net(
        lambda s, x: s.b(s.a(x).tanh().detach()) + s.a(x)[:, :2] * s.b.weight.detach()[0, :2],
        a=nn.Linear(3, 3),
        b=nn.Linear(3, 2),
    )


# Inputs and outputs ------------------------------------------------------------------------------

add("image output", lambda: nn.Conv2d(1, 2, 2), (1, 3, 3), groups=("outputs",))
add("sequence output", lambda: mlp(2, 3, 2), (3, 2), groups=("outputs",))
add(
    "dict input",
    lambda: Net(
        lambda s, image, token: s.o(s.c(image).flatten(1).tanh() * s.e(token)),
        c=nn.Conv2d(1, 1, 2),
        e=nn.Embedding(4, 4),
        o=nn.Linear(4, 2),
    ),
    {"image": (1, 3, 3), "token": ()},
    vocabulary={"image": 0, "token": 4},
    groups=("inputs",),
)


class OneArgument(nn.Module):
    """Takes its tensors in one container."""

    def __init__(self, join, width):
        super().__init__()
        self.join, self.o = join, nn.Linear(width, 2)

    def forward(self, batch):
        return self.o(self.join(batch)).tanh()


add(
    "dict input as one argument",
    lambda: OneArgument(lambda batch: batch["a"] + batch["b"], 3),
    {"a": (3,), "b": (3,)},
    groups=("inputs",),
)
add(
    "tuple input as one argument",
    lambda: OneArgument(lambda pair: torch.cat(pair, 1), 5),
    [(3,), (2,)],
    groups=("inputs",),
)
