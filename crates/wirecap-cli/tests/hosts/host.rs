//! A host that uses an interface, the client that asks it, and what they are built with.

use std::any::Any;
use std::env;
use std::fs;
use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

use wirecap_testbed::{Interface, Namespace, VethPair, wait_until};

/// What this machine lacks to build a host.
#[derive(Debug)]
pub(crate) struct Lacking(pub(crate) String);

pub(crate) type Built = Result<Host, Lacking>;

/// How a host's use of the interface shows on a port that the operator has marked as dedicated to
/// capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// The host uses it already, visibly: the mark is wrong, and `auto` selects `packet`.
    Visible,
    /// The host begins to use it during the capture: `auto` selects `xdp` first, then returns the
    /// interface to the host.
    Later,
    /// Nothing in the interface's namespace shows it. The mark is what `auto` has: it selects
    /// `xdp`, and warns.
    Hidden,
}

/// A host that a client reaches through an interface.
pub(crate) struct Host {
    /// Where the requests come from.
    pub(crate) client: Namespace,
    /// Where they are answered.
    pub(crate) server: Namespace,
    /// The address that they are sent to.
    pub(crate) address: IpAddr,
    /// Where packets are captured: the host itself, or a host that forwards to the server.
    pub(crate) namespace: Namespace,
    /// The interface on which packets are captured.
    pub(crate) interface: &'static str,
    /// How many times an exchange of a request and its answer passes the interface.
    pub(crate) passes: usize,
    /// The interface whose frames arrive there. None if it has no Ethernet frames.
    pub(crate) far: Option<Interface>,
    /// How a capture on a marked port finds out that the host uses it.
    pub(crate) usage: Use,
    /// What gives the host its address, if it has none at the beginning.
    pub(crate) arrival: Option<Box<dyn FnOnce()>>,
    /// What ends with the host.
    pub(crate) held: Vec<Box<dyn Any>>,
}

impl Host {
    /// A client at 10.9.0.1 that is connected by a cable to `port` of a machine without an address.
    pub(crate) fn behind(cable: &VethPair) -> Self {
        let client = cable.sender.namespace.clone();
        let namespace = cable.receiver.namespace.clone();
        run(&client, &format!("ip address add 10.9.0.1/24 dev {}", cable.sender.name));
        Self {
            client,
            server: namespace.clone(),
            address: [10, 9, 0, 2].into(),
            namespace,
            interface: "port",
            passes: 2,
            far: Some(cable.sender.clone()),
            usage: Use::Visible,
            arrival: None,
            held: Vec::new(),
        }
    }
}

impl Host {
    /// Keeps this until the host ends.
    pub(crate) fn holding(mut self, what: impl Any) -> Self {
        self.held.push(Box::new(what));
        self
    }
}

/// A new client and machine, and the cable between them: `far` to `port`.
pub(crate) fn cable() -> VethPair {
    let client = Namespace::new().unwrap();
    let machine = Namespace::new().unwrap();
    if let Ok(kind) = env::var("WIRECAP_HOSTS_NICS") {
        let [sender, receiver] = [(&client, "0", "far"), (&machine, "1", "port")]
            .map(|(namespace, end, name)| take_nic(&format!("{kind}{end}"), namespace, name));
        [&sender, &receiver].into_iter().for_each(|end| end.wait_until_running().unwrap());
        return VethPair { sender, receiver };
    }
    VethPair::new((&client, "far"), (&machine, "port"), 1, 1500).unwrap()
}

/// Moves a NIC of the virtual machine to the namespace. The kernel moves it back when the namespace
/// ends, where another name still finds it.
fn take_nic(nic: &str, namespace: &Namespace, name: &str) -> Interface {
    let here = Namespace::current().unwrap();
    let lasting = format!("nic-{nic}");
    let _has_it_already =
        try_run(&here, &format!("ip link property add dev {nic} altname {lasting}"));
    wait_until(&format!("{nic} is back"), || {
        try_run(&here, &format!("ip link set {lasting} down")).is_ok()
    });
    run(&here, &format!("ip link set {lasting} netns {} name {name}", path(namespace)));
    run(namespace, &format!("ip link set {name} up"));
    Interface::find(namespace, name).unwrap()
}

/// A container of the machine: a namespace whose `eth0` is connected by a cable to `name`.
pub(crate) fn container(machine: &Namespace, name: &str) -> VethPair {
    VethPair::new((&Namespace::new().unwrap(), "eth0"), (machine, name), 1, 1500).unwrap()
}

/// Runs a command in the namespace; its arguments are separated by blanks.
#[track_caller]
pub(crate) fn run(namespace: &Namespace, line: &str) {
    if let Err(message) = try_run(namespace, line) {
        panic!("`{line}` failed: {message}");
    }
}

/// As [`run`], for a command that fails if this kernel or this machine lacks something.
#[track_caller]
pub(crate) fn run_if_possible(namespace: &Namespace, line: &str) -> Result<(), Lacking> {
    outcome(line, try_run(namespace, line))
}

#[track_caller]
fn outcome(line: &str, outcome: Result<(), String>) -> Result<(), Lacking> {
    let words = ["Unknown device type", "not supported", "not found", "No such file", "Garbage"];
    match outcome {
        Err(message) if words.iter().any(|word| message.contains(word)) => {
            let command = line.split('\'').next().unwrap_or(line);
            Err(Lacking(format!("`{command}`: {}", message.lines().next().unwrap_or_default())))
        }
        Err(message) => panic!("`{line}` failed: {message}"),
        Ok(()) => Ok(()),
    }
}

/// As [`run_if_possible`], for a command of the shell.
#[track_caller]
pub(crate) fn script(namespace: &Namespace, line: &str) -> Result<(), Lacking> {
    outcome(line, output_of(namespace, Command::new("sh").args(["-c", line])))
}

fn try_run(namespace: &Namespace, line: &str) -> Result<(), String> {
    let mut words = line.split_whitespace();
    output_of(namespace, Command::new(words.next().unwrap()).args(words))
}

/// The error is the command's message.
fn output_of(namespace: &Namespace, command: &mut Command) -> Result<(), String> {
    let output = namespace.run_in(|| command.output()).unwrap();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Whether this program runs in the virtual machine, whose kernel can build all hosts, and whose
/// processors are emulated.
pub(crate) fn is_whole_kernel() -> bool {
    env::var_os("WIRECAP_WHOLE_KERNEL").is_some_and(|value| value == "1")
}

/// A time limit, ten times as long in the virtual machine.
pub(crate) fn patience(seconds: u64) -> Duration {
    Duration::from_secs(if is_whole_kernel() { 10 * seconds } else { seconds })
}

/// Writes a setting of the namespace: `net/ipv4/ip_forward`.
#[track_caller]
pub(crate) fn sysctl(namespace: &Namespace, name: &str, value: &str) {
    let path = format!("/proc/sys/{name}");
    namespace
        .run_in(|| fs::write(&path, value))
        .unwrap()
        .unwrap_or_else(|error| panic!("{path}: {error}"));
}

/// The namespace's path, as the command `ip` takes it: `ip link set DEV netns PATH`.
pub(crate) fn path(namespace: &Namespace) -> String {
    namespace.path().display().to_string()
}
