"""Configurations from files and flags, and back: jsonargparse with errors for people."""

from __future__ import annotations

import difflib
import functools
import inspect
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from hemnet.errors import UserError
from hemnet.renamed_options import current_options
from hemnet.run_folder import RunFolder
from hemnet.training.config import RENAMED, TrainConfig, check_config, joined
from hemnet.training.presets import PRESETS

log = logging.getLogger("hemnet")

# Settings that do not change what a run computes: a resumed run may have others.
FREE = ("data.root", "data.workers", "run.tensorboard", "run.wandb", "run.timeout")
_OPEN = ("model.options", "data.label_map", "loss.terms")  # dictionaries, of the user's keys


def read_config(
    source: str | Path | Mapping[str, Any] | TrainConfig | None = None,
    flags: Sequence[str] = (),
    *,
    overrides: Mapping[str, Any] | None = None,
    preset: str | None = None,
) -> TrainConfig:
    """A checked configuration: the defaults, changed by all that is given, in this order.

    Args:
        preset: "cpu" or "gpu": settings to begin with.
        source: a YAML file, its content as nested dictionaries, or another configuration.
        overrides: such as `{"optim.lr": 0.01}` or `{"optim": {"lr": 0.01}}`.
        flags: such as `["--optim.lr", "0.01"]`.
    """
    import jsonargparse

    if preset is not None and preset not in PRESETS:
        raise UserError(f"`preset={preset}`: expected {' or '.join(PRESETS)}")
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--config", action="config")
    parser.add_class_arguments(TrainConfig)
    content = dict(PRESETS[preset]) if preset is not None else {}
    problems: list[str] = []
    if isinstance(source, TrainConfig | Mapping):
        nested = source if isinstance(source, Mapping) else asdict(source)
        content |= _settings(nested, "the configuration", problems)
    elif source is not None:
        content |= _settings(_read_file(Path(source)), str(source), problems)
    flags = _checked_flags([*_as_flags(overrides or {}), *flags], problems)
    if problems:
        raise UserError(joined(problems))
    flags = list(_plain_values(flags))
    try:
        parsed = parser.parse_args([*_as_file(content), *flags])
    except OverflowError:  # jsonargparse does not say of which
        raise UserError("a number of the configuration is too large for a computer's") from None
    except Exception as error:  # jsonargparse raises many kinds
        found = dict.fromkeys((_explain(str(error)), *_wrong_values(parser, content, flags)))
        raise UserError(joined(list(found))) from None
    # `instantiate` is the newer name.
    make = getattr(parser, "instantiate", None) or parser.instantiate_classes
    found = make(parsed)
    config = TrainConfig(**{f.name: getattr(found, f.name) for f in fields(TrainConfig)})
    check_config(config)
    config.model.options = current_options(config.model.options)
    return config


def run_config(run: str | Path) -> TrainConfig | None:
    """The configuration a run was started with; None where the folder holds no run."""
    folder = RunFolder(run)
    return read_config(folder.config) if folder.holds_run else None


def renamed(key: str) -> str:
    """The name that a setting has now, said once where it was called otherwise."""
    if key not in RENAMED:
        return key
    warn_of_old_name(key)
    return RENAMED[key]


@functools.cache
def warn_of_old_name(key: str) -> None:
    log.warning("%s is now called %s; the old name still works", key, RENAMED[key])


def _as_text(value: Any) -> str:
    """As on the command line."""
    shown = yaml.safe_dump(value, default_flow_style=True, width=10**6)
    return shown.removesuffix("...\n").strip()


def _as_file(content: Mapping[str, Any]) -> list[str]:
    """The settings of a file as a flag: YAML, in which texts stay what they are."""
    nested: dict[str, dict[str, Any]] = {}
    for key, value in content.items():
        section, _, name = key.partition(".")
        longer = _long_form(key, str(value))
        changed = longer != str(value)
        nested.setdefault(section, {})[name] = yaml.safe_load(longer) if changed else value
    return ["--config", yaml.safe_dump(nested, allow_unicode=True)] if nested else []


