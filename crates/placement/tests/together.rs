//! How the engine moves several tensors at once, beyond the result.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use surefoot_placement::testing::{Fault, FaultInjection, FaultyHost, FaultyTransport, bytes_of};
use surefoot_placement::transport::{Element, Operation, Origin, Transport};
use surefoot_placement::{
    MoveError, Outcome, Placed, Policy, Request, Role, TransferEngine, TransferStrategy, Verify,
};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn hosts(origin: Origin) -> Vec<FaultyHost> {
    let tensor = |number: u32| {
        let bytes = (0..5_000_u32).flat_map(|index| (index * 7 + number).to_le_bytes());
        FaultyHost::new(&bytes.collect::<Vec<u8>>(), Element::I32, origin).unwrap()
    };
    (0..4).map(tensor).collect()
}

fn engine(may_stay_on_host: bool) -> TransferEngine {
    TransferEngine::new(Policy {
        verify: Verify::Always,
        may_stay_on_host,
        ..Policy::default()
    })
}

type Arrived = Vec<Vec<u8>>;

fn place(
    engine: &mut TransferEngine,
    device: &mut FaultyTransport,
    hosts: &[FaultyHost],
) -> Result<Arrived, MoveError> {
    let request = |name| Request {
        name,
        role: Role::Weight,
        cast: None,
    };
    let loads: Vec<_> = hosts.iter().zip(NAMES.map(request)).collect();
    let placed = engine.to_device_batched(device, &loads)?;
    let bytes = |one: Placed<<FaultyTransport as Transport>::Remote, FaultyHost>| match one {
        Placed::OnDevice(remote) => bytes_of(&remote).unwrap(),
        Placed::OnHost(host) => bytes_of(&host.into_tensor()).unwrap(),
    };
    Ok(placed.into_iter().map(bytes).collect())
}

/// The bytes of [`hosts`].
fn sent() -> Arrived {
    let bytes = |host: FaultyHost| bytes_of(&host.into_tensor()).unwrap();
    hosts(Origin::Memory).into_iter().map(bytes).collect()
}

fn order(fault: Fault, every_time: bool) -> FaultInjection {
    FaultInjection {
        fault,
        route: TransferStrategy::Direct,
        every_time,
    }
}

#[test]
fn all_arrive_verified_by_the_first_strategy_in_their_order() {
    let (mut engine, hosts) = (engine(true), hosts(Origin::Memory));
    for sums in [true, false] {
        let arrived = place(
            &mut engine,
            &mut FaultyTransport::apu(sums).unwrap(),
            &hosts,
        )
        .unwrap();
        assert_eq!(arrived, sent());
    }
    let total = engine.report().routes[0];
    let expected = (TransferStrategy::Direct, 8, 8);
    assert_eq!((total.strategy, total.tensors, total.verified), expected);
    assert!(engine.report().traces.is_empty());
}

#[test]
fn nothing_is_as_good_as_a_group_of_none() {
    let placed = place(
        &mut engine(true),
        &mut FaultyTransport::apu(true).unwrap(),
        &[],
    );
    assert_eq!(placed.unwrap(), Arrived::new());
}

#[test]
fn only_the_tensor_that_arrived_wrong_is_copied_again() {
    for victim in 0..4 {
        let (mut engine, hosts) = (engine(true), hosts(Origin::Memory));
        let mut device = FaultyTransport::apu(true).unwrap();
        device.inject_later(order(Fault::BitFlip, false), victim);
        let arrived = place(&mut engine, &mut device, &hosts).unwrap();
        assert_eq!(arrived, sent());
        let report = engine.report();
        let [trace] = report.traces.as_slice() else {
            panic!("{report}")
        };
        assert_eq!(trace.tensor, NAMES[victim as usize]);
        assert_eq!(
            trace.attempts.last().unwrap().strategy,
            TransferStrategy::Retry
        );
        let by_strategy = report
            .routes
            .iter()
            .map(|total| (total.strategy, total.tensors));
        let expected = [(TransferStrategy::Direct, 3), (TransferStrategy::Retry, 1)];
        assert_eq!(by_strategy.collect::<Vec<_>>(), expected);
    }
}

