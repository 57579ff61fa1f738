//! How the engine moves a tensor, beyond the result.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use surefoot_placement::testing::{Fault, FaultInjection, FaultyHost, FaultyTransport, bytes_of};
use surefoot_placement::transport::{Element, Operation, Origin};
use surefoot_placement::{
    Attempt, Failure, MoveError, Outcome, Placed, Policy, Request, Role, TransferEngine,
    TransferStrategy, Verify,
};

const WEIGHT: Request<'static> = Request {
    name: "blocks.0.attn.weight",
    role: Role::Weight,
    cast: None,
};

fn tensor(origin: Origin) -> FaultyHost {
    let bytes: Vec<u8> = (0..5_000_u32)
        .flat_map(|index| (index as f32 + 0.5).to_le_bytes())
        .collect();
    FaultyHost::new(&bytes, Element::F32, origin).unwrap()
}

/// The bytes of [`tensor`].
fn sent() -> Vec<u8> {
    bytes_of(&tensor(Origin::Memory).into_tensor()).unwrap()
}

fn always() -> Policy {
    Policy {
        verify: Verify::Always,
        ..Policy::default()
    }
}

fn ordered(fault: Fault, route: TransferStrategy, every_time: bool) -> FaultyTransport {
    let mut device = FaultyTransport::apu(true).unwrap();
    device.inject(FaultInjection {
        fault,
        route,
        every_time,
    });
    device
}

fn tried(attempts: &[Attempt]) -> Vec<TransferStrategy> {
    attempts
        .iter()
        .filter(|attempt| !matches!(attempt.outcome, Outcome::Skipped { .. }))
        .map(|attempt| attempt.strategy)
        .collect()
}

#[test]
fn a_sound_device_takes_the_first_strategy_and_leaves_no_trace() {
    let mut engine = TransferEngine::new(always());
    let mut device = FaultyTransport::apu(true).unwrap();
    let host = tensor(Origin::Memory);
    for _ in 0..3 {
        let placed = engine.to_device(&mut device, &host, &WEIGHT).unwrap();
        let Placed::OnDevice(remote) = placed else {
            panic!("{placed:?}")
        };
        assert_eq!(bytes_of(&remote).unwrap(), sent());
    }
    let report = engine.report();
    assert!(report.traces.is_empty());
    let total = report.routes[0];
    assert_eq!(
        (total.strategy, total.tensors, total.verified),
        (TransferStrategy::Direct, 3, 3)
    );
    assert_eq!(total.bytes.0, 3 * 20_000);
}

#[test]
fn a_mapped_file_on_an_apu_is_staged_without_being_called_trouble() {
    let mut engine = TransferEngine::new(always());
    engine
        .to_device(
            &mut FaultyTransport::apu(true).unwrap(),
            &tensor(Origin::MappedFile),
            &WEIGHT,
        )
        .unwrap();
    assert_eq!(engine.report().routes[0].strategy, TransferStrategy::Staged);
    assert!(engine.report().traces.is_empty());
}

#[test]
fn every_attempt_for_a_tensor_that_stays_on_the_host() {
    let mut engine = TransferEngine::new(always());
    let mut device = ordered(Fault::Zeros, TransferStrategy::Direct, true);
    let placed = engine
        .to_device(&mut device, &tensor(Origin::Memory), &WEIGHT)
        .unwrap();
    assert!(matches!(placed, Placed::OnHost(_)));
    assert_eq!(
        engine.report().to_string(),
        "\
route            tensors        bytes  verified
stay_on_host           1    19.53 KiB         0

blocks.0.attn.weight (19.53 KiB)
  direct       wrong bytes arrived: wrong between bytes 0 and 20000, where there are zeros
  retry        wrong bytes arrived: wrong between bytes 0 and 20000, where there are zeros
  staged       wrong bytes arrived: wrong between bytes 0 and 20000, where there are zeros
  chunked      wrong bytes arrived: wrong between bytes 0 and 20000, where there are zeros
  other_stream wrong bytes arrived: wrong between bytes 0 and 20000, where there are zeros
  zero_copy    wrong bytes arrived: wrong between bytes 0 and 20000, where there are zeros
  cast_on_host skipped: no cast was asked for
  stay_on_host arrived, not verified
"
    );
    let json = serde_json::to_value(engine.report()).unwrap();
    let attempts = &json["traces"][0]["attempts"];
    assert_eq!(attempts[0]["outcome"], "failed");
    assert_eq!(attempts[0]["failure"]["kind"], "wrong_bytes");
    assert_eq!(attempts[7]["outcome"], "arrived");
}

