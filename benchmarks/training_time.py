"""What training with the evidence costs: time beside maximum a posteriori, by number of precisions.

The same network, data, batches and steps of Adam (1e-2 to 1e-5 by a cosine) for all; with the
evidence there are hyperparameter steps in between, and at the end.

    MAP          a plain loop in PyTorch: precision 1, noise 0.1, as fixed numbers
    scalar       one precision for all weights
    layerwise    one per parameter tensor
    unit-wise    one per input unit of each layer
    diagonal     one per weight
    ... blocks   evidence from random blocks of rows, new ones each hyperparameter step

"mlp" has 1000 rows of kin8nm, "kin8nm" 7373, both two layers of 50 GELU units and Gaussian noise
that is learned; "mnist" is LeNet on 4000 images with the softmax, where N·C = 40,000 and P = 61,706
leave blocks only. Contenders take turns, each turn starts with another one; seconds are medians of
turns, without making the predictive. The error is the network's own on test rows: RMSE in standard
deviations of the target, or NLL of its probabilities.

    python benchmarks/training_time.py --output training_time.md --raw training_time.json
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import datasets
import networks
import torch
from harness import command_line, table
from torch import Tensor, nn
from training import train, train_in_batches

from lingp.inference.choice import Inference
from lingp.likelihoods import Categorical, Gaussian, Likelihood
from lingp.priors import Diagonal, Isotropic, Layerwise, Prior, UnitWise
from lingp.training import Blocks, EvidenceTrainer, TrainingPlan

TASKS = ("mlp", "kin8nm", "mnist")
STEPS = {"mlp": 2400, "kin8nm": 2400, "mnist": 1200}
UPDATES = 8
TURNS = {"mlp": 3, "kin8nm": 3, "mnist": 2}
QUICK_STEPS, QUICK_ROWS = 4, 24
BATCH, FULL = 256, 2048  # rows of a step; up to so many rows, a step takes all
PRECISION, NOISE = 1.0, 0.1
TARGET = 2.0  # times MAP, with as many precisions as weights


@dataclass(frozen=True)
class Task:
    """A network to train and its data."""

    name: str
    architecture: dict[str, object]
    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    steps: int
    updates: int
    block_size: int

    @property
    def classes(self) -> bool:
        return not self.y.is_floating_point()

    def network(self) -> nn.Module:
        torch.manual_seed(0)
        return networks.build(self.architecture)

    @torch.no_grad()
    def error(self, net: nn.Module) -> float:
        f = net(self.test_x)
        if self.classes:
            return float(nn.functional.cross_entropy(f, self.test_y))
        return float((f - self.test_y).square().mean().sqrt())


@dataclass(frozen=True)
class Contender:
    """A prior and a way to the evidence; no prior is MAP."""

    name: str
    prior: Callable[[], Prior] | None = None
    inference: Callable[[Task], Inference] = lambda task: "auto"
    tasks: tuple[str, ...] = TASKS


def blocks(task: Task) -> Inference:
    return Blocks(task.block_size, num_blocks=2)


def single_outputs(task: Task) -> Inference:
    return Blocks(task.block_size, num_blocks=2, outputs="separate")


EXACT = ("mlp", "kin8nm")
CONTENDERS = (
    Contender("MAP"),
    Contender("scalar", Isotropic, tasks=EXACT),
    Contender("layerwise", Layerwise, tasks=EXACT),
    Contender("unit-wise", UnitWise, tasks=EXACT),
    Contender("diagonal", Diagonal, tasks=EXACT),
    Contender("scalar blocks", Isotropic, blocks),
    Contender("layerwise blocks", Layerwise, blocks, ("mnist",)),
    Contender("unit-wise blocks", UnitWise, blocks, ("mnist",)),
    Contender("diagonal blocks", Diagonal, blocks),
    Contender("scalar one-output blocks", Isotropic, single_outputs, ("mnist",)),
    Contender("diagonal one-output blocks", Diagonal, single_outputs, ("mnist",)),
)


@dataclass
class Record:
    """What a contender did on a task."""

    seconds: list[float] = field(default_factory=list)
    in_steps: list[float] = field(default_factory=list)  # of which in hyperparameter steps
    precisions: int = 0
    error: float = float("nan")

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


Records = dict[str, dict[str, Record]]  # task, contender


def make_task(name: str, where: Path, quick: bool) -> Task:
    """The task of a name; a small one for a quick look."""
    rows = QUICK_ROWS if quick else None
    steps = QUICK_STEPS if quick else STEPS[name]
    updates = 1 if quick else UPDATES
    if name == "mnist":
        sizes = (QUICK_ROWS, 20) if quick else (4000, 2000)
        train_rows, test_rows = datasets.images(where, "mnist", *sizes)
        data = [torch.from_numpy(a) for a in (train_rows.x, train_rows.y, test_rows.x, test_rows.y)]
        return Task(name, {"kind": "lenet"}, *data, steps, updates, 6 if quick else 100)
    split = datasets.regression(where, "kin8nm", 0)
    rows = rows or (1000 if name == "mlp" else None)
    arrays = (split.train.x[:rows], split.train.y[:rows], split.test.x, split.test.y)
    x, y, test_x, test_y = (torch.from_numpy(a).float() for a in arrays)
    architecture = {"kind": "mlp", "sizes": [x.shape[1], 50, 50, 1]}
    size = 8 if quick else 200
    targets = y.unsqueeze(1), test_y.unsqueeze(1)
    return Task(name, architecture, x, targets[0], test_x, targets[1], steps, updates, size)


def trained_by_map(task: Task, record: Record) -> nn.Module:
    """A plain loop with the same loss, batches of the same size, and the same steps."""
    net, options = task.network(), {"precision": PRECISION, "learning_rate": (1e-2, 1e-5)}

    def loss(f: Tensor, y: Tensor) -> Tensor:
        if task.classes:
            return nn.functional.cross_entropy(f, y, reduction="sum")
        return 0.5 * (f - y).square().sum() / NOISE

    start, share = time.perf_counter(), 1.0
    if len(task.x) <= FULL:
        train(net, lambda f: loss(f, task.y), task.x, steps=task.steps, **options)
    else:
        per_epoch = -(-len(task.x) // BATCH)
        epochs = max(1, round(task.steps / per_epoch))
        train_in_batches(net, loss, task.x, task.y, epochs=epochs, batch_size=BATCH, **options)
        share = task.steps / (epochs * per_epoch)  # whole epochs: as if it were as many steps
    record.seconds.append(share * (time.perf_counter() - start))
    record.in_steps.append(0.0)
    return net


def trained_by_evidence(task: Task, contender: Contender, record: Record) -> nn.Module:
    """The trainer's own loop, without the predictive that it can make at the end."""
    assert contender.prior is not None
    net, prior = task.network(), contender.prior()
    likelihood: Likelihood = Categorical() if task.classes else Gaussian(NOISE)
    start = time.perf_counter()
    trainer = EvidenceTrainer(
        net,
        task.x,
        task.y,
        likelihood=likelihood,
        prior=prior,
        plan=TrainingPlan(steps=task.steps, updates=task.updates, learning_rate=(1e-2, 1e-5)),
        inference=contender.inference(task),
    )
    while not trainer.finished:
        trainer.step()
    record.seconds.append(time.perf_counter() - start)
    if trainer.stopped is not None:
        raise RuntimeError(f"{contender.name} on {task.name}: {trainer.stopped}")
    record.in_steps.append(sum(step.seconds for step in trainer.history))
    record.precisions = trainer.model.prior.precision.numel()
    return trainer.model.network


