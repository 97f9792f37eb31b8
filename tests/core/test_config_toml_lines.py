"""Lines of TOML keys, for every form in which a key can be written."""

from __future__ import annotations

from dspark_ops.config.toml_lines import lines_of

DOCUMENT = '''\
# a comment with [brackets] and = signs
top = 1
"quoted key" = "a # no comment"
'single' = \'\'\'
[not.a.table]
key = "no key"
\'\'\'
dotted.inner.leaf = """
multi = 1 \\"""
still text""""

[table]   # trailing comment
list = [
    "a ] b", # ] not the end
    [1, 2],
    { x = 1, y = [3] },
]
after = 1979-05-27T07:32:00Z
inline = { one = 1, two.three = "}", four = { five = [ "]" ] } }
[table."sub.table"]
key = 'x'
[[array]]
name = "first"
[[array]]
name = "second"
'''


def test_each_key_gets_the_line_on_which_it_is_written() -> None:
    assert lines_of(DOCUMENT) == {
        ("top",): 2,
        ("quoted key",): 3,
        ("single",): 4,
        ("dotted",): 8,
        ("dotted", "inner"): 8,
        ("dotted", "inner", "leaf"): 8,
        ("table",): 12,
        ("table", "list"): 13,
        ("table", "after"): 18,
        ("table", "inline"): 19,
        ("table", "inline", "one"): 19,
        ("table", "inline", "two"): 19,
        ("table", "inline", "two", "three"): 19,
        ("table", "inline", "four"): 19,
        ("table", "inline", "four", "five"): 19,
        ("table", "sub.table"): 20,
        ("table", "sub.table", "key"): 21,
        ("array",): 24,
        ("array", "name"): 25,
    }


def test_the_document_is_valid_so_that_the_test_above_means_something() -> None:
    import sys

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    assert tomllib.loads(DOCUMENT)["table"]["inline"]["four"] == {"five": ["]"]}


def test_windows_line_ends_and_an_empty_document_are_read() -> None:
    assert lines_of("a = 1\r\n\r\n[b]\r\nc = 2\r\n") == {("a",): 1, ("b",): 3, ("b", "c"): 4}
    assert lines_of("") == {}
    assert lines_of("# only a comment") == {}
