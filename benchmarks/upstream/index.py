# SPDX-License-Identifier: Apache-2.0
"""The files of a package on the package index that pip uses, with their digests (PEP 691)."""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import sys
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin

from packaging.utils import InvalidSdistFilename, InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from benchmarks.upstream.fetch import Fetcher, FetchError, public_url, split_credentials

JSON = "application/vnd.pypi.simple.v1+json"
LISTING_BYTES = 64 << 20
DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True)
class IndexFile:
    """A file of a release; `size` is 0 and `released`, its date, is "" if the index does not state them."""

    name: str
    url: str
    size: int
    sha256: str
    released: str = ""

    @property
    def is_wheel(self) -> bool:
        return self.name.endswith(".whl")


@dataclass(frozen=True)
class Index:
    """A package index by its simple URL."""

    url: str
    fetcher: Fetcher

    def releases(self, package: str) -> dict[Version, list[IndexFile]]:
        """Return the files of every version that is not yanked, oldest version first.

        Raise FetchError if the index does not answer with the JSON form of its listing.
        """
        url = f"{self.url.rstrip('/')}/{package}/"
        response = self.fetcher.get(url, LISTING_BYTES, {"Accept": JSON})
        try:
            listed = json.loads(response.body)["files"]
            found: dict[Version, list[IndexFile]] = {}
            for each in listed:
                version = file_version(each["filename"])
                if version and not each.get("yanked"):
                    found.setdefault(version, []).append(_file(each, url))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FetchError(f"{public_url(url)}: not a listing in the JSON form (PEP 691): {error!r}") from error
        return dict(sorted(found.items()))


def _file(entry: dict[str, Any], url: str) -> IndexFile:
    size = entry.get("size")
    sha256 = str(entry.get("hashes", {}).get("sha256", ""))
    found = DATE.match(str(entry.get("upload-time", "")))
    released = found[0] if found else ""
    return IndexFile(
        entry["filename"], urljoin(url, entry["url"]), size if isinstance(size, int) else 0, sha256, released
    )


def file_version(name: str) -> Version | None:
    """Return the version in the name of a wheel or sdist, or None for other files."""
    try:
        return parse_wheel_filename(name)[1] if name.endswith(".whl") else parse_sdist_filename(name)[1]
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):
        return None


def pick_wheel(files: list[IndexFile]) -> IndexFile | None:
    """Return the smallest wheel, or None: the wheels of a release have the same Python sources."""
    return min((file for file in files if file.is_wheel), key=lambda file: (file.size, file.name), default=None)


def configured_index() -> Index:
    """Return the index of pip's configuration and environment, or pip's default."""
    settings = pip_settings()
    url, host, authorization = split_credentials(settings.get("index-url") or pip_default_index())
    tls = ssl.create_default_context(cafile=settings.get("cert"))
    return Index(url, Fetcher(tls=tls, credentials={host: authorization} if authorization else {}))


def pip_default_index() -> str:
    """Return the URL of the index that pip uses without any configuration."""
    # In a process of its own: pip has no public name for it, and importing it here replaces setuptools' distutils.
    code = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
    command = [sys.executable, "-I", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


def pip_settings() -> dict[str, str]:
    """Return pip's settings by name; an environment variable such as PIP_INDEX_URL wins over a file."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    found: dict[str, str] = {}
    for section in ("global", "install", "download", ":env:"):
        for line in listed.stdout.splitlines():
            name, equals, value = line.partition("=")
            if equals and name.startswith(f"{section}."):
                found[name.removeprefix(f"{section}.")] = value.strip("'\"")
    names = {"index-url": "PIP_INDEX_URL", "cert": "PIP_CERT"}
    return found | {name: os.environ[variable] for name, variable in names.items() if os.environ.get(variable)}
