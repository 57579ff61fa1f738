//! Pickles of Python itself, damaged ones, and those that would do harm.

use super::*;
use hip_alloc::pickle::Writer;
use proptest::prelude::*;

#[test]
fn what_is_written_is_read() {
    let mut writer = Writer::default();
    writer.dict(|writer| {
        writer.entry("a", -5);
        writer.text("list");
        writer.list(|writer| {
            writer.text("grüße");
            writer.bool(true);
            writer.number(i64::MAX);
            writer.list(|_| {});
        });
        writer.entry("a", 7);
        for number in [
            0,
            255,
            256,
            i32::MIN.into(),
            i64::from(i32::MAX) + 1,
            i64::MIN,
        ] {
            writer.entry(&number.to_string(), number);
        }
        // More texts than a byte can name.
        (0..300).for_each(|number| writer.entry(&format!("many {number}"), number));
        writer.text("again");
        writer.text("many 299");
    });
    let pickle = Pickle::read(&writer.finish()).unwrap();
    let root = pickle.root();
    assert_eq!(root.get("a").unwrap().number(), Some(7));
    let items: Vec<_> = root.get("list").unwrap().items().collect();
    assert_eq!(items[0].text(), Some("grüße"));
    assert_eq!(items[2].number(), Some(i64::MAX as u64));
    assert!(items[3].is_list() && items[3].items().next().is_none());
    assert!(root.get("b").is_none());
    for number in [
        0,
        255,
        256,
        i32::MIN.into(),
        i64::from(i32::MAX) + 1,
        i64::MIN,
    ] {
        let read = root.get(&number.to_string()).unwrap();
        assert_eq!(*read.node(), Node::Int(number));
    }
    assert_eq!(root.get("many 299").unwrap().number(), Some(299));
    assert_eq!(root.get("again").unwrap().text(), Some("many 299"));
}

/// `pickle.dumps(X, protocol=4)` of Python 3.11, where X = {'a': [1, 300, 70000,
/// 2**40, -1, None, True, 1.5, (2, 3)], 'b': 'é'}; then X twice in one list.
#[test]
fn pythons_own_pickles_are_read() {
    let bytes = b"\x80\x04\x955\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94]\x94(K\x01M,\x01Jp\x11\x01\x00\
        \x8a\x06\x00\x00\x00\x00\x00\x01J\xff\xff\xff\xffN\x88G?\xf8\x00\x00\x00\x00\x00\x00K\x02K\x03\x86\x94e\
        \x8c\x01b\x94\x8c\x02\xc3\xa9\x94u.";
    let pickle = Pickle::read(bytes).unwrap();
    let numbers: Vec<_> = pickle
        .root()
        .get("a")
        .unwrap()
        .items()
        .map(Value::number)
        .collect();
    let some = [Some(1), Some(300), Some(70_000), Some(1 << 40)];
    assert_eq!(numbers[..4], some);
    assert_eq!(numbers[4..8], [None; 4]);
    assert_eq!(pickle.root().get("b").unwrap().text(), Some("é"));
}

/// The same value in the protocols of Python 2 and before, of `pickle.dumps(X, N)`.
#[test]
fn old_protocols_are_read_too() {
    let printable: &[u8] = b"(dp0\nVa\np1\n(lp2\nI1\naL-5L\naI01\naNaF1.5\na(I2\nI3\ntp3\nasVb\np4\nV\xe9\\u2192\\u005c\np5\ns.";
    let python_2: &[u8] =
        b"(dp0\nS'a'\np1\n(lp2\nI1\naL-5L\naI01\naNaF1.5\na(I2\nI3\ntp3\nasS'b'\np4\nS'\\xc3\\xa9\\xe2\\x86\\x92\\\\'\np5\ns.";
    let binary: &[u8] =
        b"}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01J\xfb\xff\xff\xffI01\nNG?\xf8\x00\x00\x00\x00\x00\x00(K\x02K\x03tq\x03eX\x01\x00\x00\x00bq\x04X\x06\x00\x00\x00\xc3\xa9\xe2\x86\x92\\q\x05u.";
    for bytes in [printable, python_2, binary] {
        assert!(Pickle::is_likely(bytes));
        let pickle = Pickle::read(bytes).unwrap();
        let items: Vec<_> = pickle.root().get("a").unwrap().items().collect();
        let nodes: Vec<_> = items[..5].iter().map(|item| item.node().clone()).collect();
        let expected = [
            Node::Int(1),
            Node::Int(-5),
            Node::Bool(true),
            Node::None,
            Node::Float(1.5),
        ];
        assert_eq!(nodes, expected);
        assert_eq!(items[5].len(), 2);
        assert_eq!(pickle.root().get("b").unwrap().text(), Some("é→\\"));
    }
}

#[test]
fn nothing_that_runs_is_run() {
    let system = b"cos\nsystem\n(S'true'\ntR.";
    assert_eq!(
        Pickle::read(system).unwrap_err(),
        PickleError::NotPlain(b'c')
    );
    let stack_global = b"\x80\x04\x8c\x02os\x8c\x06system\x93.";
    assert_eq!(
        Pickle::read(stack_global).unwrap_err(),
        PickleError::NotPlain(0x93)
    );
}

#[test]
fn lengths_beyond_the_file_and_deep_or_repeated_values_do_no_harm() {
    assert_eq!(
        Pickle::read(b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f").unwrap_err(),
        PickleError::Truncated
    );
    let deep: Vec<u8> = [b"]".repeat(1_000_000), b"a".repeat(999_999), b".".to_vec()].concat();
    assert!(Pickle::read(&deep).unwrap().root().is_list());
    // Each list holds the one before twice: 2^60 entries if they were copied.
    let mut bomb = b"]q\x00".to_vec();
    for step in 0..60u8 {
        bomb.extend([b'(', b'h', step, b'h', step, b'l', b'q', step + 1]);
    }
    bomb.push(b'.');
    assert!(Pickle::read(&bomb).unwrap().nodes.len() < 200);
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Pickle::read(&bytes);
    }

    #[test]
    fn no_instructions_make_it_panic(
        bytes in prop::collection::vec(prop::sample::select(&b"]}()tlduase012.hqKMJXNILFSVpg\n'\\x\x8f\x90\x91\x94\x85\x86\x87\x00\x01"[..]), 0..80),
    ) {
        let _ = Pickle::read(&bytes);
    }
}
