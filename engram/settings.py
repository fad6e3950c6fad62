"""What all settings share: closed, typed, frozen models, and the error that a user's mistake becomes."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A closed model: an unknown key is an error, a NaN is an error, and nothing changes after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True)


class UserError(Exception):
    """A mistake of the user's: the command line prints its text, without a traceback, and exits with `exit_code`."""

    exit_code = 2


class SettingsError(UserError):
    """Several mistakes at once, a line each."""

    def __init__(self, lines: list[str]):
        super().__init__("\n".join(lines))
        self.lines = lines
