//! Impossible requests cause one clear error and change nothing.

use std::process::{Command, Stdio};

use wirecap_testbed::{Namespace, privileged};

use crate::bed::{Bed, WIRECAP};

/// Runs the command in a namespace. Returns the exit status and standard error.
fn run(namespace: &Namespace, program: &str, arguments: &str) -> (Option<i32>, String) {
    let mut command = Command::new(program);
    command
        .args(arguments.split_whitespace().map(|word| word.replace('_', " ")))
        .stdin(Stdio::null());
    let output = namespace.run_in(|| command.output()).unwrap().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn impossible_values_are_rejected_with_a_reason() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1, 1500);
    let cases = [
        ("left left", 2, &["left", "itself"][..]),
        ("left@0 left", 2, &["itself"]),
        ("left", 2, &["forward needs B", "two interfaces"]),
        ("left nowhere", 1, &["nowhere"]),
        ("nowhere right", 1, &["nowhere"]),
        ("left nowhere --one-way", 1, &["nowhere"]),
        ("left right@0 --one-way", 2, &["right", "without queues"]),
        ("left right --duration 9999999999h", 2, &["--duration", "at most"]),
        ("left right --filter udp_prot_5", 2, &["udp prot 5"]),
        ("left right --drop udp_prot_5", 2, &["udp prot 5"]),
        ("left right --rewrite vlan=push:4096", 2, &["0 to 4095"]),
        ("left right --rewrite right:vlan=pop --one-way", 2, &["right", "left"]),
        ("left right --ordered --unordered", 2, &["--unordered"]),
        ("left right -T 101", 2, &["threshold", "0 to 100"]),
        ("left right --mirror -", 2, &["--mirror", "/dev/stdout"]),
        ("left right --mirror /no/such/directory/file", 1, &["/no/such/directory"]),
    ];
    for (arguments, status, words) in cases {
        let (code, said) = run(&bed.inline.middle, WIRECAP, &format!("forward {arguments}"));
        assert_eq!(code, Some(status), "{arguments}: {said}");
        for word in words {
            assert!(said.contains(word), "{arguments}: {word:?} is not in {said}");
        }
    }
    bed.inline.right.port.set_up(false).unwrap();
    let (code, said) = run(&bed.inline.middle, WIRECAP, "forward left right");
    assert!(
        code == Some(1) && said.contains("right") && said.contains("ip link set right up"),
        "{said}"
    );
}

#[test]
fn an_alternative_interface_name_is_accepted() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1, 1500);
    let (code, said) = run(&bed.inline.middle, "ip", "link property add dev left altname entrance");
    assert_eq!(code, Some(0), "{said}");
    let (code, said) =
        run(&bed.inline.middle, WIRECAP, "forward entrance right --duration 100ms -R 4");
    assert!(code == Some(0) && said.contains("left to right: 0 packets"), "{said}");
    let (code, said) = run(&bed.inline.middle, WIRECAP, "forward entrance left");
    assert!(code == Some(2) && said.contains("itself"), "{said}");
}

#[test]
fn the_error_names_the_missing_privilege() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1, 1500);
    for engine in ["xdp", "packet"] {
        let drop_all = "--bounding-set=-all --inh-caps=-all --ambient-caps=-all";
        let arguments = format!("{drop_all} {WIRECAP} forward left right -R 4 --engine {engine}");
        let mut command = Command::new("setpriv");
        command.args(arguments.split_whitespace()).stdin(Stdio::null());
        let output = bed.inline.middle.run_in(|| command.output()).unwrap().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && said.contains("CAP_NET_RAW"), "{said}");
    }
}
