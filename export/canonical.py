"""The names of a SavedModel's functions, without what the process happened to count up to."""

import copy
import re

from tensorflow.core.protobuf import config_pb2, saved_model_pb2

_NUMBERED = re.compile(r"(.*_)(\d+)")
# A call carries the settings of the process that wrote it, such as its number of devices; this is neutral.
_CONFIG = config_pb2.ConfigProto(allow_soft_placement=True).SerializeToString()


def renumber_functions(path):
    """Number the functions in a `saved_model.pb` from 0 up, in the order in which they were traced.

    TensorFlow ends a function's name in a number that it counts up over the whole process, such as
    `__inference_call_1234`. Their order is the same each time; the numbers depend on all that was traced
    before. So do the names of captured variables, and the settings that calls carry. Whatever has no
    order in the file is written in a fixed one.

    Args:
        path: The file, which is replaced.

    Example:
        >>> folder = export_saved_model(model, "export/1")
        >>> before = (folder / "saved_model.pb").read_bytes()
        >>> renumber_functions(folder / "saved_model.pb")  # it was done when exporting
        >>> (folder / "saved_model.pb").read_bytes() == before
        True
    """
    saved = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    for graph in saved.meta_graphs:
        functions = graph.graph_def.library.function
        parts = [_NUMBERED.fullmatch(function.signature.name) for function in functions]
        parts.sort(key=lambda match: int(match[2]))
        # Arguments of loops have the function's name inside theirs.
        _rename(graph, {match[0]: f"{match[1]}{place}" for place, match in enumerate(parts)})
        for function in functions:
            _rename(function, _captures(function))
        for nodes in (graph.graph_def.node, *(function.node_def for function in functions)):
            for node in nodes:
                if "config_proto" in node.attr:
                    node.attr["config_proto"].s = _CONFIG
        ordered = sorted(functions, key=lambda function: int(_NUMBERED.fullmatch(function.signature.name)[2]))
        del functions[:]
        functions.extend(ordered)
    path.write_bytes(saved.SerializeToString(deterministic=True))


def _captures(function):
    """New names for the variables that a function captures, which are named by a count as well."""
    names = {}
    for place, argument in function.arg_attr.items():
        if "_user_specified_name" not in argument.attr:
            continue
        count = argument.attr["_user_specified_name"].s.decode()
        if count.isdigit():
            stem, found, _ = function.signature.input_arg[place].name.rpartition(count)
            if found:
                names[stem + count] = f"{stem}capture_{place}"
            argument.attr["_user_specified_name"].s = str(place).encode()
    return names


def _rename(message, names):
    """Put the new names for the old, wherever in the message's strings they occur."""
    if names:
        pattern = re.compile(f"(?:{'|'.join(map(re.escape, names))})(?!\\d)")
        _substitute(message, lambda text: pattern.sub(lambda match: names[match[0]], text))


def _substitute(message, changed):
    for field, value in message.ListFields():
        if field.message_type and field.message_type.GetOptions().map_entry:
            _substitute_in_map(field.message_type.fields_by_name["value"].message_type, value, changed)
        elif field.message_type:
            for part in value if field.is_repeated else [value]:
                _substitute(part, changed)
        elif field.type == field.TYPE_STRING and field.is_repeated:
            value[:] = [changed(text) for text in value]
        elif field.type == field.TYPE_STRING:
            setattr(message, field.name, changed(value))


def _substitute_in_map(of_messages, entries, changed):
    for key in [*entries]:
        if of_messages:
            _substitute(entries[key], changed)
        elif isinstance(entries[key], str):
            entries[key] = changed(entries[key])
    new = {key: changed(key) for key in entries if isinstance(key, str) and changed(key) != key}
    old = {key: copy.deepcopy(entries[key]) for key in new}
    for key in new:  # all of them, before a new key meets an old one
        del entries[key]
    for key, value in old.items():
        if of_messages:
            entries[new[key]].CopyFrom(value)
        else:
            entries[new[key]] = value
