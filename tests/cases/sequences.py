"""Attention and recurrence."""

import torch
from torch import nn

from cases.table import Net, add, case


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
