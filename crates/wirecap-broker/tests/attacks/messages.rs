//! What arrives over the socket, and from which process.

use std::fs;
use std::io::{BufRead, BufReader, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Signal, kill_process};
use wirecap_broker::{Ask, HookAsk, Reply, raw};
use wirecap_testbed::{Namespace, wait_until};

use crate::ROLE;
use crate::bed::{Attacker, Bed, CAPTURED, ended, plan, start_broker, terms, terms_with};
use crate::neighbours;

/// A request with its length.
fn message(ask: &Ask) -> Vec<u8> {
    let bytes = raw::to_bytes(ask);
    [&(bytes.len() as u32).to_ne_bytes()[..], &bytes].concat()
}

pub(crate) fn a_message_of_another_process_ends_the_service() {
    let bed = Bed::new();
    let bytes = message(&Ask::Promiscuous { ifindex: bed.index() });
    // All of it, or only the end of a request of the client.
    for from in [0, 4, bytes.len() - 1] {
        let mut attacker = Attacker::new(&bed, &terms(None));
        (&attacker.socket).write_all(&bytes[..from]).unwrap();
        let octal: String = bytes[from..].iter().map(|byte| format!("\\{byte:03o}")).collect();
        let socket = attacker.socket.try_clone().unwrap();
        let mut other = Command::new("sh");
        other.args(["-c", r#"printf "$0""#, &octal]).stdout(OwnedFd::from(socket));
        assert!(other.status().unwrap().success());
        let status = ended(&mut attacker.broker);
        assert_eq!(status.code(), Some(1), "from byte {from}");
        assert!(!matches!(raw::receive(&attacker.socket), Ok(Some(_))), "an answer");
        assert_eq!(bed.promiscuity(CAPTURED), 0);
    }
}

fn descriptors(attacker: &Attacker) -> usize {
    fs::read_dir(format!("/proc/{}/fd", attacker.broker.id())).unwrap().count()
}

pub(crate) fn descriptors_that_are_sent_along_are_discarded() {
    let bed = Bed::new();
    let attacker = Attacker::new(&bed, &terms(None));
    // After an answer, the broker reads no files of its own.
    attacker.is_refused(&Ask::Release { object: 7 });
    let before = descriptors(&attacker);
    let file = fs::File::open("/dev/null").unwrap();
    for _ in 0..50 {
        let files = [file.as_fd(), file.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&files)));
        let bytes = message(&Ask::Release { object: 7 });
        let sent =
            sendmsg(&attacker.socket, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::empty());
        assert_eq!(sent.unwrap(), bytes.len());
        let reply = raw::receive(&attacker.socket).unwrap().unwrap().0;
        assert!(matches!(reply, Reply::Refused(_)), "{reply:?}");
    }
    assert_eq!(descriptors(&attacker), before);
    attacker.end();
}

pub(crate) fn a_message_that_breaks_off_or_is_too_long_ends_the_service() {
    let bed = Bed::new();
    let beginning = &message(&Ask::Promiscuous { ifindex: bed.index() })[..5];
    for bytes in [
        &beginning[..1],
        beginning,
        &u32::MAX.to_ne_bytes(),
        &(raw::BYTES_MAX as u32 + 1).to_ne_bytes(),
    ] {
        let mut attacker = Attacker::new(&bed, &terms(None));
        (&attacker.socket).write_all(bytes).unwrap();
        attacker.socket.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(ended(&mut attacker.broker).code(), Some(1), "{bytes:?}");
        assert_eq!(bed.promiscuity(CAPTURED), 0);
    }
}

pub(crate) fn names_and_paths_of_a_mebibyte_are_refused() {
    let bed = Bed::new();
    let attacker =
        Attacker::new(&bed, &terms_with(&["true"], Path::new("/nonexistent/recordings")));
    let device = bed.device(CAPTURED);
    let (hook, _) = attacker.open(&plan(&device, &[0]));
    let mut long = device.clone();
    long.name = "x".repeat(1_000_000);
    let turn = attacker.turn(&device);
    let refused = |ask: Ask| {
        let reply = attacker.ask(&ask).0;
        assert!(matches!(reply, Reply::Refused(_)));
    };
    refused(Ask::AttachLock(long.clone()));
    refused(Ask::OpenHook { plan: Box::new(plan(&long, &[1])), turn });
    refused(Ask::Hook { hook, ask: HookAsk::MoveTo(long) });
    // The text of the refusal would be longer than the path.
    refused(Ask::Run { path: vec![0xff; 1_000_000] });
    refused(Ask::Run {
        path: [Path::new("/").as_os_str().as_bytes(), &[b'a'; 1_000_000]].concat(),
    });
    let keys = (0..200_000).collect();
    assert!(matches!(attacker.hook(hook, HookAsk::CloseQueue { queue: 9, keys }), Reply::Done));
    attacker.end();
}

