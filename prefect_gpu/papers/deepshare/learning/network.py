"""The network of :mod:`prefect_gpu.papers.deepshare.network` in torch, as a policy for MaskablePPO."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from prefect_gpu.papers.deepshare.network import LEVELS, WEIGHTS, Starts, membership

HIDDEN = 64
REST = 32
_SPREAD = 0.3  # of the first layers' random weights
_RELUCTANCE = -2.0  # first score of nothing; that of any start is 0: a fresh network starts what fits


class StartNet(nn.Module):
    """From states to the score of each answer, and what the critic's last layer takes.

    The parameters are named as the arrays of :class:`~prefect_gpu.papers.deepshare.network.Network`.
    """

    member: torch.Tensor
    levels: torch.Tensor
    row: torch.Tensor

    def __init__(self, starts: Starts) -> None:
        super().__init__()
        nodes, slots = starts.encoding.nodes, starts.each
        self.latent_dim_pi, self.latent_dim_vf = starts.nothing + 1, REST
        self._slots = slots
        member = torch.from_numpy(membership(starts.encoding))
        self.register_buffer("member", member, persistent=False)
        self.register_buffer("levels", torch.arange(1, LEVELS + 1, dtype=torch.float32), persistent=False)
        self.register_buffer("row", torch.log2(member.sum(1)).long(), persistent=False)
        features = 2 * LEVELS

        def random(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape) * _SPREAD)

        def zeros(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.zeros(*shape))

        self.set_w, self.cell_w, self.all_w = (
            random(2 * features, HIDDEN),
            random(LEVELS, HIDDEN),
            random(features, HIDDEN),
        )
        self.start_b, self.start_w = random(nodes, slots, HIDDEN), zeros(HIDDEN, 1)
        self.node_w, self.node_b = random(features, REST), zeros(REST)
        self.demand_w = random(nodes * slots * LEVELS, REST)
        self.rest_w, self.rest_b = zeros(REST, 1), nn.Parameter(torch.full((1,), _RELUCTANCE))
        # The critic has features of its own, so that it does not pull at the actor's.
        self.value_node = nn.Linear(features, REST)
        self.value_demand = nn.Linear(nodes * slots * LEVELS, REST, bias=False)

    def _basis(self, values: torch.Tensor) -> torch.Tensor:
        return torch.relu(1.0 - (values[..., None] * LEVELS - self.levels).abs())

    def _look(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        parts = self._basis(states[:, :, : self._slots]).mean(2)
        nodes = torch.cat([parts, (parts * self._slots).clamp(max=1.0)], 2)
        return nodes, self._basis(states[:, :, self._slots :])

    def forward_actor(self, states: torch.Tensor) -> torch.Tensor:
        """The score of each answer."""
        nodes, demand = self._look(states)
        member = self.member
        inside = nodes[:, None] * member[None, :, :, None]
        sets = torch.cat([inside.sum(2) / member.sum(1)[None, :, None], inside.amax(2)], 2)
        hidden_sets = sets @ self.set_w + (nodes.mean(1) @ self.all_w)[:, None]
        cells = demand @ self.cell_w + self.start_b
        hidden = torch.relu(hidden_sets[:, :, None] + cells.index_select(1, self.row))
        starts = (hidden @ self.start_w)[..., 0].flatten(1)
        asked = demand.flatten(1) @ self.demand_w
        rest = torch.relu(nodes @ self.node_w + asked[:, None] + self.node_b).mean(1)
        return torch.cat([starts, rest @ self.rest_w + self.rest_b], 1)

    def forward_critic(self, states: torch.Tensor) -> torch.Tensor:
        """What the critic's last layer takes."""
        nodes, demand = self._look(states)
        return torch.relu(self.value_node(nodes) + self.value_demand(demand.flatten(1))[:, None]).mean(1)

    def forward(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Both."""
        return self.forward_actor(states), self.forward_critic(states)


class Whole(BaseFeaturesExtractor):
    """States as they are: the network wants their shape."""

    def __init__(self, observation_space: gymnasium.Space[Any]) -> None:
        super().__init__(observation_space, int(np.prod(observation_space.shape or ())))

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """The same."""
        return observations


class StartPolicy(MaskableActorCriticPolicy):
    """Actor and critic of MaskablePPO with this network.

    Args:
        starts: What is chosen among.
    """

    def __init__(self, *args: Any, starts: Starts, **kwargs: Any) -> None:
        self._starts = starts
        kwargs |= {"ortho_init": False, "features_extractor_class": Whole}
        super().__init__(*args, **kwargs)

    def _build_mlp_extractor(self) -> None:
        self.mlp_extractor = StartNet(self._starts).to(self.device)  # type: ignore[assignment]

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        self.action_net = nn.Identity()  # the network's scores are the logits
        settings: dict[str, Any] = {"lr": lr_schedule(1), **self.optimizer_kwargs}
        self.optimizer = self.optimizer_class(self.parameters(), **settings)

    def arrays(self) -> dict[str, npt.NDArray[np.float32]]:
        """The actor's weights, as :class:`~prefect_gpu.papers.deepshare.network.Network` takes them."""
        return {name: getattr(self.mlp_extractor, name).detach().cpu().numpy().copy() for name in WEIGHTS}
