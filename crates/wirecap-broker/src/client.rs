//! The broker as the capturing process sees it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::net::sockopt::set_socket_passcred;
use wirecap::OpenError;
use wirecap::bpf::BpfError;
use wirecap::device::DeviceSummary;
use wirecap::filter::Filter;
use wirecap::privileged::{
    AttachLock, BindMode, GuardedHooks, Handle, Hook, HookPlan, HookState, Hooks, Inquiry,
    OpenedHook, Opener, Pages, Privilege, SocketRef, Where,
};

use crate::channel::{receive_reply, send_request};
use crate::message::{
    Ask, FILTER_INSNS_MAX, Greeting, HookAsk, Reply, Terms, VERSION, decode, encode,
};

/// The process that carries out privileged requests. It ends when this value, all its clones, and
/// all that it opened are gone.
#[derive(Debug, Clone)]
pub struct Broker {
    connection: Arc<Connection>,
    privileges: Vec<Privilege>,
}

#[derive(Debug)]
struct Connection {
    /// `None` only while the value is dropped.
    socket: Mutex<Option<UnixStream>>,
    process: Child,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // The broker ends when it reads the end of the requests.
        drop(self.socket.lock().unwrap_or_else(PoisonError::into_inner).take());
        let _ended = self.process.wait();
    }
}

impl Connection {
    /// Sends a message and waits for the answer.
    fn exchange(&self, bytes: &[u8]) -> io::Result<(Reply, Option<OwnedFd>)> {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = || io::Error::other("the privileged process has ended");
        let socket = socket.as_ref().ok_or_else(gone)?;
        let sent = send_request(socket, bytes);
        let answer =
            sent.and_then(|()| receive_reply(socket)).map_err(|error| match error.kind() {
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => gone(),
                _ => error,
            })?;
        let (bytes, descriptor) = answer.ok_or_else(gone)?;
        Ok((decode(&bytes)?, descriptor))
    }

    fn ask(&self, ask: &Ask) -> io::Result<(Reply, Option<OwnedFd>)> {
        match self.exchange(&encode(ask)?)? {
            (Reply::Failed(error), _) => Err(error),
            (Reply::Refused(why), _) => {
                let text = format!("the privileged process rejected the request: {why}");
                Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
            }
            answer => Ok(answer),
        }
    }
}

/// An answer of another kind than the request's.
fn confused<T>() -> io::Result<T> {
    Err(io::Error::new(
        io::ErrorKind::InvalidData,
        "the privileged process gave an unexpected answer",
    ))
}

/// Tells the broker that an object is no longer needed.
#[derive(Debug)]
struct Closing {
    connection: Arc<Connection>,
    object: u32,
}

impl Drop for Closing {
    fn drop(&mut self) {
        let _the_broker_may_have_ended = self.connection.ask(&Ask::Release { object: self.object });
    }
}

impl Broker {
    /// Starts `command`, which must call [`serve`](crate::serve) with its standard input, and sends
    /// it the terms.
    ///
    /// # Errors
    ///
    /// If the command cannot be started or rejects the terms.
    pub fn start(mut command: Command, terms: &Terms) -> io::Result<Self> {
        let (socket, other_end) = UnixStream::pair()?;

        // Before the first message: the kernel adds the sender's credentials when it is sent.
        set_socket_passcred(&other_end, true)?;
        let process = command.stdin(OwnedFd::from(other_end)).spawn()?;

        // The command has the other end as well, which would keep the socket open.
        drop(command);
        let connection = Arc::new(Connection { socket: Mutex::new(Some(socket)), process });
        let mut privileges = vec![Privilege::PacketSockets, Privilege::LockedMemory];
        privileges.retain(|privilege| privilege.is_own());

        let greeting = Greeting { version: VERSION, terms: terms.clone() };
        match connection.exchange(&encode(&greeting)?)? {
            (Reply::Done, _) => Ok(Self { connection, privileges }),
            (Reply::Refused(why), _) => Err(io::Error::other(why)),
            _ => confused(),
        }
    }

    /// Runs the command of the [`Terms`] with `path` after its arguments, and does not wait for its
    /// end.
    ///
    /// # Errors
    ///
    /// If it cannot be started, or the path is not in the directory of the terms.
    pub fn run(&self, path: &Path) -> io::Result<()> {
        let path = path.as_os_str().as_bytes().to_vec();
        self.done(&Ask::Run { path })
    }

    fn done(&self, ask: &Ask) -> io::Result<()> {
        match self.connection.ask(ask)? {
            (Reply::Done, _) => Ok(()),
            _ => confused(),
        }
    }

    fn handle(&self, object: u32) -> Handle {
        let release = Closing { connection: Arc::clone(&self.connection), object };
        Handle { number: object, release: Box::new(release) }
    }

    fn opened(&self, ask: &Ask) -> io::Result<(OwnedFd, Handle)> {
        match self.connection.ask(ask)? {
            (Reply::Object(object), Some(descriptor)) => Ok((descriptor, self.handle(object))),
            _ => confused(),
        }
    }
}

