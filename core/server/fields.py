"""`Fields`: the members of a JSON object, asked for by name and type.

Whatever is not asked for is ignored, and null counts as absent: that is how clients mean it.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

from .errors import refused

_SHOWN: Final = 60  # characters of a wrong value
_JSON_NAMES: Final = {
    dict: "an object", list: "a list", str: "a string", bool: "a boolean",
    int: "a number", float: "a number",
}  # fmt: skip


class Fields:
    def __init__(self, values: dict[str, Any], prefix: str = "", size: int = 0) -> None:
        """`prefix`: what the object is called in messages, with a dot behind it. `size`: bytes of
        the body that it was."""
        self.values, self._prefix, self.size = values, prefix, size

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def get(self, name: str) -> Any:
        return self.values.get(name)

    def first(self, *names: str) -> str:
        """Which of these names is used, all of which mean the same; the first one if none is."""
        return next((name for name in names if name in self), names[0])

    def refuse(self, name: str, message: str) -> NoReturn:
        """`message` goes on after the name."""
        raise refused(self._prefix + name, f"{self._prefix}{name} {message}")

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self._refuse_type(name, "true or false", value)
        return value

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        found = self.optional_integer(name, low, high)
        return default if found is None else found

    def optional_integer(self, name: str, low: int, high: int) -> int | None:
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():  # languages with one type of number
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            self._refuse_type(name, "a whole number", value)
        if not low <= value <= high:
            self.refuse(name, f"must be between {low} and {high}, got {shown(value)}")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool):
            self._refuse_type(name, "a number", value)
        try:
            return float(value)
        except OverflowError:
            self.refuse(name, "is too large a number")

    def text(self, name: str) -> str | None:
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            self._refuse_type(name, "a string", value)
        return value

    def items(self, name: str) -> list[Any]:
        value = self.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            self._refuse_type(name, "a list", value)
        return value

    def texts(self, name: str) -> list[str]:
        """A list of strings; a string alone counts as one."""
        value = self.get(name)
        if isinstance(value, str):
            return [value]
        found = self.items(name)
        for each in found:
            if not isinstance(each, str):
                self._refuse_type(name, "a string or a list of strings", each)
        return found

    def inner(self, name: str) -> Fields:
        """Empty if it is absent."""
        value = self.get(name)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            self._refuse_type(name, "an object", value)
        return Fields(value, f"{self._prefix}{name}.")

    def one_of(self, name: str, choices: tuple[str, ...], default: str) -> str:
        value = self.text(name)
        if value is None:
            return default
        if value not in choices:
            self.refuse(name, f"must be one of {', '.join(choices)}, got {shown(value)}")
        return value

    def _refuse_type(self, name: str, wanted: str, value: object) -> NoReturn:
        found = _JSON_NAMES.get(type(value), "null")
        self.refuse(name, f"must be {wanted}, got {found}: {shown(value)}")


def shown(value: object) -> str:
    text = repr(value) if not isinstance(value, (dict, list)) else type(value).__name__
    text = {"dict": "{...}", "list": "[...]", "True": "true", "False": "false"}.get(text, text)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
