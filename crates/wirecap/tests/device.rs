//! What the kernel says about interfaces, asked in network namespaces that each test makes for itself.

use std::process::Command;

use wirecap::device::{Device, DeviceError, Presence};

/// Runs `body` in a new network namespace, which is gone when it returns.
fn in_new_namespace(body: impl FnOnce() + Send) {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("WIRECAP_NO_SKIP").is_none(), "this test needs root");
        eprintln!("SKIP: needs root to make a network namespace");
        return;
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            enter_new_namespace();
            body();
        });
    });
}

#[allow(unsafe_code)]
fn enter_new_namespace() {
    // SAFETY: NEWNET replaces this thread's network namespace and neither its memory nor its descriptors.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.expect("a new namespace");
}

/// Runs `ip` with these words, in the thread's namespace.
fn ip(words: &str) {
    run("ip", words);
}

fn run(program: &str, words: &str) {
    let output = Command::new(program).args(words.split_whitespace()).output().expect(program);
    assert!(output.status.success(), "{program} {words}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A pair `a0`, `a1` with as many queues as asked for, both up, without any address.
fn make_pair(queues: u32) {
    let ends = format!("numtxqueues {queues} numrxqueues {queues}");
    ip(&format!("link add a0 {ends} type veth peer name a1 {ends}"));
    for end in ["a0", "a1"] {
        ip(&format!("link set {end} addrgenmode none"));
        ip(&format!("link set {end} up"));
    }
}

#[test]
fn a_veth_is_described_as_it_was_made() {
    in_new_namespace(|| {
        make_pair(3);
        ip("link set a1 mtu 1400 address 02:00:00:00:00:07");
        let device = Device::find("a1").unwrap();
        println!("{device:?} {:?}", device.counters());
        assert_eq!(device.name, "a1");
        assert_eq!(device.mac, Some([2, 0, 0, 0, 0, 7]));
        assert_eq!(device.mtu, 1400);
        assert_eq!((device.rx_queues, device.tx_queues), (3, 3));
        assert_eq!(device.driver.as_deref(), Some("veth"));
        assert_eq!(device.kind.as_deref(), Some("veth"));
        assert_eq!(device.link_type, 1);
        assert!(device.up && device.running);
    });
}

#[test]
fn a_missing_interface_is_named_with_those_that_exist() {
    in_new_namespace(|| {
        make_pair(1);
        match Device::find("a2") {
            Err(DeviceError::NoSuchDevice { name, existing }) => {
                assert_eq!(name, "a2");
                for name in ["lo", "a0", "a1"] {
                    assert!(existing.iter().any(|found| found == name), "{name} is not in {existing:?}");
                }
            }
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn presence_follows_the_interface_and_not_its_name() {
    in_new_namespace(|| {
        make_pair(1);
        let device = Device::find("a1").unwrap();
        assert_eq!(device.presence().unwrap(), Presence::Up);
        ip("link set a1 down");
        assert_eq!(device.presence().unwrap(), Presence::Down);
        assert!(device.exists().unwrap());
        ip("link set a1 name b1");
        assert_eq!(device.presence().unwrap(), Presence::Renamed("b1".into()));
        ip("link del a0");
        make_pair(1);
        assert_eq!(device.presence().unwrap(), Presence::Gone);
        assert!(!device.exists().unwrap());
    });
}
