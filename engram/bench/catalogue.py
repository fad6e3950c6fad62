"""The peers: how each is installed, and which program trains with it. A plain dict, to be read and added to."""

from dataclasses import dataclass, field

TORCH = "torch==2.13.*"  # the same for everybody
NO_CUDA = "/usr/bin:/bin"  # a compiler for CUDA in the path would make a build for the CPU look for the rest of CUDA


@dataclass(frozen=True)
class Peer:
    """`packages` go in by pip, in steps; `source` is a package that has to be mended before it builds."""

    title: str
    program: str  # in runners/
    tasks: tuple[str, ...]
    packages: tuple[tuple[str, ...], ...] = ()
    source: "Source | None" = None
    environment: dict[str, str] = field(default_factory=dict)  # for building and running
    threads: tuple[int, ...] | None = None  # None: whatever was asked for
    resets: str = "exact"  # what becomes of memory where an episode ends inside a segment, in learning


@dataclass(frozen=True)
class Source:
    """A source distribution, with one text in it replaced."""

    package: str
    version: str
    file: str
    old: str
    new: str


PEERS: dict[str, Peer] = {
    "pufferlib": Peer(
        "PufferLib 3.0, serial",
        "run_pufferlib.py",
        ("pole", "arena", "arena52"),
        (
            (TORCH, "setuptools<81", "wheel", "Cython", "numpy"),
            ("gymnasium>=1.2,<2", "pettingzoo", "psutil", "rich", "rich_argparse", "shimmy", "imageio"),
            ("heavyball", "pyro-ppl", "nvidia-ml-py", "mettagrid==0.26.22"),
            ("--no-deps", "gym==0.23"),
        ),
        # Its games come with libraries from the network, and leaving them out needs a name that its setup forgot.
        Source(
            "pufferlib",
            "3.0.0",
            "setup.py",
            "\nc_extensions = []\n",
            "\nc_extensions, c_extension_paths = [], []\n",
        ),
        {"NO_OCEAN": "1", "PATH": NO_CUDA},
        resets="never",
    ),
    "rl_games": Peer("rl_games", "run_rl_games.py", ("pole",), ((TORCH, "rl-games==1.6.5", "gymnasium>=1.2,<2"),)),
    "sb3_contrib": Peer("sb3-contrib RecurrentPPO", "run_sb3_contrib.py", ("pole",), ((TORCH, "sb3-contrib>=2.7"),)),
    "sample_factory": Peer(
        "Sample Factory", "run_sample_factory.py", ("pole",), ((TORCH, "sample-factory==2.1.1"),), threads=(1,)
    ),
    "torchrl": Peer("TorchRL", "run_torchrl.py", ("pole",), ((TORCH, "torchrl==0.14.*", "gymnasium>=1.2,<2"),)),
    # Ours to write, so it runs where we do.
    "plain": Peer("plain loop", "run_plain.py", ("pole", "arena", "arena52")),
}
