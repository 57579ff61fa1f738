//! What the ladder does on its way, beyond what came of it.

use placement::fake::{FakeDevice, FakeHost, Fault, Order};
use placement::transport::{Element, Operation, Origin};
use placement::{
    Attempt, Failure, Ladder, MoveError, Outcome, Placed, Policy, Request, Role, Rung, Verify,
};

const WEIGHT: Request<'static> = Request {
    name: "blocks.0.attn.weight",
    role: Role::Weight,
    cast: None,
};

fn tensor(origin: Origin) -> FakeHost {
    let bytes = (0..5_000_u32)
        .flat_map(|index| (index as f32 + 0.5).to_le_bytes())
        .collect();
    FakeHost::new(bytes, Element::F32, origin)
}

fn always() -> Policy {
    Policy {
        verify: Verify::Always,
        ..Policy::default()
    }
}

fn ordered(fault: Fault, route: Rung, every_time: bool) -> FakeDevice {
    let mut device = FakeDevice::apu(true);
    device.order(Order {
        fault,
        route,
        every_time,
    });
    device
}

fn tried(attempts: &[Attempt]) -> Vec<Rung> {
    attempts
        .iter()
        .filter(|attempt| !matches!(attempt.outcome, Outcome::Skipped { .. }))
        .map(|attempt| attempt.rung)
        .collect()
}

#[test]
fn a_sound_device_takes_the_first_rung_and_leaves_no_story() {
    let mut ladder = Ladder::new(always());
    let mut device = FakeDevice::apu(true);
    let host = tensor(Origin::Memory);
    for _ in 0..3 {
        let placed = ladder.place(&mut device, &host, &WEIGHT).unwrap();
        let Placed::OnDevice(remote) = placed else {
            panic!("{placed:?}")
        };
        assert_eq!(remote.bytes(), host.bytes());
    }
    let report = ladder.report();
    assert!(report.stories.is_empty());
    let total = report.routes[0];
    assert_eq!(
        (total.rung, total.tensors, total.verified),
        (Rung::Direct, 3, 3)
    );
    assert_eq!(total.bytes.0, 3 * 20_000);
}

#[test]
fn a_mapped_file_on_an_apu_is_staged_without_being_called_trouble() {
    let mut ladder = Ladder::new(always());
    ladder
        .place(
            &mut FakeDevice::apu(true),
            &tensor(Origin::MappedFile),
            &WEIGHT,
        )
        .unwrap();
    assert_eq!(ladder.report().routes[0].rung, Rung::Staged);
    assert!(ladder.report().stories.is_empty());
}

