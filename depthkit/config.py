"""From a YAML file and overrides to one validated, immutable configuration.

OmegaConf parses YAML and interpolation, pydantic validates. What is ours: `extends`, component choice
(`kind`) as the unit of merging, overrides that address list items by name, and messages that name the
key, the value, what is allowed and the closest match.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Union

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter, ValidationError
from pydantic_core import core_schema

from depthkit.registry import Registry, Spec, nearest, unknown

DOCUMENTS = Registry(
    "document", "depthkit.training.run", "depthkit.ladder.spec", "depthkit.ladder.init_study.spec"
)
"""What a config file can be: `kind: run` (the default), `kind: ladder`, ..."""


class ConfigError(ValueError):
    """A configuration that cannot be used; the message is meant for the person who wrote it."""


class Component:
    """Annotation for a field that holds one component of a registry: `Annotated[Any, Component(NORMS)]`.

    Accepts `{kind: name, ...}`, a bare name, or an already validated config; with `switch` also true and
    false. The registry is asked at validation time, so components registered later are known too.
    """

    def __init__(self, registry: Registry, default: str | None = None, switch: bool = False):
        self.registry = registry
        self.default = default
        self.switch = switch

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.validate,
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda value: value.model_dump(mode="json") if isinstance(value, Spec) else value
            ),
        )

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        names = self.registry.names()
        configs = tuple(self.registry.get(name).Config for name in names)
        plain: dict[str, Any] = {"enum": [*names, True, False] if self.switch else names}
        return {"anyOf": [plain, *(handler(TypeAdapter(c).core_schema) for c in configs)]}

    def validate(self, value: Any) -> Spec | bool:
        """The validated config of the chosen kind.

        Raises:
            ValueError: no kind, an unknown kind, or fields the kind refuses.
        """
        if (isinstance(value, Spec) and hasattr(value, "kind")) or (self.switch and isinstance(value, bool)):
            return value
        value = self.normalise(value)
        if not isinstance(value, dict) or "kind" not in value:
            raise ValueError(f"needs a kind: {', '.join(self.registry.names())}")
        return self.registry.get(value["kind"]).Config.model_validate(value)

    def normalise(self, value: Any) -> Any:
        """A bare name becomes `{kind: name}`; a mapping without a kind takes the field's default kind."""
        if isinstance(value, str):
            return {"kind": value}
        if isinstance(value, dict) and self.default and "kind" not in value:
            return {"kind": self.default, **value}
        return value


def load(path: str | Path, overrides: Sequence[str] = ()) -> Any:
    """Read a config file with everything it extends, apply overrides, validate.

    Args:
        path: a YAML file.
        overrides: `a.b.c=value` strings, applied one by one; list items are addressed by index,
            by `name` or by `kind`.

    Raises:
        ConfigError: one message that lists what is wrong, where, and what would be right.
    """
    return parse(read(Path(path)), overrides, origin=str(path))


def parse(raw: dict[str, Any], overrides: Sequence[str] = (), origin: str = "config") -> Any:
    """Validate a plain mapping as the document its top-level `kind` names."""
    for override in overrides:
        raw = apply_override(raw, override)
    try:
        raw = OmegaConf.to_container(OmegaConf.create(raw), resolve=True)  # type: ignore[assignment]
    except OmegaConfBaseException as error:
        raise ConfigError(f"{origin}: {str(error).splitlines()[0]}") from None
    return validate(Component(DOCUMENTS, default="run"), raw, origin)


def validate(schema: Component | type[Spec], raw: Any, origin: str) -> Any:
    """Validate `raw` against a component or a spec, with errors in depthkit's own words.

    Raises:
        ConfigError: as in `load`.
    """
    try:
        return schema.validate(raw) if isinstance(schema, Component) else schema.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(f"{origin}: " + "\n  ".join(_sentence(e) for e in error.errors())) from None
    except ValueError as error:
        raise ConfigError(f"{origin}: {error}") from None


def _sentence(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] == "unknown_key":
        where = f"{where}.{error['ctx']['key']}" if where else error["ctx"]["key"]
        return f"{where}: {error['msg']}"
    message = error["msg"].removeprefix("Value error, ")
    hidden = isinstance(error["input"], dict | Spec) or repr(error["input"]) in message
    shown = "" if hidden else f" (got {error['input']!r})"
    return f"{where}: {message}{shown}" if where else message