def _wrong_values(parser: Any, content: Mapping[str, Any], flags: Sequence[str]) -> Iterator[str]:
    """Each value that cannot be read, where jsonargparse stops at the first."""
    settings = {key: _as_text(value) for key, value in content.items()}
    rest = list(flags)
    while rest:
        key, equals, value = rest.pop(0).partition("=")
        settings[key[2:]] = value if equals else rest.pop(0) if rest else ""
    for key, value in settings.items():
        try:
            parser.parse_args([f"--{key}={value}"])
        except Exception as error:
            yield _explain(str(error))


def dump_config(config: TrainConfig) -> str:
    """The complete configuration as YAML."""
    return yaml.safe_dump(_plain(asdict(config)), sort_keys=False, allow_unicode=True)


def differences(one: TrainConfig, other: TrainConfig) -> list[str]:
    """`key: value → value` for every setting that differs and matters."""
    old, new = (decisive(config) for config in (one, other))
    return [
        f"{key}: {old.get(key)} → {new.get(key)}"
        for key in dict.fromkeys((*old, *new))
        if old.get(key) != new.get(key)
    ]


def decisive(config: TrainConfig) -> dict[str, Any]:
    """The settings that decide what a run computes, by their dotted names."""
    found = dict(_flat(_plain(asdict(config))))
    if config.validation.window is None:
        del found["validation.overlap"]  # of windows
    return {key: value for key, value in found.items() if key not in FREE}


def help_text() -> str:
    """All settings with their meaning and default, for `--help`."""
    lines = ["settings, in the configuration file or as flags (--optim.lr 0.01):"]
    for section in fields(TrainConfig):
        kind = get_type_hints(TrainConfig)[section.name]
        default = kind()
        lines += ["", f"{section.name}: {kind.__doc__.splitlines()[0]}"]
        for name, meaning in meanings(kind).items():
            value = _plain(getattr(default, name))
            shown = yaml.safe_dump(value, default_flow_style=True).split("\n")[0]
            lines.append(f"  --{section.name}.{name:<17} {meaning} ({shown})")
    return "\n".join(lines)


def meanings(kind: type) -> dict[str, str]:
    """The fields of a dataclass in their order, each with its line of the docstring."""
    text = "".join(inspect.cleandoc(base.__doc__ or "") + "\n" for base in kind.__mro__)
    found = dict(re.findall(r"^    (\w+): (.+(?:\n     .+)*)$", text, re.MULTILINE))
    return {item.name: " ".join(found[item.name].split()) for item in fields(kind)}


def known_keys() -> list[str]:
    """Every setting by its dotted name."""
    return [
        f"{section}.{field.name}"
        for section, kind in get_type_hints(TrainConfig).items()
        for field in fields(kind)
    ]


def _read_file(path: Path) -> Any:
    if path.exists() and not path.is_file():  # a pipe could be read only once
        raise UserError(f"{path} is not a configuration file, but a folder, pipe or device")
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"there is no configuration file {path}") from None
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise UserError(f"{path} cannot be read as YAML: {_shortened(str(error))}") from None


def _settings(content: Any, origin: str, problems: list[str]) -> dict[str, Any]:
    """Settings by their dotted names; what is wrong with the names is added to `problems`."""
    if not isinstance(content, Mapping):
        raise UserError(
            f"{origin} is not a configuration: expected sections such as model: and data:"
        )
    found: dict[str, Any] = {}
    sections = get_type_hints(TrainConfig)
    for section, values in content.items():
        if section not in sections:
            problems.append(f"{origin}: {_unknown(str(section), list(sections))}")
        elif not isinstance(values, Mapping):
            given = _shortened(repr(values), 80)
            problems.append(f"{origin}: {section} is {given}, expected settings below it")
        else:
            for name, value in values.items():
                key = renamed(f"{section}.{name}")
                if not _is_known(key):
                    problems.append(f"{origin}: {_unknown(key, known_keys())}")
                elif key in found:
                    problems.append(f"{origin}: {key} is given twice, once by its old name")
                elif value is None and _kind(key) is str:  # as a flag it would be a word
                    problems.append(f"{key} is null: expected str")
                found[key] = _plain(value)
    return found


