"""Writes operators.txt from the schemas of the PyTorch that runs it and tch's own bindings: `python operators.py
PATH/TO/torch-sys-0.26.0`. Needed again only when the version of tch is raised. build.rs says what the lines mean."""

import re
import sys
from collections import defaultdict
from pathlib import Path

import torch

# How tch's C++ passes a parameter on, the types that it has in C, and the code for it.
PASSED = [
    (r"\(\w+ \? ::std::optional<at::Tensor>", ["tensor"], "t"),
    (r"\w+_null \? c10::nullopt : c10::optional<double>", ["double", "uint8_t"], "F"),
    (r"\w+_null \? c10::nullopt : c10::optional<int64_t>", ["int64_t", "uint8_t"], "I"),
    (r"\w+_data == nullptr \?", ["int64_t*", "int"], "a"),
    (r"torch::IntArrayRef", ["int64_t*", "int"], "A"),
    (r"at::ArrayRef<double>", ["double*", "int"], "D"),
    (r"of_carray_tensor\(", ["tensor*", "int"], "L"),
    (r"of_carray_tensor_opt\(", ["tensor*", "int"], "l"),
    (r"std::string\(", ["char*", "int"], "s"),
    (r"at::device\(", ["int", "int"], "o"),
    (r"\w+ < 0 \? c10::nullopt : c10::optional<at::ScalarType>", ["int"], "k"),
    (r"at::ScalarType\(", ["int"], "K"),
    (r"device_of_int\(", ["int"], "d"),
    (r"\(bool\)", ["int"], "b"),
    (r"\(\w+ == -1 \?", ["int8_t"], "y"),
    (r"static_cast<at::Layout>", ["int8_t"], "Y"),
    (r"\*", ["tensor"], "T"),
    (r"\*", ["scalar"], "S"),
    (r"\w+$", ["int64_t"], "i"),
    (r"\w+$", ["double"], "f"),
]
# The type in a schema that each code stands for; those in lower case that have a capital are optional themselves.
TYPES = {"T": "Tensor", "t": "Tensor?", "S": "number", "A": "int[]", "a": "int[]?", "D": "float[]", "L": "Tensor[]"}
TYPES |= {"l": "Tensor?[]", "s": "str", "k": "ScalarType?", "K": "ScalarType", "d": "Device", "b": "bool"}
TYPES |= {"y": "Layout?", "Y": "Layout", "i": "int", "I": "int?", "f": "float", "F": "float?"}
OPTIONS = ["dtype", "layout", "device", "pin_memory"]
OPTIONS = ["dtype", "layout", "device", "pin_memory"]
# C++ alone has these overloads.
BY_HAND = {"to": ("T__d?____ 1", "to.dtype_layout"), "totype": ("TK___ 1", "to.dtype")}
# What makes a tensor from numbers, as the overload that fills one that is there.
FILLS = {"arange": "out", "arange.start": "start_out", "arange.start_step": "start_out", "full": "out"}
FILLS |= {"linspace": "out", "range": "out_", "range.step": "out", "scalar_tensor": "out"}


def split(text):
    """The arguments of a C++ call, divided at the commas outside of brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def bindings(torch_sys):
    """Each of tch's functions: its name, the C++ name it calls, the codes of what it passes on."""
    source = (torch_sys / "libtch/torch_api_generated.cpp").read_text()
    for name, parameters, body in re.findall(r"\n\w[^\n]*?atg_(\w+)\((.*?)\) \{\n(.*?)\n\}", source, re.S):
        types = [re.sub(r"\s*\w+$", "", parameter).replace(" ", "") for parameter in split(parameters)]
        types = types[1:] if "out__" in parameters else types
        call = re.search(r"(?:torch::|(\w+)->)(\w+)(\(.*);", body)
        receiver, function, rest = call.groups()
        depth, end = 0, 0
        for end, character in enumerate(rest):
            depth += (character == "(") - (character == ")")
            if depth == 0:
                break
        codes = ["T"] if receiver else []
        types = types[len(codes):]
        for passed in split(rest[1:end]):
            codes += [code for pattern, of, code in PASSED if re.match(pattern, passed) and types[: len(of)] == of][:1]
            types = types[len(PASSED_TYPES[codes[-1]]):]
        assert not types, (name, codes, types)
        yield name, function, codes


PASSED_TYPES = {code: types for _, types, code in PASSED}


