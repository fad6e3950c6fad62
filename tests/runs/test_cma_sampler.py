"""A stranger's study may hold a pickle where Optuna keeps the state of CMA-ES: nothing of it runs."""

import inspect
import pickle

import numpy as np
import pytest
from optuna.samplers import CmaEsSampler

from engram.runs.cma_sampler import SafeCmaEsSampler
from engram.settings import UserError


class Touch:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return type(self.path).touch, (self.path,)


def stored(value) -> dict[str, str]:
    return {"cma:optimizer:0": pickle.dumps(value).hex()}


def test_a_pickle_that_names_other_code_is_refused_and_does_not_run(tmp_path):
    with pytest.raises(UserError, match=r"would run pathlib\..*different sampler"):
        SafeCmaEsSampler()._concat_optimizer_attrs(stored(Touch(tmp_path / "touched")))
    assert not (tmp_path / "touched").exists()


def test_the_numbers_of_an_optimiser_are_read_as_they_are():
    attributes = stored({"mean": np.ones(3), "sigma": np.float64(0.5)})
    assert SafeCmaEsSampler()._concat_optimizer_attrs(attributes) == attributes["cma:optimizer:0"]


@pytest.mark.parametrize("text", ["00", "8004", "zz"])
def test_a_damaged_pickle_is_refused(text):
    with pytest.raises(UserError, match="damaged"):
        SafeCmaEsSampler()._concat_optimizer_attrs({"cma:optimizer:0": text})


def test_optuna_unpickles_nothing_but_what_was_checked():
    source = inspect.getsource(inspect.getmodule(CmaEsSampler))
    assert source.count("pickle.load") == 1
    assert "_concat_optimizer_attrs(optimizer_attrs)\n            return pickle.loads(" in source
