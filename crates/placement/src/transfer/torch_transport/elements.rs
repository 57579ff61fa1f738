//! Converts libtorch's types and devices to the engine's.

use tch::{Device, Kind, Tensor};
use torch_ext::accelerator;

use crate::transfer::transport::Element;

/// Bytes of the tensor without gaps.
pub(crate) fn size_in_bytes(tensor: &Tensor) -> u64 {
    tensor.numel() as u64 * tensor.kind().elt_size_in_bytes() as u64
}

/// The device's name in messages: `cpu`, `hip:0`, `cuda:1`.
pub(crate) fn device_name(device: Device) -> String {
    match device {
        Device::Cpu => "cpu".to_owned(),
        Device::Cuda(index) if accelerator::has_hip() => format!("hip:{index}"),
        Device::Cuda(index) => format!("cuda:{index}"),
        other => format!("{other:?}").to_lowercase(),
    }
}

/// The element type of a kind; `None` for those that occur in no model file (quantized, complex half).
pub(crate) fn element_of(kind: Kind) -> Option<Element> {
    Some(match kind {
        Kind::Bool => Element::Bool,
        Kind::Uint8 => Element::U8,
        Kind::Int8 => Element::I8,
        Kind::Int16 => Element::I16,
        Kind::Int => Element::I32,
        Kind::Int64 => Element::I64,
        Kind::Float8e4m3fn => Element::F8E4M3,
        Kind::Float8e5m2 => Element::F8E5M2,
        Kind::Float8e4m3fnuz => Element::F8E4M3Fnuz,
        Kind::Float8e5m2fnuz => Element::F8E5M2Fnuz,
        Kind::Half => Element::F16,
        Kind::BFloat16 => Element::BF16,
        Kind::Float => Element::F32,
        Kind::Double => Element::F64,
        Kind::ComplexFloat => Element::C64,
        Kind::ComplexDouble => Element::C128,
        _ => return None,
    })
}

pub(crate) fn kind_of(element: Element) -> Kind {
    match element {
        Element::Bool => Kind::Bool,
        Element::U8 => Kind::Uint8,
        Element::I8 => Kind::Int8,
        Element::I16 => Kind::Int16,
        Element::I32 => Kind::Int,
        Element::I64 => Kind::Int64,
        Element::F8E4M3 => Kind::Float8e4m3fn,
        Element::F8E5M2 => Kind::Float8e5m2,
        Element::F8E4M3Fnuz => Kind::Float8e4m3fnuz,
        Element::F8E5M2Fnuz => Kind::Float8e5m2fnuz,
        Element::F16 => Kind::Half,
        Element::BF16 => Kind::BFloat16,
        Element::F32 => Kind::Float,
        Element::F64 => Kind::Double,
        Element::C64 => Kind::ComplexFloat,
        Element::C128 => Kind::ComplexDouble,
    }
}
