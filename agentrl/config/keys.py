"""The keys of the configuration by their dotted names, and which of them was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from agentrl.config.run import RunConfig
from agentrl.config.section import Section

OTHER_NAMES = {
    "learning_rate": "lr",
    "num_epochs": "epochs",
    "num_train_epochs": "epochs",
    "max_steps": "steps",
    "max_new_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "num_generations": "group_size",
    "beta": "kl_coef",
    "output_dir": "run_dir",
    "model_name": "path",
    "model_path": "path",
}
"""What other libraries call a key of this one, by the last part of its name."""
CLOSE = 0.7
"""Share of the letters that a misspelt name has in common with the right one, at least."""


def config_fields(
    section: type[BaseModel] = RunConfig, prefix: str = ""
) -> Iterator[tuple[str, type[BaseModel], FieldInfo]]:
    """Yield every dotted key, such as `rollout.batch_size`, with its section and its field."""
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from config_fields(kind, f"{prefix}{name}.")
        else:
            yield prefix + name, section, field


def config_keys() -> Iterator[str]:
    """Yield every dotted key."""
    return (key for key, _, _ in config_fields())


def close_key(key: str, among: Iterable[str] | None = None) -> str | None:
    """Return the key of the configuration that was probably meant by `key`, or None.

    Names are compared by their last part, since a key is often written without its section or in a wrong one: first what is
    called so here or elsewhere (`learning_rate` is `trainer.lr`), then what has all its words (`batch` is `rollout.batch_size`), then
    what is spelt much like it. Of several, one in the same section comes first, then one that begins alike.

    Args:
        key: what was written, with `_` or `-`.
        among: the keys to choose from. Default: all.
    """
    section, _, name = key.replace("-", "_").rpartition(".")
    name = OTHER_NAMES.get(name, name)
    known = list(config_keys() if among is None else among)
    if section in known:
        return section  # a key below a value
    known.sort(key=lambda one: one.rpartition(".")[0] != section)
    words = [word for word in name.split("_") if word]
    alike = [one for one in known if words and all(_has_word(_last(one), word) for word in words)]
    beginning = [one for one in alike if _last(one).startswith(name)]
    same = [one for one in known if _last(one) == name]
    spelt = difflib.get_close_matches(name, [_last(one) for one in known], n=1, cutoff=CLOSE)
    return next(iter(same or beginning or alike or [one for one in known if _last(one) in spelt]), None)


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def _has_word(name: str, word: str) -> bool:
    """Whether a word of `name` is `word`, or begins with it."""
    return any(part == word or (len(word) > 2 and part.startswith(word)) for part in name.split("_"))
