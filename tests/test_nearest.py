"""Which real name a mistyped one means."""

from engram.nearest import nearest, suggestion

NAMES = [
    "seed",
    "env.agents",
    "trainer.num_envs",
    "trainer.optimizer.learning_rate",
    "agent.clip_range",
    "py_agent.clip_range",
]


def test_the_last_part_of_a_name_finds_the_whole():
    assert nearest("learning_rate", NAMES) == "trainer.optimizer.learning_rate"
    assert nearest("trainer.Learning_Rte", NAMES) == "trainer.optimizer.learning_rate"


def test_parts_may_be_written_as_metrics_are():
    assert nearest("kl", ["loss/policy", "loss/kl"]) == "loss/kl"


def test_initials_find_a_name_of_several_words():
    assert nearest("lr", NAMES) == "trainer.optimizer.learning_rate"


def test_the_first_part_tells_equal_last_parts_apart():
    assert nearest("py_agent.clip_rnge", NAMES) == "py_agent.clip_range"
    assert nearest("agent.clip_rnge", NAMES) == "agent.clip_range"


def test_nothing_is_suggested_for_a_name_like_no_other():
    assert nearest("xyzzy", NAMES) is None
    assert suggestion("xyzzy", NAMES) == ""
    assert suggestion("sede", NAMES) == "; did you mean seed?"
    assert nearest("anything", []) is None
