"""Records what TorchRL computes, for test_advantage.py: TorchRL wants another tensordict than Engram does.

In a virtual environment of its own: `pip install torchrl==0.14.1 && python torchrl_advantages.py`.
"""

import json
from pathlib import Path

import torch
import torchrl
from torchrl.objectives.value.functional import generalized_advantage_estimate, vtrace_advantage_estimate

R = 2  # rows


def main() -> None:
    torch.manual_seed(0)
    cases = [case(steps) for steps in (1, 2, 5, 8, 12, 16)]
    made_by = {"torchrl": torchrl.__version__, "torch": torch.__version__}
    path = Path(__file__).with_suffix(".json")
    path.write_text(json.dumps({"made_by": made_by, "cases": cases}, indent=1) + "\n", encoding="utf-8")


def case(steps: int) -> dict:
    """Numbers [R, T] in float64; episodes end by termination and by truncation."""
    values, next_values, rewards, now, then = torch.randn(5, R, steps, dtype=torch.float64).unbind()
    ends = torch.rand(R, steps) < 0.3
    terminated = ends & (torch.rand(R, steps) < 0.5)
    gamma, gae_lambda, rho_clip, c_clip = torch.tensor([0.97, 0.9, 1.3, 0.9], dtype=torch.float64)
    gae, gae_returns = generalized_advantage_estimate(
        gamma,
        gae_lambda,
        *(x.unsqueeze(-1) for x in (values, next_values, rewards)),
        done=ends.unsqueeze(-1),
        terminated=terminated.unsqueeze(-1),
    )
    following = torch.cat(
        [values[:, 1:], next_values[:, -1:]], 1
    )  # V-trace has no truncation: values follow each other
    _, vtrace_returns = vtrace_advantage_estimate(
        gamma,
        *(x.unsqueeze(-1) for x in (now, then, values, following, rewards)),
        done=terminated.unsqueeze(-1),
        terminated=terminated.unsqueeze(-1),
        rho_thresh=rho_clip,
        c_thresh=c_clip,
    )
    tensors = {
        "values": values,
        "next_values": next_values,
        "following_values": following,
        "rewards": rewards,
        "ratio": (now - then).exp(),
        "ends": ends,
        "terminated": terminated,
        "gae": gae.squeeze(-1),
        "gae_returns": gae_returns.squeeze(-1),
        "vtrace_returns": vtrace_returns.squeeze(-1),
    }
    settings = {"gamma": gamma, "gae_lambda": gae_lambda, "rho_clip": rho_clip, "c_clip": c_clip}
    return {name: x.tolist() for name, x in (settings | tensors).items()}


if __name__ == "__main__":
    main()
