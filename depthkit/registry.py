"""Name -> class, discovered from packages, with "did you mean"."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, create_model, model_validator
from pydantic_core import PydanticCustomError

T = TypeVar("T", bound=type)


class Spec(BaseModel):
    """Base of every typed schema: strict types and keys, immutable; attribute docstrings are the manual."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, data: Any) -> Any:
        for key in data if isinstance(data, dict) else ():
            if key not in cls.model_fields:
                sentence = unknown("key", key, cls.model_fields)
                raise PydanticCustomError(
                    "unknown_key", "{sentence}", {"sentence": sentence, "key": str(key)}
                )
        return data


def nearest(name: object, allowed: Iterable[object]) -> str | None:
    """The allowed name closest to `name`, or None when nothing is close."""
    found = difflib.get_close_matches(str(name), [str(a) for a in allowed], n=1, cutoff=0.5)
    return found[0] if found else None


def unknown(what: str, name: object, allowed: Iterable[object]) -> str:
    """One sentence that refuses `name`, lists what is allowed and offers the nearest match."""
    names = sorted(str(a) for a in allowed)
    close = nearest(name, names)
    hint = f"; did you mean {close!r}?" if close else "."
    return f"unknown {what} {name!r}{hint} Allowed: {', '.join(names)}."


class Registry:
    """The kinds of one axis of composition, such as norms or regulators.

    A component is a class with a nested `Config` (a `Spec`). Registering it gives `Config` a literal
    `kind` field and points `Config.component` back at the class. Packages are imported the first time a
    name is looked up, so adding a component is one file and no edit elsewhere.

    Args:
        axis: singular noun used in messages, such as "norm".
        packages: import paths whose modules register components when imported.
    """

    def __init__(self, axis: str, *packages: str):
        self.axis = axis
        self._packages = packages
        self._classes: dict[str, type] = {}
        self._discovered = False

    def register(self, name: str) -> Callable[[T], T]:
        """Class decorator: make the class available as `kind: name`.

        Raises:
            ValueError: when the name is already taken by another class.
        """

        def add(cls: T) -> T:
            taken = self._classes.get(name)
            if taken is not None and taken.__qualname__ != cls.__qualname__:
                raise ValueError(f"{self.axis} {name!r} is already registered by {taken.__qualname__}")
            base: type[Spec] = getattr(cls, "Config", Spec)
            config = create_model(
                f"{cls.__name__}Config",
                __base__=base,
                __module__=cls.__module__,
                __doc__=cls.__doc__,
                # It has no source to look for docstrings in, and the search would cost milliseconds a class.
                __cls_kwargs__={"use_attribute_docstrings": False},
                kind=(Literal[name], name),  # type: ignore[arg-type]
            )
            config.model_config["use_attribute_docstrings"] = True  # for the classes that inherit from it
            config.__qualname__ = f"{cls.__qualname__}.Config"  # where pickle will look for it
            config.component = cls  # type: ignore[attr-defined]
            cls.Config = config  # type: ignore[attr-defined]
            cls.kind = name  # type: ignore[attr-defined]
            self._classes[name] = cls
            return cls

        return add

    def _discover(self) -> None:
        if self._discovered:
            return
        self._discovered = True
        for package in self._packages:
            module = importlib.import_module(package)
            for info in pkgutil.iter_modules(getattr(module, "__path__", []), package + "."):
                importlib.import_module(info.name)

    def names(self) -> list[str]:
        """All registered kinds, sorted."""
        self._discover()
        return sorted(self._classes)

    def get(self, name: str) -> Any:
        """The class registered under `name`.

        Raises:
            ValueError: unknown name; the message lists the kinds and the nearest match.
        """
        self._discover()
        if not isinstance(name, str) or name not in self._classes:
            raise ValueError(unknown(f"{self.axis} kind", name, self._classes))
        return self._classes[name]

    def remove(self, name: str) -> None:
        """Forget a kind; for tests that register a toy component."""
        self._classes.pop(name, None)
