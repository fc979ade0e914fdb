//! The broker: reads requests, checks them against the terms, and carries them out.
//!
//! To share an interface with the capture of another process, the broker itself finds the attached
//! program: the interface shows its ID, exactly one link must hold it, root or the broker's user
//! must have loaded it, its array of programs must have the right shape, and a dispatcher must have
//! the tag of the broker's own. After the link got another program, the interface must show that
//! one, or the link gets the previous program back; an interface with the same index in another
//! network namespace may have a link that looks the same.
//!
//! The limit on the size of files (`ulimit -f`) is meant for files on disks, so it is raised while
//! a pool's file gets its length, and restored, because commands for complete files inherit it. If
//! it cannot be raised (above the hard limit only with CAP_SYS_RESOURCE), opening fails with that
//! reason; a process with privileges uses memory without a file instead.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use rustix::process::geteuid;
use wirecap::privileged::{self, AttachLock, Hook, HookPlan, LocalHook, OpenedHook, SocketRef};

use crate::capabilities;
use crate::channel::Capture;
use crate::message::{
    Ask, BYTES_MAX, Greeting, HookAsk, Reply, Terms, VERSION, decode, encode, path_of,
};
use crate::sockets::Sockets;
use crate::sys::register_umem;
use crate::terms::{Bounds, KEYS_MAX, Refusal};

/// Maximum number of objects that a capture has at a time.
const OBJECTS_MAX: usize = 1 << 14;
/// Maximum number of commands that run at a time.
const COMMANDS_MAX: usize = 1 << 10;

/// Serves requests that arrive over `socket`, until the process that made it ends.
///
/// # Errors
///
/// If the socket fails, another process sends on it, or the first message is not valid terms.
pub fn serve(socket: impl Into<OwnedFd>) -> io::Result<()> {
    let socket = UnixStream::from(socket.into());
    let capture = Capture::behind(socket)?;
    let Some(bytes) = capture.receive()? else { return Ok(()) };
    let greeting = decode::<Greeting>(&bytes);
    let terms = match greeting {
        Ok(Greeting { version: VERSION, terms }) => terms,
        _ => {
            let why = "the privileged process is of another version".to_owned();
            return capture.reply(&encode(&Reply::Refused(why))?, None);
        }
    };
    let sockets = Sockets::of(&terms.sockets);

    capabilities::keep_few()?;
    capture.reply(&encode(&Reply::Done)?, None)?;

    let mut server = Server::new(terms);
    let served = serve_requests(&capture, &mut server);
    server.end();
    capabilities::with_files(|| sockets.remove_dead())?;

    served
}

fn serve_requests(capture: &Capture, server: &mut Server) -> io::Result<()> {
    while let Some(bytes) = capture.receive()? {
        let (reply, descriptor) = server.answer(&bytes);
        let mut reply = encode(&reply)?;
        if reply.len() > BYTES_MAX {
            // Such as the log of the kernel's verifier.
            reply = encode(&Reply::Refused("the answer is too long".to_owned()))?;
        }
        capture.reply(&reply, descriptor.as_ref().map(AsFd::as_fd))?;
    }
    Ok(())
}

/// An object that the broker made for the capture.
#[derive(Debug)]
enum Object {
    XdpSocket {
        socket: OwnedFd,
        /// The interface to which it is bound.
        ifindex: Option<u32>,
    },
    PacketSocket(OwnedFd),
    File {
        file: OwnedFd,
        bytes: u64,
    },
    Promiscuous(OwnedFd),
    AttachLock {
        turn: AttachLock,
        ifindex: u32,
    },
    Hook {
        hook: Arc<dyn Hook>,
        ifindex: u32,
        /// The number of keys of its map of sockets.
        keys: u32,
        /// The queues that it captures, or would if the interface had them.
        queues: BTreeSet<u32>,
        /// It also captures all others.
        whole: bool,
    },
}

#[derive(Debug)]
pub(crate) struct Server {
    terms: Terms,
    bounds: Bounds,
    objects: BTreeMap<u32, Object>,
    next: u32,
    /// Maximum bytes of all files.
    bytes_max: u64,
    /// Commands that are still running.
    running: Vec<Child>,
}

/// What a request fails with.
enum Failure {
    Refused(Refusal),
    Failed(Box<Reply>),
}

impl From<Refusal> for Failure {
    fn from(why: Refusal) -> Self {
        Self::Refused(why)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Failed(Box::new(Reply::Failed(error)))
    }
}

impl From<wirecap::bpf::BpfError> for Failure {
    fn from(error: wirecap::bpf::BpfError) -> Self {
        Self::Failed(Box::new(Reply::Bpf(error)))
    }
}

impl From<wirecap::OpenError> for Failure {
    fn from(error: wirecap::OpenError) -> Self {
        Self::Failed(Box::new(Reply::Fault(error.into())))
    }
}

