//! Workers: the application's side of a capture, one per thread. [`group`](crate::group) and
//! [`waiting`](crate::capture::waiting) decide the next step; this module carries it out.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use rustix::time::Timespec;

use crate::capture::Shared;
use crate::capture::affinity::{Placement, bind_thread};
use crate::capture::in_place::ReadableRing;
use crate::capture::waiting::{LOOK_ROUND, Wait, Waiting};
use crate::error::CaptureError;
use crate::packet::reader::BlockReader;
use crate::umem::chunk::Chunk;
use crate::umem::reader::CellReader;

/// One thread's handle on a capture: captures chunks from its home rings, and in advanced mode from
/// buddies' rings above T.
#[derive(Debug)]
pub struct Worker {
    shared: Arc<Shared>,
    index: usize,
    waiting: Waiting,
    finished: bool,
    /// The caller already got the error of an interface that is no longer captured.
    told: bool,
    alarm: Alarm,
    placement: Placement,
    /// The thread was pinned according to `placement`.
    placed: bool,
    /// When the home rings' interfaces were last checked.
    checked: Instant,
    /// The caller waits on our descriptor, not in our functions.
    polled_outside: Cell<bool>,
    waker: Waker,
}

/// Ends a worker's wait from any thread or signal handler.
#[derive(Debug, Clone)]
pub struct Waker(Arc<Wake>);

#[derive(Debug)]
struct Wake {
    called: AtomicBool,
    bell: Arc<OwnedFd>,
}

impl Waker {
    fn of(alarm: &Alarm) -> Self {
        Self(Arc::new(Wake { called: AtomicBool::new(false), bell: alarm.bell() }))
    }

    /// Makes [`next_chunk_timeout`](Worker::next_chunk_timeout) return `None`: the current wait,
    /// otherwise the next one. One atomic store and one write(2), so it may be called from a signal
    /// handler.
    pub fn wake(&self) {
        self.0.called.store(true, Ordering::SeqCst);
        ring_bell(&self.0.bell);
    }

    /// Whether `wake` was called since the last check.
    fn was_called(&self) -> bool {
        self.0.called.load(Ordering::Relaxed) && self.0.called.swap(false, Ordering::SeqCst)
    }
}

impl AsFd for Waker {
    /// A descriptor that becomes readable on `wake`, for a caller that waits on something other
    /// than the worker. The eight bytes read from it have no meaning.
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.bell.as_fd()
    }
}

/// What wakes a worker: an epoll instance over its rings' sockets and an eventfd (bell) for other
/// threads.
#[derive(Debug)]
pub(crate) struct Alarm {
    epoll: Arc<OwnedFd>,
    bell: Arc<OwnedFd>,
}

impl Alarm {
    pub(crate) fn new() -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let alarm = Self { epoll: Arc::new(epoll), bell: Arc::new(bell) };
        alarm.watch(alarm.bell.as_fd())?;
        Ok(alarm)
    }

    pub(crate) fn watch(&self, descriptor: BorrowedFd<'_>) -> Result<(), Errno> {
        watch(&self.epoll, descriptor)
    }

    pub(crate) fn epoll(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.epoll)
    }

    pub(crate) fn bell(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.bell)
    }

    /// Waits for at most `longest`; returns what woke it.
    fn wait(&self, longest: Duration) -> Result<Woken, Errno> {
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); 1];
        let timeout = Timespec {
            tv_sec: longest.as_secs() as i64,
            tv_nsec: i64::from(longest.subsec_nanos()),
        };
        let woken = match epoll::wait(&*self.epoll, &mut events, Some(&timeout)) {
            Ok((ready, _)) => match ready.first().map(|event| event.flags) {
                None => Woken::Timeout,
                Some(flags) if flags.contains(epoll::EventFlags::ERR) => Woken::SocketError,
                Some(_) => Woken::Packets,
            },
            Err(Errno::INTR) => Woken::Packets,
            Err(errno) => return Err(errno),
        };

        self.silence();
        Ok(woken)
    }

    /// Resets the bell; a thread that rings it afterwards knows that the worker will look at its
    /// rings.
    fn silence(&self) {
        let _ = rustix::io::read(&*self.bell, &mut [0u8; 8]);
    }
}

/// What ends a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Woken {
    /// The time is over.
    Timeout,
    /// Packets, a buddy, or a signal.
    Packets,
    /// The error of a socket, which wakes until it is read: its interface was set down or removed.
    SocketError,
}