impl Opener for Broker {
    /// The broker has the privileges that this process had when it started the broker.
    fn has(&self, privilege: Privilege) -> bool {
        self.privileges.contains(&privilege)
    }

    fn netlink_socket(&self, inquiry: Inquiry) -> io::Result<OwnedFd> {
        match self.connection.ask(&Ask::Netlink(inquiry))? {
            (Reply::Descriptor, Some(descriptor)) => Ok(descriptor),
            _ => confused(),
        }
    }

    fn pool_file(&self, bytes: u64) -> io::Result<(OwnedFd, Pages, Handle)> {
        match self.connection.ask(&Ask::PoolFile { bytes })? {
            (Reply::File(object, pages), Some(file)) => Ok((file, pages, self.handle(object))),
            _ => confused(),
        }
    }

    fn xdp_socket(&self) -> io::Result<(OwnedFd, Handle)> {
        self.opened(&Ask::XdpSocket)
    }

    fn register_umem(
        &self,
        socket: &Handle,
        file: &Handle,
        bytes: u64,
        cell_bytes: u32,
    ) -> io::Result<()> {
        self.done(&Ask::RegisterUmem {
            socket: socket.number,
            file: file.number,
            bytes,
            cell_bytes,
        })
    }

    fn bind_xdp(
        &self,
        socket: &Handle,
        ifindex: u32,
        queue: u32,
        mode: BindMode,
    ) -> io::Result<()> {
        self.done(&Ask::BindXdp { socket: socket.number, ifindex, queue, mode })
    }

    fn bind_xdp_beside(
        &self,
        socket: &Handle,
        first: &Handle,
        ifindex: u32,
        queue: u32,
    ) -> io::Result<()> {
        self.done(&Ask::BindXdpBeside {
            socket: socket.number,
            first: first.number,
            ifindex,
            queue,
        })
    }

    fn packet_socket(&self) -> io::Result<(OwnedFd, Handle)> {
        self.opened(&Ask::PacketSocket)
    }

    fn bind_packet(&self, socket: &Handle, ifindex: u32) -> io::Result<()> {
        self.done(&Ask::BindPacket { socket: socket.number, ifindex })
    }

    fn promiscuous(&self, ifindex: u32) -> io::Result<Handle> {
        match self.connection.ask(&Ask::Promiscuous { ifindex })? {
            (Reply::Object(object), _) => Ok(self.handle(object)),
            _ => confused(),
        }
    }

    fn guarded_hooks(&self, ifindex: u32) -> io::Result<GuardedHooks> {
        match self.connection.ask(&Ask::GuardedHooks { ifindex })? {
            (Reply::Guarded(hooks), _) => Ok(hooks),
            _ => confused(),
        }
    }

    fn promiscuous_also(&self, holder: &Handle, ifindex: u32) -> io::Result<()> {
        self.done(&Ask::PromiscuousAlso { holder: holder.number, ifindex })
    }
}

/// The error of a request about a hook that did not reach it.
fn unasked(source: io::Error) -> OpenError {
    OpenError::System { action: "ask the privileged process".to_owned(), source }
}

/// The same as an error of bpf(2).
fn unasked_bpf(source: io::Error) -> BpfError {
    BpfError::Failed {
        operation: "ask the".into(),
        object: "privileged process".to_owned(),
        source,
    }
}

impl Broker {
    fn turn_of(
        &self,
        answer: io::Result<(Reply, Option<OwnedFd>)>,
    ) -> Result<AttachLock, OpenError> {
        match answer.map_err(unasked)?.0 {
            Reply::Object(object) => Ok(AttachLock::elsewhere(self.handle(object))),
            Reply::Fault(fault) => Err(fault.into()),
            _ => confused().map_err(unasked),
        }
    }
}

impl Hooks for Broker {
    fn turn(&self, device: &DeviceSummary) -> Result<AttachLock, OpenError> {
        self.turn_of(self.connection.ask(&Ask::AttachLock(device.clone())))
    }

    fn open(&self, plan: &HookPlan, turn: &AttachLock) -> Result<OpenedHook, OpenError> {
        let mut plan = Box::new(plan.clone());
        let too_long = plan.filter.as_ref().and_then(too_long);
        if too_long.is_some() {
            plan.filter = None;
        }

        let turn = turn.number().unwrap_or_default();
        match self.connection.ask(&Ask::OpenHook { plan, turn }).map_err(unasked)? {
            (Reply::Hook(object, mut state), stamp_failed) => {
                if let Some(reason) = too_long {
                    state.filters = Where::UserSpace(reason);
                }

                let hook = RemoteHook {
                    broker: self.clone(),
                    handle: self.handle(object),
                    counts: Mutex::default(),
                };
                Ok(OpenedHook { hook: Arc::new(hook), state, stamp_failed })
            }
            (Reply::Fault(fault), _) => Err(fault.into()),
            _ => confused().map_err(unasked),
        }
    }
}

