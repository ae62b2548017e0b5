"""Templates over the keys of a group."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from ringcast_groupstore import GroupStore, TemplateError

Clock = Any  # of conftest.py


WITHOUT_JINJA = """
import sys
sys.modules["jinja2"] = None  # as if it were not installed
from ringcast_groupstore import GroupStore, StoreError
with GroupStore(sys.argv[1]) as store:
    store.set("g", "k", "v")
    try:
        store.render("{{ k }}", "g")
    except StoreError as error:
        print(error)
"""


@pytest.fixture
def filled(store: GroupStore) -> GroupStore:
    store.set_many("miner", {"pool": "pool.example:3333", "wallet": "iz<5", "fast-mode": "yes", "raw": b"\x00"})
    return store


def test_every_key_is_a_variable(filled: GroupStore) -> None:
    assert filled.render('{"pool":"{{ pool }}","wallet":"{{ wallet }}"}\n', "miner") == (
        '{"pool":"pool.example:3333","wallet":"iz<5"}\n'
    ), "text, not HTML; and the last line end stays"
    assert filled.render('{{ all["fast-mode"] }}', "miner") == "yes"
    assert filled.render("{% for key in all | sort %}{{ key }} {% endfor %}", "miner") == "fast-mode pool raw wallet "


def test_what_is_missing(filled: GroupStore) -> None:
    assert filled.render("[{{ missing }}]", "miner") == "[]"
    assert filled.render("[{{ pool }}]", "none") == "[]"
    with pytest.raises(TemplateError, match="'missing' is undefined"):
        filled.render("[{{ missing }}]", "miner", strict=True)
    assert filled.render("[{{ missing | default('x') }}]", "miner", strict=True) == "[x]"


def test_expired_keys_are_missing(store: GroupStore, clock: Clock) -> None:
    store.set("g", "k", "v", ttl_ms=1)
    clock.advance(1)
    assert store.render("[{{ k }}]", "g") == "[]"


@pytest.mark.parametrize(
    "template",
    [
        "{{ pool.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ all.clear() }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% for a in range(1000000) %}x{% endfor %}",
    ],
)
def test_the_sandbox_holds(filled: GroupStore, template: str) -> None:
    with pytest.raises(TemplateError):
        filled.render(template, "miner", strict=True)
    assert filled.count("miner") == 4


@pytest.mark.parametrize("name", ["namespace", "dict", "cycler", "lipsum", "joiner"])
def test_a_name_of_jinja_is_missing_unless_it_is_a_key(filled: GroupStore, name: str) -> None:
    assert filled.render(f"[{{{{ {name} }}}}]", "miner") == "[]"
    with pytest.raises(TemplateError, match=f"'{name}' is undefined"):
        filled.render(f"{{{{ {name} }}}}", "miner", strict=True)
    filled.set("miner", name, "mine")
    assert filled.render(f"{{{{ {name} }}}}", "miner", strict=True) == "mine"


DEEP = "{% for a in [1] %}" * 25 + "x" + "{% endfor %}" * 25, "{{" + "(" * 300 + "1" + ")" * 300 + "}}"


@pytest.mark.parametrize(
    "template",
    [
        "{{ open",
        "{% if %}",
        "{{ 1 / 0 }}",
        "{{ pool + 1 }}",
        "{{ 'a' | nope }}",
        "{{ raw }}",
        "{{ 10 ** 5000 }}",
        *DEEP,
    ],
)
def test_templates_that_fail(filled: GroupStore, template: str) -> None:
    with pytest.raises(TemplateError, match=r"template (can't be rendered|fails): "):
        filled.render(template, "miner")


def test_the_result_has_a_limit(filled: GroupStore) -> None:
    assert filled.render("{% for n in range(10) %}ab{% endfor %}", "miner", max_chars=40) == "ab" * 10
    with pytest.raises(TemplateError, match="template renders to over 40 characters"):
        filled.render("{% for n in range(30) %}ab{% endfor %}", "miner", max_chars=40)
    with pytest.raises(TemplateError, match="template has 41 characters: at most 40 are allowed"):
        filled.render("x" * 41, "miner", max_chars=40)


def test_jinja_is_optional(tmp_path: object) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_JINJA, f"{tmp_path}/a.db"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "render needs Jinja: install ringcast-groupstore[render]\n"
