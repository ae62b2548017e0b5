"""Templates over the keys of a group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ringcast_sqlite import StoreError

from ringcast_groupstore._errors import TemplateError
from ringcast_groupstore._types import Value

if TYPE_CHECKING:
    import jinja2


_FAILURES = (
    *(ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError),
    *(SyntaxError, MemoryError),  # of the compiler, over what is nested too deep
)


def render(template: str, values: Mapping[str, Value], *, strict: bool, max_chars: int) -> str:
    """Renders ``template``; see :meth:`ringcast_groupstore.GroupStore.render`.

    The sandbox keeps a template from reaching anything but the values. It does not bound the time that it takes.
    """
    if len(template) > max_chars:
        raise TemplateError(f"template has {len(template)} characters: at most {max_chars} are allowed")
    environment = _environment(strict)
    import jinja2

    parts, room = [], max_chars
    try:
        for part in environment.from_string(template).generate({**values, "all": values}):
            parts.append(part)
            room -= len(part)
            if room < 0:
                raise TemplateError(f"template renders to over {max_chars} characters")
    except jinja2.TemplateError as error:
        raise TemplateError(f"template can't be rendered: {error}") from error
    except _FAILURES as error:
        raise TemplateError(f"template fails: {error}") from error
    return "".join(parts)


def _environment(strict: bool) -> jinja2.Environment:
    try:
        import jinja2
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise StoreError("render needs Jinja: install ringcast-groupstore[render]") from None
    # Text for files and other programs, not HTML.
    environment = ImmutableSandboxedEnvironment(
        autoescape=False,
        finalize=_shown,
        undefined=jinja2.StrictUndefined if strict else jinja2.Undefined,
        keep_trailing_newline=True,
    )
    # A name that is no key is missing: only what loops need is there besides.
    environment.globals = {"range": environment.globals["range"]}
    return environment


def _shown(value: object) -> object:
    """What is put into the text: bytes have no form in it."""
    if isinstance(value, bytes):
        raise TypeError("bytes can't be rendered: only text can")
    return value
