"""Secrets, each alone in a file that a setting names."""

from pathlib import Path

from pydantic import SecretStr

from millrace.consumers.errors import ConfigError


def read_secret(key: str, path: Path | None) -> SecretStr | None:
    """Read a secret's file; errors name the setting and the file, never its content."""
    if path is None:
        return None
    try:
        secret = path.read_text("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        raise ConfigError(f"{key}: {path} is not UTF-8 text; write the secret alone into it") from None
    except OSError as error:
        raise ConfigError(f"{key}: {path} cannot be read: {_why(error)}; put the secret there") from None
    if not secret:
        raise ConfigError(f"{key}: {path} is empty; write the secret into it")
    return SecretStr(secret)


def _why(error: OSError) -> str:
    return (error.strerror or "it cannot be opened").lower()
