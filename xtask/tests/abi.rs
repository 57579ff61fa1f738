//! The allocator's C header and the Rust code on both sides of it describe the same structure.

use crate::common::read;
use quote::ToTokens;
use syn::{Item, ItemStruct};

/// Name and type of each field, in order.
type Fields = Vec<(String, String)>;

#[test]
fn the_statistics_have_the_fields_of_the_header() {
    let header = of_header(&read("crates/hip-alloc/include/hip_alloc.h"));
    assert!(header.len() > 12, "{header:?}");
    for (path, name) in [
        ("crates/hip-alloc/src/pool/stats.rs", "PoolStats"),
        ("crates/torch-ext/src/allocator.rs", "Stats"),
    ] {
        assert_eq!(of_rust(path, name), header, "{name} in {path}");
    }
}

/// `surefoot_activate` has the names in a list of strings; all of them are `c_uint64`.
#[test]
fn the_statistics_in_python_have_the_fields_of_the_header() {
    let header = of_header(&read("crates/hip-alloc/include/hip_alloc.h"));
    let python = read("python/surefoot_activate/_library.py");
    let class = &python[python.find("class Stats(ctypes.Structure)").unwrap()..];
    let list = class
        .split("_fields_ = [(name, ctypes.c_uint64) for name in (")
        .nth(1);
    let list = list.unwrap().split(')').next().unwrap();
    let names = list.split('"').skip(1).step_by(2);
    let fields: Fields = names
        .map(|name| (name.to_owned(), "u64".to_owned()))
        .collect();
    assert_eq!(fields, header);
}

/// The fields of `struct hip_alloc_stats`: lines such as `uint64_t frees; /* requests freed */`.
fn of_header(header: &str) -> Fields {
    let start = header.find("struct hip_alloc_stats {").unwrap();
    let body = header[start..].split('}').next().unwrap();
    let lines = body.lines().filter_map(|line| line.split_once(';'));
    let fields = lines.filter_map(|(declaration, _)| declaration.trim().split_once(' '));
    fields
        .map(|(kind, name)| {
            let kind = kind.trim_start_matches("uint").trim_end_matches("_t");
            (name.trim().to_owned(), format!("u{kind}"))
        })
        .collect()
}

fn of_rust(path: &str, name: &str) -> Fields {
    let file = syn::parse_file(&read(path)).unwrap();
    let found = file.items.iter().find_map(|item| match item {
        Item::Struct(item) if item.ident == name => Some(item),
        _ => None,
    });
    let structure: &ItemStruct = found.unwrap_or_else(|| panic!("no {name} in {path}"));
    let is_c = structure
        .attrs
        .iter()
        .any(|attribute| attribute.to_token_stream().to_string().contains("repr (C)"));
    assert!(is_c, "{name} in {path} is laid out as C does");
    let fields = structure.fields.iter();
    fields
        .map(|field| {
            let name = field.ident.as_ref().unwrap().to_string();
            (name, field.ty.to_token_stream().to_string())
        })
        .collect()
}