#[test]
fn the_whole_story_of_a_tensor_that_stays_on_the_host() {
    let mut ladder = Ladder::new(always());
    let mut device = ordered(Fault::Zeros, Rung::Direct, true);
    let placed = ladder
        .place(&mut device, &tensor(Origin::Memory), &WEIGHT)
        .unwrap();
    assert!(matches!(placed, Placed::OnHost(_)));
    assert_eq!(
        ladder.report().to_string(),
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
    let json = serde_json::to_value(ladder.report()).unwrap();
    let attempts = &json["stories"][0]["attempts"];
    assert_eq!(attempts[0]["outcome"], "failed");
    assert_eq!(attempts[0]["failure"]["kind"], "wrong_bytes");
    assert_eq!(attempts[7]["outcome"], "arrived");
}

#[test]
fn staying_on_the_host_is_an_error_when_it_is_not_allowed() {
    let mut ladder = Ladder::new(Policy {
        may_stay_on_host: false,
        ..always()
    });
    let mut device = ordered(Fault::Zeros, Rung::Direct, true);
    let error = ladder
        .place(&mut device, &tensor(Origin::Memory), &WEIGHT)
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
    let mut ladder = Ladder::new(Policy {
        may_stay_on_host: false,
        ..always()
    });
    let mut device = ordered(Fault::OutOfMemory(Operation::Copy), Rung::Direct, true);
    let error = ladder
        .place(&mut device, &tensor(Origin::Memory), &WEIGHT)
        .unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    let MoveError::NotPlaced { story } = error else {
        panic!("{error}")
    };
    // What needs the same memory again is not tried.
    assert_eq!(
        tried(&story.attempts),
        [
            Rung::Direct,
            Rung::Retry,
            Rung::Retry,
            Rung::ZeroCopy,
            Rung::ZeroCopy
        ]
    );
}

#[test]
fn a_weight_that_was_trained_meanwhile_is_verified_again() {
    let arrives = |is_trained| {
        let mut ladder = Ladder::new(Policy::default());
        let mut device = FakeDevice::apu(true);
        let host = tensor(Origin::Memory);
        ladder.place(&mut device, &host, &WEIGHT).unwrap();
        device.order(Order {
            fault: Fault::Zeros,
            route: Rung::Direct,
            every_time: false,
        });
        if is_trained {
            ladder.expect_new_bytes(WEIGHT.name);
        }
        let placed = ladder.place(&mut device, &host, &WEIGHT).unwrap();
        let Placed::OnDevice(remote) = placed else {
            panic!("{placed:?}")
        };
        remote.bytes() == host.bytes()
    };
    assert!(arrives(true));
    assert!(!arrives(false), "`first` verifies the same bytes once");
}

#[test]
fn a_lost_context_ends_the_move_at_once() {
    let mut ladder = Ladder::new(always());
    let mut device = ordered(Fault::ContextLost, Rung::Direct, false);
    let error = ladder
        .place(&mut device, &tensor(Origin::Memory), &WEIGHT)
        .unwrap_err();
    assert!(matches!(error, MoveError::ContextLost { .. }), "{error}");
    assert_eq!(tried(&ladder.report().stories[0].attempts), [Rung::Direct]);
}

#[test]
fn a_hang_ends_the_move_and_frees_nothing_that_may_be_in_use() {
    let mut ladder = Ladder::new(always());
    let mut device = ordered(Fault::Hang, Rung::Staged, false);
    let error = ladder
        .place(&mut device, &tensor(Origin::Memory), &WEIGHT)
        .unwrap_err();
    assert!(matches!(error, MoveError::Hung { .. }), "{error}");
    // The target, the staging buffer and the source.
    assert_eq!(device.abandoned(), 3);
}

#[test]
fn a_stall_is_waited_out_and_tried_again() {
    let mut ladder = Ladder::new(always());
    let mut device = ordered(Fault::Stall, Rung::Direct, false);
    ladder
        .place(&mut device, &tensor(Origin::Memory), &WEIGHT)
        .unwrap();
    assert_eq!(device.abandoned(), 0);
    assert_eq!(
        tried(&ladder.report().stories[0].attempts),
        [Rung::Direct, Rung::Retry]
    );
}

#[test]
fn a_source_that_changes_is_named_instead_of_being_copied_again() {
    let mut ladder = Ladder::new(always());
    let mut device = ordered(Fault::MutatedSource, Rung::Direct, false);
    let error = ladder
        .place(&mut device, &tensor(Origin::Pinned), &WEIGHT)
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
    let mut ladder = Ladder::new(always());
    let mut device = ordered(Fault::CastZeros, Rung::Direct, true);
    let request = Request {
        cast: Some(Element::BF16),
        ..WEIGHT
    };
    ladder
        .place(&mut device, &tensor(Origin::Memory), &request)
        .unwrap();
    let story = &ladder.report().stories[0];
    assert_eq!(tried(&story.attempts), [Rung::Direct, Rung::CastOnHost]);
    assert!(matches!(
        story.attempts[0].outcome,
        Outcome::Failed {
            failure: Failure::WrongCast { .. }
        }
    ));
}

#[test]
fn a_cast_to_the_type_it_has_is_no_cast() {
    let mut ladder = Ladder::new(always());
    let mut device = ordered(Fault::CastZeros, Rung::Direct, true);
    let request = Request {
        cast: Some(Element::F32),
        ..WEIGHT
    };
    ladder
        .place(&mut device, &tensor(Origin::Memory), &request)
        .unwrap();
    assert_eq!(device.struck(), 0);
}

#[test]
fn after_one_wrong_arrival_first_verifies_everything() {
    let mut ladder = Ladder::new(Policy::default());
    let host = tensor(Origin::Memory);
    let batch = Request {
        name: "tokens",
        role: Role::Batch,
        cast: None,
    };
    let mut device = FakeDevice::apu(true);
    for _ in 0..2 {
        device.begin(Rung::Direct);
        ladder.place(&mut device, &host, &batch).unwrap();
    }
    assert_eq!(
        ladder.report().routes[0].verified,
        1,
        "a second batch by the same route"
    );

    device.order(Order {
        fault: Fault::BitFlip,
        route: Rung::Direct,
        every_time: false,
    });
    ladder.place(&mut device, &host, &WEIGHT).unwrap();
    for _ in 0..2 {
        device.begin(Rung::Direct);
        ladder.place(&mut device, &host, &batch).unwrap();
    }
    assert_eq!(ladder.report().routes[0].verified, 3, "trust has ended");
}

#[test]
fn a_card_of_its_own_never_gets_the_host_memory_itself() {
    let mut ladder = Ladder::new(always());
    let mut device =
        ordered(Fault::Zeros, Rung::Direct, true).with_facts(|facts| facts.unified_memory = false);
    ladder
        .place(&mut device, &tensor(Origin::Memory), &WEIGHT)
        .unwrap();
    assert!(!tried(&ladder.report().stories[0].attempts).contains(&Rung::ZeroCopy));
}

#[test]
fn a_report_keeps_a_bounded_number_of_stories() {
    let mut ladder = Ladder::new(always());
    let host = tensor(Origin::Memory);
    for _ in 0..300 {
        let mut device = ordered(Fault::Refused, Rung::Direct, false);
        ladder.place(&mut device, &host, &WEIGHT).unwrap();
    }
    let report = ladder.report();
    assert_eq!((report.stories.len(), report.stories_left_out), (256, 44));
    assert_eq!(report.routes[0].tensors, 300);
}
