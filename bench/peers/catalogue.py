"""The peers: how each one is installed, and which program trains with it."""

from dataclasses import dataclass, field

TORCH = "torch==2.13.*"  # the same for all
TASKS = ("--no-deps", "popgym==1.0.7", "minigrid==3.2.0", "pygame-ce==2.5.*")
NO_CUDA = "/usr/bin:/bin"  # with nvcc in the path, a CPU build would look for CUDA libraries


@dataclass(frozen=True)
class Peer:
    """A system to compare with. pip installs `packages` step by step; `source` must be patched before it builds."""

    title: str
    program: str  # in runners/
    tasks: tuple[str, ...]
    packages: tuple[tuple[str, ...], ...] = ()
    source: "PatchedSource | None" = None
    environment: dict[str, str] = field(default_factory=dict)  # for building and running
    threads: tuple[int, ...] | None = None  # None: as given on the command line
    resets: str = "exact"  # how learning resets memory where an episode ends inside a segment
    module: str | None = None  # runs in Engram's own virtual environment if that has this module


@dataclass(frozen=True)
class PatchedSource:
    """A source distribution in which one string is replaced."""

    package: str
    version: str
    file: str
    old: str
    new: str


PEERS: dict[str, Peer] = {
    "pufferlib": Peer(
        "PufferLib 3.0, serial",
        "run_pufferlib.py",
        ("cartpole", "arena", "arena52"),
        (
            (TORCH, "setuptools<81", "wheel", "Cython", "numpy"),
            ("gymnasium>=1.2,<2", "pettingzoo", "psutil", "rich", "rich_argparse", "shimmy", "imageio"),
            ("heavyball", "pyro-ppl", "nvidia-ml-py", "mettagrid==0.26.22"),
            ("--no-deps", "gym==0.23"),
            TASKS,
        ),
        # Built without its games, which download libraries; setup.py then misses a variable.
        PatchedSource(
            "pufferlib",
            "3.0.0",
            "setup.py",
            "\nc_extensions = []\n",
            "\nc_extensions, c_extension_paths = [], []\n",
        ),
        {"NO_OCEAN": "1", "PATH": NO_CUDA},
        resets="never",
    ),
    "rl_games": Peer(
        "rl_games", "run_rl_games.py", ("cartpole",), ((TORCH, "rl-games==1.6.5", "gymnasium>=1.2,<2"), TASKS)
    ),
    "sb3_contrib": Peer(
        "sb3-contrib RecurrentPPO",
        "run_sb3_contrib.py",
        ("cartpole",),
        ((TORCH, "sb3-contrib>=2.7"),),
        module="sb3_contrib",
    ),
    "sample_factory": Peer(
        "Sample Factory", "run_sample_factory.py", ("cartpole",), ((TORCH, "sample-factory==2.1.1"),), threads=(1,)
    ),
    "torchrl": Peer("TorchRL", "run_torchrl.py", ("cartpole",), ((TORCH, "torchrl==0.14.*", "gymnasium>=1.2,<2"),)),
    # Written for this comparison; runs in Engram's own virtual environment.
    "plain": Peer("plain loop", "run_plain.py", ("cartpole", "arena", "arena52")),
}
