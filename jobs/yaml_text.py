"""YAML text to plain values, safely: duplicate keys, alias bombs and syntax errors are one line each."""

from typing import Any

import yaml

from pipeline.errors import ConfigError

MAX_NODES = 100_000  # of a document with its aliases written out: a job file names data, it isn't data


def one_line(value: object, limit: int = 2000) -> str:
    """Text on one line, without control characters, cut where it is very long."""
    text = " ".join("".join(c if c.isprintable() else " " for c in str(value)).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def parse_mapping(text: str) -> dict[str, Any]:
    """A YAML document that is one mapping; raises `ConfigError` for anything else, duplicate keys included."""
    value = parse_yaml(text)
    if value is None:
        raise ConfigError(["is empty; a job needs at least input.path and output.path"])
    if not isinstance(value, dict):
        raise ConfigError([f"is {kind_of(value)} and not a mapping; write sections such as `input: {{path: ...}}`"])
    return value


def parse_yaml(text: str) -> Any:
    """Any YAML value; raises `ConfigError` with a line for each problem."""
    loader = yaml.SafeLoader("")
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        problems: list[str] = []
        if _count_nodes(node, {}, problems) > MAX_NODES:
            problems.append(f"its aliases stand for more than {MAX_NODES} values, write it out")
        if problems:
            raise ConfigError(problems)
        return loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        lines = text.splitlines()
        unquoted = mark is not None and any("${" in line for line in lines[max(mark.line - 1, 0) : mark.line + 1])
        hint = "put quotes around ${...}" if unquoted else "mend the YAML"
        raise ConfigError([one_line(f"{place}{error.problem or error.context}, {hint}")]) from None
    except RecursionError:
        raise ConfigError(["is nested too deeply, write it out flat"]) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # ValueError: a date such as 2024-13-45
        raise ConfigError([f"not valid YAML ({one_line(error, 200)}), mend it"]) from None
    finally:
        loader.dispose()


def _count_nodes(node: yaml.Node, known: dict[int, int], problems: list[str]) -> int:
    """Values that a node stands for with its aliases written out; notes duplicate keys and nodes within themselves."""
    if id(node) in known:
        if known[id(node)] < 0:
            problems.append(f"line {node.start_mark.line + 1}: an alias within its own anchor, write it out")
            known[id(node)] = 0
        return known[id(node)]
    known[id(node)] = -1
    children: list[yaml.Node] = []
    if isinstance(node, yaml.SequenceNode):
        children = node.value
    elif isinstance(node, yaml.MappingNode):
        children = [child for pair in node.value for child in pair]
        seen: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    first, line = seen[key.value], key.start_mark.line + 1
                    problems.append(
                        f"line {line}: {one_line(key.value, 80)} is given twice (first in line {first}), keep one"
                    )
                seen.setdefault(key.value, key.start_mark.line + 1)
    total = 1 + sum(_count_nodes(child, known, problems) for child in children)
    known[id(node)] = total
    return total


def kind_of(value: Any) -> str:
    """A YAML value's type in a user's words."""
    names = {dict: "a mapping", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), f"a {type(value).__name__}")
