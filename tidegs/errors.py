"""Every error tidegs raises on purpose: one sentence that names the file, the field, what was found, what to do."""

from __future__ import annotations


class TidegsError(Exception):
    """Base of all errors that a user can act on; the CLI prints the message alone and exits with 2."""


class ConfigError(TidegsError):
    """A setting is unknown, of the wrong type, out of range, or contradicts another."""


class SceneError(TidegsError):
    """A scene folder, or a file in it, is missing, malformed or inconsistent."""


class ImageError(SceneError):
    """An image is missing, truncated, or not of the size that its camera states."""


class FormatError(TidegsError):
    """A Gaussian file (PLY and others) does not follow its format."""


class StoreError(TidegsError):
    """The block store cannot be used: wrong version, locked, no space, or a failed file operation."""


class CorruptError(StoreError):
    """A record, table or root of the store fails its checks; names the file and the block."""


class CapacityError(TidegsError):
    """A memory budget is too small for what one pass cannot do without; states the least that would do."""


class DeviceError(TidegsError):
    """A device, or a library that it needs, is missing or unusable."""