def read(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A YAML mapping merged over everything it `extends`; any mapping in it may extend a file of its own.

    Paths are relative to the file that names them.

    Raises:
        ConfigError: missing or unreadable file, YAML that does not parse, circular `extends`.
    """
    resolved = path.resolve()
    if resolved in seen:
        chain = " -> ".join(p.name for p in (*seen, resolved))
        raise ConfigError(f"{path}: 'extends' goes in a circle: {chain}")
    return _expand(_read_yaml(path), path, (*seen, resolved))


def _expand(node: Any, path: Path, seen: tuple[Path, ...]) -> Any:
    if isinstance(node, list):
        return [_expand(item, path, seen) for item in node]
    if not isinstance(node, dict):
        return node
    own = {key: _expand(value, path, seen) for key, value in node.items() if key != "extends"}
    parents = node.get("extends", [])
    merged: dict[str, Any] = {}
    for parent in parents if isinstance(parents, list) else [parents]:
        if not isinstance(parent, str):
            raise ConfigError(f"{path}: extends names a file or a list of files, not {parent!r}")
        merged = merge(merged, read(path.parent / parent, seen))
    return merge(merged, own)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        loaded = OmegaConf.to_container(OmegaConf.load(path))
    except FileNotFoundError:
        near = (
            nearest(path.name, [p.name for p in path.parent.glob("*.yaml")]) if path.parent.is_dir() else None
        )
        raise ConfigError(
            f"{path}: no such config file" + (f"; did you mean {near!r}?" if near else "")
        ) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{path}: not a readable YAML file: {error}") from None
    if not isinstance(loaded, dict):
        raise ConfigError(f"{path}: a config file must be a mapping, not {type(loaded).__name__}")
    return loaded  # type: ignore[return-value]


def merge(base: Any, top: Any) -> Any:
    """`top` over `base`: mappings merge, everything else replaces; a mapping of another kind replaces.

    A bare name over a mapping that has a kind counts as `{kind: name}`, and the other way round.
    """
    if isinstance(base, dict) and "kind" in base and isinstance(top, str):
        top = {"kind": top}
    if isinstance(top, dict) and isinstance(base, str):
        base = {"kind": base}
    if not (isinstance(base, dict) and isinstance(top, dict)):
        return top
    if "kind" in top and "kind" in base and top["kind"] != base["kind"]:
        return top
    return {**base, **{key: merge(base[key], value) if key in base else value for key, value in top.items()}}


def apply_override(raw: Any, override: str) -> Any:
    """One `a.b.c=value`; the value is YAML.

    Raises:
        ConfigError: no `=`, a value that is not YAML, or a list item that does not exist.
    """
    path, sign, text = override.partition("=")
    if not sign or not path:
        raise ConfigError(f"override {override!r}: write key=value, such as train.steps=60")
    try:
        value = OmegaConf.to_container(OmegaConf.create(f"value: {text}"))["value"]  # type: ignore[index,call-overload]
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"override {override!r}: the value is not YAML: {error}") from None
    return _set(raw, path.split("."), value, override)


def set_value(raw: Any, path: str, value: Any) -> Any:
    """`raw` with the value at a dotted path replaced, as `apply_override` does for text.

    Raises:
        ConfigError: the path runs into a list item that does not exist, or into a plain value.
    """
    return _set(raw, path.split("."), value, f"{path}={value}")


def _set(node: Any, parts: list[str], value: Any, override: str) -> Any:
    if not parts:
        return merge(node, value)
    head, rest = parts[0], parts[1:]
    if isinstance(node, list):
        index = _index(node, head, override)
        return [_set(item, rest, value, override) if i == index else item for i, item in enumerate(node)]
    if isinstance(node, str) and rest == []:
        node = {"kind": node}
    if not isinstance(node, dict | None):
        raise ConfigError(f"override {override!r}: {head!r} is looked for inside {node!r}, which has no keys")
    node = node or {}
    return {**node, head: _set(node.get(head), rest, value, override)}


def _index(items: list[Any], name: str, override: str) -> int:
    names = [item.get("name", item.get("kind")) if isinstance(item, dict) else item for item in items]
    if name in names:
        return names.index(name)
    if name.isdigit() and int(name) < len(items):
        return int(name)
    allowed = [n for n in names if n] + [str(i) for i in range(len(items))]
    raise ConfigError(f"override {override!r}: {unknown('list item', name, allowed)}")


def to_dict(config: Spec) -> dict[str, Any]:
    """The resolved config as plain data, every default written out."""
    return config.model_dump(mode="json")


def to_yaml(config: Spec) -> str:
    """The resolved config as YAML that `load` reads back to an equal config."""
    return yaml.safe_dump(to_dict(config), sort_keys=False)


def identity(config: Spec) -> dict[str, Any]:
    """The resolved config without what its class calls `incidental`: how results come about, not which."""
    incidental: frozenset[str] = getattr(type(config), "incidental", frozenset())
    return {key: value for key, value in to_dict(config).items() if key not in incidental}


def fingerprint(config: Spec) -> str:
    """Eight hex digits that depend on every resolved value of the identity and on nothing else."""
    return hashlib.sha256(json.dumps(identity(config), sort_keys=True).encode()).hexdigest()[:8]


def json_schema() -> dict[str, Any]:
    """JSON schema of every document kind, for editor completion."""
    configs = tuple(DOCUMENTS.get(name).Config for name in DOCUMENTS.names())
    return TypeAdapter(Union[configs]).json_schema()  # type: ignore[arg-type]  # noqa: UP007