/// Why a filter cannot be sent, if it cannot.
fn too_long(filter: &Filter) -> Option<String> {
    let insns = filter.program().len();
    (insns > FILTER_INSNS_MAX)
        .then(|| format!("it has {insns} instructions, more than {FILTER_INSNS_MAX}"))
}

/// A hook in the broker.
#[derive(Debug)]
struct RemoteHook {
    broker: Broker,
    handle: Handle,
    /// The last known counts.
    counts: Mutex<BTreeMap<Counted, u64>>,
}

/// What a program counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Counted {
    /// Packets without a socket.
    Unseated,
    /// Frames for the interface's own address.
    Own,
    /// Non-matching packets of a queue.
    Filtered(u32),
}

impl RemoteHook {
    fn ask(&self, ask: HookAsk) -> io::Result<Reply> {
        let ask = Ask::Hook { hook: self.handle.number, ask };
        self.broker.connection.ask(&ask).map(|(reply, _)| reply)
    }

    fn change(&self, ask: HookAsk) -> Result<(), BpfError> {
        match self.ask(ask).map_err(unasked_bpf)? {
            Reply::Done => Ok(()),
            Reply::Bpf(error) => Err(error),
            _ => confused().map_err(unasked_bpf),
        }
    }

    fn attach(&self, ask: HookAsk) -> Result<(), OpenError> {
        match self.ask(ask).map_err(unasked)? {
            Reply::Done => Ok(()),
            Reply::Fault(fault) => Err(fault.into()),
            _ => confused().map_err(unasked),
        }
    }

    /// A count: the last known one, if the broker has ended.
    fn count(&self, counted: Counted) -> u64 {
        let ask = match counted {
            Counted::Unseated => HookAsk::Unseated,
            Counted::Own => HookAsk::Own,
            Counted::Filtered(queue) => HookAsk::Filtered { queue },
        };
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(counted).or_default();
        if let Ok(Reply::Count(current)) = self.ask(ask) {
            *count = current;
        }
        *count
    }
}

impl Hook for RemoteHook {
    fn receive(&self, key: u32, socket: SocketRef<'_>) -> Result<(), BpfError> {
        let socket = socket.handle.map_or(u32::MAX, |handle| handle.number);
        self.change(HookAsk::Receive { key, socket })
    }

    fn prepare(&self, filter: Option<&Filter>) -> Result<Where, BpfError> {
        let too_long = filter.and_then(too_long);
        let sent = filter.filter(|_| too_long.is_none());
        match self.ask(HookAsk::Prepare(sent.cloned())).map_err(unasked_bpf)? {
            Reply::Filters(filters) => Ok(too_long.map_or(filters, Where::UserSpace)),
            Reply::Bpf(error) => Err(error),
            _ => confused().map_err(unasked_bpf),
        }
    }

    fn exchange(&self, turn: &AttachLock) -> Result<(), BpfError> {
        self.change(HookAsk::Exchange { turn: turn.number().unwrap_or_default() })
    }

    fn keep_unfiltered(&self) -> Result<(), BpfError> {
        self.change(HookAsk::KeepUnfiltered)
    }

    fn prepare_to_pass(&self) -> Result<AttachLock, OpenError> {
        self.broker.turn_of(self.ask(HookAsk::PrepareToPass).map(|reply| (reply, None)))
    }

    fn is_in_place(&self) -> bool {
        // If the broker has ended, the kernel has detached the program.
        !matches!(self.ask(HookAsk::IsInPlace), Ok(Reply::Is(false)) | Err(_))
    }

    fn attach_again(&self) -> Result<(), OpenError> {
        self.attach(HookAsk::AttachAgain)
    }

    fn attach_anew(&self) -> Result<(), OpenError> {
        self.attach(HookAsk::AttachAnew)
    }

    fn run_on_new_queues(&self) -> Result<(), OpenError> {
        self.attach(HookAsk::RunOnNewQueues)
    }

    fn claim_queue(&self, queue: u32) -> Result<(), OpenError> {
        self.attach(HookAsk::ClaimQueue { queue })
    }

    fn add_queue(&self, queue: u32) -> Result<(), BpfError> {
        self.change(HookAsk::AddQueue { queue })
    }

    fn close_queue(&self, queue: u32, keys: &[u32]) {
        let _ = self.ask(HookAsk::CloseQueue { queue, keys: keys.to_vec() });
    }

    fn move_to(&self, device: &DeviceSummary) -> Result<HookState, OpenError> {
        match self.ask(HookAsk::MoveTo(device.clone())).map_err(unasked)? {
            Reply::State(state) => Ok(state),
            Reply::Fault(fault) => Err(fault.into()),
            _ => confused().map_err(unasked),
        }
    }

    fn unseated(&self) -> u64 {
        self.count(Counted::Unseated)
    }

    fn own(&self) -> u64 {
        self.count(Counted::Own)
    }

    fn filtered(&self, queue: u32) -> u64 {
        self.count(Counted::Filtered(queue))
    }

    fn leave(&self) {
        let _ = self.ask(HookAsk::Leave);
    }

    /// A process that has dropped its privileges does not fork.
    fn leave_to_others(&self) {
        self.leave();
    }
}
