//! Compiling and parsing of expressions and programs from users.

use std::process::Command;

use wirecap_filter::LinkType;
use wirecap_filter::{
    Context, Filter, FilterError, Interpreter, PacketType, ProgramError, VlanTag,
};
use wirecap_testbed::skip;

use crate::expressions::expressions;

fn compile(expression: &str) -> Filter {
    Filter::compile(expression, LinkType::ETHERNET, 0)
        .unwrap_or_else(|error| panic!("{expression}: {error}"))
}

fn refusal(expression: &str) -> String {
    match Filter::compile(expression, LinkType::ETHERNET, 0) {
        Err(error @ FilterError::Expression { .. }) => error.to_string(),
        other => panic!("{expression}: {other:?}"),
    }
}

/// The output of tcpdump for an expression; if tcpdump is missing, `None` and a message.
fn tcpdump(option: &str, expression: &str) -> Option<String> {
    let Ok(output) =
        Command::new("tcpdump").args([option, "-y", "EN10MB", "--", expression]).output()
    else {
        skip("tcpdump is not installed");
        return None;
    };
    assert!(output.status.success(), "{expression}: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).expect("tcpdump prints text"))
}

#[test]
fn a_program_is_printed_as_tcpdump_prints_it() {
    let mut expressions = expressions(1, 60);
    expressions.extend(["inbound", "ifindex 3", "ip protochain 6"].map(str::to_owned));
    for expression in expressions {
        let Some(expected) = tcpdump("-d", &expression) else { return };
        assert_eq!(compile(&expression).to_string(), expected, "{expression}");
    }
}

#[test]
fn a_program_is_read_as_tcpdump_prints_it() {
    for expression in expressions(2, 30) {
        let Some(text) = tcpdump("-ddd", &expression) else { return };
        let filter = Filter::parse(&text, LinkType::ETHERNET).expect("tcpdump's own");
        assert_eq!(filter.program(), compile(&expression).program(), "{expression}");
        let one_line = text.trim_end().replace('\n', ",");
        assert_eq!(Filter::parse(&one_line, LinkType::ETHERNET).expect("iptables' form"), filter);
    }
}

#[test]
fn a_bad_expression_is_reported_with_libpcaps_message_and_the_page_to_read() {
    let cases = [
        (
            "udp port zork",
            "unknown port 'zork' in the filter \"udp port zork\"; see pcap-filter(7)",
        ),
        ("tcp andd port 80", "syntax error in the filter \"tcp andd port 80\"; see pcap-filter(7)"),
    ];
    for (expression, expected) in cases {
        assert_eq!(refusal(expression), expected);
    }
    for display in ["dns", "ip.addr == 10.1.2.3", "!tls.handshake", "tcp.port eq 80"] {
        assert!(refusal(display).contains("Wireshark's display filters"), "{display}");
    }
    assert!(refusal("tcp\0udp").starts_with("a filter expression has no zero byte"));
}

#[test]
fn the_snap_length_is_the_filters_return_value() {
    for (snap_len, verdict) in [(96, 96), (0, 262_144), (u32::MAX, 262_144)] {
        let filter =
            Filter::compile("", LinkType::ETHERNET, snap_len).expect("it matches everything");
        let interpreter = Interpreter::new(&filter).expect("it asks for nothing");
        assert_eq!(interpreter.matches(&[], 0, &Context::default()), verdict);
    }
}

#[test]
fn raw_ip_uses_its_linktype_number() {
    let filter = Filter::compile("udp", LinkType::RAW, 0).expect("libpcap knows raw IP");
    assert!(filter.to_string().contains("ldb      [9]"), "{filter}");
}

#[test]
fn an_invalid_program_is_rejected_with_its_fault() {
    let cases = [
        ("", ProgramError::Empty),
        ("0", ProgramError::Empty),
        ("x", ProgramError::Text { line: 1, expected: "the number of instructions" }),
        ("1\n6 0 0", ProgramError::Text { line: 2, expected: "four numbers: code jt jf k" }),
        ("1\n6 0 256 0", ProgramError::Text { line: 2, expected: "four numbers: code jt jf k" }),
        ("2\n6 0 0 0", ProgramError::Count { announced: 2, found: 1 }),
        ("1\n0 0 0 0", ProgramError::NoReturn),
        ("2\n21 0 1 0\n6 0 0 0", ProgramError::JumpsOut { index: 0, target: 2, insns: 2 }),
        ("2\n5 0 0 1\n6 0 0 0", ProgramError::JumpsOut { index: 0, target: 2, insns: 2 }),
        (
            "2\n5 0 0 4294967294\n6 0 0 0",
            ProgramError::JumpsOut { index: 0, target: u32::MAX, insns: 2 },
        ),
        ("2\n52 0 0 0\n6 0 0 0", ProgramError::DividesByZero { index: 0 }),
        ("2\n148 0 0 0\n6 0 0 0", ProgramError::DividesByZero { index: 0 }),
        ("2\n100 0 0 32\n6 0 0 0", ProgramError::ShiftsTooFar { index: 0, bits: 32 }),
        ("2\n96 0 0 16\n6 0 0 0", ProgramError::NoSuchSlot { index: 0, slot: 16 }),
        ("2\n2 0 0 4294967295\n6 0 0 0", ProgramError::NoSuchSlot { index: 0, slot: u32::MAX }),
    ];
    for (text, expected) in cases {
        assert_eq!(Filter::parse(text, LinkType::ETHERNET).unwrap_err(), expected, "{text}");
    }
    // An undefined code; a load of eight bytes; an unknown extension; a code of more than eight
    // bits.
    for insn in ["14 0 0 0", "56 0 0 0", "32 0 0 4294963265", "256 0 0 0"] {
        let error = Filter::parse(&format!("2\n{insn}\n6 0 0 0"), LinkType::ETHERNET).unwrap_err();
        assert!(matches!(error, ProgramError::Unknown { index: 0, .. }), "{insn}: {error}");
    }
}

#[test]
fn data_that_a_packet_does_not_contain_is_rejected_by_name() {
    for (offset, name) in
        [(20_u32, "mark"), (28, "hatype"), (32, "rxhash"), (36, "cpu"), (52, "poff"), (56, "rand")]
    {
        let text = format!("2\n32 0 0 {}\n22 0 0 0", 0xffff_f000 + offset);
        let filter = Filter::parse(&text, LinkType::ETHERNET).expect("it is sound");
        let error = Interpreter::new(&filter).unwrap_err().to_string();
        assert!(error.contains(&format!("[{name}]")), "{error}");
    }
    let network = "2\n48 0 0 4293918720\n22 0 0 0";
    assert!(Interpreter::new(&Filter::parse(network, LinkType::RAW).expect("it is sound")).is_ok());
    let error =
        Interpreter::new(&Filter::parse(network, LinkType::LINUX_SLL).expect("it is sound"))
            .unwrap_err();
    assert!(error.to_string().contains("link type 113"), "{error}");
}

#[test]
fn a_filter_reads_data_besides_the_packet() {
    let run = |code: u32, k: u32, packet: &[u8], context: &Context| {
        let text = format!("2\n{code} 0 0 {k}\n22 0 0 0");
        let filter = Filter::parse(&text, LinkType::ETHERNET).expect("it is sound");
        Interpreter::new(&filter).expect("it is known").matches(packet, 0, context)
    };
    let context = Context {
        ifindex: 7,
        queue: 3,
        packet_type: PacketType::Outgoing,
        vlan: Some(VlanTag { tpid: 0x88a8, tci: 0x6007 }),
    };
    let extension = |offset: u32| run(32, 0xffff_f000 + offset, &[], &context);
    assert_eq!([4, 8, 24, 44, 48, 60].map(extension), [4, 7, 4, 0x6007, 1, 0x88a8]);

    let mut frame = [0; 64];
    let ask = |frame: &[u8]| {
        let none = Context::default();
        (
            run(40, 0xffff_f000, frame, &none),
            run(48, 0xfff0_0000, frame, &none),
            run(48, 0xffe0_0000, frame, &none),
        )
    };
    (frame[0], frame[14], frame[18]) = (1, 0x45, 0x60);
    assert_eq!(ask(&frame), (4, 0x45, 1), "802.3 with LLC");
    frame[14] = 0xff;
    frame[15] = 0xff;
    assert_eq!(ask(&frame), (1, 0xff, 1), "802.3 without LLC");
    frame[12..14].copy_from_slice(&[8, 0]);
    assert_eq!(ask(&frame), (0x800, 0xff, 1));
    frame[12..18].copy_from_slice(&[0x81, 0, 0, 5, 0x86, 0xdd]);
    assert_eq!(ask(&frame), (0x86dd, 0x60, 1), "the kernel looks behind the tag");
    assert_eq!(ask(&frame[..14]), (0, 0, 1), "what is cut off is not there");
}

#[test]
fn a_netlink_attribute_is_found_as_the_kernel_finds_it() {
    // Three attributes from offset 2: type 1 (empty), type 2 with nested types 5 and 6, type 9
    // (truncated).
    let mut packet = vec![0, 0];
    let mut attribute = |len: u16, kind: u16| {
        packet.extend(len.to_ne_bytes());
        packet.extend(kind.to_ne_bytes());
    };
    attribute(4, 1);
    attribute(12, 2 | 0x8000);
    attribute(4, 5);
    attribute(4, 6);
    attribute(8, 9);
    let find = |extension: u32, start: u32, kind: u32| {
        let text =
            format!("4\n0 0 0 {start}\n1 0 0 {kind}\n32 0 0 {}\n22 0 0 0", 0xffff_f000 + extension);
        let filter = Filter::parse(&text, LinkType(253)).expect("it is sound");
        Interpreter::new(&filter).expect("it is known").matches(&packet, 0, &Context::default())
    };
    assert_eq!([1, 2, 5, 6, 9].map(|kind| find(12, 2, kind)), [2, 6, 0, 0, 0]);
    assert_eq!([1, 5, 6, 9].map(|kind| find(16, 6, kind)), [0, 10, 14, 0]);
    assert_eq!([0, 20, 22, 1000, u32::MAX].map(|start| find(12, start, 9)), [0; 5]);
    assert_eq!([0, 20, 22, 1000, u32::MAX].map(|start| find(16, start, 9)), [0; 5]);
}

#[test]
fn an_endless_program_rejects_and_ends() {
    let filter =
        Filter::parse("2\n5 0 0 4294967295\n6 0 0 1", LinkType::ETHERNET).expect("it is sound");
    assert_eq!(
        Interpreter::new(&filter).expect("it asks nothing").matches(
            &[0; 64],
            64,
            &Context::default()
        ),
        0
    );
}