#[test]
fn what_may_not_be_copied_directly_moves_alone_among_the_others() {
    let mut mixed = hosts(Origin::Memory);
    mixed[1] = hosts(Origin::MappedFile).remove(1);
    let mut engine = engine(true);
    let arrived = place(
        &mut engine,
        &mut FaultyTransport::apu(true).unwrap(),
        &mixed,
    )
    .unwrap();
    assert_eq!(arrived, sent());
    let routes = engine.report().routes.iter();
    let by_strategy: Vec<_> = routes
        .map(|total| (total.strategy, total.tensors))
        .collect();
    assert_eq!(
        by_strategy,
        [(TransferStrategy::Direct, 3), (TransferStrategy::Staged, 1)]
    );
}

#[test]
fn a_lost_context_ends_all_of_them_at_once_and_frees_nothing() {
    for victim in 0..4 {
        let hosts = hosts(Origin::Memory);
        let mut device = FaultyTransport::apu(true).unwrap();
        device.inject_later(order(Fault::ContextLost, false), victim);
        let mut engine = engine(true);
        let error = place(&mut engine, &mut device, &hosts).unwrap_err();
        assert!(matches!(error, MoveError::ContextLost { .. }), "{error}");
        // The tensor that failed is abandoned with its copy, and the three not waited for with theirs.
        assert!(device.abandoned() >= 8, "{}", device.abandoned());
        let tries = engine.report().traces.iter().map(|s| s.attempts.len());
        assert_eq!(tries.collect::<Vec<_>>(), [1]);
    }
}

#[test]
fn a_hang_gives_up_what_may_still_be_written_to() {
    let mut device = FaultyTransport::apu(true).unwrap();
    device.inject_later(order(Fault::Hang, false), 2);
    let error = place(&mut engine(true), &mut device, &hosts(Origin::Memory)).unwrap_err();
    assert!(matches!(error, MoveError::Hung { .. }), "{error}");
    assert!(device.abandoned() >= 8, "{}", device.abandoned());
}

#[test]
fn a_tensor_that_cannot_be_placed_hands_over_none_and_gives_nothing_up() {
    let mut device = FaultyTransport::apu(true).unwrap();
    device.inject_later(order(Fault::Zeros, true), 1);
    let error = place(&mut engine(false), &mut device, &hosts(Origin::Memory)).unwrap_err();
    let MoveError::NotPlaced { trace } = &error else {
        panic!("{error}")
    };
    assert_eq!(trace.tensor, "b");
    assert_eq!(device.abandoned(), 0, "the device was waited for instead");
}

#[test]
fn a_source_that_is_written_to_is_named() {
    let mut device = FaultyTransport::apu(true).unwrap();
    device.inject_later(order(Fault::MutatedSource, false), 3);
    let error = place(&mut engine(true), &mut device, &hosts(Origin::Memory)).unwrap_err();
    assert!(
        matches!(&error, MoveError::SourceChanged { tensor } if tensor == "d"),
        "{error}"
    );
}

#[test]
fn a_full_device_is_trimmed_and_the_others_are_not_copied_again() {
    let (mut engine, hosts) = (engine(true), hosts(Origin::Memory));
    let mut device = FaultyTransport::apu(true).unwrap();
    device.inject_later(order(Fault::OutOfMemory(Operation::Copy), false), 2);
    assert_eq!(place(&mut engine, &mut device, &hosts).unwrap(), sent());
    let trace = &engine.report().traces[0];
    assert_eq!(trace.tensor, "c");
    assert!(matches!(trace.attempts[0].outcome, Outcome::Failed { .. }));
    assert_eq!(engine.report().traces.len(), 1);
}