type Answer = Result<(Reply, Option<OwnedFd>), Failure>;

fn refuse<T>(why: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::Refused(why.into()))
}

/// A reply without a descriptor.
fn only(reply: Reply) -> Answer {
    Ok((reply, None))
}

impl Server {
    pub(crate) fn new(terms: Terms) -> Self {
        Self {
            bounds: Bounds::of(&terms),
            terms,
            objects: BTreeMap::new(),
            next: 1,
            bytes_max: memory_total(),
            running: Vec::new(),
        }
    }

    fn answer(&mut self, bytes: &[u8]) -> (Reply, Option<OwnedFd>) {
        let ask = decode::<Ask>(bytes)
            .map_err(|error| Failure::Refused(format!("an unknown request: {error}")));
        match ask.and_then(|ask| self.perform(ask)) {
            Ok(answer) => answer,
            Err(Failure::Refused(why)) => (Reply::Refused(why), None),
            Err(Failure::Failed(reply)) => (*reply, None),
        }
    }

    /// Checks a request against the terms and carries it out.
    fn perform(&mut self, ask: Ask) -> Answer {
        self.bounds.check(&ask)?;
        match ask {
            Ask::Netlink(inquiry) => {
                Ok((Reply::Descriptor, Some(privileged::open_netlink_socket(inquiry)?)))
            }
            Ask::PoolFile { bytes } => self.pool_file(bytes),
            Ask::XdpSocket => {
                self.check_room()?;
                let socket = privileged::open_xdp_socket()?;
                self.share(socket, |socket| Object::XdpSocket { socket, ifindex: None })
            }
            Ask::RegisterUmem { socket, file, bytes, cell_bytes } => {
                let Object::File { file, bytes: most } = self.object(file)? else {
                    return refuse("another object as a file");
                };
                #[cfg(sabotage)]
                let most = if crate::sabotage::is("broker-umem-beyond-its-file") {
                    &u64::MAX
                } else {
                    most
                };
                if bytes > *most {
                    return refuse(format!("{bytes} bytes of a file of {most}"));
                }

                register_umem(self.xdp_socket(socket)?, file, bytes, cell_bytes)?;
                only(Reply::Done)
            }
            Ask::BindXdp { socket, ifindex, queue, mode } => {
                privileged::bind_xdp_socket(&self.xdp_socket(socket)?, ifindex, queue, mode)?;
                self.note_bound(socket, ifindex)
            }
            Ask::BindXdpBeside { socket, first, ifindex, queue } => {
                let own = self.xdp_socket(socket)?;
                let first = self.xdp_socket(first)?;
                privileged::bind_xdp_socket_beside(&own, &first, ifindex, queue)?;
                self.note_bound(socket, ifindex)
            }
            Ask::PacketSocket => {
                self.check_room()?;
                let socket = privileged::open_packet_socket()?;
                self.share(socket, Object::PacketSocket)
            }
            Ask::BindPacket { socket, ifindex } => {
                let Object::PacketSocket(socket) = self.object(socket)? else {
                    return refuse("another object as a packet socket");
                };
                privileged::bind_packet_socket(socket, ifindex)?;
                only(Reply::Done)
            }
            Ask::Promiscuous { ifindex } => {
                self.check_room()?;
                let socket = privileged::join_promiscuous(ifindex)?;
                only(Reply::Object(self.add(Object::Promiscuous(socket))))
            }
            Ask::GuardedHooks { ifindex } => {
                let name = self.bounds.name(ifindex)?;
                only(Reply::Guarded(privileged::guarded_hooks(ifindex, &name)))
            }
            Ask::PromiscuousAlso { holder, ifindex } => {
                let Object::Promiscuous(socket) = self.object(holder)? else {
                    return refuse("another object as promiscuous mode");
                };
                privileged::join_promiscuous_by(socket, ifindex)?;
                only(Reply::Done)
            }
            Ask::AttachLock(device) => {
                self.check_room()?;
                let turn = privileged::own_turn(&device)?;
                only(Reply::Object(self.add(Object::AttachLock { turn, ifindex: device.index })))
            }
            Ask::OpenHook { plan, turn } => self.open_hook(*plan, turn),
            Ask::Hook { hook, ask } => self.hook(hook, ask),
            Ask::Release { object } => match self.objects.remove(&object) {
                Some(_) => only(Reply::Done),
                None => refuse(unknown(object)),
            },
            Ask::Run { path } => {
                self.run(path_of(&path))?;
                only(Reply::Done)
            }
        }
    }

