"""CMA-ES for sweeps: a study's database may be a stranger's, and Optuna keeps the optimiser in it as a pickle."""

import io
import pickle
from typing import Any

from optuna.samplers import CmaEsSampler

from engram.settings import UserError

ALLOWED = {
    ("cmaes._cma", "CMA"),
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    *((f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
}
FIX = "use a different sampler, or a study of your own"


class SafeCmaEsSampler(CmaEsSampler):
    """Optuna's sampler, which unpickles only arrays and the optimiser itself."""

    def _concat_optimizer_attrs(self, optimizer_attrs: dict[str, str]) -> str:
        """The pickle that Optuna loads next, in hexadecimal digits; raises if it names anything else."""
        text: str = super()._concat_optimizer_attrs(optimizer_attrs)
        try:
            _Checked(io.BytesIO(bytes.fromhex(text))).load()
        except UserError:
            raise
        except Exception as error:  # a damaged pickle raises anything
            raise UserError(f"storage: the state of the sampler cmaes in it is damaged ({error}): {FIX}") from error
        return text


class _Checked(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise UserError(f"storage: the state of the sampler cmaes in it would run {module}.{name}: {FIX}")
        return super().find_class(module, name)
