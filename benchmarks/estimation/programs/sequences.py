"""PyTorch networks on sequences and on pairs: a recurrent one, a transformer, neural collaborative filtering."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.estimation.programs.common import batch_at, save
from benchmarks.estimation.programs.networks import OPTIMIZERS, update
from prefect_gpu import training_run


def rnn(
    sequences: int,
    length: int,
    channels: int,
    batch_size: int,
    steps: int,
    cell: str,
    model: dict[str, int],
    bidirectional: bool,
    lr: float,
    seed: int,
    **_: Any,
) -> None:
    """A forecast of the next value of time series."""
    torch.manual_seed(seed)
    features = {"rows": sequences, "columns": length * channels}
    with training_run(steps=steps, batch_size=batch_size, features=features) as run:
        data = torch.rand(sequences, length, channels)
        target = data.mean((1, 2))
        kind = {"gru": nn.GRU, "lstm": nn.LSTM}[cell]
        body = kind(channels, model["hidden"], model["layers"], batch_first=True, bidirectional=bidirectional)
        head = nn.Linear(model["hidden"] * (2 if bidirectional else 1), 1)
        improve = OPTIMIZERS["adam"]([*body.parameters(), *head.parameters()], lr)
        for step in run.steps():
            part = batch_at(step, batch_size, sequences)
            output = head(body(data[part])[0][:, -1])[:, 0]
            run.report(loss=update(improve, nn.functional.mse_loss(output, target[part])))
    with run.saving(), torch.no_grad():
        found = [head(body(part)[0][:, -1]) for part in data[:8000].split(250)]
        save("model.bin", model=[body.state_dict(), head.state_dict()], state=improve.state_dict(), forecasts=found)


def transformer(
    sequences: int,
    length: int,
    vocabulary: int,
    batch_size: int,
    steps: int,
    model: dict[str, int],
    optimizer: str,
    lr: float,
    seed: int,
    **_: Any,
) -> None:
    """A small language model that predicts the next token."""
    torch.manual_seed(seed)
    width = model["width"]
    features = {"rows": sequences, "columns": length, "vocabulary": vocabulary}
    with training_run(steps=steps, batch_size=batch_size, features=features) as run:
        tokens = (torch.rand(sequences, length + 1) ** 3 * vocabulary).long()  # some are frequent, most are rare
        embed = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, model["heads"], 4 * width, dropout=0.1, batch_first=True)
        body = nn.TransformerEncoder(layer, model["layers"], enable_nested_tensor=False)
        head = nn.Linear(width, vocabulary)
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        improve = OPTIMIZERS[optimizer]([*embed.parameters(), *body.parameters(), *head.parameters()], lr)
        for step in run.steps():
            part = tokens[batch_at(step, batch_size, sequences)]
            output = head(body(embed(part[:, :-1]), mask=mask, is_causal=True))
            loss = nn.functional.cross_entropy(output.flatten(0, 1), part[:, 1:].flatten())
            run.report(loss=update(improve, loss))
    with run.saving(), torch.no_grad():
        found = [body(embed(part[:, :-1]), mask=mask, is_causal=True)[:, -1] for part in tokens[:1000].split(100)]
        save("model.bin", model=[body.state_dict(), head.state_dict()], state=improve.state_dict(), embeddings=found)


def ncf(
    users: int,
    items: int,
    batch_size: int,
    steps: int,
    dim: int,
    hidden: int,
    optimizer: str,
    interactions: int,
    lr: float,
    seed: int,
    **_: Any,
) -> None:
    """Neural collaborative filtering: embeddings of users and items, and a perceptron upon both."""
    torch.manual_seed(seed)
    features = {"rows": interactions, "users": users, "items": items}
    with training_run(steps=steps, batch_size=batch_size, features=features) as run:
        who, what = torch.randint(0, users, (interactions,)), torch.randint(0, items, (interactions,))
        liked = ((who + what) % 3 == 0).float()
        user, item = nn.Embedding(users, dim), nn.Embedding(items, dim)
        tower = nn.Sequential(nn.Linear(2 * dim, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        head = nn.Linear(hidden + dim, 1)
        weights = [weight for part in (user, item, tower, head) for weight in part.parameters()]
        improve = OPTIMIZERS[optimizer](weights, lr)
        for step in run.steps():
            part = batch_at(step, batch_size, interactions)
            one, other = user(who[part]), item(what[part])
            output = head(torch.cat([tower(torch.cat([one, other], 1)), one * other], 1))[:, 0]
            loss = nn.functional.binary_cross_entropy_with_logits(output, liked[part])
            run.report(loss=update(improve, loss))
    with run.saving():
        save(
            "model.bin",
            user=user.weight.detach().numpy(),
            item=item.weight.detach().numpy(),
            state=improve.state_dict(),
        )
