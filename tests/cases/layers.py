"""Layers with weights: dense, convolutional, embeddings, normalisation."""

import torch
from torch import nn

from cases.table import Mean, MeanSteps, Net, add, case, mlp

add("linear", lambda: nn.Linear(3, 2), (3,))
add("mlp", lambda: mlp(3, 5, 4, 2), (3,), groups=("basic",))
add("mlp one output", lambda: mlp(3, 5, 1), (3,), groups=("basic",))
add("mlp flat output", lambda: nn.Sequential(mlp(3, 5, 1), nn.Flatten(0)), (3,))
add("mlp without bias", lambda: nn.Sequential(nn.Linear(3, 5, bias=False), nn.GELU()), (3,))
add("linear on sequences", lambda: mlp(3, 4, 2), (5, 3), groups=("basic",))
add("linear on 4-d", lambda: nn.Sequential(mlp(3, 4, 2), nn.Flatten(), nn.ELU()), (2, 3, 3))
add("bilinear", lambda: nn.Bilinear(3, 2, 2), [(3,), (2,)])
add("bilinear on sequences", lambda: nn.Bilinear(3, 2, 2, bias=False), [(4, 3), (4, 2)])


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
