"""Every error a user can cause or must know of. The message is one line: what happened, the numbers, the
remedy."""


class XinferError(Exception):
    """Root of all errors raised on purpose; the command line prints it without a traceback."""


class ConfigError(XinferError):
    """An option, an environment variable or a combination of them that cannot be used."""


class CheckpointError(XinferError):
    """A model file that is missing, truncated, malformed, or at odds with its own configuration."""


class UnsupportedError(XinferError):
    """A valid input that this version cannot run: an architecture, a tensor type, an option of a model."""


class OutOfMemoryError(XinferError):
    """The plan does not fit: says what was asked, what there is, and which option to change."""


class DeviceError(XinferError):
    """The driver refused: says which call, its status, and what to check."""


class RequestError(XinferError):
    """One request that cannot be served: an empty or too long prompt, a token out of range, a bad
    parameter."""
