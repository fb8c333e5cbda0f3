"""Find or fetch published files: a local copy first, else the official one, verified, whole on disk or absent."""

import http.client
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from simic import durable
from simic.errors import SimicError

TIMEOUT_S = 30.0  # without a single byte


@dataclass(frozen=True)
class Site:
    """Where a data set is published, and the sha256 of each of its files (names end in .gz)."""

    url: str  # ends in /
    sha256: dict[str, str]
    licence: str


def local_copy(data_dir: Path, folder: str, name: str) -> Path | None:
    """Return the path of ``name`` or its unpacked form, in ``data_dir/folder`` or in ``data_dir``; None without one."""
    places = [
        place / variant for place in (data_dir / folder, data_dir) for variant in (name, name.removesuffix(".gz"))
    ]
    return next((path for path in places if path.exists()), None)


def obtain(site: Site, data_dir: Path, folder: str, name: str) -> Path:
    """Return the local copy, or fetch it to ``data_dir/folder/name``; SimicError says which file to put where."""
    return local_copy(data_dir, folder, name) or _fetch(site, data_dir / folder / name)


def _fetch(site: Site, target: Path) -> Path:
    url = site.url + target.name
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
            content = response.read()
    except (OSError, http.client.HTTPException) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise SimicError(
            f"{target}: no such file, and {url} cannot be fetched ({reason}): "
            "put it there by hand, or set SIMIC_DATA_DIR to a folder that has it"
        ) from None
    found, expected = durable.sha256_of(content), site.sha256[target.name]
    if found != expected:
        raise SimicError(
            f"{url}: {len(content)} bytes with sha256 {found}, must be {expected}; the download was discarded"
        )
    durable.replace_file(target, content)
    return target