#[test]
fn staying_on_the_host_is_an_error_when_it_is_not_allowed() {
    let mut engine = TransferEngine::new(Policy {
        may_stay_on_host: false,
        ..always()
    });
    let mut device = ordered(Fault::Zeros, TransferStrategy::Direct, true);
    let error = engine
        .to_device(&mut device, &tensor(Origin::Memory), &WEIGHT)
        .unwrap_err();
    assert!(!error.is_out_of_memory());
    assert!(
        error.to_string().contains("blocks.0.attn.weight"),
        "{error}"
    );
    assert!(matches!(error, MoveError::NotPlaced { .. }));
}

#[test]
fn a_full_device_is_told_apart_from_a_broken_one() {
    let mut engine = TransferEngine::new(Policy {
        may_stay_on_host: false,
        ..always()
    });
    let mut device = ordered(
        Fault::OutOfMemory(Operation::Copy),
        TransferStrategy::Direct,
        true,
    );
    let error = engine
        .to_device(&mut device, &tensor(Origin::Memory), &WEIGHT)
        .unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    let MoveError::NotPlaced { trace } = error else {
        panic!("{error}")
    };
    // Strategies that need the same memory are not tried.
    assert_eq!(
        tried(&trace.attempts),
        [
            TransferStrategy::Direct,
            TransferStrategy::Retry,
            TransferStrategy::Retry,
            TransferStrategy::ZeroCopy,
            TransferStrategy::ZeroCopy
        ]
    );
}

#[test]
fn a_weight_that_was_trained_meanwhile_is_verified_again() {
    let arrives = |is_trained| {
        let mut engine = TransferEngine::new(Policy::default());
        let mut device = FaultyTransport::apu(true).unwrap();
        let host = tensor(Origin::Memory);
        engine.to_device(&mut device, &host, &WEIGHT).unwrap();
        device.inject(FaultInjection {
            fault: Fault::Zeros,
            route: TransferStrategy::Direct,
            every_time: false,
        });
        if is_trained {
            engine.expect_new_bytes(WEIGHT.name);
        }
        let placed = engine.to_device(&mut device, &host, &WEIGHT).unwrap();
        let Placed::OnDevice(remote) = placed else {
            panic!("{placed:?}")
        };
        bytes_of(&remote).unwrap() == sent()
    };
    assert!(arrives(true));
    assert!(!arrives(false), "`first` verifies the same bytes once");
}

#[test]
fn a_lost_context_ends_the_move_at_once() {
    let mut engine = TransferEngine::new(always());
    let mut device = ordered(Fault::ContextLost, TransferStrategy::Direct, false);
    let error = engine
        .to_device(&mut device, &tensor(Origin::Memory), &WEIGHT)
        .unwrap_err();
    assert!(matches!(error, MoveError::ContextLost { .. }), "{error}");
    assert_eq!(
        tried(&engine.report().traces[0].attempts),
        [TransferStrategy::Direct]
    );
}

#[test]
fn a_hang_ends_the_move_and_frees_nothing_that_may_be_in_use() {
    let mut engine = TransferEngine::new(always());
    let mut device = ordered(Fault::Hang, TransferStrategy::Staged, false);
    let error = engine
        .to_device(&mut device, &tensor(Origin::Memory), &WEIGHT)
        .unwrap_err();
    assert!(matches!(error, MoveError::Hung { .. }), "{error}");
    // The target, the staging buffer and the source.
    assert_eq!(device.abandoned(), 3);
}

#[test]
fn a_stall_is_waited_out_and_tried_again() {
    let mut engine = TransferEngine::new(always());
    let mut device = ordered(Fault::Stall, TransferStrategy::Direct, false);
    engine
        .to_device(&mut device, &tensor(Origin::Memory), &WEIGHT)
        .unwrap();
    assert_eq!(device.abandoned(), 0);
    assert_eq!(
        tried(&engine.report().traces[0].attempts),
        [TransferStrategy::Direct, TransferStrategy::Retry]
    );
}

