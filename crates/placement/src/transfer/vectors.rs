//! Tests this crate with the vectors of `docs/transfer.md`, which the Python package is tested with too.

use serde_json::Value;
use tch::{Kind, Tensor};

use super::checksum::{Checksum, Damage};
use super::report::Failure;
use super::strategy::{StrategyContext, TransferStrategy};
use super::torch_transport::HostTensor;
use super::transport::{DeviceFacts, Element, Origin, Pool, SourceFacts};
use super::verify::{Role, VerificationTracker};
use crate::Bytes;

fn vectors(key: &str) -> Vec<Value> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/transfer-vectors.json"
    );
    let text = std::fs::read_to_string(path).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    all[key].as_array().unwrap().clone()
}

fn strategy(name: &Value) -> TransferStrategy {
    let named = |strategy: &TransferStrategy| name == strategy.name();
    TransferStrategy::ALL.into_iter().find(named).unwrap()
}

#[test]
fn checksums_of_patterns() {
    for case in vectors("checksum_patterns") {
        let number = |key: &str| case[key].as_u64().unwrap();
        let byte = |at| ((at * number("step") + number("start")) % 256) as u8;
        let bytes: Vec<u8> = (0..number("length")).map(byte).collect();
        let sum = Checksum::of(&bytes);
        assert_eq!(sum.to_string(), case["digest"], "{case}");
        let Some(rows) = case["rows"].as_array() else {
            continue;
        };
        let ours = sum.rows().iter().map(|row| [row.plain, row.weighted]);
        let theirs = rows
            .iter()
            .map(|row| [0, 1].map(|at| row[at].as_i64().unwrap()));
        assert!(ours.eq(theirs), "{case}");
    }
}

#[test]
fn checksums_of_tensors() {
    for case in vectors("checksum_tensors") {
        let values = case["values"].as_array().unwrap();
        let whole = |value: &Value| value.as_i64().or(value.as_bool().map(i64::from));
        let kind = match case["dtype"].as_str().unwrap() {
            "uint8" => Kind::Uint8,
            "int16" => Kind::Int16,
            "int64" => Kind::Int64,
            "bool" => Kind::Bool,
            "float16" => Kind::Half,
            "bfloat16" => Kind::BFloat16,
            "float32" => Kind::Float,
            "float64" => Kind::Double,
            other => panic!("{other}"),
        };
        let tensor = match values.iter().map(whole).collect::<Option<Vec<i64>>>() {
            Some(whole) => Tensor::from_slice(&whole),
            None => {
                let real = values.iter().map(|value| value.as_f64().unwrap());
                Tensor::from_slice(&real.collect::<Vec<f64>>())
            }
        };
        let host = HostTensor::new(&tensor.to_kind(kind)).unwrap();
        let hex: String = host
            .bytes()
            .unwrap()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(hex, case["hex"], "{case}");
        assert_eq!(
            Checksum::of(host.bytes().unwrap()).to_string(),
            case["digest"],
            "{case}"
        );
    }
}

#[test]
fn which_arrivals_are_verified() {
    for case in vectors("verification") {
        let mode = case["mode"].as_str().unwrap();
        let mut tracker = VerificationTracker::new(mode.parse().unwrap());
        for step in case["moves"].as_array().unwrap() {
            let (name, strategy) = (step["name"].as_str().unwrap(), strategy(&step["strategy"]));
            let role = match step["role"] == "weight" {
                true => Role::Weight,
                false => Role::Batch,
            };
            let decision = tracker.begin(name, role);
            let verified = tracker.wants(decision, name, role, strategy);
            assert_eq!(step["verified"], verified, "{mode}: {step}");
            match step["outcome"] == "wrong" {
                true => tracker.distrust(),
                false if verified => tracker.passed(name, role, strategy),
                false => {}
            }
        }
    }
}

#[test]
fn which_strategies_are_tried() {
    for case in vectors("strategies") {
        let fact = |key: &str| case["facts"][key].as_bool().unwrap();
        let device = DeviceFacts {
            name: "device".into(),
            unified_memory: fact("unified_memory"),
            zero_copy: fact("zero_copy"),
            pinned_memory: fact("pinned_memory"),
            other_streams: fact("other_streams"),
        };
        let failure = failure(case["every_attempt_fails_with"].as_str().unwrap());
        let mut tried = Vec::new();
        for strategy in TransferStrategy::ALL {
            let situation = StrategyContext {
                device: &device,
                source: SourceFacts {
                    bytes: Bytes::mib(1),
                    element: Element::F32,
                    origin: match fact("mapped_file") {
                        true => Origin::MappedFile,
                        false => Origin::Memory,
                    },
                },
                cast: fact("cast").then_some(Element::BF16),
                last_failure: (!tried.is_empty()).then_some(&failure),
            };
            let may_stay = strategy != TransferStrategy::StayOnHost || fact("may_stay_on_host");
            if may_stay && situation.skip_reason(strategy).is_none() {
                tried.push(strategy.name());
            }
        }
        assert_eq!(serde_json::json!(tried), case["tried"], "{case}");
    }
}

fn failure(name: &str) -> Failure {
    let message = String::new();
    let damage = Damage {
        sent: Bytes(1),
        arrived: Bytes(1),
        from: Bytes(0),
        to: Bytes(1),
        wrong_rows: 1,
        zeros: true,
    };
    match name {
        "refused" => Failure::Refused { message },
        "timed_out" => Failure::TimedOut { message },
        "wrong_bytes" => Failure::WrongBytes { damage },
        "wrong_cast" => Failure::WrongCast { damage },
        "cast_failed" => Failure::CastFailed { message },
        "out_of_memory_device" | "out_of_memory_pinned" => Failure::OutOfMemory {
            pool: match name.ends_with("device") {
                true => Pool::Device,
                false => Pool::Pinned,
            },
            message,
        },
        other => panic!("{other}"),
    }
}
