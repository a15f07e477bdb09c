"""The checkpoints of a run at a URL, for another disk than this machine's: an object store, by fsspec.

    checkpoints/step-000010, whole ─► URL/RUN/step-000010/..., its manifest last ─► committed
                 ▲                                   │
                 └──── damaged or gone here ─────────┘ fetched, checked by its manifest

Object stores know no directories, and put one file at a time whole: a checkpoint there is whole when its manifest is there. That is
what goes first when it is deleted, too.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentrl.config import RunConfig
from agentrl.errors import AgentRLError, CheckpointError, CheckpointUrlError, ConfigError, one_line
from agentrl.store.manifest import MANIFEST, check_files, read_manifest
from agentrl.system.failure_text import without_secrets
from agentrl.system.files import atomic_dir, sync, sync_tree
from agentrl.system.imports import check_extra

OBSTORE_PROTOCOLS = ("s3", "gs", "gcs", "az", "abfs")
"""Object stores that obstore speaks to, where no package of fsspec for them is installed."""


class CheckpointUrl:
    """The checkpoints of one run at a URL. Its methods block while files travel; call them in a worker thread."""

    def __init__(self, url: str, run: str) -> None:
        """Find what speaks to the URL.

        Args:
            url: Where checkpoints of runs are, such as s3://bucket/folder.
            run: What the run is called there: the name of its directory.

        Raises:
            ConfigError: Nothing that is installed speaks to it.
        """
        self.shown = f"{without_secrets(url).rstrip('/')}/{run}"
        self._files, root = _file_system(url)
        self._root = f"{root.rstrip('/')}/{run}"

    def put(self, directory: Path) -> None:
        """Write a checkpoint of this machine there, in place of what is left of one of its name.

        Args:
            directory: The checkpoint.

        Raises:
            CheckpointUrlError: It is not all there.
        """
        self.remove(directory.name)
        with self._speaking(f"{directory.name} cannot be written to"):
            for name in (*read_manifest(directory).files, MANIFEST):
                target = f"{self._root}/{directory.name}/{name}"
                self._files.makedirs(target.rpartition("/")[0], exist_ok=True)  # which object stores do without
                self._files.put_file(str(directory / name), target)

    def get(self, directory: Path) -> None:
        """Fetch a checkpoint, whole or not at all.

        Args:
            directory: Where it is to be on this machine; its name is the checkpoint's.

        Raises:
            CheckpointError: It is damaged there too, or not there.
            CheckpointUrlError: The URL does not answer.
        """
        with atomic_dir(directory) as partial, self._speaking(f"{directory.name} cannot be read from"):
            names = [MANIFEST]
            for name in names:
                (partial / name).parent.mkdir(parents=True, exist_ok=True)
                try:
                    self._files.get_file(f"{self._root}/{directory.name}/{name}", str(partial / name))
                except FileNotFoundError as error:
                    raise CheckpointError(f"{self.shown}/{directory.name}/{name} is not there") from error
                if name == MANIFEST:
                    names += read_manifest(partial).files
            check_files(partial)
            sync_tree(partial)
        sync(directory.parent)

    def remove(self, checkpoint: str) -> None:
        """Delete what is there of a checkpoint.

        Args:
            checkpoint: Its name, such as step-000010.

        Raises:
            CheckpointUrlError: It cannot be deleted.
        """
        folder = f"{self._root}/{checkpoint}"
        with self._speaking(f"{checkpoint} cannot be deleted from"):
            self._files.invalidate_cache()
            names = self._files.find(folder)
            for path in sorted(names, key=lambda path: path != f"{folder}/{MANIFEST}"):
                self._files.rm_file(path)

    def remove_unwanted(self, unwanted: Container[str]) -> None:
        """Delete the checkpoints that are there by a name that is `unwanted`, or half.

        Raises:
            CheckpointUrlError: One cannot be deleted.
        """
        for name, files in self.files().items():
            if name in unwanted or MANIFEST not in files:
                self.remove(name)

    def files(self) -> dict[str, dict[str, int]]:
        """Return the sizes of the files that are there of each checkpoint, in bytes. One is whole where its manifest is there.

        Raises:
            CheckpointUrlError: The URL does not answer.
        """
        with self._speaking("nothing can be listed at"):
            self._files.invalidate_cache()
            found = self._files.find(self._root, detail=True)
        checkpoints: dict[str, dict[str, int]] = {}
        for path, file in sorted(found.items()):
            checkpoint, _, name = path.removeprefix(f"{self._root}/").partition("/")
            checkpoints.setdefault(checkpoint, {})[name] = file["size"]
        return checkpoints

    @contextmanager
    def _speaking(self, what: str) -> Iterator[None]:
        """Say what the URL's errors mean: every store has classes of its own for them.

        Raises:
            CheckpointUrlError: Any that is not agentrl's own.
            AgentRLError: agentrl's own, as it is.
        """
        try:
            yield
        except AgentRLError:
            raise
        except Exception as error:
            about = one_line(without_secrets(str(error)), 300)
            raise CheckpointUrlError(f"{what} {self.shown}: {type(error).__name__}: {about}") from error


def checkpoint_url(config: RunConfig) -> CheckpointUrl | None:
    """Return where a run keeps its checkpoints beside its directory; None: nowhere.

    Raises:
        ConfigError: Nothing that is installed speaks to the URL.
    """
    url = config.trainer.checkpoint.url
    return None if url is None else CheckpointUrl(url, Path(config.run_dir).absolute().name)


def _file_system(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it.

    Raises:
        ConfigError: None of those installed is.
    """
    key = f"`trainer.checkpoint.url` = {without_secrets(url)!r}"
    check_extra("url", key)
    import fsspec

    try:
        try:
            found, root = fsspec.url_to_fs(url, skip_instance_cache=True)
        except ImportError:
            from obstore.fsspec import register

            register([name for name in OBSTORE_PROTOCOLS if url.startswith(f"{name}:")])
            found, root = fsspec.url_to_fs(url, skip_instance_cache=True)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"{key}: nothing that is installed speaks to it ({one_line(error, 200)}); install fsspec's package for it, such as s3fs, or obstore"
        ) from error
    return found, str(root)