def _as_flags(overrides: Mapping[str, Any]) -> Iterator[str]:
    for key, value in overrides.items():
        if isinstance(value, Mapping) and key in get_type_hints(TrainConfig):  # a section
            yield from _as_flags({f"{key}.{name}": item for name, item in value.items()})
        else:
            text = str(value) if isinstance(value, str | Path) else _as_text(_plain(value))
            yield f"--{key}={text}"


def _checked_flags(flags: Sequence[str], problems: list[str]) -> list[str]:
    """The flags by their names of now; what is wrong with them is added to `problems`."""
    found, expects_value = [], False
    for flag in flags:
        if flag.startswith("--"):
            name, equals, value = flag[2:].partition("=")
            key = renamed(name)
            if not _is_known(key):
                problems.append(_unknown(key, known_keys()))
            expects_value = not equals
            flag = f"--{key}{equals}{value}"
        elif expects_value:
            expects_value = False
        else:
            problems.append(
                f"{_shortened(repr(flag), 80)} belongs to no flag: settings are given as "
                "--section.name value"
            )
        found.append(flag)
    return found


def _plain_values(flags: Iterable[str]) -> Iterator[str]:
    """Short forms that `hemnet data` takes, too: a side for a crop, 0:0,255:1 for a label map."""
    key = ""
    for flag in flags:
        name, equals, value = flag.partition("=") if flag.startswith("--") else (key, "", flag)
        if flag.startswith("--") and not equals:
            key = flag
            yield flag
            continue
        yield f"{name}={_long_form(name[2:], value)}" if equals else _long_form(name[2:], value)


def _long_form(key: str, value: str) -> str:
    if key == "data.crop" and value.strip().isdecimal():
        return f"[{value}, {value}]"
    if key == "data.label_map" and re.fullmatch(r"\s*\d+:(\d+|void)(,\s*\d+:(\d+|void))*", value):
        return f"{{{value.replace('void', '255').replace(':', ': ')}}}"
    return value


def _is_known(key: str) -> bool:
    return key in known_keys() or any(key.startswith(f"{name}.") for name in _OPEN)


def _kind(key: str) -> Any:
    section, _, name = key.partition(".")
    return get_type_hints(get_type_hints(TrainConfig)[section]).get(name)


def _unknown(key: str, known: list[str]) -> str:
    if key.rpartition(".")[2] in ("num_classes", "classes", "nclasses", "n_classes"):
        return (
            f"{key}: there is no such setting; the classes come from the data: its classes.txt, or "
            "data.classes (names, a file of names, or their number)"
        )
    last = {name.rpartition(".")[2]: name for name in known}
    close = difflib.get_close_matches(key, known, n=1) or [
        last[name] for name in difflib.get_close_matches(key.rpartition(".")[2], last, n=1)
    ]
    hint = f"did you mean {close[0]}?" if close else f"choose from {', '.join(known)}"
    return f"{_shortened(key, 80)}: there is no such setting; {hint}"


def _explain(message: str) -> str:
    """jsonargparse's report of a wrong value in one line."""
    key = re.search(r'key "([\w.]+)"', message)
    value = re.search(r"(?:Got value|Given value): (.*)", message)
    if key is None or key[1] not in known_keys():
        return _shortened(message.replace("\n", " "))
    section, _, name = key[1].partition(".")
    kind = get_type_hints(TrainConfig)[section]
    expected = next((item.type for item in fields(kind) if item.name == name), "another value")
    given = f" is {_shortened('null' if value[1] == 'None' else value[1], 80)}" if value else ""
    meaning = meanings(kind).get(name, "")
    return f"{key[1]}{given}: expected {expected} ({meaning})"


def _shortened(text: str, limit: int = 300) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _plain(value: Any) -> Any:
    """Tuples as lists, which YAML has."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    assert not is_dataclass(value)
    return value