    fn pool_file(&mut self, bytes: u64) -> Answer {
        self.check_room()?;
        let used: u64 = self.objects.values().map(Object::bytes).sum();
        #[cfg(sabotage)]
        let used = if crate::sabotage::is("broker-memory-unbounded") { 0 } else { used };

        if used.saturating_add(bytes) > self.bytes_max {
            return refuse(format!(
                "{bytes} bytes of memory beside {used}, more than {}",
                self.bytes_max
            ));
        }

        let length =
            usize::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let (file, pages) = privileged::pool_file(length)?;
        let number = self.add(Object::File { file: file.try_clone()?, bytes });

        Ok((Reply::File(number, pages), Some(file)))
    }

    fn open_hook(&mut self, mut plan: HookPlan, turn: u32) -> Answer {
        // The program depends on the number of queues: one that may have all of them does not check
        // whose packet it gets.
        #[cfg(sabotage)]
        let told = plan.device.clone();
        plan.device = self.bounds.device(plan.device.index)?;

        #[cfg(sabotage)]
        if crate::sabotage::is("broker-believes-the-capture") {
            plan.device = told;
        }

        self.bounds.check_plan(&plan)?;
        self.turn(turn, plan.device.index)?;
        self.check_room()?;

        let used = self.objects.values().map(Object::keys).fold(0, u32::saturating_add);
        let keys = plan.steering.keys(plan.device.rx_queues.max(plan.device.rx_queues_max));
        if used.saturating_add(keys) > KEYS_MAX {
            return refuse(format!("{keys} rings beside {used}, more than {KEYS_MAX}"));
        }

        let OpenedHook { hook, state, stamp_failed } = LocalHook::open(&plan)?;
        let number = self.add(Object::Hook {
            hook,
            ifindex: plan.device.index,
            keys: plan.steering.keys(state.queues_max),
            queues: plan.steering.queues().iter().copied().collect(),
            whole: plan.whole,
        });
        Ok((Reply::Hook(number, state), stamp_failed))
    }

    /// Changes or queries a hook.
    fn hook(&mut self, number: u32, ask: HookAsk) -> Answer {
        let Object::Hook { hook, ifindex, keys, .. } = self.object(number)? else {
            return refuse("another object as a program");
        };
        let hook = Arc::clone(hook);
        let ifindex = *ifindex;
        let keys = *keys;

        let reply = match ask {
            HookAsk::Receive { key, socket } => {
                let Object::XdpSocket { socket, ifindex: bound } = self.object(socket)? else {
                    return refuse("another object as an AF_XDP socket");
                };
                #[cfg(sabotage)]
                let (keys, bound) = if crate::sabotage::is("broker-any-socket-in-a-map") {
                    (u32::MAX, &Some(ifindex))
                } else {
                    (keys, bound)
                };
                if key >= keys || *bound != Some(ifindex) {
                    return refuse(format!(
                        "a socket with key {key}, or bound to another interface"
                    ));
                }

                hook.receive(key, SocketRef { descriptor: socket.as_fd(), handle: None })?;
                Reply::Done
            }
            HookAsk::Prepare(filter) => Reply::Filters(hook.prepare(filter.as_ref())?),
            HookAsk::Exchange { turn } => {
                hook.exchange(self.turn(turn, ifindex)?)?;
                Reply::Done
            }
            HookAsk::KeepUnfiltered => {
                hook.keep_unfiltered()?;
                Reply::Done
            }
            HookAsk::PrepareToPass => {
                self.check_room()?;
                let turn = hook.prepare_to_pass()?;
                Reply::Object(self.add(Object::AttachLock { turn, ifindex }))
            }
            HookAsk::IsInPlace => Reply::Is(hook.is_in_place()),
            HookAsk::AttachAgain => {
                hook.attach_again()?;
                Reply::Done
            }
            HookAsk::AttachAnew => {
                hook.attach_anew()?;
                Reply::Done
            }
            HookAsk::RunOnNewQueues => {
                hook.run_on_new_queues()?;
                Reply::Done
            }
            HookAsk::ClaimQueue { queue } => {
                self.bounds.check_queue(ifindex, queue)?;
                hook.claim_queue(queue)?;
                Reply::Done
            }
            HookAsk::AddQueue { queue } => {
                self.bounds.check_queue(ifindex, queue)?;
                hook.add_queue(queue)?;
                if let Some(Object::Hook { queues, .. }) = self.objects.get_mut(&number) {
                    queues.insert(queue);
                }
                Reply::Done
            }
            HookAsk::CloseQueue { queue, keys } => {
                hook.close_queue(queue, &keys);
                Reply::Done
            }
            HookAsk::MoveTo(device) => {
                let device = self.bounds.device(device.index)?;
                let Some(Object::Hook { queues, whole, .. }) = self.objects.get(&number) else {
                    return refuse(unknown(number));
                };
                self.bounds.check_queues(device.index, queues.iter().copied(), *whole)?;

                let state = hook.move_to(&device)?;
                if let Some(Object::Hook { ifindex, .. }) = self.objects.get_mut(&number) {
                    *ifindex = device.index;
                }

                Reply::State(state)
            }
            HookAsk::Unseated => Reply::Count(hook.unseated()),
            HookAsk::Own => Reply::Count(hook.own()),
            HookAsk::Filtered { queue } => Reply::Count(hook.filtered(queue)),
            HookAsk::Leave => {
                hook.leave();
                Reply::Done
            }
        };
        only(reply)
    }