pub(crate) fn bytes_that_are_no_request_are_refused() {
    let bed = Bed::new();
    let attacker = Attacker::new(&bed, &terms(None));
    // Lengths of sequences that the message does not contain.
    let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
    let run = raw::to_bytes(&Ask::Run { path: Vec::new() });
    let mut close =
        raw::to_bytes(&Ask::Hook { hook: 1, ask: HookAsk::CloseQueue { queue: 0, keys: vec![] } });
    close.pop();
    let messages: [Vec<u8>; 6] = [
        vec![],
        vec![14],
        vec![0xff; 1000],
        vec![0; 100_000],
        [&run[..1], &huge].concat(),
        [&close[..], &huge].concat(),
    ];
    for bytes in messages {
        let (reply, descriptor) = attacker.exchange(&bytes);
        assert!(matches!(reply, Reply::Refused(_)) && descriptor.is_none(), "{reply:?}");
    }
    attacker.end();
}

/// A client that is killed while another process has its socket: the broker ends nevertheless.
pub(crate) fn the_broker_ends_with_its_client_and_not_with_its_socket() {
    for how in ["idle", "broken", "unread"] {
        let bed = Bed::new();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(ROLE, how).stdout(Stdio::piped());
        let mut client = bed.in_here(|| command.spawn()).unwrap();
        let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
        let mut number = || lines.next().unwrap().unwrap().parse::<i32>().unwrap();
        let broker = number();
        let holder = number();
        assert_eq!(bed.promiscuity(CAPTURED), 1, "{how}");
        client.kill().unwrap();
        client.wait().unwrap();
        let is_over = || {
            let state = fs::read_to_string(format!("/proc/{broker}/stat")).unwrap_or_default();
            bed.promiscuity(CAPTURED) == 0 && (state.is_empty() || state.contains(") Z "))
        };
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while !is_over() && std::time::Instant::now() < deadline {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let is_over = is_over();
        kill_process(Pid::from_raw(holder).unwrap(), Signal::KILL).unwrap();
        wait_until("the broker has ended", || bed.promiscuity(CAPTURED) == 0);
        assert!(is_over, "{how}: the broker outlives its client");
    }
}

/// The processes that this program is besides the broker.
pub(crate) fn be_killed(how: &str) {
    if let Some(ifindex) = how.strip_prefix("user:") {
        return neighbours::be_another_user(ifindex);
    }
    let (socket, broker) = start_broker(&Namespace::current().unwrap());
    let attacker = Attacker { socket, broker };
    attacker.exchange(&raw::greeting(&terms(None)));
    let interfaces = nix::net::if_::if_nametoindex(CAPTURED).unwrap();
    attacker.object(&Ask::Promiscuous { ifindex: interfaces });
    let held = attacker.socket.try_clone().unwrap();
    #[expect(clippy::zombie_processes, reason = "the test kills it after this process")]
    let holder = Command::new("sleep")
        .arg("60")
        .stdin(OwnedFd::from(held))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    match how {
        "broken" => (&attacker.socket).write_all(&message(&Ask::PacketSocket)[..2]).unwrap(),
        "unread" => {
            // Until the socket has no room for answers, nor for requests.
            attacker.socket.set_write_timeout(Some(std::time::Duration::from_secs(1))).unwrap();
            while (&attacker.socket).write_all(&message(&Ask::Release { object: 1000 })).is_ok() {}
        }
        _ => {}
    }
    println!("{}\n{}", attacker.broker.id(), holder.id());
    std::io::stdout().flush().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(60));
}

/// Requests of the protocol before this one, which carried eBPF, numbers of the kernel's objects,
/// and names to listen at.
pub(crate) fn the_previous_requests_no_longer_exist() {
    let bed = Bed::new();
    let attacker = Attacker::new(&bed, &terms(None));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/attacks/previous");
    let mut tried = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let (reply, descriptor) = attacker.exchange(&fs::read(&path).unwrap());
        let name = path.file_name().unwrap().to_owned();
        assert!(matches!(reply, Reply::Refused(_)) && descriptor.is_none(), "{name:?}: {reply:?}");
        tried += 1;
    }
    assert!(tried >= 8, "{tried} requests");
    bed.assert_other_untouched();
    attacker.end();
    // A client of another version gets no further than its terms.
    let mut other = raw::greeting(&terms(None));
    other[0] += 1;
    for greeting in [raw::to_bytes(&terms(None)), other] {
        let (socket, mut broker) = start_broker(&bed.here);
        raw::send(&socket, &greeting).unwrap();
        assert!(matches!(raw::receive(&socket), Ok(Some((Reply::Refused(_), None)))));
        assert!(ended(&mut broker).success());
    }
}
