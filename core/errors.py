"""The errors a user can cause. `cli` turns each into one line; anything else is a bug."""

from __future__ import annotations


class NextnError(Exception):
    """Base of all of them. The message says what, where, and what to do."""


class FileFormatError(NextnError):
    """A file is damaged, hostile, or not what it claims to be."""


class ModelError(NextnError):
    """A readable file does not hold a model that can be run."""


class ConfigError(NextnError):
    """A flag, parameter or request field has a value that cannot work."""


class InputError(NextnError):
    """What a user gives to a model, such as an image, cannot be read."""


class NothingLeftError(ConfigError):
    """A grammar, or biases, forbid every token that could come next: this text cannot go on."""


class TemplateError(NextnError):
    """A chat template failed, or tried what it may not do."""


class MissingDependencyError(NextnError):
    """Something optional is not installed; the message names the install command."""


class NonFiniteError(NextnError):
    """The model computed NaN or infinity; its output cannot be trusted."""


class DeviceError(NextnError):
    """A device failed while it was running, or the process that drives it is gone."""


class EngineError(NextnError):
    """A step of the engine failed; its requests end with this error."""


class UnavailableError(NextnError):
    """There is no engine for the request now, or it waited too long."""

    def __init__(self, message: str, retry_after: int = 1) -> None:
        """`retry_after`: seconds until it may be worth another try."""
        super().__init__(message)
        self.retry_after = retry_after


def field_names(message: str) -> str:
    """The core names parameters as flags, with dashes; requests have underscores."""
    name, _, rest = message.partition(" ")
    return f"{name.replace('-', '_')} {rest}" if name.islower() and "-" in name else message