def trained(task: Task, contender: Contender, record: Record) -> nn.Module:
    """The network after training, whose time goes to the record."""
    if contender.prior is None:
        return trained_by_map(task, record).eval()
    return trained_by_evidence(task, contender, record).eval()


def run(task: Task, contenders: Sequence[Contender], turns: int) -> dict[str, Record]:
    """All contenders in turns."""
    mine = [c for c in contenders if task.name in c.tasks]
    records = {c.name: Record() for c in mine}
    few = replace(task, steps=2, updates=1)
    for contender in mine:  # what is imported and compiled at first use is nobody's time
        trained(few, contender, Record())
    for turn in range(turns):
        for contender in mine[turn % len(mine) :] + mine[: turn % len(mine)]:
            record = records[contender.name]
            record.error = task.error(trained(task, contender, record))
    return records


def report(records: Records, tasks: dict[str, Task], seconds: float) -> str:
    """The table and the targets."""
    rows, verdicts = [], []
    for name, found in records.items():
        base = found["MAP"].median if "MAP" in found else float("nan")
        for contender, record in found.items():
            spread = f"{min(record.seconds):.1f}–{max(record.seconds):.1f}"
            share = statistics.median(record.in_steps) / record.median
            rows.append(
                [
                    name,
                    contender,
                    f"{record.precisions or '–'}",
                    f"{record.median:.2f}",
                    spread,
                    table.factor(record.median / base),
                    table.percent(share),
                    f"{record.error:.3f}",
                ]
            )
            if contender.startswith("diagonal"):
                what = f"{name}, {contender}, {record.precisions} precisions, beside MAP"
                ratio = record.median / base
                verdicts.append(table.verdict(what, ratio, TARGET, at_most=True))
    header = [
        "data",
        "training",
        "precisions",
        "median (s)",
        "range",
        "of MAP",
        "in steps",
        "error",
    ]
    sizes = [
        f"- {name}: N = {len(task.x)}, {task.steps} steps of Adam, {task.updates} hyperparameter "
        f"steps, P = {sum(p.numel() for p in task.network().parameters())}, blocks of "
        f"{task.block_size} rows, two a step"
        for name, task in tasks.items()
    ]
    return "\n".join(
        [
            "# Training with the evidence: time beside maximum a posteriori",
            "",
            f"{table.processor()}, {torch.get_num_threads()} threads; {seconds:.0f} s for all. "
            '"in steps" is the share of time that hyperparameter steps took.',
            "",
            *sizes,
            "",
            table.markdown_table(header, rows),
            "",
            *verdicts,
        ]
    )


def main() -> None:
    parser = command_line.parser(__doc__)
    datasets.add_flags(parser, splits="0:1")
    parser.add_argument("--raw", type=Path, help="write every number to this JSON file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    where = datasets.folder(arguments.data)
    wanted = [c.name for c in command_line.chosen(CONTENDERS, arguments)]  # type: ignore[type-var]
    contenders = [c for c in CONTENDERS if c.name in wanted]
    start = time.perf_counter()
    records: Records = {}
    tasks: dict[str, Task] = {}
    for name in datasets.chosen_sets(TASKS, arguments):
        tasks[name] = make_task(name, where, arguments.quick)
        turns = arguments.turns or (1 if arguments.quick else TURNS[name])
        records[name] = run(tasks[name], contenders, turns)
        if arguments.raw is not None:
            arguments.raw.parent.mkdir(parents=True, exist_ok=True)
            plain = {k: {c: vars(r) for c, r in found.items()} for k, found in records.items()}
            arguments.raw.write_text(json.dumps(plain, indent=1) + "\n")
    made = report(records, tasks, time.perf_counter() - start)
    command_line.publish(made, arguments.output)


if __name__ == "__main__":
    main()