/// Wakes the worker that sleeps at `epoll` when `descriptor` is readable.
pub(crate) fn watch(epoll: &OwnedFd, descriptor: BorrowedFd<'_>) -> Result<(), Errno> {
    epoll::add(epoll, descriptor, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
}

/// Stops waking a worker on `descriptor`.
pub(crate) fn forget(epoll: &OwnedFd, descriptor: BorrowedFd<'_>) -> Result<(), Errno> {
    epoll::delete(epoll, descriptor)
}

/// Wakes the worker whose bell it is.
pub(crate) fn ring_bell(bell: &OwnedFd) {
    // A full counter (2^64 - 2) is as good as a ring.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

impl Worker {
    pub(crate) fn new(
        shared: Arc<Shared>,
        index: usize,
        alarm: Alarm,
        placement: Placement,
    ) -> Self {
        Self {
            index,
            waiting: Waiting::new(&shared.group, index),
            shared,
            finished: false,
            told: false,
            waker: Waker::of(&alarm),
            alarm,
            placed: placement.cpu.is_none(),
            placement,
            checked: Instant::now(),
            polled_outside: Cell::new(false),
        }
    }

    /// The worker's number in its capture, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Something that ends this worker's wait.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// The worker's CPU, with the reason. The first call for a chunk pins its thread.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Waits for the next chunk. `None` means that the capture was stopped and all earlier packets
    /// were delivered.
    ///
    /// # Errors
    ///
    /// If the interface was removed, or the kernel's side of a ring failed. Earlier packets were
    /// delivered first.
    pub fn next_chunk(&mut self) -> Result<Option<Chunk>, CaptureError> {
        self.begin(Duration::MAX)?;
        loop {
            let asked = self.try_next_chunk();
            if !matches!(asked, Ok(None)) || self.finished {
                return asked;
            }
            self.idle(Duration::MAX)?;
        }
    }

    /// Waits up to `longest` for the next chunk. `None` means a timeout, the end of the capture
    /// ([`is_finished`](Self::is_finished)), or a call of the [`Waker`].
    ///
    /// # Errors
    ///
    /// As [`next_chunk`](Self::next_chunk).
    pub fn next_chunk_timeout(&mut self, longest: Duration) -> Result<Option<Chunk>, CaptureError> {
        // None if that is beyond the range of the clock.
        let deadline = Instant::now().checked_add(longest);
        self.begin(longest)?;

        loop {
            let asked = self.try_next_chunk();
            if !matches!(asked, Ok(None)) {
                return asked;
            }

            let left = deadline
                .map_or(longest, |deadline| deadline.saturating_duration_since(Instant::now()));
            if self.finished || left.is_zero() || self.waker.was_called() {
                return Ok(None);
            }

            self.idle(left)?;
        }
    }

    /// Whether no packets wait in its home rings: a quick look, which costs a fraction of
    /// [`try_next_chunk`](Self::try_next_chunk) and takes no lock.
    pub fn is_idle(&self) -> bool {
        self.shared.group.home(self.index).all(|ring| ring.is_empty())
    }

    /// Makes the next wait for a chunk poll at once, without the short sleeps in which packets
    /// otherwise accumulate: for a caller that has already slept as long as packets may wait, and
    /// has found none.
    pub fn skip_sleeps(&mut self) {
        self.waiting.skip_sleeps();
    }

    /// A reader of the blocks of the worker's ring, which gets them before the worker does: for a
    /// program that is the only reader, on the engine `packet`, and needs no chunks. `None` for
    /// other captures: several rings, workers or stages, other engines, immediate mode.
    pub fn block_reader(&self) -> Option<BlockReader> {
        match self.only_ring()? {
            ReadableRing::Blocks(ring) => BlockReader::new(ring),
            ReadableRing::Cells(_) => None,
        }
    }

    /// A reader of the cells of the worker's ring, which gets them before the worker does: for a
    /// program that is the only reader, on the engine `xdp`, and needs no chunks. `None` for other
    /// captures: several rings, workers or stages, an elastic pool or warm cells, other engines.
    pub fn cell_reader(&self) -> Option<CellReader> {
        match self.only_ring()? {
            ReadableRing::Cells(ring) => CellReader::new(ring),
            ReadableRing::Blocks(_) => None,
        }
    }

    /// The ring, if it is the only one and no other worker takes packets from it.
    fn only_ring(&self) -> Option<ReadableRing> {
        let group = &self.shared.group;
        let is_alone =
            group.workers() == 1 && group.rings().len() == 1 && self.shared.exchange().is_none();
        is_alone.then(|| self.shared.first_ring()).flatten()
    }

    /// The next chunk, without waiting. `None` means that no packets wait, or that the capture has
    /// ended ([`is_finished`](Self::is_finished)).
    ///
    /// # Errors
    ///
    /// As [`next_chunk`](Self::next_chunk).
    pub fn try_next_chunk(&mut self) -> Result<Option<Chunk>, CaptureError> {
        if !self.polled_outside.get() {
            return self.ask();
        }

        self.shared.group.set_asleep(self.index, false);
        let chunk = self.ask()?;
        if chunk.is_some() || self.finished {
            return Ok(chunk);
        }

        // The caller will poll now. From here on, a worker that needs help must ring. The second
        // `ask` finds a worker that needed help before.
        self.alarm.silence();
        self.shared.group.set_asleep(self.index, true);

        if self.checked.elapsed() >= LOOK_ROUND {
            self.checked = Instant::now();
            // Only resets errors, which would wake the caller forever. It learns otherwise that an
            // interface is gone.
            self.shared.group.home(self.index).for_each(|ring| _ = ring.is_gone());
        }

        self.ask()
    }

    fn ask(&mut self) -> Result<Option<Chunk>, CaptureError> {
        if !self.placed {
            self.take_place()?;
        }
        if self.shared.has_failed() && !self.told {
            self.tell()?;
        }
        if let Some(exchange) = self.shared.exchange() {
            exchange.tend();
        }

        let shared = &*self.shared;
        let asked = self.waiting.ask(&shared.group, || shared.now());

        if self.waiting.calls() > 0 {
            self.call(self.waiting.calls());
        }

        self.finished |= self.waiting.has_ended();
        asked
    }

    /// Wakes this many sleeping buddies, or all.
    #[cold]
    fn call(&self, calls: usize) {
        let group = &self.shared.group;
        let sleepers = (0..calls).map_while(|_| group.next_sleeper(self.index));
        sleepers.for_each(|buddy| self.shared.wake(buddy));
    }

    /// Reports once that an interface is no longer captured. A worker that never rests would not
    /// notice.
    #[cold]
    fn tell(&mut self) -> Result<(), CaptureError> {
        let failure = self.shared.failure_of(self.index);
        self.told = failure.is_some();
        failure.map_or(Ok(()), Err)
    }

    #[cold]
    fn take_place(&mut self) -> Result<(), CaptureError> {
        self.placed = true;
        let failed = |source| CaptureError::System { action: "bind a worker to its CPU", source };
        self.placement.cpu.map_or(Ok(()), bind_thread).map_err(failed)
    }

    /// Whether the capture was stopped and this worker has got all its packets.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Rests before asking for packets, if that pays.
    #[inline]
    fn begin(&mut self, longest: Duration) -> Result<(), CaptureError> {
        let shared = &*self.shared;
        match self.waiting.begin(&shared.group, || shared.now()) {
            Some(wait) => self.wait(wait, longest),
            None => Ok(()),
        }
    }

    /// Waits after finding no packets.
    fn idle(&mut self, longest: Duration) -> Result<(), CaptureError> {
        let shared = &*self.shared;
        // Packets left on a tx ring advance only with a call to the kernel.
        let lags = shared.exchange().is_some_and(|exchange| exchange.is_busy());
        let wait = self.waiting.idle(&shared.group, || shared.now(), lags);
        self.wait(wait, longest)
    }

    /// Waits for at most `longest`.
    #[cold]
    fn wait(&mut self, wait: Wait, longest: Duration) -> Result<(), CaptureError> {
        match wait {
            Wait::Yield => thread::yield_now(),
            Wait::Sleep(time) => thread::sleep(time.min(longest)),
            Wait::Poll(time) => {
                if self.checked.elapsed() >= LOOK_ROUND {
                    self.checked = Instant::now();
                    self.check_rings()?;
                }

                let failed = |errno: Errno| CaptureError::System {
                    action: "wait for packets",
                    source: errno.into(),
                };
                match self.alarm.wait(time.min(longest)).map_err(failed)? {
                    // No packets arrived: a short sleep would only be another wake-up.
                    Woken::Timeout => self.waiting.skip_sleeps(),
                    Woken::Packets => {}
                    Woken::SocketError => self.check_rings()?,
                }
            }
        }
        Ok(())
    }

    /// Looks whether the interfaces of the home rings exist, which also resets the errors of their
    /// sockets.
    fn check_rings(&self) -> Result<(), CaptureError> {
        // All of them, even if the first one is gone.
        let gone = self.shared.group.home(self.index).filter(|ring| ring.is_gone()).last();
        match gone.filter(|_| !self.shared.waits_for_interfaces) {
            Some(ring) => Err(CaptureError::InterfaceGone {
                interface: ring.identity().name.interface.clone(),
            }),
            None => Ok(()),
        }
    }
}

impl AsFd for Worker {
    /// A descriptor for poll, select or epoll, readable when
    /// [`try_next_chunk`](Self::try_next_chunk) may find packets in a home ring, a buddy needs
    /// help, or the capture ends. Poll it after `try_next_chunk` returned none. A stuck buddy
    /// cannot wake this worker, so call `try_next_chunk` at intervals as well.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.polled_outside.set(true);
        self.alarm.epoll.as_fd()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.group.leave(self.index);
        self.shared.wake_all();
    }
}
