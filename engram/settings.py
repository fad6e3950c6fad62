"""The base of all settings models, and the errors for users' mistakes."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A frozen model in which unknown keys, NaN and infinity are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True)


class UserError(Exception):
    """A user's mistake: the command line prints its message without a traceback and exits with `exit_code`."""

    exit_code = 2


class SettingsError(UserError):
    """Several mistakes in the settings, one line each."""

    def __init__(self, lines: list[str]):
        super().__init__("\n".join(lines))
        self.lines = lines
