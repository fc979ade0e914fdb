//! `wirecap extcap`, called with Wireshark's arguments and by tshark.

mod recording;

use std::fs;
use std::path::Path;
use std::process::Command;

use recording::{Bed, Finished, WIRECAP, tcpdump, tshark};
use rustix::process::Signal;
use tempfile::TempDir;
use wirecap_testbed::{Load, pass_program, privileged, wait_until, write_program};

fn extcap(bed: &Bed, arguments: &[&str]) -> Finished {
    bed.run(Command::new(WIRECAP).arg("extcap").args(arguments))
}

fn lines(finished: &Finished) -> Vec<String> {
    finished.assert_success();
    String::from_utf8(finished.stdout.clone()).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn extcap_lists_interfaces_link_layers_settings_and_filters() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(4);
    let list = lines(&extcap(&bed, &["--extcap-interfaces", "--extcap-version=4.0"]));
    assert!(
        list[0].starts_with("extcap {version=") && list[0].contains("{display=wirecap}"),
        "{list:?}"
    );
    assert_eq!(
        list[1..],
        ["interface {value=wirecap-a1}{display=wirecap: a1 (xdp or packet, 4 receive queues)}"]
    );
    let interface = "--extcap-interface=wirecap-a1";
    assert_eq!(
        lines(&extcap(&bed, &[interface, "--extcap-dlts"])),
        ["dlt {number=1}{name=EN10MB}{display=Ethernet}"]
    );
    let settings = lines(&extcap(&bed, &[interface, "--extcap-config"]));
    for call in ["--engine", "--queues", "--snaplen", "--buffer"] {
        assert!(
            settings.iter().any(|line| line.contains(&format!("{{call={call}}}"))),
            "{call}: {settings:#?}"
        );
    }
    assert!(lines(&extcap(&bed, &[interface, "--extcap-capture-filter=udp port 53"])).is_empty());
    let fault = lines(&extcap(&bed, &[interface, "--extcap-capture-filter=udb"]));
    assert!(fault.concat().contains("udb"), "{fault:?}");
    extcap(&bed, &["--extcap-interface=wirecap-absent", "--extcap-dlts"])
        .assert_refused(1, &["absent"]);
    extcap(&bed, &[]).assert_refused(2, &["--extcap-interfaces"]);
    extcap(&bed, &[interface, "--capture"]).assert_refused(2, &["--fifo"]);
}

#[test]
fn packets_go_into_the_pipe_until_stop() {
    if !privileged() {
        return;
    }
    let folder = TempDir::new().unwrap();
    let pipe = folder.path().join("pipe");
    let file = folder.path().join("packets.pcapng");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let cases = [
        (&[][..], 300),
        (&["--engine=xdp", "--queues=1"], 150),
        (&["--extcap-capture-filter=tcp"], 0),
    ];
    for (more, kept) in cases {
        let bed = Bed::new(2);
        // On a veth, packet sockets receive the generator's frames only if an XDP program passes
        // them.
        let is_packet = !more.contains(&"--engine=xdp");
        let _passing = is_packet.then(|| pass_program(&bed.pair.receiver).unwrap());
        let arguments = [
            "extcap",
            "--capture",
            "--extcap-interface=wirecap-a1",
            "--fifo",
            pipe.to_str().unwrap(),
        ];
        let mut running = bed.start(Command::new(WIRECAP).args([&arguments, more].concat()));
        running.wait_for("capturing");
        let mut reader = fs::File::open(&pipe).unwrap();
        let mut written = fs::File::create(&file).unwrap();
        let reading = std::thread::spawn(move || std::io::copy(&mut reader, &mut written).unwrap());
        bed.generator().send(&[0, 1].map(|queue| Load::new(queue, 150))).unwrap();
        wait_until("the packets are through", || tcpdump(&file, &[]).0.len() == kept);
        running.signal(Signal::TERM);
        running.finish().assert_success();
        reading.join().unwrap();
        assert_eq!(tshark(&file, &["frame.number"]).len(), kept, "{more:?}");
    }
}

#[test]
fn tshark_lists_the_interfaces_and_captures_from_them() {
    if !privileged() {
        return;
    }
    let bed = Bed::new(1);
    let folder = TempDir::new_in("/tmp").unwrap();
    let _passing = pass_program(&bed.pair.receiver).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/extcap/wirecap");
    let wrapper =
        fs::read_to_string(source).unwrap().replace("exec wirecap", &format!("exec {WIRECAP}"));
    write_program(&folder.path().join("wirecap"), &wrapper);
    // Wireshark as root uses no other directory, so this one is mounted over it, for this command
    // only.
    let command = |rest: &str| {
        let mut command = Command::new("unshare");
        let mount = "mount --bind \"$1\" \"$(tshark -G folders 2>/dev/null | sed -n 's/^Extcap path:[[:space:]]*//p')\"";
        let script = format!("{mount} && exec tshark {rest}");
        command
            .args(["--mount", "sh", "-c", &script, "tshark"])
            .arg(folder.path())
            .env("HOME", folder.path());
        command
    };
    let list = bed.run(&mut command("-D"));
    let text = String::from_utf8_lossy(&list.stdout).into_owned() + &list.stderr;
    assert!(text.contains("wirecap-a1 (wirecap: a1"), "{text}");
    let file = folder.path().join("packets.pcapng");
    let mut running =
        bed.start(&mut command(&format!("-i wirecap-a1 -c 40 -w {}", file.display())));
    running.wait_for("Capturing on");
    wait_until("tshark has its packets", || {
        bed.generator().send(&[Load::new(0, 10)]).unwrap();
        file.exists() && fs::metadata(&file).unwrap().len() > 40 * 60
    });
    let finished = running.finish();
    finished.assert_success();
    assert_eq!(tshark(&file, &["frame.number"]).len(), 40, "{}", finished.stderr);
}