#[test]
fn a_source_that_changes_is_named_instead_of_being_copied_again() {
    let mut engine = TransferEngine::new(always());
    let mut device = ordered(Fault::MutatedSource, TransferStrategy::Direct, false);
    let error = engine
        .to_device(&mut device, &tensor(Origin::Pinned), &WEIGHT)
        .unwrap_err();
    assert!(matches!(error, MoveError::SourceChanged { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains("`blocks.0.attn.weight` was written to"),
        "{error}"
    );
}

#[test]
fn a_wrong_cast_is_made_on_the_host_without_copying_in_vain() {
    let mut engine = TransferEngine::new(always());
    let mut device = ordered(Fault::CastZeros, TransferStrategy::Direct, true);
    let request = Request {
        cast: Some(Element::BF16),
        ..WEIGHT
    };
    engine
        .to_device(&mut device, &tensor(Origin::Memory), &request)
        .unwrap();
    let trace = &engine.report().traces[0];
    assert_eq!(
        tried(&trace.attempts),
        [TransferStrategy::Direct, TransferStrategy::CastOnHost]
    );
    assert!(matches!(
        trace.attempts[0].outcome,
        Outcome::Failed {
            failure: Failure::WrongCast { .. }
        }
    ));
}

#[test]
fn a_cast_to_the_type_it_has_is_no_cast() {
    let mut engine = TransferEngine::new(always());
    let mut device = ordered(Fault::CastZeros, TransferStrategy::Direct, true);
    let request = Request {
        cast: Some(Element::F32),
        ..WEIGHT
    };
    engine
        .to_device(&mut device, &tensor(Origin::Memory), &request)
        .unwrap();
    assert_eq!(device.triggered(), 0);
}

#[test]
fn after_one_wrong_arrival_first_verifies_everything() {
    let mut engine = TransferEngine::new(Policy::default());
    let host = tensor(Origin::Memory);
    let batch = Request {
        name: "tokens",
        role: Role::Batch,
        cast: None,
    };
    let mut device = FaultyTransport::apu(true).unwrap();
    for _ in 0..2 {
        device.begin(TransferStrategy::Direct);
        engine.to_device(&mut device, &host, &batch).unwrap();
    }
    assert_eq!(
        engine.report().routes[0].verified,
        1,
        "a second batch by the same route"
    );

    device.inject(FaultInjection {
        fault: Fault::BitFlip,
        route: TransferStrategy::Direct,
        every_time: false,
    });
    engine.to_device(&mut device, &host, &WEIGHT).unwrap();
    for _ in 0..2 {
        device.begin(TransferStrategy::Direct);
        engine.to_device(&mut device, &host, &batch).unwrap();
    }
    assert_eq!(engine.report().routes[0].verified, 3, "trust has ended");
}

#[test]
fn a_card_of_its_own_never_gets_the_host_memory_itself() {
    let mut engine = TransferEngine::new(always());
    let mut device = ordered(Fault::Zeros, TransferStrategy::Direct, true)
        .with_facts(|facts| facts.unified_memory = false);
    engine
        .to_device(&mut device, &tensor(Origin::Memory), &WEIGHT)
        .unwrap();
    assert!(!tried(&engine.report().traces[0].attempts).contains(&TransferStrategy::ZeroCopy));
}

#[test]
fn a_report_keeps_a_bounded_number_of_traces() {
    let mut engine = TransferEngine::new(always());
    let host = tensor(Origin::Memory);
    for _ in 0..300 {
        let mut device = ordered(Fault::Refused, TransferStrategy::Direct, false);
        engine.to_device(&mut device, &host, &WEIGHT).unwrap();
    }
    let report = engine.report();
    assert_eq!((report.traces.len(), report.traces_left_out), (256, 44));
    assert_eq!(report.routes[0].tensors, 300);
}

#[test]
fn a_tensor_comes_back_to_the_host_whether_or_not_the_device_sums() {
    for sums in [true, false] {
        let mut engine = TransferEngine::new(always());
        let mut device = FaultyTransport::apu(sums).unwrap();
        let sent = tensor(Origin::Memory);
        let Placed::OnDevice(remote) = engine.to_device(&mut device, &sent, &WEIGHT).unwrap()
        else {
            panic!("it stayed on the host")
        };
        let host = engine.to_host(&mut device, &remote, &WEIGHT).unwrap();
        assert_eq!(bytes_of(&host.into_tensor()).unwrap(), self::sent());
        assert!(engine.report().traces.is_empty());
    }
}

#[test]
fn a_host_without_memory_is_named_after_three_copies() {
    let mut engine = TransferEngine::new(always());
    let mut device = FaultyTransport::apu(true).unwrap();
    let sent = tensor(Origin::Memory);
    let Placed::OnDevice(remote) = engine.to_device(&mut device, &sent, &WEIGHT).unwrap() else {
        panic!("it stayed on the host")
    };
    device.inject(FaultInjection {
        fault: Fault::OutOfMemory(Operation::ReadBack),
        route: TransferStrategy::Direct,
        every_time: true,
    });
    let error = engine.to_host(&mut device, &remote, &WEIGHT).unwrap_err();
    assert!(
        error.is_out_of_memory() && error.context_is_usable(),
        "{error}"
    );
    assert_eq!(engine.report().traces[0].attempts.len(), 3);
}