def type_of(type):
    """A type as `TYPES` has it."""
    if type.kind() in ("OptionalType", "ListType"):
        return type_of(type.getElementType()) + {"OptionalType": "?", "ListType": "[]"}[type.kind()]
    names = {"NumberType": "number", "SymIntType": "int", "BoolType": "bool", "StringType": "str", "DeviceObjType": "Device"}
    return names.get(type.kind(), str(type))


def matched(codes, schema):
    """The codes for all arguments of `schema`, if C++ would call it with what `codes` stand for."""
    outs = [argument for argument in schema.arguments if argument.is_out]
    left = outs + [argument for argument in schema.arguments if not argument.is_out]
    scalars = any("number" in type_of(argument.type) for argument in schema.arguments)
    found = {}
    for code in codes:
        if code == "o" and [argument.name for argument in left[:4]] == OPTIONS:
            found |= dict.fromkeys(OPTIONS[1:], "") | {"dtype": "o"}
            left = left[4:]
            continue
        if not left or code == "o" or type_of(left[0].real_type).rstrip("?") != TYPES[code].rstrip("?"):
            return None
        optional = [type_of(left[0].real_type).endswith("?"), TYPES[code].endswith("?")]
        if optional == [False, True]:
            return None
        # The C++ name of an operator with a Scalar tells these apart.
        code = "N" if scalars and code == "A" and left[0].real_type.getElementType().kind() == "SymIntType" else code
        sign = ">" if left[0].is_out else "&" if scalars and left[0].alias_info and left[0].alias_info.is_write else ""
        found[left[0].name] = sign + code + ("?" if optional == [True, False] else "")
        left = left[1:]
    for argument in left:
        if not argument.has_default_value() and "Generator" not in str(argument.type):
            return None
        default = argument.default_value if argument.has_default_value() else None
        number = "number" in type_of(argument.type)
        # A memory format that is not optional or is contiguous (0) by default, or nothing.
        contiguous = default == 0 and type_of(argument.type).endswith("?")
        found[argument.name] = f"{{{default}}}" if number else "m" if contiguous else "_"
    return len(left), "".join(found[argument.name] for argument in schema.arguments)


def result_of(schema):
    """How many tensors, or the code of what else."""
    types = [type_of(result.type) for result in schema.returns]
    others = {("Tensor[]",): "L", ("bool",): "b", ("int",): "i", ("float",): "f"}
    return others.get(tuple(types), str(len(types)))


def main():
    known = set(torch._C._dispatch_get_all_op_names())
    schemas = defaultdict(list)
    for schema in torch._C._jit_get_all_schemas():
        if f"{schema.name}.{schema.overload_name}".rstrip(".") in known:
            schemas[schema.name.removeprefix("aten::")].append(schema)
    groups = defaultdict(list)
    for name, function, codes in bindings(Path(sys.argv[1])):
        of_out = [schema for schema in schemas[function.removesuffix("_out")] if any(a.is_out for a in schema.arguments)]
        plain = [schema for schema in schemas[function] if not any(a.is_out for a in schema.arguments)]
        # C++ takes the overload that leaves the fewest arguments to defaults.
        best = sorted(
            (*match, schema.overload_name, result_of(schema))
            for schema in (of_out if function.endswith("_out") else plain)
            if (match := matched(codes, schema))
        )
        base = function.removesuffix("_out")
        if name in ("full_like", "grad", "set_requires_grad"):
            continue  # in tensor.rs
        if name in BY_HAND:
            group, operator = BY_HAND[name]
        elif best:
            _, codes, overload, result = best[0]
            operator = f"{base if of_out and function.endswith('_out') else function}.{overload}".rstrip(".")
            if operator in FILLS:
                operator, codes = f"{operator.split('.')[0]}.{FILLS[operator]}", codes.replace("o", "O")
                codes = codes.replace("O", "{1}O") if operator == "arange.start_out" and codes == "SSO" else codes
            group = f"{codes} {result}"
        else:
            group, operator = f"-{''.join(codes)} 1", name
        groups[group].append(name if name == operator else f"{name}={operator}")
    for group, names in sorted(groups.items(), key=lambda entry: (-len(entry[1]), entry[0])):
        line = f"{group}:"
        for name in sorted(names):
            if len(line) + len(name) > 118:
                print(line)
                line = ""
            line += " " + name
        print(line)


if __name__ == "__main__":
    main()
