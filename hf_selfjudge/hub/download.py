"""Files of a judge from the Hub: bounded in size, all of one commit, and every failure with its real reason.

Only the named file is ever asked for, whatever else a repository holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from huggingface_hub import (
    constants,
    get_hf_file_metadata,
    get_token,
    hf_hub_download,
    hf_hub_url,
    try_to_load_from_cache,
)
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Repository:
    """A judge's repository on the Hub, and how to read it."""

    id: str
    revision: str | None = None
    token: str | bool | None = None
    cache_dir: str | Path | None = None
    force_download: bool = False
    local_files_only: bool = False

    def file(self, name: str, max_bytes: int) -> Path:
        """The local path of a file, downloaded unless it is cached; refused before the download if it is too large."""
        with real_reason(self):
            if not (self.local_files_only or constants.HF_HUB_OFFLINE or self._is_cached(name)):
                self._check_size(name, max_bytes)
            return Path(
                hf_hub_download(
                    self.id,
                    name,
                    revision=self.revision,
                    token=self.token,
                    cache_dir=self.cache_dir,
                    force_download=self.force_download,
                    local_files_only=self.local_files_only,
                )
            )

    def at_commit_of(self, path: Path) -> Repository:
        """The same repository at the commit that a downloaded file is of: a push in between must not mix two judges."""
        is_cached = path.parent.parent.name == "snapshots"
        return replace(self, revision=path.parent.name) if is_cached else self

    def _is_cached(self, name: str) -> bool:
        if self.force_download or not _COMMIT.fullmatch(self.revision or ""):
            return False
        return isinstance(try_to_load_from_cache(self.id, name, self.cache_dir, self.revision), str)

    def _check_size(self, name: str, max_bytes: int) -> None:
        try:
            url = hf_hub_url(self.id, name, revision=self.revision)
            size = get_hf_file_metadata(url, token=self.token).size
        except HfHubHTTPError as error:
            if error.response is not None and error.response.status_code < 500:
                raise
            return  # the Hub is down: the cache may do
        except (HFValidationError, EntryNotFoundError):
            raise
        except Exception as error:
            if not _is_network(error):
                raise
            return  # no network: the cache may do
        if size is not None and size > max_bytes:
            raise ValueError(
                f"{self.id} is not a judge: its {name} has {size} bytes, expected at most {max_bytes}. It was not "
                "downloaded."
            )


@contextmanager
def real_reason(repository: Repository) -> Iterator[None]:
    """Turn what huggingface_hub and its HTTP client raise into one OSError or ValueError that says what to do."""
    try:
        yield
    except Exception as error:
        translated = _translated(error, repository)
        if translated is None:
            raise
        raise translated from None


def _translated(error: Exception, repository: Repository) -> Exception | None:
    name, revision = repository.id, repository.revision or "main"
    if isinstance(error, HFValidationError):
        return ValueError(
            f"{name!r} is neither a folder here nor a name on the Hub, which look like org/name. Check the path, or "
            "write a judge with judge.save_pretrained(folder)."
        )
    if isinstance(error, GatedRepoError):
        return PermissionError(
            f"{name} is gated: its owner grants access by request. Ask for it on {constants.ENDPOINT}/{name} and "
            f"{_login()}."
        )
    if isinstance(error, RepositoryNotFoundError):
        sent = _sends_token(repository.token)
        return FileNotFoundError(
            f"The Hub shows no repository {name}: it does not exist, or it is private and "
            + ("your token has no access to it. Check the name and the token." if sent else
               f"no token was sent. Check the name, or {_login()}.")
        )  # fmt: skip
    if isinstance(error, RevisionNotFoundError):
        return FileNotFoundError(f"{name} has no revision {revision!r}. Name one of its branches, tags or commits.")
    if isinstance(error, OfflineModeIsEnabled | LocalEntryNotFoundError):
        return _unreachable(error, repository)
    if isinstance(error, EntryNotFoundError):
        return FileNotFoundError(
            f"{name} (revision {revision}) is not a judge: it has no config.json or no model.safetensors. Judges are "
            "pushed with `selfjudge push` or judge.push_to_hub."
        )
    if isinstance(error, RuntimeError) and isinstance(error.__cause__, Exception):  # an upload that broke off
        reason = error.__cause__
        if isinstance(reason, HfHubHTTPError) or _is_network(reason):
            return OSError(
                f"{_first_line(error)}: {_first_line(reason)}. {name} is as it was before; run the same push again."
            )
    if isinstance(error, HfHubHTTPError):
        return OSError(f"The Hub refused {name}: {_first_line(error)}. {_hint(error)}")
    if _is_network(error):
        return ConnectionError(
            f"The connection to {constants.ENDPOINT} failed at {name} ({type(error).__name__}: {_first_line(error)}). "
            "Try again."
        )
    return None


def _unreachable(error: Exception, repository: Repository) -> OSError:
    missing = f"{repository.id} (revision {repository.revision or 'main'}) is not in the cache"
    if repository.local_files_only:
        return FileNotFoundError(f"{missing}, and local_files_only=True forbids the download. Load it once without.")
    if constants.HF_HUB_OFFLINE:
        return FileNotFoundError(f"{missing}, and HF_HUB_OFFLINE is set. Unset it and load the judge once.")
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return ConnectionError(
        f"{missing}, and {constants.ENDPOINT} cannot be reached ({type(cause).__name__}: {_first_line(cause)}). Check "
        "the network, the proxy or HF_ENDPOINT."
    )


def _is_network(error: BaseException) -> bool:
    """Whether the HTTP client, not the Hub, failed. Its package differs between versions of huggingface_hub."""
    client = next(base for base in HfHubHTTPError.__mro__ if base.__name__ == "HTTPError")
    failed = isinstance(error, client) and not isinstance(error, HfHubHTTPError)
    return failed or isinstance(error, ConnectionError | TimeoutError)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__


def _hint(error: HfHubHTTPError) -> str:
    status = error.response.status_code if error.response is not None else None
    if status in (401, 403):
        return f"The token is not valid for this: {_login()}."
    return "Try again later." if status is not None and status >= 500 else "Check the name and the revision."


def _sends_token(token: Any) -> bool:
    return isinstance(token, str) or (token is not False and get_token() is not None)


def _login() -> str:
    return "log in with `hf auth login`, set HF_TOKEN or pass token="