    fn object(&self, number: u32) -> Result<&Object, Failure> {
        self.objects.get(&number).ok_or_else(|| Failure::Refused(unknown(number)))
    }

    fn xdp_socket(&self, number: u32) -> Result<BorrowedFd<'_>, Failure> {
        match self.object(number)? {
            Object::XdpSocket { socket, .. } => Ok(socket.as_fd()),
            _ => refuse("another object as an AF_XDP socket"),
        }
    }

    /// The right to change the program of this interface.
    fn turn(&self, number: u32, ifindex: u32) -> Result<&AttachLock, Failure> {
        match self.object(number)? {
            #[cfg(sabotage)]
            Object::AttachLock { turn, .. } if crate::sabotage::is("broker-any-right") => Ok(turn),
            Object::AttachLock { turn, ifindex: of } if *of == ifindex => Ok(turn),
            _ => {
                refuse(format!("a change of the program of interface {ifindex} without the right"))
            }
        }
    }

    fn note_bound(&mut self, socket: u32, to: u32) -> Answer {
        if let Some(Object::XdpSocket { ifindex, .. }) = self.objects.get_mut(&socket) {
            *ifindex = Some(to);
        }
        only(Reply::Done)
    }

    fn check_room(&self) -> Result<(), Refusal> {
        #[cfg(sabotage)]
        if crate::sabotage::is("broker-objects-unbounded") {
            return Ok(());
        }
        match self.objects.len() < OBJECTS_MAX {
            true => Ok(()),
            false => Err(format!("more than {OBJECTS_MAX} objects")),
        }
    }

    fn add(&mut self, object: Object) -> u32 {
        // After many requests the numbers begin again.
        while self.next == 0 || self.objects.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        self.objects.insert(number, object);
        number
    }

    /// Keeps a copy of a descriptor as an object.
    fn share(&mut self, descriptor: OwnedFd, object: impl FnOnce(OwnedFd) -> Object) -> Answer {
        let copy = descriptor.try_clone()?;
        Ok((Reply::Object(self.add(object(copy))), Some(descriptor)))
    }

    /// Runs the command as the user of the recording, without waiting for its end.
    fn run(&mut self, path: &Path) -> Result<(), Failure> {
        self.running.retain_mut(|child| child.try_wait().is_ok_and(|status| status.is_none()));
        if self.running.len() >= COMMANDS_MAX {
            return refuse(format!("more than {COMMANDS_MAX} commands at a time"));
        }

        let command = self.terms.command.as_deref().and_then(<[String]>::split_first);
        let Some((program, arguments)) = command else { return refuse("an empty command") };
        let mut command = Command::new(program);
        command.args(arguments).arg(path).stdin(Stdio::null());

        let user = &self.terms.user;

        // `uid` drops root's other groups as well.
        #[cfg(sabotage)]
        if crate::sabotage::is("broker-command-as-root") {
            self.running.push(command.spawn()?);
            return Ok(());
        }

        if geteuid().is_root() {
            command.uid(user.uid).gid(user.gid);
        }

        self.running.push(command.spawn()?);
        Ok(())
    }

    /// Lets everything go, and waits for the commands.
    fn end(mut self) {
        self.objects.clear();
        self.running.iter_mut().for_each(|child| drop(child.wait()));
    }
}

/// The request in these bytes, if it is within the terms, as far as that does not depend on earlier
/// requests.
#[doc(hidden)] // public for tests
#[allow(clippy::missing_errors_doc, reason = "why it is refused")]
pub fn judge(terms: &Terms, bytes: &[u8]) -> Result<Ask, String> {
    let ask = decode(bytes).map_err(|error| error.to_string())?;
    Bounds::of(terms).check(&ask)?;
    Ok(ask)
}

fn unknown(object: u32) -> Refusal {
    format!("object {object}, which does not exist")
}

impl Object {
    /// Its bytes of memory, if it is a file.
    fn bytes(&self) -> u64 {
        match self {
            Self::File { bytes, .. } => *bytes,
            _ => 0,
        }
    }

    /// The number of keys of its map of sockets, if it is a hook.
    fn keys(&self) -> u32 {
        match self {
            Self::Hook { keys, .. } => *keys,
            _ => 0,
        }
    }
}

/// The memory of the machine.
fn memory_total() -> u64 {
    let total = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kibibytes = total.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok());
    kibibytes.unwrap_or(1 << 20) * 1024
}
